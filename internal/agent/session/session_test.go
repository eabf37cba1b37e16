package session_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/session"
)

func create(t *testing.T, root, name string) *session.Dir {
	t.Helper()
	d, err := session.Create(root, name)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	return d
}

func started(t *testing.T, d *session.Dir, transcript string) {
	t.Helper()
	if err := d.Update(func(m *session.Meta) { m.StartedAt = time.Now().UTC() }); err != nil {
		t.Fatal(err)
	}
	log, err := d.OpenTranscript(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(log, transcript)
	if err := errors.Join(log.Err(), log.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestCreate(t *testing.T) {
	t.Run("gives_each_turn_a_private_directory", func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "sessions")
		a, b := create(t, root, "build"), create(t, root, "build")
		if a.Path() == b.Path() {
			t.Fatalf("two turns share %s", a.Path())
		}
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			if err == nil && info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s has mode %v", path, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	t.Run("keeps_names_inside_the_root", func(t *testing.T) {
		root := t.TempDir()
		actual, err := filepath.EvalSymlinks(root)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"", "..", "../../etc", "/abs", ".hidden", "a/b", "ü\x00\n", strings.Repeat("n", 300)} {
			d := create(t, root, name)
			if filepath.Dir(d.Path()) != actual || strings.HasPrefix(filepath.Base(d.Path()), ".") {
				t.Errorf("name %q became %s", name, d.Path())
			}
			if m, err := d.Meta(); err != nil || m.Marker != filepath.Base(d.Path()) {
				t.Errorf("name %q: meta %+v, %v", name, m, err)
			}
		}
	})
	t.Run("is_not_ready_where_it_cannot_write", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := session.Create(filepath.Join(file, "sessions"), "x"); !errors.Is(err, agent.ErrUnready) {
			t.Fatalf("got %v, want ErrUnready", err)
		}
	})
}

func TestOpen(t *testing.T) {
	t.Run("finds_what_Create_made", func(t *testing.T) {
		d := create(t, t.TempDir(), "x")
		if err := d.Update(func(m *session.Meta) { m.Job, m.Attempt = "j", 3 }); err != nil {
			t.Fatal(err)
		}
		again, err := session.Open(d.Path())
		if err != nil {
			t.Fatal(err)
		}
		if m, err := again.Meta(); err != nil || m.Job != "j" || m.Attempt != 3 || m.Name != "x" {
			t.Fatalf("meta %+v, %v", m, err)
		}
	})
	t.Run("refuses_any_other_directory", func(t *testing.T) {
		dir := t.TempDir()
		if _, err := session.Open(dir); !errors.Is(err, agent.ErrUnready) {
			t.Fatalf("got %v, want ErrUnready", err)
		}
		if err := session.Remove(dir); err == nil {
			t.Fatal("a directory that is no session was removed")
		}
		if _, err := os.Stat(dir); err != nil {
			t.Fatal(err)
		}
	})
}

func TestResult(t *testing.T) {
	d := create(t, t.TempDir(), "x")
	if _, err := d.Result(); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("before the end: %v", err)
	}
	want := &agent.Result{Name: "x", ErrorSubtype: agent.SubtypeIdle, CostUSD: 0.5, CostKnown: true, Duration: time.Second}
	if err := d.WriteResult(want); err != nil {
		t.Fatal(err)
	}
	got, err := d.Result()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	if err := d.WritePrompts("again", ""); !errors.Is(err, session.ErrEnded) {
		t.Fatalf("a second turn in one directory: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(d.Path(), ".*"))
	if err != nil || len(left) > 0 {
		t.Fatalf("left behind: %v, %v", left, err)
	}
}

func TestInterrupted(t *testing.T) {
	root := t.TempDir()
	create(t, root, "a-never-started")
	ended := create(t, root, "b-ended")
	started(t, ended, "")
	if err := ended.WriteResult(&agent.Result{}); err != nil {
		t.Fatal(err)
	}
	lost := create(t, root, "c-lost")
	if err := lost.Update(func(m *session.Meta) { m.Role = "builder" }); err != nil {
		t.Fatal(err)
	}
	started(t, lost, `{"type":"system"}
{"message":{"id":"m1","content":[]},"type":"assistant"}
{"type":"assistant","message":{"id":"m1"}}
not json
{"type":"assistant","message":{"id":"m2"}}
{"type":"assistant","message":"odd"}
{"type":"assistant","message":{"id":"m3"`)
	killed := create(t, root, "d-killed")
	if err := killed.Update(func(m *session.Meta) { m.StartedAt = time.Now() }); err != nil {
		t.Fatal(err)
	}
	if err := killed.MarkKilled("worker went away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "other"), 0o700); err != nil {
		t.Fatal(err)
	}

	got, err := session.Interrupted(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []agent.Interrupted{
		{Role: "builder", Name: filepath.Base(lost.Path()), Dir: lost.Path(), Transcript: lost.Transcript(), Turns: 3},
		{Name: filepath.Base(killed.Path()), Dir: killed.Path(), Killed: true, Note: "worker went away"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	if got, err := session.Interrupted(filepath.Join(root, "absent")); err != nil || got != nil {
		t.Fatalf("absent root: %v, %v", got, err)
	}
}

func TestInterruptedTellsWhatItCannotRead(t *testing.T) {
	root := t.TempDir()
	good := create(t, root, "b")
	started(t, good, "")
	bad := create(t, root, "a")
	if err := os.WriteFile(filepath.Join(bad.Path(), "meta.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := session.Interrupted(root)
	if err == nil || len(got) != 1 || got[0].Dir != good.Path() {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestCountTurns(t *testing.T) {
	t.Run("counts_a_line_too_long_to_keep", func(t *testing.T) {
		huge := `{"type":"assistant","message":{"text":"` + strings.Repeat("x", 50<<20) + "\"}}\n"
		got, err := session.CountTurns(strings.NewReader(huge + `{"type":"assistant"}` + "\n"))
		if err != nil || got != 2 {
			t.Fatalf("got %d, %v", got, err)
		}
	})
	t.Run("keeps_the_count_when_reading_fails", func(t *testing.T) {
		bad := errors.New("bad sector")
		r := io.MultiReader(strings.NewReader("{\"type\":\"assistant\"}\n"), iotest.ErrReader(bad))
		if got, err := session.CountTurns(r); got != 1 || !errors.Is(err, bad) {
			t.Fatalf("got %d, %v", got, err)
		}
	})
}

func TestLog(t *testing.T) {
	t.Run("keeps_everything_up_to_its_bound_and_says_so", func(t *testing.T) {
		d := create(t, t.TempDir(), "x")
		log, err := d.OpenTranscript(10)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if n, err := log.Write([]byte("123456")); n != 6 || err != nil {
				t.Fatalf("Write: %d, %v", n, err)
			}
		}
		if log.Err() == nil {
			t.Error("the bound was reached without a word")
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(d.Transcript()); err != nil || string(got) != "1234561234" {
			t.Fatalf("got %q, %v", got, err)
		}
	})
	t.Run("outlives_a_full_disk", func(t *testing.T) {
		d := create(t, t.TempDir(), "x")
		log, err := d.OpenStderr(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		// A closed file stands for a disk that takes no more.
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		if n, err := log.Write([]byte("x")); n != 1 || err != nil {
			t.Fatalf("Write: %d, %v", n, err)
		}
		if log.Err() == nil {
			t.Fatal("the failure is not told")
		}
	})
	t.Run("never_overwrites_an_earlier_one", func(t *testing.T) {
		d := create(t, t.TempDir(), "x")
		started(t, d, "first")
		if _, err := d.OpenTranscript(1); !errors.Is(err, agent.ErrUnready) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestListAndRemove(t *testing.T) {
	root := t.TempDir()
	d := create(t, root, "x")
	started(t, d, strings.Repeat("x", 100_000))
	deep := filepath.Join(d.Home(), "a", "b")
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{deep, filepath.Dir(deep)} {
		if err := os.Chmod(dir, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(d.Home(), "link")); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		entries, err := session.List(root)
		if err != nil || len(entries) != 1 || entries[0].Bytes < 100_000 || !entries[0].EndedAt.IsZero() || entries[0].StartedAt.IsZero() {
			t.Fatalf("got %+v, %v", entries, err)
		}
	}
	if err := d.WriteResult(&agent.Result{}); err != nil {
		t.Fatal(err)
	}
	// An unsearchable directory may hide its size from an ordinary user; the
	// entry is there all the same.
	if entries, _ := session.List(root); len(entries) != 1 || entries[0].EndedAt.IsZero() {
		t.Fatalf("got %+v", entries)
	}
	if err := session.Remove(d.Path()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(d.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("still there: %v", err)
	}
}

// FuzzLines compares the reader with splitting everything at once.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nb\r\n\nlast"), 3)
	f.Add([]byte(strings.Repeat("x", 200_000)+"\ny"), 100_000)
	f.Add([]byte("\n"), 1)
	f.Fuzz(func(t *testing.T, data []byte, limit int) {
		if limit < 1 || limit > 1<<20 {
			t.Skip("not a bound anyone sets")
		}
		want := bytes.Split(data, []byte("\n"))
		if len(want[len(want)-1]) == 0 {
			want = want[:len(want)-1]
		}
		lines := session.NewLines(iotest.HalfReader(bytes.NewReader(data)), limit)
		for _, w := range want {
			got, err := lines.Next()
			if err != nil {
				t.Fatal(err)
			}
			cut := len(w) > limit
			if w = bytes.TrimSuffix(w[:min(len(w), limit)], []byte("\r")); !bytes.Equal(got.Text, w) || got.Cut != cut {
				t.Fatalf("got %q (%v), want %q (%v)", got.Text, got.Cut, w, cut)
			}
		}
		if _, err := lines.Next(); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last line: %v", err)
		}
	})
}

func FuzzCountTurns(f *testing.F) {
	f.Add([]byte(`{"type":"assistant","message":{"id":"a"}}` + "\n" + `{"type":`))
	f.Add([]byte(`{"type":["assistant"],"type":"assistant"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		turns, err := session.CountTurns(bytes.NewReader(data))
		if err != nil || turns > bytes.Count(data, []byte("\n"))+1 {
			t.Fatalf("%d turns, %v", turns, err)
		}
	})
}
