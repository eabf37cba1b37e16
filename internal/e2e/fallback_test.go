package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"turnpike/internal/agent/agenttest"
	"turnpike/internal/agent/mcphost"
	"turnpike/internal/job"
)

// An account that reached its limit has its job run on the fallback, which is another
// agent with another account; what both attempts cost is on record, known and estimated
// apart, and that a cap has no effect is told.
func TestFallbackProfile(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	s := newSystem(t, agenttest.Func(func(r *agenttest.Request) agenttest.Step {
		switch n := asked.Add(1); {
		case !strings.Contains(r.Path, "/messages"): // codex
			if n > 3 {
				return agenttest.Text("All done.")
			}
			return agenttest.Shell("echo second > out.txt")
		case n > 1:
			return agenttest.Fail(429, "rate_limit_error", "Limit reached.").
				WithHeader(agenttest.RetryAfter(time.Hour)).WithHeader(agenttest.SubscriptionLimit("rejected", 1, time.Now().Add(time.Hour)))
		}
		return agenttest.Shell("echo first > out.txt")
	}).Repeat())
	prices := filepath.Join(s.dir, "prices.yaml")
	if err := os.WriteFile(prices, []byte("models: {\"gpt-*\": {input: 1000, output: 1000, cache_read: 100, cache_write: 1000}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.dispatcher()
	s.workerOfAll("w1", "--prices", prices)
	dir := s.workspace("both")
	id := s.enqueue(retry(job.RetryAlways, by("claude"), in(dir), func(r map[string]any) {
		r["profile"] = map[string]any{
			"agent": "claude", "model": "sonnet", "confine": true, "timeout": "2m",
			"fallback": map[string]any{"name": "second", "agent": "codex", "model": "gpt-5.5", "confine": true, "timeout": "2m"},
		}
		r["cost_cap_usd"] = "50"
	}))
	v := s.finished(id, job.Succeeded)

	if len(v.Attempts) != 2 {
		t.Fatalf("attempts %+v", v.Attempts)
	}
	first, second := v.Attempts[0], v.Attempts[1]
	if first.Ending != job.EndLimited || first.Agent != "claude" || first.Profile != 0 || first.CostUSD == nil || *first.CostUSD <= 0 {
		t.Errorf("first attempt %+v", first)
	}
	if second.Ending != job.EndDone || second.Agent != "codex" || second.Profile != 1 || second.CostUSD != nil || second.ResultText != "All done." {
		t.Errorf("second attempt %+v", second)
	}
	if v.Agent != "codex" || v.CostUSD == nil || *v.CostUSD != *first.CostUSD || v.EstimatedUSD == nil || *v.EstimatedUSD <= 0 {
		t.Errorf("job %+v", v.Summary)
	}
	if n := s.count("SELECT count(*) FROM turnpike.v_attempts WHERE job_id = $1 AND (cost_usd IS NULL) = (estimated_usd IS NOT NULL)", string(id)); n != 2 {
		t.Errorf("%d attempts have either a cost or an estimate, want 2", n)
	}
	if n := s.count("SELECT count(*) FROM turnpike.events WHERE job_id = $1 AND what = 'note' AND note LIKE '%codex never tells what a turn costs%'", string(id)); n != 1 {
		t.Errorf("%d events say that the cap had no effect, want 1", n)
	}
	out := s.run("dispatcher", 0, "get", string(id), "--server", "http://"+s.addr)
	for _, want := range []string{"to fallback second because account ~claude is paused until 20", "codex", "estimated"} {
		if !strings.Contains(out, want) {
			t.Errorf("get does not say %q:\n%s", want, out)
		}
	}
	if out := s.run("dispatcher", 0, "report", "--by", "agent", "--server", "http://"+s.addr); !strings.Contains(out, "claude") || !strings.Contains(out, "codex") || !strings.Contains(out, "~$") {
		t.Errorf("report:\n%s", out)
	}
}

// A read-only turn is enqueued, reads and cannot write; its conversation goes on in
// another, and in nothing else.
func TestRestrictedTurn(t *testing.T) {
	t.Parallel()
	reads := map[string]agenttest.Step{
		"claude": agenttest.Func(func(r *agenttest.Request) agenttest.Step {
			return agenttest.Call("Read", map[string]any{"file_path": filepath.Join(r.WorkDir, "secret.txt")})
		}),
		"codex": agenttest.MCP(mcphost.ReadFileTool, map[string]any{"path": "secret.txt"}),
	}
	writes := map[string]agenttest.Step{
		"claude": agenttest.Write("out.txt", "x\n"),
		"codex":  agenttest.Call("exec_command", map[string]any{"cmd": "echo x > out.txt"}),
	}
	for _, name := range []string{"claude", "codex"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, inOrder(reads[name], writes[name], agenttest.Text("It is xylophone."), agenttest.Text("Of wood.")))
			s.dispatcher()
			s.workerUnder("restricted: true\n"+fmt.Sprintf(everyAgent, s.workspaces(), s.script.URL()), "w1",
				"--bin", "codex="+agenttest.CodexBin(t), "--bin", "pi="+agenttest.PiBin(t))
			dir := s.workspace("read")
			if err := os.WriteFile(filepath.Join(dir, "secret.txt"), []byte("the word is xylophone\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			asks := func(name string, edits ...func(map[string]any)) func(map[string]any) {
				return all(append([]func(map[string]any){by(name), in(dir), func(r map[string]any) {
					r["restricted"] = true
					delete(r, "grants")
				}}, edits...)...)
			}
			v := s.finished(s.enqueue(asks(name)), job.Succeeded)
			a := v.Attempts[0]
			if a.ResultText != "It is xylophone." || a.Conversation == "" || a.Outcome != nil || len(a.Usage) == 0 {
				t.Errorf("attempt %+v", a)
			}
			if n := s.count("SELECT count(*) FROM turnpike.v_attempts WHERE job_id = $1 AND model = $2", string(v.ID), a.Usage[0].Model); name == "codex" && n != 1 {
				t.Errorf("the model that answered, %s, is not on record", a.Usage[0].Model)
			}
			requests := s.script.Requests()
			if !slices.ContainsFunc(requests, func(r *agenttest.Request) bool {
				return slices.ContainsFunc(r.Results, func(res agenttest.ToolResult) bool {
					return strings.Contains(res.Text, "the word is xylophone")
				})
			}) {
				t.Errorf("it read nothing in %d requests", len(requests))
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
				t.Errorf("the workspace has %v, %v", left, err)
			}

			resume := func(r map[string]any) { r["resume_id"], r["prompt"] = a.Conversation, "What is it made of?" }
			v = s.finished(s.enqueue(asks(name, resume)), job.Succeeded)
			if got := v.Attempts[0]; got.ResultText != "Of wood." || got.Conversation != a.Conversation {
				t.Errorf("follow-up %+v", got)
			}
			requests = s.script.Requests()
			if body := string(requests[len(requests)-1].Body); !strings.Contains(body, "It is xylophone.") {
				t.Error("the conversation does not go on")
			}
			other := map[string]string{"claude": "codex", "codex": "claude"}[name]
			for what, edit := range map[string]func(map[string]any){
				"another tenant":           asks(name, resume, func(r map[string]any) { r["tenant"] = "other" }),
				"another agent":            asks(other, resume),
				"a turn that may do more":  all(by(name), in(dir), resume),
				"an agent that only reads": asks("pi"),
			} {
				v := s.finished(s.enqueue(edit), job.Failed)
				if v.Reason != "refused" || len(v.Attempts) != 1 || v.Attempts[0].StartedAt != nil {
					t.Errorf("%s: ended %s: %+v", what, v.Reason, v.Attempts)
				}
			}
			if n := len(s.script.Requests()) - len(requests); n != 0 {
				t.Errorf("the model was asked %d times more", n)
			}
		})
	}
}
