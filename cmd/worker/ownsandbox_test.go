package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnpike/internal/agent"
)

// TestOwnSandboxIsTriedOut takes the programs of Claude Code's own sandbox away, or
// breaks them: probe says so and the lane is refused.
func TestOwnSandboxIsTriedOut(t *testing.T) {
	own := agent.Placement{Sandbox: agent.SandboxClaude}
	if err := ownSandbox(t.Context()); err != nil {
		t.Fatalf("this machine has it (scripts/deps.sh sandbox), but: %v", err)
	}
	if slots, err := parseSlots(t.Context(), []string{"claude=2"}, "p"); err != nil || len(slots) != 1 {
		t.Fatalf("the lane is not served: %v, %v", slots, err)
	}
	for name, broken := range map[string]string{"missing": "", "broken": "#!/bin/sh\necho no namespaces >&2\nexit 1\n"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if broken != "" {
				if err := os.WriteFile(filepath.Join(dir, "bwrap"), []byte(broken), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", dir)
			err := ownSandbox(t.Context())
			if !errors.Is(err, agent.ErrUnsupported) || !strings.Contains(err.Error(), "bubblewrap") {
				t.Errorf("got %v", err)
			}
			if got := probePlacement(own, probed{}, err); got.OK || got.How != err.Error() {
				t.Errorf("probe says %+v", got)
			}
			if _, err := parseSlots(t.Context(), []string{"claude=2"}, "p"); !errors.Is(err, agent.ErrUnsupported) {
				t.Errorf("the lane is served: %v", err)
			}
		})
	}
}
