package opencode

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/servers"
)

// What the driver writes beneath Launch.Home.
const (
	pluginFile = "turnpike.js"
	systemFile = "turnpike-system.md"
	// What the plugin keeps there, and what the CLI does.
	conversationFile = "turnpike-conversation.json"
	databaseFile     = "data/opencode/opencode.db"
)

// configDir is where the CLI would have npm install types for writing plugins, at every
// start in a fresh home, if it did not find installed what is listed there.
const (
	configDir = "config/opencode"
	installed = `{"dependencies":{"@opencode-ai/plugin":"*"},"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}` + "\n"
)

// maxConfig is how long one variable of the environment may be, its name left out.
const maxConfig = 120 << 10

// xdg are the CLI's directories beneath Launch.Home, by the variable that names each.
var xdg = map[string]string{
	"XDG_CONFIG_HOME": "config",
	"XDG_DATA_HOME":   "data",
	"XDG_STATE_HOME":  "state",
	"XDG_CACHE_HOME":  "cache",
}

// skillTool is the CLI's tool that loads a skill.
const skillTool = "skill"

// finder is the program by which that tool lists a skill's files.
const finder = "rg"

// instructions is the workspace's file whose text the model is to follow.
const instructions = "AGENTS.md"

var (
	efforts        = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}
	toolName       = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,127}$`)
	modelName      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}/[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]{0,191}$`)
	conversationID = regexp.MustCompile(`^ses_[A-Za-z0-9]{8,64}$`)
)

// reserved are server names with which a server's tools would look like the CLI's own:
// apply_patch, list_mcp_resources, plan_exit, read_mcp_resource.
var reserved = []string{"apply", "list", "plan", "read"}

// Command says how the CLI is run for this turn.
func (d Driver) Command(l agent.Launch) (*agent.Command, error) {
	if err := supported(l); err != nil {
		return nil, err
	}
	mcp, err := mcpConfig(l)
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(d.config(l, mcp))
	if err != nil {
		return nil, fmt.Errorf("configure opencode: %w", err)
	}
	if len(config) > maxConfig {
		return nil, fmt.Errorf("opencode: %w: the servers and providers make a configuration of %d bytes, it takes %d", agent.ErrUnsupported, len(config), maxConfig)
	}
	if err := d.write(l); err != nil {
		return nil, err
	}
	return &agent.Command{
		Args: arguments(l), Env: append(environment(l), "OPENCODE_CONFIG_CONTENT="+string(config)),
		Stdin: strings.NewReader(l.Request.Prompt),
	}, nil
}

// supported refuses what the CLI, or this driver, cannot do.
func supported(l agent.Launch) error {
	p := l.Request.Profile
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("opencode: %w: %s", agent.ErrUnsupported, fmt.Sprintf(format, args...))
	}
	switch {
	case strings.TrimSpace(l.Request.Prompt) == "":
		return refuse("it does not start without a prompt")
	case p.Sandbox == agent.SandboxClaude:
		return refuse("%s", notClaude)
	case len(p.Skills) != len(l.Skills):
		return refuse("%d of %d skills are prepared", len(l.Skills), len(p.Skills))
	case len(l.Skills) > 0 && (l.Turn.Tools != nil && !slices.Contains(l.Turn.Tools, skillTool) || slices.Contains(p.DisallowedTools, skillTool)):
		return refuse("skills are loaded by the tool %s, which the turn does not have", skillTool)
	case len(l.Skills) > 0 && l.Turn.Binds == nil && !runs(l.Turn.Env, finder):
		return refuse("its tool %s needs ripgrep, and would fetch it: install %s in a directory of the turn's PATH", skillTool, finder)
	case p.Effort != "" && !slices.Contains(efforts, p.Effort):
		return refuse("effort %q: it knows %s", p.Effort, strings.Join(efforts, ", "))
	case p.MaxTurns < 0:
		return refuse("max turns %d is below zero", p.MaxTurns)
	case p.Model != "" && !modelName.MatchString(p.Model):
		return refuse("%.64q is no model's name: provider/model", p.Model)
	case l.Request.ResumeID != "" && !conversationID.MatchString(l.Request.ResumeID):
		return refuse("conversation %.64q: its ids begin with ses_", l.Request.ResumeID)
	case !path.IsAbs(l.WorkDir):
		return refuse("directory %q is not absolute", l.WorkDir)
	}
	for _, t := range slices.Concat(l.Turn.Tools, p.DisallowedTools) {
		if !toolName.MatchString(t) {
			return refuse("tool %.128q: it is held to whole tools, by name", t)
		}
	}
	return nil
}

// runs says whether a program is on the host's part of a turn's PATH.
func runs(env []string, program string) bool {
	dirs := agent.CommandDirs()
	for _, v := range env {
		if set, ok := strings.CutPrefix(v, "PATH="); ok {
			dirs = filepath.SplitList(set)
		}
	}
	return slices.ContainsFunc(dirs, func(dir string) bool {
		info, err := os.Stat(filepath.Join(dir, program))
		return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
	})
}

// arguments gives every value in the form --name=value, in which it can never be taken
// for an option.
func arguments(l agent.Launch) []string {
	p := l.Request.Profile
	args := []string{
		"run", "--format=json",
		// Without a title it asks the model for one first, which fails on its own.
		"--title=" + cmp.Or(l.Title, "turn"),
	}
	if p.Model != "" {
		args = append(args, "--model="+p.Model)
	}
	if p.Effort != "" {
		args = append(args, "--variant="+p.Effort)
	}
	if l.Request.ResumeID != "" {
		args = append(args, "--session="+l.Request.ResumeID)
	}
	return args
}

func environment(l agent.Launch) []string {
	env := []string{
		"OPENCODE_DISABLE_PROJECT_CONFIG=1", "OPENCODE_DISABLE_CLAUDE_CODE=1", "OPENCODE_DISABLE_EXTERNAL_SKILLS=1",
		// Nothing is fetched, sent or updated beside the turn's own requests.
		"OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1",
		"OPENCODE_DISABLE_SHARE=1",
		// It also looks for configuration and plugins in the user's home directory,
		// which need not be the turn's own.
		"OPENCODE_TEST_HOME=" + l.HomeInside,
		// It was on whenever the CLI was seen to hang before its first request.
		"OPENCODE_EXPERIMENTAL_DISABLE_FILEWATCHER=1",
	}
	for _, name := range slices.Sorted(maps.Keys(xdg)) {
		env = append(env, name+"="+path.Join(l.HomeInside, xdg[name]))
	}
	return env
}

// write writes the files that the configuration names, whatever an earlier turn left in
// their places.
func (d Driver) write(l agent.Launch) error {
	code, err := plugin(d.rules(l))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(l.Home, configDir, "node_modules"), 0o700); err != nil {
		return unready("configure opencode", err)
	}
	for name, data := range map[string][]byte{
		pluginFile:                           code,
		systemFile:                           []byte(l.Request.SystemPrompt),
		path.Join(configDir, "package.json"): []byte(installed),
		path.Join(configDir, "package-lock.json"): []byte(installed),
	} {
		if err := os.WriteFile(filepath.Join(l.Home, name), data, 0o600); err != nil {
			return unready("configure opencode", err)
		}
	}
	return nil
}

type object = map[string]any

// config is the CLI's configuration. It goes into the environment: a file would lie where
// the agent can write, and is read more than once.
func (d Driver) config(l agent.Launch, mcp any) object {
	texts := []string{}
	if readsFiles(l.Turn) {
		texts = append(texts, path.Join(l.WorkDir, instructions))
	}
	if l.Request.SystemPrompt != "" {
		texts = append(texts, path.Join(l.HomeInside, systemFile))
	}
	skills := []string{}
	for _, dir := range l.Skills {
		skills = append(skills, path.Join(dir, "skills"))
	}
	return object{
		"autoupdate": false, "share": "disabled", "snapshot": false,
		"lsp": false, "formatter": false,
		"plugin":       []string{"file://" + path.Join(l.HomeInside, pluginFile)},
		"instructions": texts,
		"skills":       object{"paths": skills},
		"permission":   permissions(l),
		"provider":     d.providers(),
		"mcp":          mcp,
	}
}

// rules are what the plugin keeps in this turn.
func (d Driver) rules(l agent.Launch) rules {
	r := rules{
		Turns: l.Request.Profile.MaxTurns, Retries: d.retries(), Resume: l.Request.ResumeID,
		Conversation: path.Join(l.HomeInside, conversationFile), Database: path.Join(l.HomeInside, databaseFile),
	}
	if l.Turn.Tools != nil {
		r.Granted = append(builtIn(l.Turn.Tools), serverTools(l)...)
	}
	for _, t := range l.Request.Profile.DisallowedTools {
		r.Denied = append(r.Denied, nativeTool(t))
	}
	return r
}

// edits are the tools that the CLI has one permission for.
var edits = []string{"edit", "write", "apply_patch", "multiedit", "patch"}

// permissions decide what the model is offered. Nobody is asked: what would be asked
// about is decided by the grants. The later of two rules that match holds, and JSON
// members stand in the order of their names, in which "*" is the first.
func permissions(l agent.Launch) object {
	if l.Turn.Tools == nil && len(l.Request.Profile.DisallowedTools) == 0 {
		return object{"*": "allow"}
	}
	out := object{"*": "allow"}
	if l.Turn.Tools != nil {
		out = object{"*": "deny", "external_directory": "allow", "doom_loop": "allow"}
		for _, t := range append(builtIn(l.Turn.Tools), serverTools(l)...) {
			out[permission(t)] = "allow"
		}
	}
	for _, t := range l.Request.Profile.DisallowedTools {
		// One of several tools with one permission is offered and kept from running.
		if t = nativeTool(t); !slices.Contains(edits, t) {
			out[t] = "deny"
		}
	}
	return out
}

func permission(tool string) string {
	if slices.Contains(edits, tool) {
		return "edit"
	}
	return tool
}

// builtIn leaves out MCP tools, which are had by having their server.
func builtIn(tools []string) []string {
	return slices.DeleteFunc(slices.Clone(tools), func(t string) bool {
		return strings.HasPrefix(t, agent.MCPToolPrefix)
	})
}

// serverTools are the tools of the turn's servers, by how their names begin.
func serverTools(l agent.Launch) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(l.MCP)) {
		out = append(out, name+"_*")
	}
	return out
}

// nativeTool is the CLI's name of a tool: "mcp__server__tool" is server_tool there, and
// "mcp__server" server_*.
func nativeTool(tool string) string {
	rest, isMCP := strings.CutPrefix(tool, agent.MCPToolPrefix)
	if !isMCP {
		return tool
	}
	server, name, whole := strings.Cut(rest, "__")
	if !whole {
		name = "*"
	}
	return server + "_" + name
}

func readsFiles(t *agent.Turn) bool { return t.Tools == nil || slices.Contains(t.Tools, "read") }

func (d Driver) providers() object {
	out := object{}
	for name, p := range d.Providers {
		entry := object{}
		if p.Package != "" {
			entry["npm"] = p.Package
		}
		if p.BaseURL != "" {
			entry["options"] = object{"baseURL": p.BaseURL}
		}
		if p.KeyEnv != "" {
			entry["env"] = []string{p.KeyEnv}
		}
		models := object{}
		for _, m := range p.Models {
			model := object{"reasoning": m.Reasoning}
			if m.ContextWindow > 0 || m.MaxTokens > 0 {
				model["limit"] = object{"context": m.ContextWindow, "output": m.MaxTokens}
			}
			if m.Price != nil {
				model["cost"] = m.Price
			}
			models[m.ID] = model
		}
		if len(models) > 0 {
			entry["models"] = models
		}
		out[name] = entry
	}
	return out
}

// mcpConfig renders the turn's servers. The agent can read them.
func mcpConfig(l agent.Launch) (any, error) {
	out := object{}
	names := slices.Sorted(maps.Keys(l.MCP))
	for _, name := range names {
		e := l.MCP[name]
		refuse := func(kind error, format string, args ...any) (any, error) {
			return nil, fmt.Errorf("opencode: MCP server %.64q: %w: %s", name, kind, fmt.Sprintf(format, args...))
		}
		overHTTP, err := servers.Check(name, e, l.Turn.Env)
		if err != nil {
			return nil, fmt.Errorf("opencode: %w", err)
		}
		if slices.Contains(reserved, name) {
			return refuse(agent.ErrUnsupported, "its tools would look like the CLI's own; name it otherwise")
		}
		for _, other := range names {
			if strings.HasPrefix(other, name+"_") {
				return refuse(agent.ErrUnsupported, "its tools could not be told from those of %s; name one of them otherwise", other)
			}
		}
		if where, found := servers.Expands(e, "{env:", "{file:"); found {
			return refuse(agent.ErrNotGranted, "%s contains \"{env:\" or \"{file:\", which would be replaced", where)
		}
		if !overHTTP {
			out[name] = object{"type": "local", "command": append([]string{e.Command}, e.Args...), "environment": known(e.Env)}
			continue
		}
		headers := known(e.Headers)
		if e.BearerTokenEnv != "" {
			// The CLI puts the value into the configuration's text before it reads it.
			if !plain(l.Turn.Env, e.BearerTokenEnv) {
				return refuse(agent.ErrUnsupported, "the value of %s holds a quote, a backslash or a control character", e.BearerTokenEnv)
			}
			headers[servers.Authorization] = "Bearer {env:" + e.BearerTokenEnv + "}"
		}
		out[name] = object{"type": "remote", "url": e.URL, "headers": headers, "oauth": false}
	}
	return out, nil
}

// known is a copy of a map; the CLI takes no null for an empty one.
func known(m map[string]string) map[string]string {
	out := map[string]string{}
	maps.Copy(out, m)
	return out
}

// plain says whether a variable's value can stand in a JSON string as it is.
func plain(env []string, name string) bool {
	for _, v := range env {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' })
		}
	}
	return true
}
