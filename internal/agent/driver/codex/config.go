package codex

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/servers"
)

const (
	// provider is the name of the model provider that the configuration defines. The
	// built-in one ignores OPENAI_BASE_URL, opens WebSockets and cannot be bounded.
	provider    = "turnpike"
	officialURL = "https://api.openai.com/v1"

	// streamIdle is how long a stream may be silent before it counts as broken.
	streamIdle = 5 * time.Minute
	// serverStart is how long an MCP server may take to start, and serverCall how
	// long one call may take. Turns have clocks of their own.
	serverStart = 30 * time.Second
	serverCall  = 30 * time.Minute
)

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// off are features that a headless turn must not have, or has no use for.
var off = []string{
	// They would ask the network for things beside the turn's own requests.
	"plugins", "remote_plugin", "apps", "api_key_model_discovery", "skill_mcp_dependency_install", "tool_suggest",
	// It writes the whole environment, with the turn's secrets, into a file.
	"shell_snapshot",
	// A provider that cannot be reached fails the turn instead of holding it for ever.
	"unbounded_connection_retries",
	// Commands that nobody granted, and a goal that would outlast the turn.
	"hooks", "goals", "memories", "image_generation",
}

// offToolless are the features by which a turn runs commands and reads files.
var offToolless = []string{"shell_tool", "unified_exec", "view_image"}

// config renders the turn's configuration. The file lies where the agent can read
// it, so it names variables and holds none of their values.
func (d Driver) config(l agent.Launch) ([]byte, error) {
	var t toml
	t.set("model_provider", provider)
	t.set("approval_policy", "never")
	t.set("sandbox_mode", "read-only") // of the thread, see the package comment
	// Nothing around the workspace is part of it.
	t.set("project_root_markers", []string{})
	t.set("cli_auth_credentials_store", "ephemeral") // no log-in but the turn's variables
	t.set("check_for_update_on_startup", false)
	if l.Request.Profile.SandboxDomains != nil || toolless(l) {
		// The provider searches on the turn's behalf, past the turn's network.
		t.set("web_search", "disabled")
	}
	if toolless(l) {
		t.set("project_doc_max_bytes", 0)
	}

	t.table("analytics")
	t.set("enabled", false)
	t.table("history")
	t.set("persistence", "none")
	t.table("agents") // a subagent's turns and tokens would be told apart from the turn's
	t.set("enabled", false)
	t.table("skills")
	t.set("include_instructions", len(l.Skills) > 0)
	t.table("skills", "bundled")
	t.set("enabled", false)
	t.table("tools", "experimental_request_user_input")
	t.set("enabled", false)
	t.table("features")
	for _, name := range off {
		t.set(name, false)
	}
	if toolless(l) {
		for _, name := range offToolless {
			t.set(name, false)
		}
	}

	if err := d.provider(&t, l.Turn.Env); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(l.MCP)) {
		if err := server(&t, name, l.MCP[name], l.Turn.Env); err != nil {
			return nil, fmt.Errorf("codex: %w", err)
		}
	}
	if t.err != nil {
		return nil, fmt.Errorf("codex: %w: %w", agent.ErrUnsupported, t.err)
	}
	return []byte(t.text.String()), nil
}

// provider describes the model provider that the turn's variables name.
func (d Driver) provider(t *toml, env []string) error {
	base := officialURL
	if set, ok := variable(env, "OPENAI_BASE_URL"); ok {
		u, err := url.Parse(set)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			return fmt.Errorf("codex: %w: OPENAI_BASE_URL is no URL of a provider", agent.ErrUnsupported)
		case u.User != nil:
			return fmt.Errorf("codex: %w: OPENAI_BASE_URL holds a credential; give it in %s", agent.ErrUnsupported, credentials[0])
		}
		base = strings.TrimRight(set, "/")
	}
	t.table("model_providers", provider)
	t.set("name", provider)
	t.set("base_url", base)
	t.set("wire_api", "responses")
	t.set("request_max_retries", d.retries())
	t.set("stream_max_retries", d.retries())
	t.set("stream_idle_timeout_ms", int(streamIdle.Milliseconds()))
	for _, name := range credentials {
		if _, ok := variable(env, name); ok {
			t.set("env_key", name)
			break
		}
	}
	headers := map[string]string{}
	for header, name := range map[string]string{"OpenAI-Organization": "OPENAI_ORGANIZATION", "OpenAI-Project": "OPENAI_PROJECT"} {
		if _, ok := variable(env, name); ok {
			headers[header] = name
		}
	}
	t.set("env_http_headers", headers)
	return nil
}

// server renders one MCP server.
func server(t *toml, name string, e agent.MCPEntry, env []string) error {
	overHTTP, err := servers.Check(name, e, env)
	if err != nil {
		return err
	}
	for _, v := range slices.Concat(slices.Sorted(maps.Keys(e.Env)), e.EnvVars) {
		if !envName.MatchString(v) {
			return fmt.Errorf("MCP server %s: %w: %.64q is no variable's name", name, agent.ErrUnsupported, v)
		}
	}
	if overHTTP && len(e.EnvVars) > 0 {
		return fmt.Errorf("MCP server %s: %w: one that is reached over HTTP inherits no variables", name, agent.ErrUnsupported)
	}
	t.table("mcp_servers", name)
	t.set("startup_timeout_sec", int(serverStart.Seconds()))
	t.set("tool_timeout_sec", int(serverCall.Seconds()))
	// What a server offers was granted with the server.
	t.set("default_tools_approval_mode", "approve")
	if !overHTTP {
		t.set("command", e.Command)
		t.set("args", e.Args)
		t.set("env", e.Env)
		t.set("env_vars", e.EnvVars)
		return nil
	}
	t.set("url", e.URL)
	t.set("http_headers", e.Headers)
	if e.BearerTokenEnv != "" {
		t.set("bearer_token_env_var", e.BearerTokenEnv)
	}
	return nil
}

// toml writes the little of TOML that the configuration needs.
type toml struct {
	text strings.Builder
	err  error // of the first value that cannot be written
}

// table opens a table. Its names need no quotes.
func (t *toml) table(names ...string) {
	t.text.WriteString("\n[" + strings.Join(names, ".") + "]\n")
}

// set writes a key with a string, a number, a bool, or strings in a list or by name.
// An empty map is left out.
func (t *toml) set(key string, value any) {
	var written string
	switch v := value.(type) {
	case string:
		written = t.quote(v)
	case int:
		written = strconv.Itoa(v)
	case bool:
		written = strconv.FormatBool(v)
	case []string:
		items := make([]string, len(v))
		for i, item := range v {
			items[i] = t.quote(item)
		}
		written = "[" + strings.Join(items, ", ") + "]"
	case map[string]string:
		if len(v) == 0 {
			return
		}
		var members []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			members = append(members, t.quote(name)+" = "+t.quote(v[name]))
		}
		written = "{ " + strings.Join(members, ", ") + " }"
	default:
		panic(fmt.Sprintf("toml: %T", value)) // a mistake in this package
	}
	t.text.WriteString(key + " = " + written + "\n")
}

// quote writes a basic string. JSON's form of a string is one of TOML's, except that
// TOML wants DEL escaped too.
func (t *toml) quote(s string) string {
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		t.err = fmt.Errorf("%.64q cannot be configured", s)
		return `""`
	}
	data, err := json.Marshal(s)
	if err != nil {
		t.err = err
		return `""`
	}
	return strings.ReplaceAll(string(data), "\x7f", `\u007f`)
}
