package mcphost_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"turnpike/internal/agent/mcphost"
	"turnpike/internal/agent/procs"
)

func TestMain(m *testing.M) {
	procs.Entry()
	mcphost.Entry()
	if len(os.Args) > 2 && os.Args[1] == "owner-server" {
		standIn(os.Args[2:])
		return
	}
	goleak.VerifyTestMain(m)
}
