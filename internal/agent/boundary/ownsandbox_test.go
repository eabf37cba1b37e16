package boundary_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
)

// newOwn is a world whose turn runs in Claude Code's own sandbox, made of programs that
// are there and do nothing.
func newOwn(t testing.TB) *world {
	t.Helper()
	w := newWorld(t)
	w.write("bin/bwrap", "#!/bin/sh\n")
	w.write("bin/socat", "#!/bin/sh\n")
	w.boundary.Environ = func() []string {
		return []string{"HOME=" + w.path("home"), "PATH=" + w.path("bin"), "CLAUDE_CODE_OAUTH_TOKEN=x", "CLAUDE_CODE_REMOTE=1"}
	}
	w.request.Profile.Confine, w.request.Profile.Sandbox = false, agent.SandboxClaude
	w.request.Profile.SandboxDomains = []string{"example.com"}
	w.request.Grants.Env = []string{"PATH"}
	return w
}

func TestVerifyOwnSandbox(t *testing.T) {
	t.Parallel()
	w := newOwn(t)
	w.mkdir("ws/kept", "ws/.git", "lib", "lib/out")
	w.write("bin/git", "#!/bin/sh\n")
	if err := os.Link(w.path("bin/git"), w.path("bin/other-name")); err != nil {
		t.Fatal(err)
	}
	w.boundary.SystemPaths = append(w.boundary.SystemPaths, agent.Mount{Path: w.path("bin"), Access: agent.ReadOnly})
	w.grant("ws/kept", agent.ReadOnly)
	w.grant("lib", agent.ReadOnly)
	w.grant("lib/out", agent.ReadWrite)
	turn := w.verify()
	if turn.Confinement != nil || turn.OwnSandbox == nil {
		t.Fatalf("got %+v", turn)
	}
	c := *turn.OwnSandbox
	if c.WorkDir != w.ws || c.Workspace != w.ws || c.Sandbox != agent.SandboxClaude {
		t.Errorf("it works in %q as %q, %q", c.Workspace, c.WorkDir, c.Sandbox)
	}
	if diff := cmp.Diff(agent.Network{Proxied: true, Domains: []string{"example.com"}}, c.Network); diff != "" {
		t.Errorf("the network (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{w.path("ws/kept"), w.path("ws/.git")}, c.ReadOnly()); diff != "" {
		t.Errorf("what stays read-only (-want +got):\n%s", diff)
	}
	for _, name := range []string{"bin/git", "bin/other-name"} {
		if !slices.Contains(c.Denied, w.path(name)) {
			t.Errorf("%s is not among the denied %v", name, c.Denied)
		}
	}
	if len(c.Pins) != 5 {
		t.Errorf("pinned are %v", c.Pins)
	}
}

// TestVerifyOwnSandboxRefuses has a row for what that sandbox cannot hold, and for what
// could do away with it.
func TestVerifyOwnSandboxRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*world)
		says   string
	}{
		"another_agent":         {func(w *world) { w.request.Profile.Agent = agent.AgentCodex }, "codex"},
		"confinement_around_it": {func(w *world) { w.request.Profile.Confine = true }, "none-confined"},
		"limits":                {func(w *world) { w.boundary.Limits.Processes = 1 }, "limits"},
		"the_open_network":      {func(w *world) { w.request.Profile.SandboxDomains = nil }, "sandbox_domains"},
		"any_public_host": {func(w *world) {
			w.request.Profile.SandboxDomains = nil
			w.boundary.Network = agent.Network{Proxied: true}
		}, "sandbox_domains"},
		"no_bubblewrap":          {func(w *world) { w.remove("bin/bwrap") }, "bubblewrap"},
		"no_socat":               {func(w *world) { w.remove("bin/socat") }, "bubblewrap and socat"},
		"programs_of_the_turn's": {func(w *world) { w.grant("bin", agent.ReadWrite) }, "may write"},
		"a_writable_directory_before_them": {func(w *world) {
			w.request.Env = map[string]string{"PATH": w.ws + ":" + w.path("bin")}
		}, "may write"},
		"a_relative_directory_before_them": {func(w *world) { w.request.Env = map[string]string{"PATH": ":" + w.path("bin")} }, "depends on"},
		"settings_of_the_CLI":              {func(w *world) { w.request.Grants.Env = append(w.request.Grants.Env, "CLAUDE_*") }, "CLAUDE_CODE_REMOTE"},
		"a_library_to_load": {func(w *world) {
			w.request.Grants.Env = append(w.request.Grants.Env, "LD_PRELOAD")
			w.request.Env = map[string]string{"LD_PRELOAD": "/x"}
		}, "LD_PRELOAD"},
		"writable_in_read_only_in_writable": {func(w *world) {
			w.mkdir("ws/ro/rw")
			w.grant("ws/ro", agent.ReadOnly)
			w.grant("ws/ro/rw", agent.ReadWrite)
		}, "must stay read-only"},
		"a_mount_that_reaches_the_worker": {func(w *world) { w.grant("sessions", agent.ReadOnly) }, "no turn may"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newOwn(t)
			c.change(w)
			_, err := w.boundary.Verify(w.request)
			if !errors.Is(err, agent.ErrUnsupported) && !errors.Is(err, agent.ErrNotGranted) || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("got %v; want it to say %q", err, c.says)
			}
		})
	}
}

func (w *world) remove(name string) {
	w.t.Helper()
	if err := os.Remove(filepath.Join(w.dir, name)); err != nil {
		w.t.Fatal(err)
	}
}
