package runner_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/runner"
)

// may is what can be done with a path.
type may struct{ Read, Write, Run bool }

// tried does everything with each path, and puts back what it changed.
func tried(paths []string) map[string]may {
	out := map[string]may{}
	for _, p := range paths {
		var m may
		info, err := os.Lstat(p)
		switch {
		case err != nil:
			f, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if m.Write = err == nil; m.Write {
				_ = f.Close()
				_ = os.Remove(p)
			}
		case info.IsDir():
			_, err := os.ReadDir(p)
			m.Read = err == nil
		default:
			f, err := os.Open(p)
			if m.Read = err == nil; m.Read {
				_, err = f.Read(make([]byte, 1))
				m.Read = err == nil
				_ = f.Close()
			}
			f, err = os.OpenFile(p, os.O_RDWR, 0)
			if m.Write = err == nil; m.Write {
				_ = f.Close()
			}
			m.Run = exec.Command(p).Run() == nil
		}
		out[p] = m
	}
	return out
}

// tree is a random directory with programs in it, some of them denied.
type tree struct {
	root           string
	dirs, programs []string
	denied, others []string // programs that have a denied one's bytes: beside it, and elsewhere
	grants         agent.Grants
}

// trees is how many of them each mode is asked about: a few seconds' worth.
const trees = 16

// program is what every file of a tree holds, in so few bytes that starting it is cheap.
const program = "#!/bin/true\n"

func grow(t *testing.T, rng *rand.Rand) tree {
	t.Helper()
	// Not in /tmp: a turn has one of its own, where it may write what it likes.
	root, err := os.MkdirTemp("/var/tmp", "kernel")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	tr := tree{root: root}
	put := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(program), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	mkdir := func(path string) {
		t.Helper()
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		tr.dirs = append(tr.dirs, path)
		put(filepath.Join(path, "program"))
		tr.programs = append(tr.programs, filepath.Join(path, "program"))
	}
	mkdir(filepath.Join(root, "d"))
	for i := range 3 + rng.IntN(6) {
		mkdir(filepath.Join(tr.dirs[rng.IntN(len(tr.dirs))], fmt.Sprint("d", i)))
	}
	// One directory of the turn's PATH has a denied executable with a second name; a
	// third name of it lies elsewhere.
	bin := tr.dirs[rng.IntN(len(tr.dirs))]
	put(filepath.Join(bin, "git"))
	tr.denied = []string{filepath.Join(bin, "git"), filepath.Join(bin, "twin")}
	if err := os.Link(tr.denied[0], tr.denied[1]); err != nil {
		t.Fatal(err)
	}
	if dir := tr.dirs[rng.IntN(len(tr.dirs))]; dir != bin {
		tr.others = []string{filepath.Join(dir, "triplet")}
		if err := os.Link(tr.denied[0], tr.others[0]); err != nil {
			t.Fatal(err)
		}
	}
	tr.grants = agent.Grants{Env: []string{"PATH"}, Tools: []string{agent.ToolsAll}}
	candidates := append(slices.Clone(tr.dirs), tr.programs...)
	rng.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	access := []agent.Access{agent.ReadOnly, agent.ReadWrite}
	// A turn needs a directory to work in; the rest is whatever comes.
	tr.grants.Mounts = []agent.Mount{{Path: tr.dirs[rng.IntN(len(tr.dirs))], Access: access[rng.IntN(2)]}}
	for _, c := range candidates[:rng.IntN(5)] {
		if c != tr.grants.Mounts[0].Path {
			tr.grants.Mounts = append(tr.grants.Mounts, agent.Mount{Path: c, Access: access[rng.IntN(2)]})
		}
	}
	return tr
}

// paths are all that is asked about: what is there, and what could be made.
func (tr tree) paths() []string {
	out := slices.Concat(tr.dirs, tr.programs, tr.denied, tr.others)
	for _, d := range tr.dirs {
		out = append(out, filepath.Join(d, "new"))
	}
	return append(out, "/usr/bin/env", "/etc/passwd", "/etc/shadow", "/usr/new")
}

// TestPolicyAgreesWithTheKernel grants random trees, nested at random, and has a turn try
// every path: what it can do is what the session's policy says, no more and no less.
func TestPolicyAgreesWithTheKernel(t *testing.T) {
	t.Parallel()
	for mode, options := range map[confine.Mode]confine.Options{
		confine.Full: {UnixSockets: true}, confine.LandlockOnly: {LandlockOnly: true, UnixSockets: true},
	} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			c := confine.Platform(options)
			if c.Mode() != mode {
				t.Fatalf("this machine confines by %s: %v", c.Mode(), c.Probe(t.Context()).Reason)
			}
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 0))
			ran := 0
			for range trees {
				if agree(t, c, grow(t, rng)) {
					ran++
				}
			}
			// Landlock refuses most nestings, but never a plain one.
			if least := map[confine.Mode]int{confine.Full: trees, confine.LandlockOnly: 1}[mode]; ran < least {
				t.Errorf("only %d of %d grants were accepted", ran, trees)
			}
		})
	}
}

// agree compares one tree; false says that its grants are refused.
func agree(t *testing.T, c confine.Confiner, tr tree) bool {
	t.Helper()
	r := newRunner(t, driver{args: []string{"tries"}})
	r.Confiner = c
	r.Environ = func() []string { return []string{"PATH=" + filepath.Dir(tr.denied[0]) + ":/usr/bin:/bin"} }
	s, err := runner.NewHostNone(r).Prepare(t.Context(), tr.grants)
	if errors.Is(err, agent.ErrUnsupported) && c.Mode() == confine.LandlockOnly {
		return false
	}
	if err != nil {
		t.Fatalf("%+v: %v", tr.grants.Mounts, err)
	}
	prompt, err := json.Marshal(tr.paths())
	if err != nil {
		t.Fatal(err)
	}
	req := request(t)
	req.Grants, req.Profile.Confine, req.Prompt, req.Workspace.Dir = nil, true, string(prompt), tr.grants.Mounts[0].Path
	res, err := s.Run(t.Context(), req)
	if err != nil || res.IsError {
		t.Fatalf("%+v: %+v, %v", tr.grants.Mounts, res, err)
	}
	var got map[string]may
	if err := json.Unmarshal([]byte(res.ResultText), &got); err != nil {
		t.Fatalf("%v in %s", err, res.ResultText)
	}
	p := s.Policy()
	for _, path := range tr.paths() {
		info, err := os.Lstat(path)
		want := may{Write: p.Writes(path)}
		switch {
		case err == nil && info.IsDir():
			// A directory that leads to a mount is there, without what was not granted.
			want = may{Read: p.Reads(path) || got[path].Read}
		case err == nil:
			want.Read = p.Reads(path)
			want.Run = p.Runs(path) && info.Mode()&0o111 != 0
			if c.Mode() == confine.LandlockOnly && slices.Contains(tr.others, path) && !got[path].Read {
				// Landlock cannot tell the names of a file apart where it leaves one out.
				want.Read, want.Run = false, false
			}
		}
		if got[path] != want {
			t.Errorf("%s: the kernel lets it %+v, the policy says %+v; mounts %+v, denied %v", path, got[path], want, p.Mounts, p.Denied)
		}
	}
	return true
}
