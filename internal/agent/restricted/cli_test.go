package restricted_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"turnpike/internal/agent"
	"turnpike/internal/agent/agenttest"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/driver/claude"
	"turnpike/internal/agent/driver/codex"
	"turnpike/internal/agent/mcphost"
	"turnpike/internal/agent/restricted"
	"turnpike/internal/agent/runner"
	"turnpike/internal/agent/session"
	"turnpike/internal/vcs"
)

func TestMain(m *testing.M) {
	confine.Entry()
	mcphost.Entry()
	goleak.VerifyTestMain(m)
}

// subject is a CLI and what it reads and would write with.
type subject struct {
	agent, model, bin string
	driver            agent.Driver
	provider          func(url string) []string
	read              agenttest.Step
	writes            []agenttest.Step
}

func subjects(t *testing.T) []subject {
	patch := "*** Begin Patch\n*** Add File: out.txt\n+x\n*** End Patch\n"
	return []subject{
		{
			agent: agent.AgentClaude, model: "sonnet", bin: agenttest.ClaudeBin(t), driver: claude.Driver{MaxRetries: -1},
			provider: func(url string) []string {
				return []string{"ANTHROPIC_BASE_URL=" + url, "ANTHROPIC_API_KEY=sk-test-secret"}
			},
			read: agenttest.Func(func(r *agenttest.Request) agenttest.Step {
				return agenttest.Call("Read", map[string]any{"file_path": filepath.Join(r.WorkDir, "secret.txt")})
			}),
			writes: []agenttest.Step{agenttest.Write("out.txt", "x\n"), agenttest.Shell("echo x > out.txt")},
		},
		{
			agent: agent.AgentCodex, model: "gpt-5.5", bin: agenttest.CodexBin(t), driver: codex.Driver{MaxRetries: -1, Patience: 5 * time.Second},
			provider: func(url string) []string {
				return []string{"OPENAI_BASE_URL=" + url + "/v1", "OPENAI_API_KEY=sk-test-secret"}
			},
			read: agenttest.MCP(mcphost.ReadFileTool, map[string]any{"path": "secret.txt"}),
			writes: []agenttest.Step{
				agenttest.Call("apply_patch", patch), agenttest.Call("exec_command", map[string]any{"cmd": "echo x > out.txt"}),
			},
		},
	}
}

func (s subject) runner(t *testing.T, url string) *restricted.Runner {
	run := &runner.Runner{
		Bins: map[string]string{s.agent: s.bin}, Drivers: map[string]agent.Driver{s.agent: s.driver},
		SessionsDir: filepath.Join(t.TempDir(), "sessions"), Network: agent.Network{Open: true},
		Watch:   agent.Watch{FirstEvent: 2 * time.Minute, Idle: 2 * time.Minute},
		Environ: func() []string { return append(s.provider(url), "SOMETHING_ELSE=1") },
	}
	return &restricted.Runner{Run: run.Run, Backends: func(name string) (agent.Backend, bool) {
		return s.driver.Descriptor(), name == s.agent
	}}
}

func workspace(t *testing.T) string {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret.txt"), []byte("the word is xylophone\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestCLI shows with the real CLIs that a read-only turn reads and cannot write.
func TestCLI(t *testing.T) {
	t.Parallel()
	for _, s := range subjects(t) {
		for _, confined := range []bool{false, true} {
			t.Run(agent.Placement{Sandbox: agent.SandboxNone, Confine: confined}.String()+"/"+s.agent, func(t *testing.T) {
				t.Parallel()
				dir := workspace(t)
				steps := append([]agenttest.Step{s.read}, s.writes...)
				sc := agenttest.NewProvider(t).Script("turn", append(steps, agenttest.Text("Done."))...)
				res, err := s.runner(t, sc.URL()).RunRestricted(t.Context(), agent.Request{
					Name: "ask", Prompt: "Which word is it?", SystemPrompt: "Be brief.",
					Profile:   agent.Profile{Name: "reader", Agent: s.agent, Model: s.model, Confine: confined},
					Workspace: vcs.Workspace{Dir: dir},
				})
				if err != nil {
					t.Fatal(err)
				}
				if res.IsError || res.ResultText != "Done." || res.Model != s.model {
					t.Errorf("%+v", res.Result)
				}
				requests := sc.Requests()
				if last := requests[len(requests)-1]; !strings.Contains(string(last.Body), "the word is xylophone") {
					t.Error("the agent read nothing")
				}
				for _, tool := range requests[0].Tools {
					for _, writes := range []string{"Bash", "Write", "Edit", "NotebookEdit", "exec_command", "shell", "report_outcome"} {
						if strings.HasSuffix(tool.Name, writes) {
							t.Errorf("%s is offered", tool.Name)
						}
					}
				}
				if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
					t.Errorf("the workspace has %v, %v", left, err)
				}
			})
		}
	}
}

// TestCLIFollowUp shows that the conversation of a read-only turn goes on in another.
func TestCLIFollowUp(t *testing.T) {
	t.Parallel()
	for _, s := range subjects(t) {
		t.Run(s.agent, func(t *testing.T) {
			t.Parallel()
			dir := workspace(t)
			sc := agenttest.NewProvider(t).Script("turn", agenttest.Func(func(r *agenttest.Request) agenttest.Step {
				if strings.Contains(string(r.Body), "What is it made of?") {
					return agenttest.Text("Wood.")
				}
				return agenttest.Text("It is xylophone.")
			}))
			sessions := t.TempDir()
			run := s.runner(t, sc.URL())
			under := &runner.Runner{SessionsDir: sessions}
			ask := func(prompt string, earlier *agent.RestrictedResult) *agent.RestrictedResult {
				path, err := under.NewSessionDir("ask")
				if err != nil {
					t.Fatal(err)
				}
				opened, err := session.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				req := agent.Request{
					Name: "ask", Prompt: prompt, SessionDir: path, Workspace: vcs.Workspace{Dir: dir},
					Profile: agent.Profile{Name: "reader", Agent: s.agent, Model: s.model},
				}
				if earlier != nil {
					req.ResumeID, run.Owner = earlier.ClaudeID, restricted.OwnerOf(earlier)
					kept, err := os.ReadFile(filepath.Join(earlier.SessionDir, agent.ConversationFile))
					if err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(opened.Continued(), kept, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				res, err := run.RunRestricted(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				return res
			}
			first := ask("Which word is it?", nil)
			second := ask("What is it made of?", first)
			if second.IsError || second.ResultText != "Wood." || second.ClaudeID != first.ClaudeID {
				t.Errorf("%+v", second.Result)
			}
			if last := sc.Requests()[len(sc.Requests())-1]; !strings.Contains(string(last.Body), "It is xylophone.") {
				t.Error("the conversation does not go on")
			}
		})
	}
}
