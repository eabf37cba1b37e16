package claude

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"turnpike/internal/agent"
)

var (
	serverName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	envName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// server is one entry of the CLI's MCP configuration.
type server struct {
	Type    string            `json:"type"`
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
}

// mcpConfig renders the turn's servers. The file lies where the agent can read it.
func mcpConfig(l agent.Launch) ([]byte, error) {
	servers := map[string]server{}
	for name, e := range l.MCP {
		if !serverName.MatchString(name) {
			return nil, fmt.Errorf("claude: MCP server %.64q: %w: a server's name has letters, digits, \"_\" and \"-\", at most 64",
				name, agent.ErrUnsupported)
		}
		s, err := render(e, l.Turn.Env)
		if err != nil {
			return nil, fmt.Errorf("claude: MCP server %s: %w", name, err)
		}
		servers[name] = s
	}
	return json.MarshalIndent(map[string]any{"mcpServers": servers}, "", "  ")
}

func render(e agent.MCPEntry, env []string) (server, error) {
	s := server{Type: e.Type, Command: e.Command, Args: e.Args, Env: e.Env, URL: e.URL, Headers: e.Headers}
	if s.Type == "" {
		s.Type = "stdio"
		if e.URL != "" {
			s.Type = "http"
		}
	}
	// The CLI drops an entry it cannot use without a word, so it is refused here.
	switch {
	case s.Type == "stdio" && e.Command != "" && e.URL == "" && len(e.Headers) == 0 && e.BearerTokenEnv == "":
	case s.Type == "http" && e.URL != "" && e.Command == "" && len(e.Args) == 0 && len(e.Env) == 0:
	default:
		return server{}, fmt.Errorf("%w: it is neither a command (stdio) nor a URL (http) alone", agent.ErrUnsupported)
	}
	if where, found := expands(e); found {
		return server{}, fmt.Errorf("%w: %s contains \"${\", which would be replaced by a variable of the turn", agent.ErrNotGranted, where)
	}
	if e.BearerTokenEnv == "" {
		return s, nil
	}
	const authorization = "Authorization"
	if !envName.MatchString(e.BearerTokenEnv) {
		return server{}, fmt.Errorf("%w: %.64q is no variable's name", agent.ErrUnsupported, e.BearerTokenEnv)
	}
	if !slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, e.BearerTokenEnv+"=") }) {
		return server{}, fmt.Errorf("%w: the turn does not have %s, its bearer token", agent.ErrNotGranted, e.BearerTokenEnv)
	}
	headers := map[string]string{authorization: "Bearer ${" + e.BearerTokenEnv + "}"}
	for name, value := range e.Headers {
		if http.CanonicalHeaderKey(name) == authorization {
			return server{}, fmt.Errorf("%w: it has both a bearer token and an %s header", agent.ErrUnsupported, authorization)
		}
		headers[name] = value
	}
	s.Headers = headers
	return s, nil
}

// expands says where an entry would make the CLI put a variable's value.
func expands(e agent.MCPEntry) (where string, found bool) {
	has := func(s string) bool { return strings.Contains(s, "${") }
	inMap := func(m map[string]string) bool {
		for k, v := range m {
			if has(k) || has(v) {
				return true
			}
		}
		return false
	}
	switch {
	case has(e.Command):
		return "its command", true
	case slices.ContainsFunc(e.Args, has):
		return "an argument", true
	case inMap(e.Env):
		return "its environment", true
	case has(e.URL):
		return "its URL", true
	case inMap(e.Headers):
		return "a header", true
	}
	return "", false
}
