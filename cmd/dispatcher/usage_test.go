package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnpike/cmd/internal/cli"
)

// What a command cannot do is said before it does anything: one that did its work and
// then failed would be typed again.
func TestUsage(t *testing.T) {
	request := filepath.Join(t.TempDir(), "request.json")
	if err := os.WriteFile(request, []byte(`{"api_version": "turnpike/v1", "prompt": "x", "grants": {}, "workspace": {"scratch": true}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	const id = "0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11"
	for typed, want := range map[string]string{
		"enqueue -o jsn -f FILE":                               "want one of table, json, yaml, name",
		"redrive -o jsn --tenant acme":                         "want one of table, json, yaml, name",
		"schedule set s --cron @daily -o jsn -f FILE":          "want one of table, json, yaml, name",
		"get --attempt 2 " + id:                                "--patch",
		"pause everything x":                                   "lane tenant account key",
		"cancel nothing":                                       "a job id looks like",
		"redrive --since 24h":                                  "--tenant",
		"schedule set s --cron 0_3_*_*_8 --missed all -f FILE": "cron",
	} {
		t.Run(typed, func(t *testing.T) {
			words := strings.Fields(typed)
			for i := range words {
				words[i] = strings.NewReplacer("_", " ", "FILE", request).Replace(words[i])
			}
			stdout, _, err := command(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked for %s %s", r.Method, r.URL) }, words...)
			if err == nil || !strings.Contains(err.Error(), want) || stdout != "" {
				t.Errorf("%q, %v", stdout, err)
			}
			if code := cli.ExitCode(err); code != cli.ExitUsage {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
