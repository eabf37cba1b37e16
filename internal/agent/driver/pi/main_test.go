package pi_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"turnpike/internal/agent/mcphost"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	mcphost.Entry()
	goleak.VerifyTestMain(m)
}
