package mcphost_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"turnpike/internal/agent/mcphost"
)

// FuzzGreeting: nothing but the greeting with the token is let in, and what
// follows its line is left for MCP.
func FuzzGreeting(f *testing.F) {
	const token = "SOMETOKEN"
	f.Add([]byte(mcphost.Greeting + token + "\n{}"))
	f.Add([]byte(mcphost.Greeting + "\n"))
	f.Add([]byte("\n"))
	f.Add(bytes.Repeat([]byte("x"), 1000))
	f.Fuzz(func(t *testing.T, sent []byte) {
		rest, right := bytes.CutPrefix(sent, []byte(mcphost.Greeting+token+"\n"))
		r := bytes.NewReader(sent)
		if got := mcphost.Greeted(r, token); got != right {
			t.Fatalf("greeted by %q: %t", sent, got)
		}
		if left, err := io.ReadAll(r); right && (err != nil || !bytes.Equal(left, rest)) {
			t.Errorf("left %q, want %q", left, rest)
		}
		if mcphost.Greeted(bytes.NewReader(sent), "") {
			t.Errorf("%q greets a host without a token", sent)
		}
	})
}

// FuzzArguments: what is taken is within every bound.
func FuzzArguments(f *testing.F) {
	f.Add([]byte(`{"status":"done","note":"n","work":{"key":"k","tags":["a"]}}`), true)
	f.Add([]byte(`{"status":"\u0000"}`), false)
	f.Add([]byte(`{"status":"x","STATUS":"y"}`), false)
	f.Fuzz(func(t *testing.T, arguments []byte, listed bool) {
		r := mcphost.Report{}
		if listed {
			r.Valid = []string{"done", "blocked"}
		}
		o, err := r.Parse(arguments)
		if err != nil {
			return
		}
		if listed && !slices.Contains(r.Valid, o.Status) {
			t.Errorf("status %q", o.Status)
		}
		if o.Status == "" || len(o.Status) > 64 || len(o.Note) > 4096 || len(o.Work.Tags) > 32 {
			t.Errorf("beyond the bounds: %+v", o)
		}
		for _, s := range append([]string{o.Status, o.Note, o.Work.Key}, o.Work.Tags...) {
			if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
				t.Errorf("Postgres cannot hold %q", s)
			}
		}
	})
}

// FuzzReadTools: whatever a model asks of the read server, it is answered within the
// bounds, and never with what lies outside.
func FuzzReadTools(f *testing.F) {
	outside, dir := f.TempDir(), f.TempDir()
	for path, content := range map[string]string{
		filepath.Join(outside, "secret"): "OUTSIDE", filepath.Join(dir, "file"): "inside\n",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			f.Fatal(err)
		}
	}
	for link, target := range map[string]string{"out": outside, "up": "..", "root": "/", "self": "."} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			f.Fatal(err)
		}
	}
	tools := mcphost.ReadTools(f, dir)
	f.Add(uint8(0), []byte(`{"path":"file","offset":1,"limit":1}`))
	f.Add(uint8(1), []byte(`{"path":"up/`+filepath.Base(outside)+`"}`))
	f.Add(uint8(2), []byte(`{"pattern":"**/{a,[!b]}?*","path":"self"}`))
	f.Add(uint8(3), []byte(`{"pattern":"(?i)SIDE","glob":"*","path":"."}`))
	f.Fuzz(func(t *testing.T, tool uint8, arguments []byte) {
		text := tools(int(tool)%4, arguments)
		if strings.Contains(text, "OUTSIDE") || len(text) > mcphost.MaxText+(32<<10) {
			t.Errorf("%q gives %q", arguments, text)
		}
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			t.Errorf("%q gives what nobody can keep: %q", arguments, text)
		}
	})
}

// FuzzGlob: a glob is refused, or matches in a time that its length bounds.
func FuzzGlob(f *testing.F) {
	f.Add("**/*.{go,[a-z]x}", "a/b.go")
	f.Add("[!]]", "x")
	f.Add(strings.Repeat("*a", 500), strings.Repeat("a", 1000))
	f.Fuzz(func(t *testing.T, glob, name string) {
		re, err := mcphost.Glob(glob)
		if err != nil || strings.ContainsAny(name, "*?[]{},\\") || !utf8.ValidString(name) || name == "" {
			return
		}
		re.MatchString(name)
		if same, err := mcphost.Glob(name); len(name) <= 1024 && (err != nil || !same.MatchString(strings.TrimPrefix(name, "./"))) {
			t.Errorf("%q does not match itself: %v", name, err)
		}
	})
}
