package codex_test

import (
	"testing"

	"turnpike/internal/agent/agenttest"
	"turnpike/internal/agent/driver/codex"
	"turnpike/internal/agent/driver/drivertest"
)

// TestLimited runs the real CLI through the runner, with the domains it may reach.
func TestLimited(t *testing.T) {
	t.Parallel()
	drivertest.Limited(t, drivertest.Subject{
		Driver: codex.Driver{MaxRetries: -1},
		Bin:    agenttest.CodexBin(t),
		Model:  "gpt-5.5",
		Provider: func(base, credential string) []string {
			return []string{"OPENAI_BASE_URL=" + base + "/v1", credential}
		},
	})
}
