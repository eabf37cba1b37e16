package mcphost_test

import (
	"bytes"
	"io"
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
