package mcphost_test

import (
	"testing"

	"go.uber.org/goleak"

	"turnpike/internal/agent/mcphost"
)

func TestMain(m *testing.M) {
	mcphost.Entry()
	goleak.VerifyTestMain(m)
}
