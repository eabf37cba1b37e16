//go:build linux

package container_test

import (
	"testing"

	"turnpike/internal/agent"
)

const workerArg = "container-test-worker"

func worker([]string) {}

func TestBox(t *testing.T) {
	b := newBench(t)
	out, errs, exit := b.sh(b.box(), "id; pwd; cat /proc/self/status | grep -E 'Cap|NoNew|Secc'; ls -la /; cat /proc/self/mountinfo; exit 7")
	t.Logf("%s\n%s\n%+v", out, errs, exit)
	if exit != (agent.Exit{Code: 7}) {
		t.Error("exit")
	}
}
