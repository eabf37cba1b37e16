package claude

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"turnpike/internal/agent"
)

// What the driver writes beneath Launch.Home.
const (
	mcpFile    = "turnpike-mcp.json"
	systemFile = "turnpike-system.md"
	tmpDir     = "tmp"
)

// maxPrompt is what the CLI takes on its standard input.
const maxPrompt = 10_000_000

// beyond are tools that promise what a headless turn cannot keep, or that reach other
// sessions of the same user.
var beyond = []string{"ScheduleWakeup", "ListAgents", "SendMessage"}

// skillTool is the CLI's tool that loads a skill.
const skillTool = "Skill"

var (
	shells         = []string{"bash", "zsh"}
	efforts        = []string{"low", "medium", "high", "xhigh", "max"}
	toolName       = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,127}$`)
	modelName      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]{0,255}$`)
	conversationID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
)

// Command says how the CLI is run for this turn.
func (d Driver) Command(l agent.Launch) (*agent.Command, error) {
	if err := supported(l); err != nil {
		return nil, err
	}
	args, err := arguments(l)
	if err != nil {
		return nil, err
	}
	if err := configure(l); err != nil {
		return nil, err
	}
	return &agent.Command{Args: args, Env: d.environment(l), Stdin: strings.NewReader(prompt(l.Request.Prompt))}, nil
}

// supported refuses what the CLI, or this driver, cannot do.
func supported(l agent.Launch) error {
	p := l.Request.Profile
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("claude: %w: %s", agent.ErrUnsupported, fmt.Sprintf(format, args...))
	}
	switch size := len(l.Request.Prompt); {
	case size > maxPrompt:
		return refuse("a prompt has at most %d bytes, this one has %d; put the rest into a file of the workspace", maxPrompt, size)
	case strings.TrimSpace(l.Request.Prompt) == "":
		return refuse("it does not start without a prompt")
	case len(p.Skills) != len(l.Skills):
		return refuse("%d of %d skills are prepared", len(l.Skills), len(p.Skills))
	case len(l.Skills) > 0 && (l.Turn.Tools != nil && !slices.Contains(l.Turn.Tools, skillTool) || slices.Contains(p.DisallowedTools, skillTool)):
		return refuse("skills are loaded by the tool %s, which the turn does not have", skillTool)
	case p.Shell != "" && !slices.Contains(shells, path.Base(p.Shell)):
		return refuse("shell %q: it knows %s", p.Shell, strings.Join(shells, ", "))
	case p.Effort != "" && !slices.Contains(efforts, p.Effort):
		return refuse("effort %q: it knows %s", p.Effort, strings.Join(efforts, ", "))
	case p.MaxTurns < 0:
		return refuse("max turns %d is below zero", p.MaxTurns)
	case l.Request.ResumeID != "" && !conversationID.MatchString(l.Request.ResumeID):
		return refuse("conversation %.64q: its ids are UUIDs", l.Request.ResumeID)
	}
	if p.Sandbox == agent.SandboxClaude {
		if err := holdable(l); err != nil {
			return err
		}
	}
	for _, t := range slices.Concat(l.Turn.Tools, p.DisallowedTools) {
		if !toolName.MatchString(t) {
			return refuse("tool %.128q: it is held to whole tools, by name", t)
		}
	}
	for _, m := range append(fallbacks(p), p.Model) {
		if m != "" && !modelName.MatchString(m) {
			return refuse("%.64q is no model's name", m)
		}
	}
	return nil
}

// arguments gives every option in the form --name=value, in which a value can never
// be taken for an option and a list ends where it should.
func arguments(l agent.Launch) ([]string, error) {
	p := l.Request.Profile
	mode, tools := "bypassPermissions", l.Turn.Tools
	if l.Turn.OwnSandbox != nil {
		// What no rule of the settings allows is denied.
		mode, tools = "dontAsk", heldTools(l.Turn)
	}
	args := []string{
		"-p", "--verbose", "--output-format=stream-json",
		"--permission-mode=" + mode,
		"--setting-sources=",
		"--strict-mcp-config", "--mcp-config=" + path.Join(l.HomeInside, mcpFile),
	}
	option := func(name, value string) { args = append(args, "--"+name+"="+value) }
	if len(l.Skills) == 0 {
		args = append(args, "--disable-slash-commands")
	}
	switch {
	case l.Turn.OwnSandbox != nil:
		option("settings", path.Join(l.HomeInside, settingsFile))
	case len(l.Skills) > 0:
		// A skill brings text and files. What it would have run as it is loaded the
		// turn may not have been granted.
		option("settings", `{"disableSkillShellExecution":true,"disableAllHooks":true}`)
	}
	for _, dir := range l.Skills {
		option("plugin-dir", dir)
	}
	if l.Title != "" {
		option("name", l.Title)
	}
	if p.Model != "" {
		option("model", p.Model)
	}
	if models := fallbacks(p); len(models) > 0 {
		option("fallback-model", strings.Join(models, ","))
	}
	if p.Effort != "" {
		option("effort", p.Effort)
	}
	if p.MaxTurns > 0 {
		option("max-turns", strconv.Itoa(p.MaxTurns))
	}
	if tools != nil {
		option("tools", strings.Join(builtIn(tools), ","))
	}
	option("disallowedTools", strings.Join(slices.Concat(beyond, p.DisallowedTools), ","))
	dirs := l.Turn.WriteDirs
	if readsFiles(l.Turn) {
		// CLAUDE.md counts as a setting of the project, and those are off; that of
		// an added directory is read for its own sake (see environment).
		dirs = append([]string{l.WorkDir}, dirs...)
	}
	for _, dir := range dirs {
		if !path.IsAbs(dir) {
			return nil, fmt.Errorf("claude: %w: directory %q is not absolute", agent.ErrUnsupported, dir)
		}
		option("add-dir", dir)
	}
	if l.Request.SystemPrompt != "" {
		option("append-system-prompt-file", path.Join(l.HomeInside, systemFile))
	}
	if l.Request.ResumeID != "" {
		option("resume", l.Request.ResumeID)
		// By default the conversation's first system prompt is used for ever, and
		// this turn's would be dropped without a word.
		option("system-prompt-snapshot", "off")
	}
	return args, nil
}

// environment is what configures the CLI beyond its arguments.
func (d Driver) environment(l agent.Launch) []string {
	env := []string{
		"CLAUDE_CONFIG_DIR=" + l.HomeInside,
		"CLAUDE_CODE_TMPDIR=" + path.Join(l.HomeInside, tmpDir),
		"CLAUDE_CODE_MAX_RETRIES=" + strconv.Itoa(d.retries()),
		// Without this, MCP tools are hidden behind a search the model must think of.
		"ENABLE_TOOL_SEARCH=false",
		// Nothing is fetched, sent or updated beside the turn's own requests.
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
		"DISABLE_AUTOUPDATER=1",
		"DISABLE_TELEMETRY=1",
		"DISABLE_ERROR_REPORTING=1",
		// A mention of a file in the prompt is read even without a tool for it.
		"CLAUDE_CODE_DISABLE_FILE_MENTIONS=1",
		// A headless turn ends with the model's last word, and leaves no notes
		// behind for a next one it may never have.
		"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS=1",
		"CLAUDE_CODE_DISABLE_CRON=1",
		"CLAUDE_CODE_DISABLE_AUTO_MEMORY=1",
	}
	if len(l.Skills) > 0 {
		// Nobody asked for the skills that come with the CLI; two of them, which only
		// tell about the CLI, it offers all the same.
		env = append(env, "CLAUDE_CODE_DISABLE_BUNDLED_SKILLS=1", "CLAUDE_CODE_SKIP_PLUGIN_MCP_SERVERS=1")
	}
	if shell := l.Request.Profile.Shell; shell != "" {
		env = append(env, "CLAUDE_CODE_SHELL="+shell)
	}
	if readsFiles(l.Turn) {
		env = append(env, "CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD=1")
	}
	if l.Root && l.Turn.OwnSandbox == nil {
		// The CLI refuses to bypass its prompts as root unless it is told that
		// something else holds it. It is held as well as it is as another user.
		env = append(env, "IS_SANDBOX=1")
	}
	return env
}

// configure writes the files that arguments names.
func configure(l agent.Launch) error {
	servers, err := mcpConfig(l)
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(l.Home, tmpDir), 0o700); err != nil && !os.IsExist(err) {
		return unready(err)
	}
	if err := os.WriteFile(filepath.Join(l.Home, mcpFile), servers, 0o600); err != nil {
		return unready(err)
	}
	if l.Turn.OwnSandbox != nil {
		text, err := renderSettings(ownSandbox(l))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(l.Home, settingsFile), text, 0o600); err != nil {
			return unready(err)
		}
	}
	if l.Request.SystemPrompt == "" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(l.Home, systemFile), []byte(l.Request.SystemPrompt), 0o600); err != nil {
		return unready(err)
	}
	return nil
}

func unready(err error) error {
	return fmt.Errorf("configure claude: %w: %w", agent.ErrUnready, err)
}

// prompt keeps a prompt that opens with a slash from being run as a command of the
// CLI, some of which end the turn at once and call it a success.
func prompt(text string) string {
	if strings.HasPrefix(text, "/") {
		return "\n" + text
	}
	return text
}

// fallbacks are the models of the profiles to fall back to, for as long as they are
// this agent's own.
func fallbacks(p agent.Profile) []string {
	models := []string{p.Model}
	for f := p.Fallback; f != nil && f.AgentName() == agent.AgentClaude; f = f.Fallback {
		if f.Model == "" || slices.Contains(models, f.Model) {
			break
		}
		models = append(models, f.Model)
	}
	return models[1:]
}

// builtIn leaves out MCP tools, which are had by having their server.
func builtIn(tools []string) []string {
	return slices.DeleteFunc(slices.Clone(tools), func(t string) bool {
		return strings.HasPrefix(t, agent.MCPToolPrefix)
	})
}

func readsFiles(t *agent.Turn) bool {
	return t.Tools == nil || slices.Contains(t.Tools, "Read")
}
