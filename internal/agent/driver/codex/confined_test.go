package codex_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/agenttest"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/driver/codex"
	"turnpike/internal/agent/runner"
	"turnpike/internal/vcs"
)

// TestConfined runs whole turns of the real CLI inside this machine's own
// confinement, by the best means it has and by those of a worker in a container: what
// the driver has mounted is enough, and what the CLI's own sandbox could not do there
// it is not asked to.
func TestConfined(t *testing.T) {
	t.Parallel()
	best := confine.Platform(confine.Options{UnixSockets: true})
	means := map[confine.Mode]confine.Confiner{
		confine.LandlockOnly: confine.Platform(confine.Options{LandlockOnly: true, UnixSockets: true}),
		best.Mode():          best,
	}
	for mode, c := range means {
		set := func(t *testing.T, steps ...agenttest.Step) (*runner.Runner, agent.Request, *agenttest.Script) {
			t.Helper()
			s, dir := agenttest.NewProvider(t).Script("turn", steps...), t.TempDir()
			r := &runner.Runner{
				CodexBin:    agenttest.CodexBin(t),
				SessionsDir: filepath.Join(t.TempDir(), "sessions"),
				Drivers:     map[string]agent.Driver{agent.AgentCodex: codex.Driver{MaxRetries: -1}},
				Confiner:    c,
				Network:     agent.Network{Open: true},
				Environ: func() []string {
					return []string{"OPENAI_API_KEY=sk-test", "OPENAI_BASE_URL=" + s.URL() + "/v1", "LANG=C"}
				},
			}
			return r, agent.Request{
				Name: "turn", Prompt: "Do the work.", SystemPrompt: "Be brief.",
				Profile:   agent.Profile{Name: "builder", Agent: agent.AgentCodex, Model: "gpt-5.5", Confine: true},
				Workspace: vcs.Workspace{Dir: dir},
				Grants: &agent.Grants{
					Env: []string{"OPENAI_*", "LANG"}, Tools: []string{agent.ToolsAll},
					Mounts: []agent.Mount{{Path: dir, Access: agent.ReadWrite}},
				},
			}, s
		}

		t.Run(string(mode)+"/works", func(t *testing.T) {
			t.Parallel()
			r, req, _ := set(t, agenttest.Write("out.txt", "written\n"),
				agenttest.Shell("cat out.txt > copy.txt && rg written"), agenttest.Report("done"), agenttest.Text("Done."))
			res, err := r.Run(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if res.IsError || res.ResultText != "Done." || !res.HasOutcome || res.Outcome.Note != "done" || len(res.Diagnostics) > 0 || res.CostKnown {
				stderr, _ := os.ReadFile(filepath.Join(res.SessionDir, "stderr.log"))
				t.Errorf("%+v\nstderr: %s", res, stderr)
			}
			if got, err := os.ReadFile(filepath.Join(req.Workspace.Dir, "copy.txt")); string(got) != "written\n" {
				t.Errorf("copy.txt: %q, %v", got, err)
			}
		})

		t.Run(string(mode)+"/is stopped in the middle of a command", func(t *testing.T) {
			t.Parallel()
			r, req, _ := set(t, agenttest.Shell("echo begun > begun; sleep 600 & sleep 600"), agenttest.Text("Never."))
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			r.Observer.Progress = func(p agent.Progress) {
				if p.ToolCalls > 0 {
					cancel()
				}
			}
			res, err := r.Run(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			if res.ErrorSubtype != agent.SubtypeCancelled || res.NumTurns != 1 || res.ToolCalls != 1 || res.ClaudeID == "" || len(res.Diagnostics) > 0 {
				t.Errorf("%+v", res)
			}
		})
	}
}
