package workspace_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/vcs"
	"turnpike/internal/workspace"
)

// git runs git for the test itself.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func repository(t *testing.T) string {
	t.Helper()
	dir := resolved(t, t.TempDir())
	git(t, dir, "init", "--quiet", "--initial-branch=main")
	must(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("one\n"), 0o644))
	git(t, dir, "add", ".")
	git(t, dir, "commit", "--quiet", "-m", "one")
	git(t, dir, "tag", "v1")
	git(t, dir, "tag", "blob", "v1:a.txt")
	must(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("two\n"), 0o644))
	git(t, dir, "commit", "--quiet", "-am", "two")
	return dir
}

func TestGit(t *testing.T) {
	repo := repository(t)
	first := git(t, repo, "rev-parse", "v1")
	g := &workspace.Git{Root: filepath.Join(t.TempDir(), "git")}
	set := &workspace.Set{Git: g}
	acquire := func(t *testing.T, ref string) vcs.Workspace {
		t.Helper()
		w, err := set.Acquire(t.Context(), vcs.Spec{Name: "job.1", Git: &vcs.Checkout{URL: "file://" + repo, Ref: ref}})
		must(t, err)
		return w
	}
	for _, tc := range []struct{ name, ref, want string }{
		{"the remote's own default", "", "two\n"}, {"a branch", "main", "two\n"}, {"a tag", "v1", "one\n"}, {"a commit", first, "one\n"},
	} {
		t.Run("checks out "+tc.name, func(t *testing.T) {
			w := acquire(t, tc.ref)
			got, err := os.ReadFile(filepath.Join(w.Dir, "a.txt"))
			must(t, err)
			if string(got) != tc.want {
				t.Errorf("got %q", got)
			}
			must(t, set.Release(t.Context(), w))
			if _, err := os.Lstat(w.Dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("it is still there: %v", err)
			}
		})
	}
	t.Run("sees what was pushed since", func(t *testing.T) {
		must(t, os.WriteFile(filepath.Join(repo, "b.txt"), []byte("new\n"), 0o644))
		git(t, repo, "add", ".")
		git(t, repo, "commit", "--quiet", "-m", "three")
		w := acquire(t, "main")
		if _, err := os.Stat(filepath.Join(w.Dir, "b.txt")); err != nil {
			t.Error(err)
		}
		must(t, set.Release(t.Context(), w))
	})
	t.Run("runs nothing an agent left in the tree or its metadata", func(t *testing.T) {
		w := acquire(t, "v1")
		proof := filepath.Join(t.TempDir(), "ran")
		script := filepath.Join(w.Dir, "evil.sh")
		must(t, os.WriteFile(script, []byte("#!/bin/sh\ntouch "+proof+"\ncat\n"), 0o755))
		for _, kv := range [][2]string{{"core.fsmonitor", script}, {"filter.x.clean", script}, {"diff.external", script}, {"core.hooksPath", w.Dir}, {"diff.x.textconv", script}} {
			git(t, w.Dir, "config", kv[0], kv[1])
		}
		must(t, os.WriteFile(filepath.Join(w.Dir, ".gitattributes"), []byte("* filter=x diff=x\n"), 0o644))
		must(t, os.WriteFile(filepath.Join(w.Dir, "a.txt"), []byte("changed\n"), 0o644))
		var patch bytes.Buffer
		_, err := set.Patch(t.Context(), w, &patch)
		must(t, err)
		if _, err := os.Stat(proof); err == nil {
			t.Error("a program of the tree was run")
		}
		if !strings.Contains(patch.String(), "+changed") {
			t.Errorf("the change is missing:\n%s", patch.String())
		}
		must(t, set.Release(t.Context(), w))
	})
	t.Run("keeps what changed as a patch that applies", func(t *testing.T) {
		w := acquire(t, "v1")
		must(t, os.WriteFile(filepath.Join(w.Dir, "a.txt"), []byte("edited\n"), 0o644))
		must(t, os.WriteFile(filepath.Join(w.Dir, "new.bin"), []byte{0, 1, 2, 255}, 0o644))
		git(t, w.Dir, "add", ".")
		git(t, w.Dir, "commit", "--quiet", "-m", "the agent's own commit changes nothing")
		var patch bytes.Buffer
		changes, err := set.Patch(t.Context(), w, &patch)
		must(t, err)
		if changes.Files != 2 || changes.Added != 1 || changes.Deleted != 1 || !slices.Equal(changes.New, []string{"new.bin"}) || !strings.Contains(changes.Stat, "a.txt") {
			t.Errorf("changes %+v", changes)
		}
		fresh := acquire(t, "v1")
		file := filepath.Join(t.TempDir(), "p")
		must(t, os.WriteFile(file, patch.Bytes(), 0o600))
		must(t, set.Apply(t.Context(), fresh, file))
		for name, want := range map[string]string{"a.txt": "edited\n", "new.bin": "\x00\x01\x02\xff"} {
			got, err := os.ReadFile(filepath.Join(fresh.Dir, name))
			must(t, err)
			if string(got) != want {
				t.Errorf("%s: got %q", name, got)
			}
		}
		must(t, set.Release(t.Context(), w))
		must(t, set.Release(t.Context(), fresh))
	})
	t.Run("writes no patch of an unchanged tree", func(t *testing.T) {
		w := acquire(t, "main")
		var patch bytes.Buffer
		changes, err := set.Patch(t.Context(), w, &patch)
		must(t, err)
		if patch.Len() > 0 || changes.Files != 0 {
			t.Errorf("got %q, %+v", patch.String(), changes)
		}
		must(t, set.Release(t.Context(), w))
	})
	t.Run("holds the size of a patch", func(t *testing.T) {
		small := &workspace.Git{Root: filepath.Join(t.TempDir(), "git"), MaxPatch: 10}
		w, err := small.Acquire(t.Context(), workspace.GitSpec{Name: "x", Checkout: vcs.Checkout{URL: "file://" + repo, Ref: "v1"}})
		must(t, err)
		must(t, os.WriteFile(filepath.Join(w.Dir, "a.txt"), []byte("changed\n"), 0o644))
		if _, err := small.Patch(t.Context(), w, &bytes.Buffer{}); err == nil {
			t.Error("want an error")
		}
	})
	for _, tc := range []struct {
		name string
		c    vcs.Checkout
		want error
	}{
		{"a protocol that runs a command", vcs.Checkout{URL: "ext::sh -c id"}, agent.ErrNotGranted},
		{"plain http", vcs.Checkout{URL: "http://127.0.0.1/x"}, agent.ErrNotGranted},
		{"a credential in the URL", vcs.Checkout{URL: "https://me:secret@127.0.0.1/x"}, agent.ErrNotGranted},
		{"an unbound credential", vcs.Checkout{URL: "https://127.0.0.1/x", Credentials: []string{"c"}}, agent.ErrNotGranted},
		{"a ref that is an option", vcs.Checkout{URL: "file://" + repo, Ref: "--upload-pack=id"}, agent.ErrNotGranted},
		{"a ref that is none", vcs.Checkout{URL: "file://" + repo, Ref: "no-such"}, agent.ErrMissing},
		{"a commit that is none", vcs.Checkout{URL: "file://" + repo, Ref: strings.Repeat("1", 40)}, agent.ErrMissing},
		{"a ref that is no commit", vcs.Checkout{URL: "file://" + repo, Ref: "blob"}, agent.ErrMissing},
		{"a repository that is none", vcs.Checkout{URL: "file://" + repo + "/none"}, agent.ErrMissing},
	} {
		t.Run("refuses "+tc.name, func(t *testing.T) {
			_, err := set.Acquire(t.Context(), vcs.Spec{Name: "x", Git: &tc.c})
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v", err)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error tells the secret: %v", err)
			}
		})
	}
}
