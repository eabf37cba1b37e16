package worker

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/job"
)

func noted(attempt int) *mark {
	return &mark{Version: markVersion, Worker: "w1", Session: "/state/sessions/s",
		Lease: job.Lease{Job: "019bbb2c-0000-7000-8000-000000000001", Attempt: attempt, Token: job.NewToken()}}
}

func TestNotes(t *testing.T) {
	open := func(t *testing.T, dir string) *StateDir {
		t.Helper()
		s, err := OpenStateDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	// attempts are those that have a mark, as a successor and `worker orphans` list them.
	attempts := func(t *testing.T, s *StateDir) (all []int) {
		t.Helper()
		found, err := s.marks().list()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range found {
			all = append(all, m.Lease.Attempt)
		}
		slices.Sort(all)
		return all
	}
	note := func(t *testing.T, s *StateDir, numbers ...int) {
		t.Helper()
		for _, n := range numbers {
			if err := s.marks().note(noted(n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(t *testing.T, s *StateDir, number int) {
		t.Helper()
		if err := s.marks().remove(noted(number).key()); err != nil {
			t.Fatal(err)
		}
	}
	files := func(t *testing.T, s *StateDir) int {
		t.Helper()
		entries, err := os.ReadDir(s.marksDir())
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}

	t.Run("a successor finds them, and writes over none until it is removed", func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, dir)
		note(t, s, 1, 2, 3)
		remove(t, s, 2)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}

		s = open(t, dir)
		if got := attempts(t, s); !slices.Equal(got, []int{1, 3}) {
			t.Errorf("found %v, want 1 and 3", got)
		}
		note(t, s, 4, 5)
		if got := attempts(t, s); !slices.Equal(got, []int{1, 3, 4, 5}) {
			t.Errorf("found %v, want 1, 3, 4 and 5", got)
		}
		for _, n := range []int{1, 3, 4, 5} {
			remove(t, s, n)
		}
		if got := attempts(t, s); len(got) != 0 {
			t.Errorf("found %v after all were removed", got)
		}
		if n := files(t, s); n != 0 {
			t.Errorf("%d files in marks/", n)
		}
	})

	t.Run("slots are used again", func(t *testing.T) {
		s := open(t, t.TempDir())
		for n := range 100 {
			note(t, s, n+1)
			remove(t, s, n+1)
		}
		info, err := os.Stat(s.noted())
		if err != nil || info.Size() > noteBytes {
			t.Errorf("the file has %v bytes, %v; want one slot", info.Size(), err)
		}
	})

	t.Run("a file takes the place of a note", func(t *testing.T) {
		s := open(t, t.TempDir())
		note(t, s, 1)
		m := noted(1)
		m.Things = []thing{{Identity: agent.Identity{Kind: agent.KindProcess, PID: 7}}}
		if err := s.marks().write(m); err != nil {
			t.Fatal(err)
		}
		found, err := s.marks().list()
		if err != nil || len(found) != 1 || len(found[0].Things) != 1 {
			t.Errorf("found %v, %v; want the one that lists a process", found, err)
		}
		remove(t, s, 1)
		if got := attempts(t, s); len(got) != 0 || files(t, s) != 0 {
			t.Errorf("found %v and %d files after it was removed", got, files(t, s))
		}
	})

	t.Run("a file that a killed worker left beside a note goes with it", func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, dir)
		if err := s.marks().write(noted(1)); err != nil {
			t.Fatal(err)
		}
		note(t, s, 1) // as if the slot had not been emptied yet
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, dir)
		if got := attempts(t, s); !slices.Equal(got, []int{1}) {
			t.Errorf("found %v, want it once", got)
		}
		remove(t, s, 1)
		if got := attempts(t, s); len(got) != 0 || files(t, s) != 0 {
			t.Errorf("found %v and %d files after it was removed", got, files(t, s))
		}
	})

	t.Run("what is too long for one has a file", func(t *testing.T) {
		s := open(t, t.TempDir())
		m := noted(1)
		m.Session = "/" + strings.Repeat("s", noteBytes)
		if err := s.marks().note(m); err != nil {
			t.Fatal(err)
		}
		if got := attempts(t, s); !slices.Equal(got, []int{1}) || files(t, s) != 1 {
			t.Errorf("found %v and %d files, want one in a file", got, files(t, s))
		}
	})

	t.Run("one that was being written is nobody's", func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, dir)
		note(t, s, 1, 2)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "journal", "noted")
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b[:noteBytes+40:noteBytes+40], `{"version":9}`...)
		b = append(append(b, make([]byte, 2*noteBytes-len(b))...), '\n')
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s = open(t, dir)
		if got := attempts(t, s); !slices.Equal(got, []int{1}) {
			t.Errorf("found %v, want the whole one", got)
		}
		note(t, s, 3)
		if got := attempts(t, s); !slices.Equal(got, []int{1, 3}) {
			t.Errorf("found %v, want 1 and 3", got)
		}
	})
}
