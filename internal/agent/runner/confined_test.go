package runner_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/procs"
	"turnpike/internal/agent/runner"
)

// TestRunConfined runs whole turns under this machine's own confiner, by the best
// means it has and by those of a worker inside a container.
func TestRunConfined(t *testing.T) {
	t.Parallel()
	means := map[confine.Mode]confine.Options{confine.LandlockOnly: {LandlockOnly: true, UnixSockets: true}}
	best := confine.Options{UnixSockets: true}
	means[confine.Platform(best).Mode()] = best
	for mode, options := range means {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			testConfined(t, confine.Platform(options))
		})
	}
}

func testConfined(t *testing.T, c confine.Confiner) {
	setUp := func(t *testing.T, d driver) (*runner.Runner, agent.Request) {
		r, req := newRunner(t, d), request(t)
		r.Confiner, req.Profile.Confine = c, true
		return r, req
	}
	t.Run("works_in_the_workspace_and_nowhere_else", func(t *testing.T) {
		t.Parallel()
		outside := t.TempDir()
		r, req := setUp(t, driver{args: []string{"shell", `
			echo here > made && mkdir -p "$TMPDIR/x" && : > "$HOME/settings" && pwd
			git --version || echo git ended with $?
			ls ` + outside + ` || echo outside is not there
			cat "$HOME/../meta.json" || echo the session is not there`}})
		res := run(t, r, req)
		if res.IsError {
			t.Fatalf("got %+v", res)
		}
		if _, err := os.Stat(filepath.Join(req.Workspace.Dir, "made")); err != nil {
			t.Errorf("what the agent made is lost: %v\n%s", err, res.ResultText)
		}
		for _, want := range []string{
			c.Mode().WorkDir(req.Workspace.Dir), "git ended with 126", "outside is not there", "the session is not there",
		} {
			if !strings.Contains(res.ResultText, want) {
				t.Errorf("%q is missing in\n%s", want, res.ResultText)
			}
		}
	})
	t.Run("keeps_metadata_read_only_or_refuses", func(t *testing.T) {
		t.Parallel()
		r, req := setUp(t, driver{args: []string{"shell", `echo x > .git/config || echo read-only; echo x > new && echo top`}})
		if err := os.Mkdir(filepath.Join(req.Workspace.Dir, ".git"), 0o700); err != nil {
			t.Fatal(err)
		}
		if c.Mode() != confine.Full {
			if _, err := r.Run(t.Context(), req); !errors.Is(err, agent.ErrUnsupported) {
				t.Fatalf("got %v", err)
			}
			return
		}
		if res := run(t, r, req); !strings.Contains(res.ResultText, "read-only") || !strings.Contains(res.ResultText, "top") {
			t.Fatalf("got %s", res.ResultText)
		}
	})
	t.Run("reports_its_outcome", func(t *testing.T) {
		t.Parallel()
		r, req := setUp(t, driver{args: []string{"reports"}})
		req.ValidOutcomes = []string{"ok"}
		if res := run(t, r, req); res.Outcome.Status != "ok" {
			t.Fatalf("got %+v", res)
		}
	})
	t.Run("is_stopped", func(t *testing.T) {
		t.Parallel()
		r, req := setUp(t, driver{args: []string{"ignores-term"}})
		r.Watch.Grace, req.Profile.Timeout = soon, soon
		if res := run(t, r, req); res.ErrorSubtype != agent.SubtypeTimeout || !res.TimedOut {
			t.Fatalf("got %+v", res)
		}
	})
	t.Run("leaves_nothing_behind", func(t *testing.T) {
		t.Parallel()
		r, req := setUp(t, driver{args: []string{"daemon"}})
		if res := run(t, r, req); res.IsError || len(res.Diagnostics) > 0 {
			t.Fatalf("got %+v", res)
		}
	})
}

// keeper starts a tree and keeps its output open, as a process would that escaped.
type keeper struct{ kept *os.File }

func (*keeper) Check(agent.Confinement) error { return nil }

func (k *keeper) Start(cmd *exec.Cmd, _ agent.Confinement) error {
	out, ok := cmd.Stdout.(*os.File)
	if !ok {
		return errors.New("the output is no file")
	}
	fd, err := unix.FcntlInt(out.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	k.kept = os.NewFile(uintptr(fd), "kept")
	return procs.Supervised(cmd)
}

func TestRunDoesNotWaitForAnOutputThatStaysOpen(t *testing.T) {
	t.Parallel()
	k := &keeper{}
	r, req := newRunner(t, driver{args: []string{"exit"}}), request(t)
	r.Confiner, req.Profile.Confine = k, true
	ctx, cancel := context.WithTimeout(t.Context(), late)
	defer cancel()
	res, err := r.Run(ctx, req)
	if err := k.kept.Close(); err != nil {
		t.Fatal(err)
	}
	if err != nil || res.NumTurns != 1 || len(res.Diagnostics) != 1 {
		t.Fatalf("got %+v, %v", res, err)
	}
}
