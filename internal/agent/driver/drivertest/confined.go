package drivertest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/agent/agenttest"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/mcphost"
	"turnpike/internal/agent/runner"
	"turnpike/internal/vcs"
)

// Entry must be called first by the TestMain of a test that calls Confined.
func Entry() {
	confine.Entry()
	mcphost.Entry()
}

// Confined runs a whole turn through the runner, confined by the best means this
// machine has and by those of a worker inside a container: the CLI starts, works, asks
// its provider and reports with no more of the machine than the driver says it needs.
func Confined(t *testing.T, s Subject) {
	t.Helper()
	means := map[confine.Mode]confine.Options{confine.LandlockOnly: {LandlockOnly: true, UnixSockets: true}}
	best := confine.Options{UnixSockets: true}
	means[confine.Platform(best).Mode()] = best
	for mode, options := range means {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s := s // the driver is each subtest's own
			sc := script(t, agenttest.Shell("pwd > pwd.txt"), agenttest.Write("out.txt", "written\n"),
				agenttest.Report("all green"), agenttest.Text("Done."))
			if s.At != nil {
				s.Driver = s.At(sc.URL())
			}
			backend := s.Driver.Descriptor()
			dir := t.TempDir()
			c := confine.Platform(options)
			metadata := filepath.Join(dir, ".git")
			if c.Mode() == confine.Full {
				// It is read-only there, and some CLIs would keep something in it. What cannot
				// hold it read-only refuses a checkout.
				if out, err := exec.CommandContext(t.Context(), "git", "init", "--quiet", dir).CombinedOutput(); err != nil {
					t.Fatalf("git init: %v\n%s", err, out)
				}
			}
			r := &runner.Runner{
				Bins:        map[string]string{backend.Name: s.Bin},
				SessionsDir: filepath.Join(t.TempDir(), "sessions"),
				Drivers:     map[string]agent.Driver{backend.Name: s.Driver},
				Watch:       agent.Watch{FirstEvent: patience, Idle: patience, Grace: grace},
				Network:     agent.Network{Open: true},
				Confiner:    c,
				Environ:     func() []string { return s.Provider(sc.URL(), backend.Credentials[0]+"="+secret) },
			}
			res, err := r.Run(t.Context(), agent.Request{
				Name: "confined", Prompt: "Say hello.", SystemPrompt: "Be brief.", ValidOutcomes: []string{"shipped"},
				Profile:   agent.Profile{Name: "builder", Agent: backend.Name, Model: s.Model, Confine: true},
				Workspace: vcs.Workspace{Dir: dir},
				Grants: &agent.Grants{
					Env: []string{"*"}, Tools: []string{agent.ToolsAll},
					Mounts: []agent.Mount{{Path: dir, Access: agent.ReadWrite}},
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			if res.IsError || res.ResultText != "Done." || res.Outcome.Status != "shipped" || res.ToolCalls != 3 || res.ClaudeID == "" {
				stderr, _ := os.ReadFile(filepath.Join(res.SessionDir, "stderr.log"))
				t.Fatalf("%+v\nstderr: %s", res, stderr)
			}
			if _, err := os.Stat(filepath.Join(metadata, backend.Name)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("something of the CLI's is in the repository's metadata: %v", err)
			}
			if got, err := os.ReadFile(filepath.Join(dir, "out.txt")); string(got) != "written\n" {
				t.Errorf("out.txt: %q, %v", got, err)
			}
			if got, err := os.ReadFile(filepath.Join(dir, "pwd.txt")); strings.TrimSpace(string(got)) != c.Mode().WorkDir(dir) {
				t.Errorf("the shell worked in %q, %v; want %s", got, err, c.Mode().WorkDir(dir))
			}
		})
	}
}
