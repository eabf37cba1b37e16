package testenv

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

var agentImage struct {
	once sync.Once
	said []byte
	err  error
}

// AgentImage is the image with the pinned agent CLIs that turns in containers run in. It
// is built where it is missing, once for the machine.
func AgentImage(t testing.TB) string {
	t.Helper()
	name := image("AGENT_IMAGE", "turnpike-agents:latest")
	agentImage.once.Do(func() {
		_, here, _, _ := runtime.Caller(0)
		script := filepath.Join(filepath.Dir(here), "..", "..", "scripts", "build-agent-image.sh")
		agentImage.said, agentImage.err = exec.Command(script, name).CombinedOutput()
	})
	if agentImage.err != nil {
		t.Fatalf("build the image of the agents: %v\n%s", agentImage.err, agentImage.said)
	}
	return name
}
