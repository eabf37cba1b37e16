package agent_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
)

func TestMCPEntries(t *testing.T) {
	values := func(name string) (string, bool) {
		v, ok := map[string]string{"ROOT": "/srv", "ODD": "${ROOT}", "EMPTY": ""}[name]
		return v, ok
	}
	for name, c := range map[string]struct {
		entry, want agent.MCPEntry
		refused     bool
	}{
		"references are replaced": {
			agent.MCPEntry{Command: "/bin/x", Args: []string{"--root=${ROOT}/a", "${EMPTY}"}, Env: map[string]string{"R": "${ROOT}"}},
			agent.MCPEntry{Command: "/bin/x", Args: []string{"--root=/srv/a", ""}, Env: map[string]string{"R": "/srv"}}, false,
		},
		"in headers, too": {
			agent.MCPEntry{URL: "http://x", Headers: map[string]string{"X-Root": "${ROOT}"}},
			agent.MCPEntry{URL: "http://x", Headers: map[string]string{"X-Root": "/srv"}}, false,
		},
		"once": {
			agent.MCPEntry{Command: "/bin/x", Args: []string{"${ODD}"}},
			agent.MCPEntry{Command: "/bin/x", Args: []string{"${ROOT}"}}, false,
		},
		"and nothing else is": {
			agent.MCPEntry{Command: "/bin/x", Args: []string{"$ROOT", "${1}", "${ROOT:-x}", "$${"}, BearerTokenEnv: "T", EnvVars: []string{"V"}},
			agent.MCPEntry{Command: "/bin/x", Args: []string{"$ROOT", "${1}", "${ROOT:-x}", "$${"}, BearerTokenEnv: "T", EnvVars: []string{"V"}}, false,
		},
		"a name nobody gave a value": {agent.MCPEntry{Command: "/bin/x", Args: []string{"${HOME}"}}, agent.MCPEntry{}, true},
		"a command":                  {agent.MCPEntry{Command: "${ROOT}/x"}, agent.MCPEntry{}, true},
		"a URL":                      {agent.MCPEntry{URL: "http://x/${ROOT}"}, agent.MCPEntry{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			configured := map[string]agent.MCPEntry{"s": c.entry}
			before := cmp.Diff(c.entry, agent.MCPEntry{})
			got, err := agent.MCPEntries(configured, values)
			if c.refused != errors.Is(err, agent.ErrNotGranted) || err != nil && !c.refused {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got["s"]); !c.refused && diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if cmp.Diff(configured["s"], agent.MCPEntry{}) != before {
				t.Error("what was configured changed")
			}
		})
	}
}

func TestSessionLimited(t *testing.T) {
	for name, c := range map[string]struct {
		result agent.Result
		want   bool
	}{
		"the driver says so":                    {agent.Result{IsError: true, Failure: agent.FailureLimited}, true},
		"the provider refuses further work":     {agent.Result{IsError: true, RateLimit: &agent.RateLimit{Status: "rejected"}}, true},
		"an unknown word counts as refusing":    {agent.Result{IsError: true, RateLimit: &agent.RateLimit{Status: "new"}}, true},
		"a warning is none":                     {agent.Result{IsError: true, RateLimit: &agent.RateLimit{Status: "allowed_warning"}}, false},
		"a turn that ended well was not":        {agent.Result{RateLimit: &agent.RateLimit{Status: "rejected"}}, false},
		"a provider that is down is no limit":   {agent.Result{IsError: true, Failure: agent.FailureOverloaded}, false},
		"a turn without any word of it was not": {agent.Result{IsError: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.result.SessionLimited(); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
