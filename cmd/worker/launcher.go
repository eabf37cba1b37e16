package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"turnpike/internal/agent/procs"
	"turnpike/internal/buildinfo"
)

// launcherBound is how long a launcher may take to say which build it is.
const launcherBound = 10 * time.Second

// startsTurns is the launcher beside this program. It is empty where there is none of
// this build: then this program starts turns itself, more slowly.
var startsTurns = sync.OnceValue(func() string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	path := filepath.Join(filepath.Dir(self), "launcher")
	held, err := procs.HoldLauncher(path)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), launcherBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, held, "--version")
	cmd.Env = []string{}
	said, err := cmd.Output()
	if err != nil || !sameBuild(strings.TrimSpace(string(said)), buildinfo.String()) {
		return ""
	}
	return held
})

// sameBuild says whether two programs were built of the same source. A tree with
// changes of its own, or one that nobody gave a name, may have been another each time.
func sameBuild(a, b string) bool {
	return a == b && a != "" && !strings.Contains(a, "dirty") && !strings.Contains(a, "devel") && !strings.Contains(a, "unknown")
}
