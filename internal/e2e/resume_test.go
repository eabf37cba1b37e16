package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"turnpike/internal/agent/agenttest"
	"turnpike/internal/job"
)

// everyAgent is a ceiling for the four CLIs, with the provider of this system.
const everyAgent = `
placements: [none-confined]
agents: [claude, codex, opencode, pi]
tools: ["*"]
workspaces: {scratch: true, dirs: [{path: %[1]s, access: rw}], git: ["file://%[1]s"]}
network: open
accounts:
  default:
    env: {ANTHROPIC_API_KEY: MODEL_KEY, ANTHROPIC_BASE_URL: MODEL_URL, OPENAI_API_KEY: MODEL_KEY}
    values: {OPENAI_BASE_URL: %[2]s/v1}
    agents: [claude, codex, opencode, pi]
providers:
  opencode:
    scripted: {base_url: %[2]s/v1, api: "@ai-sdk/openai-compatible", key_env: ANTHROPIC_API_KEY, models: [{id: some-model}]}
  pi:
    scripted: {base_url: %[2]s/v1, api: openai-completions, key_env: ANTHROPIC_API_KEY, models: [{id: some-model}]}
`

func (s *system) workerOfAll(state string, args ...string) *process {
	s.t.Helper()
	return s.workerUnder(fmt.Sprintf(everyAgent, s.workspaces(), s.script.URL()), state,
		append([]string{"--bin", "codex=" + agenttest.CodexBin(s.t), "--bin", "opencode=" + agenttest.OpenCodeBin(s.t), "--bin", "pi=" + agenttest.PiBin(s.t)}, args...)...)
}

// by has a request run by an agent, with what it needs.
func by(name string) func(map[string]any) {
	model := map[string]string{"claude": "sonnet", "codex": "gpt-5.5", "opencode": "scripted/some-model", "pi": "scripted/some-model"}[name]
	return func(r map[string]any) {
		r["profile"] = map[string]any{"name": "builder", "agent": name, "model": model, "confine": true, "timeout": "2m"}
		grantsOf(r)["env"] = []string{"ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL"}
	}
}

func all(edits ...func(map[string]any)) func(map[string]any) {
	return func(r map[string]any) {
		for _, e := range edits {
			e(r)
		}
	}
}

// inOrder answers the requests of a script one after the other, whichever conversation
// they belong to and however often it is begun again.
func inOrder(steps ...agenttest.Step) agenttest.Step {
	var asked atomic.Int64
	return agenttest.Func(func(r *agenttest.Request) agenttest.Step {
		n := asked.Load()
		if last := len(r.Results) - 1; last < 0 || !strings.HasPrefix(r.Results[last].CallID, "call_search") { // which a step may begin with
			n = asked.Add(1)
		}
		return steps[min(int(n), len(steps))-1]
	}).Repeat()
}

// A worker that is drained gives its turn back, and another worker, with nothing of the
// first one's disk, goes on with the conversation where it broke off.
func TestResumedElsewhere(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"claude", "codex", "opencode", "pi"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, inOrder(agenttest.Shell("echo xyz\"\"zy"), agenttest.Hang(), agenttest.Text("All done."), agenttest.Text("Again.")))
			s.dispatcher()
			first := s.workerOfAll("w1", "--drain", "100ms", "--grace", "5s")
			id := s.enqueue(retry(job.RetryResume, by(name), in(s.workspace("talk"))))
			if _, err := s.script.Wait(t.Context(), 2); err != nil {
				t.Fatal(err)
			}
			first.signal(syscall.SIGTERM)
			if code := first.wait(); code != 0 {
				t.Fatalf("the first worker ends with %d", code)
			}
			s.workerOfAll("w2")
			v := s.finished(id, job.Succeeded)
			if len(v.Attempts) != 2 || v.Attempts[0].Ending != job.EndDrained || !v.Attempts[0].Resumable {
				t.Fatalf("attempts %+v", v.Attempts)
			}
			talk := v.Attempts[0].Conversation
			if talk == "" || v.Attempts[1].Conversation != talk || v.Attempts[1].Worker == v.Attempts[0].Worker {
				t.Errorf("conversation %s went on as %s", talk, v.Attempts[1].Conversation)
			}
			if body := string(s.script.Requests()[2].Body); !strings.Contains(body, "xyzzy") || !strings.Contains(body, "do not repeat what is done") {
				t.Error("the model is not told what came before, or that it was interrupted")
			}

			// A producer continues it, and another tenant cannot.
			resume := func(r map[string]any) { r["resume_id"], r["prompt"] = talk, "And then?" }
			s.finished(s.enqueue(all(by(name), in(s.workspace("talk")), resume)), job.Succeeded)
			if body := string(s.script.Requests()[3].Body); !strings.Contains(body, "xyzzy") || !strings.Contains(body, "And then?") {
				t.Error("the conversation does not go on")
			}
			v = s.finished(s.enqueue(all(by(name), in(s.workspace("talk")), resume, func(r map[string]any) { r["tenant"] = "other" })), job.Failed)
			if v.Reason != "refused" || !strings.Contains(v.Attempts[0].Reason, talk) || len(s.script.Requests()) != 4 {
				t.Errorf("another tenant's turn ended %s: %+v", v.Reason, v.Attempts)
			}
		})
	}
}

// A turn in a git workspace leaves a patch, whatever becomes of it: what was drained goes
// on elsewhere with what it had changed.
func TestGitWorkspace(t *testing.T) {
	t.Parallel()
	s := newSystem(t, inOrder(agenttest.Write("made.txt", "made\n"), agenttest.Hang(),
		agenttest.Shell("cat made.txt && echo more >> made.txt && echo edited > README"), agenttest.Text("Done.")))
	repo := s.workspace("repo")
	git := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", repo, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("init", "--quiet", "--initial-branch=main")
	if err := os.WriteFile(filepath.Join(repo, "README"), []byte("read me\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	git("add", ".")
	git("commit", "--quiet", "-m", "one")
	s.dispatcher()
	first := s.workerOfAll("w1", "--drain", "100ms", "--grace", "5s")
	id := s.enqueue(retry(job.RetryResume, by("claude"), func(r map[string]any) {
		r["workspace"] = map[string]any{"git": map[string]any{"url": "file://" + repo, "ref": "main"}}
	}))
	if _, err := s.script.Wait(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	first.signal(syscall.SIGTERM)
	first.wait()
	s.workerOfAll("w2")
	v := s.finished(id, job.Succeeded)
	if len(v.Attempts) != 2 {
		t.Fatalf("attempts %+v", v.Attempts)
	}
	p := v.Attempts[1].Patch
	if p == nil || p.Problem != "" || p.Files != 2 || p.Added != 3 || p.Deleted != 1 || len(p.New) != 1 || p.New[0] != "made.txt" {
		t.Errorf("patch %+v", p)
	}
	if n := s.count("SELECT count(*) FROM turnpike.v_patches WHERE job_id = $1 AND bytes > 0", string(id)); n != 2 {
		t.Errorf("%d patches on record, want one of each attempt", n)
	}
	server := "http://" + s.addr
	if out := s.run("dispatcher", 0, "get", string(id), "--server", server); !strings.Contains(out, "2 files, 3 lines added, 1 deleted") {
		t.Errorf("get says\n%s", out)
	}
	if out := s.run("dispatcher", 0, "get", string(id), "--patch", "--attempt", "1", "--server", server); !strings.Contains(out, "+made") || strings.Contains(out, "+more") {
		t.Errorf("the first patch is\n%s", out)
	}
	file := filepath.Join(s.dir, "p")
	if err := os.WriteFile(file, []byte(s.run("dispatcher", 0, "get", string(id), "--patch", "--server", server)), 0o600); err != nil {
		t.Fatal(err)
	}
	git("apply", file)
	for name, want := range map[string]string{"made.txt": "made\nmore\n", "README": "edited\n"} {
		if b, err := os.ReadFile(filepath.Join(repo, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}
