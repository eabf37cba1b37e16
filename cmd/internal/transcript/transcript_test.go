package transcript_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"turnpike/cmd/internal/transcript"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// streams are what agents printed, by name: the drivers' captured streams, and whole
// turns of `make provider`'s demo.
func streams(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("no streams, %v", err)
	}
	all := map[string][]byte{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(f, ".jsonl")] = data
	}
	return all
}

func TestLines(t *testing.T) {
	for name, stream := range streams(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			var out strings.Builder
			for line := range bytes.Lines(stream) {
				for _, s := range transcript.Lines(line) {
					out.WriteString(s + "\n")
				}
			}
			golden := name + ".golden.txt"
			if *update {
				if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), out.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}

	t.Run("shows what is no event, on one line", func(t *testing.T) {
		for line, want := range map[string]string{
			"Segmentation fault":    "Segmentation fault",
			"\x1b[31mred\x1b]0;x\a": "[31mred ]0;x",
			`{"type":"assis`:        `{"type":"assis`,
			"[1]":                   "[1]",
		} {
			if got := strings.TrimSpace(strings.Join(transcript.Lines([]byte(line)), "\n")); got != want {
				t.Errorf("%q: got %q, want %q", line, got, want)
			}
		}
		for _, line := range []string{"", "  ", "{}", `{"type":"unheard_of"}`, `{"type":7}`} {
			if got := transcript.Lines([]byte(line)); len(got) > 0 {
				t.Errorf("%q says %q", line, got)
			}
		}
	})

	t.Run("keeps a text's lines and folds a result's", func(t *testing.T) {
		got := transcript.Lines([]byte(`{"type":"assistant","message":{"content":[{"type":"text","text":"one\n\n\ttwo\u001b[2J"},{"type":"tool_use","name":"Bash","input":{"command":"ls\npwd"}}]}}`))
		if diff := cmp.Diff([]string{"one", "", "    two [2J", "> Bash ls (+1 lines)"}, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

// FuzzLines shows that no output of an agent steers the terminal it is shown on.
func FuzzLines(f *testing.F) {
	for _, stream := range streams(f) {
		for line := range bytes.Lines(stream) {
			f.Add(line)
		}
	}
	f.Add([]byte("\x1b[31m\x9b31m\u202e\x7f"))
	f.Add([]byte(`{"type":"assistant","message":{"content":"\u001b[2J\u009b2J\u202e"}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		for _, s := range transcript.Lines(line) {
			if !utf8.ValidString(s) {
				t.Errorf("%q is no UTF-8", s)
			}
			for _, r := range s {
				if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
					t.Fatalf("%q holds %U", s, r)
				}
			}
		}
	})
}
