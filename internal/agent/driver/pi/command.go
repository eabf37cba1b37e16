package pi

import (
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

// What the driver writes beneath Launch.Home. The names of the CLI's own files are given.
const (
	settingsFile  = "settings.json"
	modelsFile    = "models.json"
	serversFile   = "mcp.json"
	extensionFile = "turnpike.js"
	systemFile    = "turnpike-system.md"
	sessionsDir   = "sessions"
)

// readTool is the CLI's tool that reads files, by which the model loads a skill too.
const readTool = "read"

var (
	efforts        = []string{"off", "minimal", "low", "medium", "high", "xhigh", "max"}
	toolName       = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,127}$`)
	modelName      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]{0,255}$`)
	conversationID = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?$`)
)

// Command says how the CLI is run for this turn.
func (d Driver) Command(l agent.Launch) (*agent.Command, error) {
	if err := supported(l); err != nil {
		return nil, err
	}
	mcp, err := mcpConfig(l)
	if err != nil {
		return nil, err
	}
	sources, fetches, err := packages(l)
	if err != nil {
		return nil, err
	}
	if err := d.configure(l, mcp, fetches); err != nil {
		return nil, err
	}
	return &agent.Command{Args: arguments(l, sources), Env: []string{
		"PI_CODING_AGENT_DIR=" + l.HomeInside,
		// Nothing is fetched, sent or updated beside the turn's own requests and packages.
		offline(fetches), "PI_TELEMETRY=0", "PI_SKIP_VERSION_CHECK=1", "npm_config_update_notifier=false",
	}}, nil
}

// supported refuses what the CLI, or this driver, cannot do.
func supported(l agent.Launch) error {
	p := l.Request.Profile
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("pi: %w: %s", agent.ErrUnsupported, fmt.Sprintf(format, args...))
	}
	switch {
	case strings.TrimSpace(l.Request.Prompt) == "":
		return refuse("it does not start without a prompt")
	case p.Sandbox == agent.SandboxClaude:
		return refuse("%s", notClaude)
	case len(p.Skills) != len(l.Skills):
		return refuse("%d of %d skills are prepared", len(l.Skills), len(p.Skills))
	case len(l.Skills) > 0 && (!readsFiles(l.Turn) || slices.Contains(p.DisallowedTools, readTool)):
		return refuse("skills are loaded by the tool %s, which the turn does not have", readTool)
	case p.Effort != "" && !slices.Contains(efforts, p.Effort):
		return refuse("effort %q: it knows %s", p.Effort, strings.Join(efforts, ", "))
	case p.MaxTurns < 0:
		return refuse("max turns %d is below zero", p.MaxTurns)
	case p.Model != "" && !modelName.MatchString(p.Model):
		return refuse("%.64q is no model's name", p.Model)
	case l.Request.ResumeID != "" && !conversationID.MatchString(l.Request.ResumeID):
		return refuse("conversation %.64q: an id has letters, digits, \".\", \"_\" and \"-\", and ends as it begins with a letter or a digit", l.Request.ResumeID)
	}
	for _, t := range slices.Concat(l.Turn.Tools, p.DisallowedTools) {
		if !toolName.MatchString(t) {
			return refuse("tool %.128q: it is held to whole tools, by name", t)
		}
	}
	return nil
}

// arguments are told apart by their places: the CLI knows no --name=value. None of the
// values can be taken for an option, as supported has seen to.
func arguments(l agent.Launch, packages []string) []string {
	p := l.Request.Profile
	args := []string{
		"--mode", "rpc", "--no-approve",
		"--no-extensions", "-e", path.Join(l.HomeInside, extensionFile),
		"--no-skills", "--no-prompt-templates", "--no-themes",
		// Of a project's settings this one place is read although it is not trusted.
		"--session-dir", path.Join(l.HomeInside, sessionsDir),
	}
	if len(l.MCP) > 0 {
		args = append(args, "-e", "builtin:mcp") // --no-extensions covers it
	}
	for _, source := range packages {
		args = append(args, "-e", source)
	}
	for _, dir := range l.Skills {
		args = append(args, "--skill", path.Join(dir, "skills")) // --no-skills covers it
	}
	if p.Model != "" {
		args = append(args, "--model", p.Model)
	}
	if p.Effort != "" {
		args = append(args, "--thinking", p.Effort)
	}
	if l.Title != "" && !strings.HasPrefix(l.Title, "-") { // or it would pass for an option
		args = append(args, "--name", l.Title)
	}
	if !readsFiles(l.Turn) {
		args = append(args, "--no-context-files")
	}
	args = append(args, toolArguments(l)...)
	if l.Request.SystemPrompt != "" {
		args = append(args, "--append-system-prompt", path.Join(l.HomeInside, systemFile))
	}
	if l.Request.ResumeID != "" {
		args = append(args, "--session-id", l.Request.ResumeID)
	}
	return args
}

func toolArguments(l agent.Launch) []string {
	var args []string
	if l.Turn.Tools != nil {
		var tools []string
		for _, t := range l.Turn.Tools {
			if !strings.HasPrefix(t, agent.MCPToolPrefix) {
				tools = append(tools, t)
			}
		}
		// A list that names no server's tools hides them all from the model.
		for _, name := range slices.Sorted(maps.Keys(l.MCP)) {
			tools = append(tools, toolOf(name)+"__*")
		}
		if len(tools) == 0 {
			args = append(args, "--no-tools")
		} else {
			args = append(args, "--tools", strings.Join(tools, ","))
		}
	}
	var without []string
	for _, t := range l.Request.Profile.DisallowedTools {
		switch server, tool, isMCP := mcpTool(t); {
		case !isMCP:
			without = append(without, t)
		case tool == "":
			without = append(without, toolOf(server)+"__*")
		default:
			without = append(without, toolOf(server)+"__"+underscored(tool))
		}
	}
	if len(without) > 0 {
		args = append(args, "--exclude-tools", strings.Join(without, ","))
	}
	return args
}

// mcpTool takes "mcp__server__tool", or "mcp__server", apart.
func mcpTool(name string) (server, tool string, ok bool) {
	rest, ok := strings.CutPrefix(name, agent.MCPToolPrefix)
	server, tool, _ = strings.Cut(rest, "__")
	return server, tool, ok
}

// toolOf is how the names of a server's tools begin.
func toolOf(server string) string { return agent.MCPToolPrefix + underscored(server) }

func underscored(name string) string { return strings.ReplaceAll(name, "-", "_") }

func readsFiles(t *agent.Turn) bool { return t.Tools == nil || slices.Contains(t.Tools, readTool) }

// configure writes the files that the CLI and its arguments name, whatever an earlier
// turn left in their places.
func (d Driver) configure(l agent.Launch, mcp any, fetches []fetched) error {
	for name, content := range map[string]any{
		settingsFile: d.settings(l.Request.Profile.Shell),
		modelsFile:   d.models(),
		serversFile:  mcp,
	} {
		data, err := json.MarshalIndent(content, "", "  ")
		if err != nil {
			return fmt.Errorf("configure pi: %w", err)
		}
		if err := write(l, name, data); err != nil {
			return err
		}
	}
	code, err := extension(l.Request.Profile.MaxTurns, fetches)
	if err != nil {
		return err
	}
	if err := write(l, extensionFile, code); err != nil {
		return err
	}
	if l.Request.SystemPrompt == "" {
		return nil
	}
	return write(l, systemFile, []byte(l.Request.SystemPrompt))
}

func write(l agent.Launch, name string, data []byte) error {
	if err := os.WriteFile(filepath.Join(l.Home, name), data, 0o600); err != nil {
		return unready("configure pi", err)
	}
	return nil
}

type object = map[string]any

// settings are the user's, who has none of the turn's secrets to tell.
func (d Driver) settings(shell string) any {
	settings := object{
		"retry": object{
			"enabled": d.retries() > 0, "maxRetries": d.retries(), "baseDelayMs": 2000, "maxAgentDelayMs": 30_000,
			// The retries beneath those would not be told of.
			"provider": object{"maxRetries": 0},
		},
		// It would ask the provider, and cost, while a tool runs for long.
		"cacheWarming":           "off",
		"defaultProjectTrust":    "never",
		"enableInstallTelemetry": false,
		"enableAnalytics":        false,
	}
	if shell != "" {
		settings["shellPath"] = shell
	}
	return settings
}

func (d Driver) models() any {
	providers := object{}
	for name, p := range d.Providers {
		entry := object{}
		set := func(member, value string) {
			if value != "" {
				entry[member] = value
			}
		}
		set("baseUrl", p.BaseURL)
		set("api", p.API)
		if p.KeyEnv != "" {
			entry["apiKey"] = "$" + p.KeyEnv // by its name
		}
		var models []object
		for _, m := range p.Models {
			model := object{"id": m.ID, "reasoning": m.Reasoning}
			if m.ContextWindow > 0 {
				model["contextWindow"] = m.ContextWindow
			}
			if m.MaxTokens > 0 {
				model["maxTokens"] = m.MaxTokens
			}
			if m.Price != nil {
				model["cost"] = m.Price
			}
			models = append(models, model)
		}
		if models != nil {
			entry["models"] = models
		}
		providers[name] = entry
	}
	return object{"providers": providers}
}

// mcpConfig renders the turn's servers. The file lies where the agent can read it.
func mcpConfig(l agent.Launch) (any, error) {
	entries := object{}
	named := map[string]string{} // by the name that its tools have
	for _, name := range slices.Sorted(maps.Keys(l.MCP)) {
		e := l.MCP[name]
		overHTTP, err := servers.Check(name, e, l.Turn.Env)
		if err != nil {
			return nil, fmt.Errorf("pi: %w", err)
		}
		if other, taken := named[underscored(name)]; taken {
			return nil, fmt.Errorf("pi: %w: it cannot tell MCP servers %s and %s apart", agent.ErrUnsupported, other, name)
		}
		named[underscored(name)] = name
		// Declared to the model, which otherwise would have to write code to find them.
		entry := object{"exposure": "direct"}
		if overHTTP {
			headers := map[string]string{}
			for header, value := range e.Headers {
				headers[header] = literal(value)
			}
			if e.BearerTokenEnv != "" {
				headers[servers.Authorization] = "Bearer ${" + e.BearerTokenEnv + "}"
			}
			entry["url"], entry["headers"] = e.URL, headers
		} else {
			if slices.ContainsFunc(append([]string{e.Command}, e.Args...), func(s string) bool { return strings.HasPrefix(s, "~/") }) {
				return nil, fmt.Errorf("pi: MCP server %s: %w: \"~/\" would be taken for the turn's home; write the path out", name, agent.ErrUnsupported)
			}
			env := map[string]string{}
			for variable, value := range e.Env {
				env[variable] = literal(value)
			}
			entry["command"], entry["args"], entry["env"] = e.Command, append([]string{}, e.Args...), env
		}
		entries[name] = entry
	}
	return object{"autoEnableCodemode": false, "mcpServers": entries}, nil
}

// literal keeps the CLI from putting a variable's value or a command's output in the
// place of what looks like one.
func literal(value string) string {
	value = strings.ReplaceAll(value, "$", "$$")
	if strings.HasPrefix(value, "!") {
		value = "$" + value
	}
	return value
}
