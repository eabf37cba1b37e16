package claude_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"turnpike/internal/agent/driver/drivertest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	drivertest.Entry()
	goleak.VerifyTestMain(m)
}
