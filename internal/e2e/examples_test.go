package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/agenttest"
	"turnpike/internal/worker"
)

// providerAddress is where `make provider` listens, as the example ceiling says.
const providerAddress = "http://127.0.0.1:8399"

// Each agent's example gives a complete Result, as the README says it does.
func TestExamples(t *testing.T) {
	t.Parallel()
	root := agenttest.ModuleRoot(t)
	text, err := os.ReadFile(filepath.Join(root, "examples", "ceiling.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	provider := agenttest.NewProvider(t)
	var demo *agenttest.Script
	for _, s := range agenttest.Scenarios() {
		if s.Name == agenttest.DefaultScript {
			demo = provider.Script(s.Name, s.Steps...)
		}
	}
	ceiling := filepath.Join(t.TempDir(), "ceiling.yaml")
	if err := os.WriteFile(ceiling, []byte(strings.ReplaceAll(string(text), providerAddress, demo.URL())), 0o600); err != nil {
		t.Fatal(err)
	}
	bins := map[string]string{
		agent.AgentClaude: agenttest.ClaudeBin(t), agent.AgentCodex: agenttest.CodexBin(t),
		agent.AgentOpenCode: agenttest.OpenCodeBin(t), agent.AgentPi: agenttest.PiBin(t),
	}
	for _, name := range agent.Agents() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &system{t: t, dir: t.TempDir()}
			p := s.start("worker", nil, "run", "-f", filepath.Join(root, "examples", name+".json"), "--ceiling", ceiling,
				"--state-dir", filepath.Join(s.dir, "state"), "--bin", name+"="+bins[name])
			select {
			case <-p.done:
			case <-time.After(5 * time.Minute): // opencode needs its time on a busy machine
				t.Fatal("the turn goes on for ever")
			}
			if p.err != nil {
				t.Fatalf("%v\n%s", p.err, p.out.String())
			}
			var res agent.Result
			if err := json.Unmarshal(p.out.Bytes(), &res); err != nil {
				t.Fatalf("%v\n%s", err, p.out.String())
			}
			if res.IsError || res.Agent != name || res.ClaudeID == "" || res.AgentVersion == "" || res.NumTurns < 5 || res.ToolCalls < 4 {
				t.Errorf("%+v", res)
			}
			if !res.HasOutcome || res.Outcome.Status != "done" || res.Outcome.Work.Key != "EXAMPLE-1" || !strings.Contains(res.ResultText, "prints a greeting") {
				t.Errorf("outcome %+v, text %q", res.Outcome, res.ResultText)
			}
			if priced := name != agent.AgentCodex; res.CostKnown != priced || res.CostUSD > 0 != priced || len(res.Models) != 1 {
				t.Errorf("cost %v (known %t), models %v", res.CostUSD, res.CostKnown, res.Models)
			}
			for model, u := range res.Models {
				if u.InputTokens < 5*int64(agenttest.DefaultUsage.Input) || u.OutputTokens < 5*int64(agenttest.DefaultUsage.Output) {
					t.Errorf("%s used %+v, want all of five answers", model, u)
				}
			}
			s.gone(filepath.Join(s.dir, "state"))
		})
	}
}

// So does that of a read-only turn, which asks for nothing.
func TestExampleRestricted(t *testing.T) {
	t.Parallel()
	root := agenttest.ModuleRoot(t)
	text, err := os.ReadFile(filepath.Join(root, "examples", "ceiling.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	script := agenttest.NewProvider(t).Script("answer", agenttest.Text("It does not."))
	s := &system{t: t, dir: t.TempDir()}
	ceiling := filepath.Join(s.dir, "ceiling.yaml")
	if err := os.WriteFile(ceiling, []byte(strings.ReplaceAll(string(text), providerAddress, script.URL())), 0o600); err != nil {
		t.Fatal(err)
	}
	out := s.run("worker", 0, "run", "-f", filepath.Join(root, "examples", "restricted.json"), "--ceiling", ceiling,
		"--state-dir", filepath.Join(s.dir, "state"), "--bin", "claude="+agenttest.ClaudeBin(t))
	var res agent.Result
	if err := json.Unmarshal([]byte(out), &res); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if res.IsError || res.ResultText != "It does not." || !res.CostKnown || res.HasOutcome {
		t.Errorf("%+v", res)
	}
	for _, tool := range script.Requests()[0].Tools {
		if tool.Name == "Bash" || tool.Name == "Write" || strings.Contains(tool.Name, "report_outcome") {
			t.Errorf("%s is offered", tool.Name)
		}
	}
}

// What else is offered to copy is a ceiling, too.
func TestExampleCeilings(t *testing.T) {
	t.Parallel()
	root := agenttest.ModuleRoot(t)
	for _, name := range []string{"examples/ceiling.yaml", "examples/anthropic.yaml", "deploy/ceiling.yaml", "cmd/dispatcher/dev-ceiling.yaml"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := worker.ParseCeiling(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
