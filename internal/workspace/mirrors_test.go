package workspace_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/vcs"
	"turnpike/internal/workspace"
)

func of(url string) workspace.GitSpec {
	return workspace.GitSpec{Name: "job.1", Checkout: vcs.Checkout{URL: url}}
}

// silent is a git host that takes connections and never says anything. Each connection
// that is closed again is told.
func silent(t *testing.T) (url string, taken, closed chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	taken, closed = make(chan struct{}, 10), make(chan struct{}, 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			taken <- struct{}{}
			for b := make([]byte, 1024); err == nil; {
				_, err = c.Read(b)
			}
			c.Close()
			closed <- struct{}{}
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return "https://" + l.Addr().String() + "/x", taken, closed
}

func TestGitHostThatIsSilent(t *testing.T) {
	t.Run("costs an attempt no more than the timeout", func(t *testing.T) {
		url, _, closed := silent(t)
		g := &workspace.Git{Root: filepath.Join(t.TempDir(), "git"), Timeout: time.Second}
		_, err := g.Acquire(t.Context(), of(url))
		if !errors.Is(err, agent.ErrUnready) || !strings.Contains(err.Error(), "longer than 1s") {
			t.Errorf("got %v", err)
		}
		<-closed // nothing of git waits on
	})
	t.Run("does not keep an attempt that waits from being cancelled", func(t *testing.T) {
		url, taken, closed := silent(t)
		g := &workspace.Git{Root: filepath.Join(t.TempDir(), "git")}
		first, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := g.Acquire(first, of(url))
			ended <- err
		}()
		<-taken
		cause := errors.New("a person's cancel")
		second, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if _, err := g.Acquire(second, of(url)); !errors.Is(err, cause) || !errors.Is(err, agent.ErrUnready) {
			t.Errorf("got %v", err)
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		<-closed
	})
}

// What git says of a server is all there is to tell what is final from what may pass.
func TestGitHostThatRefuses(t *testing.T) {
	for _, tc := range []struct {
		says string
		want error
	}{
		{"fatal: repository 'https://example.com/x/' not found", agent.ErrMissing},
		{"fatal: remote error: upload-pack: not our ref 1111", agent.ErrMissing},
		{"fatal: unable to access 'https://example.com/x/': Could not resolve host: example.com", agent.ErrUnready},
		{"fatal: could not read Username for 'https://example.com': terminal prompts disabled", agent.ErrUnready},
		{"fatal: unable to access 'https://example.com/x/': The requested URL returned error: 503", agent.ErrUnready},
	} {
		t.Run(tc.says, func(t *testing.T) {
			dir := t.TempDir()
			bin := filepath.Join(dir, "git")
			script := "#!/bin/sh\ncase \" $* \" in *' fetch '*) echo \"$SAYS\" >&2; exit 128;; esac\nexec git \"$@\"\n"
			must(t, os.WriteFile(bin, []byte(strings.ReplaceAll(script, "$SAYS", tc.says)), 0o700))
			g := &workspace.Git{Root: filepath.Join(dir, "root"), Bin: bin}
			if _, err := g.Acquire(t.Context(), of("https://example.com/x")); !errors.Is(err, tc.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestMirrors(t *testing.T) {
	mirrors := func(t *testing.T, g *workspace.Git) []string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(g.Root, "mirrors", "*"))
		must(t, err)
		return found
	}
	kept := func(t *testing.T, g *workspace.Git) string {
		t.Helper()
		return git(t, mirrors(t, g)[0], "for-each-ref", "--format=%(refname)", "refs/turnpike/")
	}
	t.Run("keep a commit while a clone of it is out", func(t *testing.T) {
		g := &workspace.Git{Root: filepath.Join(t.TempDir(), "git")}
		spec := of("file://" + repository(t))
		a, err := g.Acquire(t.Context(), spec)
		must(t, err)
		b, err := g.Acquire(t.Context(), spec)
		must(t, err)
		must(t, g.Release(t.Context(), a))
		if kept(t, g) == "" {
			t.Error("the commit of the other clone is not kept")
		}
		must(t, g.Release(t.Context(), b))
		if refs := kept(t, g); refs != "" {
			t.Errorf("kept %s", refs)
		}
	})
	t.Run("go when they are not used for long, and come again", func(t *testing.T) {
		g := &workspace.Git{Root: filepath.Join(t.TempDir(), "git"), KeepAge: time.Hour}
		spec := of("file://" + repository(t))
		w, err := g.Acquire(t.Context(), spec)
		must(t, err)
		must(t, g.Sweep(t.Context(), time.Now().Add(2*time.Hour)))
		if len(mirrors(t, g)) != 1 {
			t.Error("a mirror went while a clone of it was out")
		}
		must(t, g.Release(t.Context(), w))
		must(t, g.Sweep(t.Context(), time.Now()))
		if len(mirrors(t, g)) != 1 {
			t.Error("a fresh mirror went")
		}
		must(t, g.Sweep(t.Context(), time.Now().Add(2*time.Hour)))
		if left := mirrors(t, g); len(left) != 0 {
			t.Errorf("left %v", left)
		}
		w, err = g.Acquire(t.Context(), spec)
		must(t, err)
		must(t, g.Release(t.Context(), w))
	})
	t.Run("go, the longest unused first, while they take too much", func(t *testing.T) {
		g := &workspace.Git{Root: filepath.Join(t.TempDir(), "git")}
		var first string
		for n := range 2 {
			w, err := g.Acquire(t.Context(), of("file://"+repository(t)))
			must(t, err)
			must(t, g.Release(t.Context(), w))
			if n == 0 {
				first = mirrors(t, g)[0]
				old := time.Now().Add(-time.Hour)
				must(t, os.Chtimes(first, old, old))
			}
		}
		must(t, os.MkdirAll(filepath.Join(g.Root, "mirrors", "half.discarded"), 0o700))
		must(t, os.WriteFile(filepath.Join(first, "ballast"), make([]byte, 1<<20), 0o600))
		old := time.Now().Add(-time.Hour)
		must(t, os.Chtimes(first, old, old))
		g.KeepBytes = 1 << 20
		must(t, g.Sweep(t.Context(), time.Now()))
		if left := mirrors(t, g); len(left) != 1 || left[0] == first {
			t.Errorf("left %v", left)
		}
	})
}
