package opencode_test

import (
	"testing"

	"turnpike/internal/agent/driver/drivertest"
)

// TestLimited runs the real CLI through the runner, with the domains it may reach.
func TestLimited(t *testing.T) {
	t.Parallel()
	drivertest.Limited(t, subject(t))
}
