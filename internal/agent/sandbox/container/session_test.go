//go:build linux

package container_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/agenttest"
	"turnpike/internal/agent/runner"
)

// TestSession prepares a session of containers, runs a turn in it, and then gives its
// image's name to another image.
func TestSession(t *testing.T) {
	errLater := errors.New("later")
	var r *runner.Runner
	_, req, err := turn(t, agent.AgentClaude, nil, func(of *runner.Runner, _ *agent.Request) {
		r = of
		r.Observer.Starting = func(context.Context) (time.Time, error) { return time.Time{}, errLater }
	}, agenttest.Write("out.txt", "written\n"), agenttest.Text("Done."))
	if !errors.Is(err, errLater) {
		t.Fatal(err)
	}
	r.Observer.Starting = nil
	work, err := filepath.EvalSymlinks(req.Workspace.Dir)
	if err != nil {
		t.Fatal(err)
	}

	name := "turnpike-session-test:" + strings.TrimPrefix(filepath.Base(filepath.Dir(t.TempDir())), "TestSession")
	docker(t, "tag", req.Profile.SandboxImage, name)
	t.Cleanup(func() { docker(t, "rmi", name) })
	req.Profile.SandboxImage = name
	s, err := runner.NewContainer(r, name).Prepare(t.Context(), *req.Grants)
	if err != nil {
		t.Fatal(err)
	}
	p := s.Policy()
	if p.Sandbox != agent.SandboxContainer || p.Image != name || p.System != nil || p.Agent != "" {
		t.Errorf("got %+v", p)
	}
	if !p.Writes(filepath.Join(work, "x")) || p.Reads("/etc/passwd") || !slices.Contains(p.Denied, "/usr/bin/git") {
		t.Errorf("got %+v", p)
	}
	if !slices.Contains(p.Binds, agent.Bind{Source: work, Destination: work, Access: agent.ReadWrite}) ||
		!slices.ContainsFunc(p.Binds, func(b agent.Bind) bool { return b.Destination == "/usr/bin/git" && b.Access == agent.ReadOnly }) ||
		slices.ContainsFunc(p.Binds, func(b agent.Bind) bool { return b.Destination == "/workspace" }) {
		t.Errorf("its binds are %+v", p.Binds)
	}
	own := req.Grants
	req.Grants = nil
	res, err := s.Run(t.Context(), *req)
	if err != nil || res.IsError {
		t.Fatalf("got %+v, %v", res, err)
	}
	if out, err := os.ReadFile(filepath.Join(work, "out.txt")); string(out) != "written\n" {
		t.Errorf("out.txt: %q, %v", out, err)
	}
	other := *req
	other.Profile.SandboxImage = "other"
	if _, err := s.Run(t.Context(), other); !errors.Is(err, agent.ErrNotGranted) {
		t.Errorf("another image: %v", err)
	}

	made := docker(t, "create", name, "true")
	t.Cleanup(func() { docker(t, "rm", made) })
	docker(t, "commit", "--change", "LABEL turnpike.session-test=other", made, name)
	if _, err := s.Run(t.Context(), *req); !errors.Is(err, agent.ErrPolicyChanged) {
		t.Errorf("the image's name for another: %v", err)
	}
	if s, err = runner.NewContainer(r, name).Prepare(t.Context(), *own); err != nil {
		t.Errorf("a new session is refused: %v", err)
	} else if err := s.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
