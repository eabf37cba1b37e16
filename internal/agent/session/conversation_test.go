package session_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnpike/internal/agent/session"
)

var about = session.About{Agent: "pi", Conversation: "c1", WorkDir: "/workspace"}

// talks are the files of the tests' conversations.
func talks(name string) bool { return strings.HasPrefix(name, "talks/") }

func fresh(t testing.TB) *session.Dir {
	t.Helper()
	d, err := session.Create(t.TempDir(), "turn")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestConversation(t *testing.T) {
	t.Parallel()
	t.Run("goes on in another home with its files and nothing else", func(t *testing.T) {
		t.Parallel()
		from, to := fresh(t), fresh(t)
		write(t, filepath.Join(from.Home(), "talks", "deep", "er.jsonl"), "hello\n")
		write(t, filepath.Join(from.Home(), "settings.json"), "hooks")
		secret := filepath.Join(t.TempDir(), "secret")
		write(t, secret, "secret")
		for link, target := range map[string]string{"file": secret, "dir": filepath.Dir(secret), "inside": "../settings.json"} {
			if err := os.Symlink(target, filepath.Join(from.Home(), "talks", link)); err != nil {
				t.Fatal(err)
			}
		}
		if err := from.KeepConversation(about, talks); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(from.Conversation(), to.Continued()); err != nil {
			t.Fatal(err)
		}
		if err := to.RestoreConversation(about, talks); err != nil {
			t.Fatal(err)
		}
		var found []string
		err := fs.WalkDir(os.DirFS(to.Home()), ".", func(name string, e fs.DirEntry, err error) error {
			if !e.IsDir() {
				found = append(found, name)
			}
			return err
		})
		if err != nil || len(found) != 1 || found[0] != "talks/deep/er.jsonl" {
			t.Errorf("found %q, %v", found, err)
		}
		if b, err := os.ReadFile(filepath.Join(to.Home(), "talks", "deep", "er.jsonl")); err != nil || string(b) != "hello\n" {
			t.Errorf("%q, %v", b, err)
		}
	})
	t.Run("is nothing where the agent left nothing", func(t *testing.T) {
		t.Parallel()
		d := fresh(t)
		write(t, filepath.Join(d.Home(), "settings.json"), "{}")
		if err := d.KeepConversation(about, talks); !errors.Is(err, session.ErrNoConversation) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("is not kept when it is too large", func(t *testing.T) {
		t.Parallel()
		d := fresh(t)
		path := filepath.Join(d.Home(), "talks", "long")
		write(t, path, "")
		if err := os.Truncate(path, 300<<20); err != nil { // sparse
			t.Fatal(err)
		}
		if err := d.KeepConversation(about, talks); err == nil {
			t.Error("want an error")
		}
		if _, err := os.Stat(d.Conversation()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("half of it is there: %v", err)
		}
	})
	t.Run("is missing", func(t *testing.T) {
		t.Parallel()
		if err := fresh(t).RestoreConversation(about, talks); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})

	const head = `{"version":1,"agent":"pi","conversation":"c1","work_dir":"/workspace"}`
	good := entry{name: "files/talks/a", content: "x"}
	for name, entries := range map[string][]entry{
		"of another conversation": {{name: "about.json", content: strings.Replace(head, "c1", "c2", 1)}, good},
		"of another agent":        {{name: "about.json", content: strings.Replace(head, "pi", "claude", 1)}, good},
		"of another place":        {{name: "about.json", content: strings.Replace(head, "/workspace", "/elsewhere", 1)}, good},
		"of a later version":      {{name: "about.json", content: strings.Replace(head, "1", "2", 1)}, good},
		"that says nothing":       {good},
		"without a file":          {{name: "about.json", content: head}},
		"with a setting":          {{name: "about.json", content: head}, good, {name: "files/settings.json", content: "x"}},
		"that climbs":             {{name: "about.json", content: head}, {name: "files/talks/../../x", content: "x"}},
		"with an absolute name":   {{name: "about.json", content: head}, {name: "/talks/x", content: "x"}},
		"with an odd name":        {{name: "about.json", content: head}, {name: "files/talks//x", content: "x"}},
		"with a link":             {{name: "about.json", content: head}, {name: "files/talks/x", kind: tar.TypeSymlink, link: "/etc/passwd"}},
		"with a hard link":        {{name: "about.json", content: head}, {name: "files/talks/x", kind: tar.TypeLink, link: "files/talks/a"}},
		"with a device":           {{name: "about.json", content: head}, {name: "files/talks/x", kind: tar.TypeChar}},
		"with a file twice":       {{name: "about.json", content: head}, good, good},
		"with a huge file":        {{name: "about.json", content: head}, {name: "files/talks/x", size: 1 << 40}},
	} {
		t.Run("refuses a bundle "+name, func(t *testing.T) {
			t.Parallel()
			d := fresh(t)
			write(t, d.Continued(), archive(t, entries))
			if err := d.RestoreConversation(about, talks); !errors.Is(err, session.ErrBundle) {
				t.Errorf("got %v", err)
			}
		})
	}
}

type entry struct {
	name, content, link string
	kind                byte
	size                int64
}

// archive is a bundle as nobody honest packs it.
func archive(t testing.TB, entries []entry) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Size: int64(len(e.content)), Mode: 0o777}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if e.size > 0 {
			h.Size = e.size
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	_ = w.Flush() // fails for the file that is shorter than it says, which is the point
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Whatever a bundle holds, nothing is written outside the home, and nothing in it that
// is no part of a conversation.
func FuzzRestoreConversation(f *testing.F) {
	const head = `{"version":1,"agent":"pi","conversation":"c1","work_dir":"/workspace"}`
	f.Add([]byte(archive(f, []entry{{name: "about.json", content: head}, {name: "files/talks/a", content: "x"}})))
	f.Add([]byte(archive(f, []entry{{name: "about.json", content: head}, {name: "files/../../x", content: "x"}})))
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, bundle []byte) {
		d := fresh(t)
		write(t, d.Continued(), string(bundle))
		before, err := os.ReadDir(d.Path())
		if err != nil {
			t.Fatal(err)
		}
		_ = d.RestoreConversation(about, talks) // refusing is as good as any answer
		after, err := os.ReadDir(d.Path())
		if err != nil || len(after) != len(before) {
			t.Fatalf("%d entries became %d, %v", len(before), len(after), err)
		}
		err = fs.WalkDir(os.DirFS(d.Home()), ".", func(name string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() && (!talks(name) || !e.Type().IsRegular()) {
				t.Errorf("%s was written", name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}
