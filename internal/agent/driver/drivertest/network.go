package drivertest

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/agent/agenttest"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/runner"
	"turnpike/internal/vcs"
)

// Limited runs whole turns whose network is limited to domains: the CLI asks a provider
// that is among them, whether it knows of proxies or not, and cannot ask one that is
// not. What it asks of others when it starts is refused, and keeps it from nothing.
func Limited(t *testing.T, s Subject) {
	t.Helper()
	c := confine.Platform(confine.Options{})
	if c.Mode() != confine.Full {
		t.Fatalf("this machine confines by %q: %+v", c.Mode(), c.Probe(t.Context()))
	}
	const name = "provider.test"
	for what, domains := range map[string][]string{
		"reaches a domain of the turn": {name},
		"reaches no other":             {"other.test"},
		"reaches nothing":              {},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := s // the driver is each subtest's own
			sc := script(t, agenttest.Shell("pwd > pwd.txt"), agenttest.Report("all green"), agenttest.Text("Done."))
			at, err := url.Parse(sc.URL())
			if err != nil {
				t.Fatal(err)
			}
			base := "http://" + name + at.Path
			if s.At != nil {
				s.Driver = s.At(base)
			}
			backend := s.Driver.Descriptor()
			dir := t.TempDir()
			r := &runner.Runner{
				Bins:        map[string]string{backend.Name: s.Bin},
				SessionsDir: filepath.Join(t.TempDir(), "sessions"),
				Drivers:     map[string]agent.Driver{backend.Name: s.Driver},
				Watch:       agent.Watch{FirstEvent: patience, Idle: patience, Grace: grace},
				Network:     agent.Network{Proxied: true, Hosts: map[string]string{name + ":80": at.Host}},
				Confiner:    c,
				Environ:     func() []string { return s.Provider(base, backend.Credentials[0]+"="+secret) },
			}
			res, err := r.Run(t.Context(), agent.Request{
				Name: "limited", Prompt: "Say hello.", SystemPrompt: "Be brief.", ValidOutcomes: []string{"shipped"},
				Profile: agent.Profile{
					Name: "builder", Agent: backend.Name, Model: s.Model, Confine: true, SandboxDomains: domains, Timeout: patience,
				},
				Workspace: vcs.Workspace{Dir: dir},
				Grants: &agent.Grants{
					Env: []string{"*"}, Tools: []string{agent.ToolsAll},
					Mounts: []agent.Mount{{Path: dir, Access: agent.ReadWrite}},
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			stderr, _ := os.ReadFile(filepath.Join(res.SessionDir, "stderr.log"))
			t.Logf("%v, %q", res.Duration, res.Diagnostics)
			if len(domains) > 0 && domains[0] == name {
				if res.IsError || res.ResultText != "Done." || res.Outcome.Status != "shipped" || res.ToolCalls != 2 {
					t.Errorf("%+v\nstderr: %s", res, stderr)
				}
				return
			}
			if !res.IsError || res.TimedOut {
				t.Errorf("%+v\nstderr: %s", res, stderr)
			}
			if asked := sc.Requests(); len(asked) > 0 {
				t.Errorf("the provider was asked %d times", len(asked))
			}
			// A turn with no network at all has no way out that could tell.
			const refusal = `"` + name + `": is none of this turn's hosts`
			if refused := strings.Contains(strings.Join(res.Diagnostics, "\n"), refusal); refused != (len(domains) > 0) {
				t.Errorf("told %q", res.Diagnostics)
			}
		})
	}
}
