package codex_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/mcphost"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	confine.Entry()
	mcphost.Entry()
	goleak.VerifyTestMain(m)
}
