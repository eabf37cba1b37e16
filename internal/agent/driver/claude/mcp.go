package claude

import (
	"encoding/json"
	"fmt"
	"maps"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/servers"
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
	entries := map[string]server{}
	for name, e := range l.MCP {
		s, err := render(name, e, l.Turn.Env)
		if err != nil {
			return nil, fmt.Errorf("claude: %w", err)
		}
		entries[name] = s
	}
	return json.MarshalIndent(map[string]any{"mcpServers": entries}, "", "  ")
}

func render(name string, e agent.MCPEntry, env []string) (server, error) {
	overHTTP, err := servers.Check(name, e, env)
	if err != nil {
		return server{}, err
	}
	if where, found := servers.Expands(e, "${"); found {
		return server{}, fmt.Errorf("MCP server %s: %w: %s contains \"${\", which would be replaced by a variable of the turn", name, agent.ErrNotGranted, where)
	}
	s := server{Type: "stdio", Command: e.Command, Args: e.Args, Env: e.Env, URL: e.URL, Headers: e.Headers}
	if overHTTP {
		s.Type = "http"
	}
	if e.BearerTokenEnv != "" {
		s.Headers = map[string]string{servers.Authorization: "Bearer ${" + e.BearerTokenEnv + "}"}
		maps.Copy(s.Headers, e.Headers)
	}
	return s, nil
}
