package servers_test

import (
	"errors"
	"strings"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/servers"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	env := []string{"TOKEN=x", "TOKENS=y"}
	for name, c := range map[string]struct {
		server string
		entry  agent.MCPEntry
		http   bool
		kind   error
		says   string
	}{
		"a command":              {"a", agent.MCPEntry{Command: "x", Args: []string{"y"}, Env: map[string]string{"A": "b"}}, false, nil, ""},
		"a command by its type":  {"a", agent.MCPEntry{Type: "stdio", Command: "x"}, false, nil, ""},
		"a URL":                  {"a", agent.MCPEntry{URL: "http://x", Headers: map[string]string{"X": "y"}}, true, nil, ""},
		"a URL by its type":      {"a", agent.MCPEntry{Type: "http", URL: "http://x"}, true, nil, ""},
		"a token":                {"a", agent.MCPEntry{URL: "http://x", BearerTokenEnv: "TOKEN"}, true, nil, ""},
		"an odd name":            {"a b", agent.MCPEntry{Command: "x"}, false, agent.ErrUnsupported, "name"},
		"no way":                 {"a", agent.MCPEntry{}, false, agent.ErrUnsupported, "neither"},
		"two ways":               {"a", agent.MCPEntry{Command: "x", URL: "http://x"}, false, agent.ErrUnsupported, "neither"},
		"a way of another type":  {"a", agent.MCPEntry{Type: "sse", URL: "http://x"}, false, agent.ErrUnsupported, "neither"},
		"a header of a command":  {"a", agent.MCPEntry{Command: "x", Headers: map[string]string{"X": "y"}}, false, agent.ErrUnsupported, "neither"},
		"an environment of URLs": {"a", agent.MCPEntry{URL: "http://x", Env: map[string]string{"A": "b"}}, false, agent.ErrUnsupported, "neither"},
		"a token it has not":     {"a", agent.MCPEntry{URL: "http://x", BearerTokenEnv: "TOK"}, false, agent.ErrNotGranted, "TOK"},
		"a token of no name":     {"a", agent.MCPEntry{URL: "http://x", BearerTokenEnv: "A}${B"}, false, agent.ErrUnsupported, "no variable"},
		"a token and a header": {
			"a", agent.MCPEntry{URL: "http://x", BearerTokenEnv: "TOKEN", Headers: map[string]string{"authorization": "y"}}, false, agent.ErrUnsupported, "both",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			http, err := servers.Check(c.server, c.entry, env)
			if !errors.Is(err, c.kind) || http != c.http || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("over HTTP %t, %v; want %t, %v with %q", http, err, c.http, c.kind, c.says)
			}
		})
	}
}

func TestExpands(t *testing.T) {
	t.Parallel()
	marked := map[string]string{"X": "a ${B} c"}
	for want, e := range map[string]agent.MCPEntry{
		"its command": {Command: "${B}"}, "an argument": {Args: []string{"-x", "${B}"}}, "its environment": {Env: marked},
		"its URL": {URL: "https://${B}"}, "a header": {Headers: marked}, "": {Command: "{env:B}", Args: []string{"$B"}},
	} {
		if got, found := servers.Expands(e, "${", "{file:"); got != want || found != (want != "") {
			t.Errorf("%q, %t, want %q", got, found, want)
		}
	}
}
