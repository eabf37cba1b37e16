package runner_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/runner"
)

func TestRunTellsWhatRan(t *testing.T) {
	t.Parallel()
	r, req := newRunner(t, driver{args: []string{"done"}}), request(t)
	before := time.Now()
	res := run(t, r, req)
	if res.Name != "try it" || res.Role != "builder" || res.Agent != agent.AgentClaude {
		t.Errorf("name %q, role %q, agent %q", res.Name, res.Role, res.Agent)
	}
	if res.StartedAt.Before(before) || res.Duration <= 0 || res.Duration > time.Since(before) {
		t.Errorf("started at %s, for %s", res.StartedAt, res.Duration)
	}
	if filepath.Dir(res.SessionDir) != r.SessionsDir || filepath.Dir(res.Transcript) != res.SessionDir {
		t.Errorf("session %q, transcript %q", res.SessionDir, res.Transcript)
	}
}

func TestExecutables(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, set := range map[string]func(*runner.Runner, string){
		agent.AgentClaude:   func(b *runner.Runner, bin string) { b.ClaudeBin = bin },
		agent.AgentCodex:    func(b *runner.Runner, bin string) { b.CodexBin = bin },
		agent.AgentOpenCode: func(b *runner.Runner, bin string) { b.OpenCodeBin = bin },
		agent.AgentPi:       func(b *runner.Runner, bin string) { b.PiBin = bin },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got string
			r, req := newRunner(t, driver{}), request(t)
			r.ClaudeBin = ""
			r.Drivers = map[string]agent.Driver{name: driver{args: []string{"done"}, launched: func(l agent.Launch) { got = l.Bin }}}
			req.Profile.Agent = name
			// The field goes before the map.
			r.Bins = map[string]string{name: "/nonexistent/" + name}
			if _, err := r.Run(t.Context(), req); !errors.Is(err, agent.ErrUnready) {
				t.Errorf("by the map: %v", err)
			}
			set(r, exe)
			if res := run(t, r, req); res.Agent != name {
				t.Errorf("ran %q", res.Agent)
			}
			if want, err := filepath.EvalSymlinks(exe); got != want || err != nil {
				t.Errorf("ran %s, want %s (%v)", got, want, err)
			}
		})
	}
}

func TestRunLogsAResultThatCannotBeKept(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	r, req := newRunner(t, driver{args: []string{"shell", `rm -rf "$(dirname "$TMPDIR")"`}}), request(t)
	r.Logger = slog.New(slog.NewTextHandler(&log, nil))
	res, err := r.Run(t.Context(), req)
	if err != nil || res.IsError {
		t.Fatalf("got %+v, %v", res, err)
	}
	if !strings.Contains(log.String(), "could not be kept") {
		t.Errorf("logged %q", log.String())
	}
}
