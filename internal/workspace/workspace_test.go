package workspace_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/vcs"
	"turnpike/internal/workspace"
)

func TestDir(t *testing.T) {
	root := resolved(t, t.TempDir())
	must(t, os.Mkdir(filepath.Join(root, "real"), 0o755))
	must(t, os.Symlink("real", filepath.Join(root, "link")))
	must(t, os.WriteFile(filepath.Join(root, "file"), nil, 0o644))

	t.Run("follows links once", func(t *testing.T) {
		w, err := (&workspace.Dir{}).Acquire(t.Context(), filepath.Join(root, "link"))
		must(t, err)
		if w.Dir != filepath.Join(root, "real") {
			t.Errorf("got %s", w.Dir)
		}
	})
	for name, path := range map[string]string{"missing": filepath.Join(root, "none"), "a file": filepath.Join(root, "file"), "relative": "real"} {
		t.Run("refuses what is "+name, func(t *testing.T) {
			if _, err := (&workspace.Dir{}).Acquire(t.Context(), path); !errors.Is(err, agent.ErrNotGranted) {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("names a worktree's metadata outside it", func(t *testing.T) {
		git := filepath.Join(root, "repo", ".git")
		own := filepath.Join(git, "worktrees", "w")
		must(t, os.MkdirAll(own, 0o755))
		must(t, os.WriteFile(filepath.Join(own, "commondir"), []byte("../..\n"), 0o644))
		must(t, os.WriteFile(filepath.Join(root, "real", ".git"), []byte("gitdir: "+own+"\n"), 0o644))
		w, err := (&workspace.Dir{}).Acquire(t.Context(), filepath.Join(root, "real"))
		must(t, err)
		if len(w.Metadata) != 2 || w.Metadata[0] != own || w.Metadata[1] != git {
			t.Errorf("got %v", w.Metadata)
		}
	})
}

func TestScratch(t *testing.T) {
	t.Run("is empty, private and goes with its release", func(t *testing.T) {
		s := &workspace.Set{Scratch: &workspace.Scratch{Root: filepath.Join(t.TempDir(), "scratch")}}
		w, err := s.Acquire(t.Context(), vcs.Spec{Name: "job.1", Scratch: true})
		must(t, err)
		info, err := os.Stat(w.Dir)
		must(t, err)
		if info.Mode().Perm() != 0o700 {
			t.Errorf("mode %v", info.Mode())
		}
		must(t, os.MkdirAll(filepath.Join(w.Dir, "deep", "er"), 0o755))
		must(t, os.Chmod(filepath.Join(w.Dir, "deep"), 0))
		must(t, s.Release(t.Context(), w))
		if _, err := os.Lstat(w.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("it is still there: %v", err)
		}
	})
	t.Run("removes nothing a link leads to", func(t *testing.T) {
		base := t.TempDir()
		outside := filepath.Join(base, "outside")
		must(t, os.Mkdir(outside, 0o755))
		must(t, os.WriteFile(filepath.Join(outside, "kept"), nil, 0o644))
		s := &workspace.Scratch{Root: filepath.Join(base, "scratch")}
		w, err := s.Acquire(t.Context(), "job.1")
		must(t, err)
		must(t, os.Symlink(outside, filepath.Join(w.Dir, "link")))
		must(t, s.Release(t.Context(), w))
		if err := s.Release(t.Context(), vcs.Workspace{Dir: outside}); err == nil {
			t.Error("a directory outside was taken for a workspace")
		}
		if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
			t.Error(err)
		}
	})
	t.Run("of an earlier worker goes at the start", func(t *testing.T) {
		s := &workspace.Scratch{Root: filepath.Join(t.TempDir(), "scratch")}
		w, err := s.Acquire(t.Context(), "job.1")
		must(t, err)
		must(t, s.Clean())
		if _, err := os.Lstat(w.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("it is still there: %v", err)
		}
	})
	t.Run("refuses a sort that is not provided", func(t *testing.T) {
		if _, err := (&workspace.Set{}).Acquire(t.Context(), vcs.Spec{Scratch: true}); !errors.Is(err, agent.ErrUnsupported) {
			t.Errorf("got %v", err)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func resolved(t *testing.T, p string) string {
	t.Helper()
	r, err := filepath.EvalSymlinks(p)
	must(t, err)
	return r
}
