package claude_test

import (
	"testing"

	"turnpike/internal/agent/agenttest"
	"turnpike/internal/agent/driver/claude"
	"turnpike/internal/agent/driver/drivertest"
)

// TestLimited runs the real CLI through the runner, with the domains it may reach.
func TestLimited(t *testing.T) {
	t.Parallel()
	drivertest.Limited(t, drivertest.Subject{
		Driver: claude.Driver{MaxRetries: 1},
		Bin:    agenttest.ClaudeBin(t),
		Model:  "sonnet",
		Provider: func(base, credential string) []string {
			return []string{"ANTHROPIC_BASE_URL=" + base, credential}
		},
	})
}
