package agenttest_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent/agenttest"
)

// TestClaude shows that the real CLI takes the provider for the real one.
func TestClaude(t *testing.T) {
	t.Parallel()

	t.Run("ends a turn with a text", func(t *testing.T) {
		t.Parallel()
		s := agenttest.NewProvider(t).Script("text", agenttest.Text("Hello there.").Thinking("A greeting."))
		turn := startClaude(t, s, apiKey).wait(t)
		turn.wantResult(t, 0, result{Subtype: "success", Result: "Hello there."})
		if got := turn.result.Usage; got.Input != agenttest.DefaultUsage.Input || got.Output != agenttest.DefaultUsage.Output ||
			got.CacheRead != agenttest.DefaultUsage.CacheRead || got.CacheWrite != agenttest.DefaultUsage.CacheWrite {
			t.Errorf("usage %+v, want %+v", got, agenttest.DefaultUsage)
		}
		if turn.result.Cost <= 0 {
			t.Errorf("cost %v, want the CLI to know a price", turn.result.Cost)
		}
		r := s.Requests()[0]
		if strings.TrimSpace(r.Prompt) != cliPrompt || r.WorkDir != turn.dir || r.Credential() != "sk-test" {
			t.Errorf("seen prompt %q, directory %q, credential %q", r.Prompt, r.WorkDir, r.Credential())
		}
		if !strings.Contains(r.System, "an extra instruction") {
			t.Error("the appended system prompt is not in the request")
		}
		if _, ok := r.ToolWithSuffix("Bash"); !ok {
			t.Errorf("offered %v, want Bash among them", r.Tools)
		}
	})

	t.Run("does the work", func(t *testing.T) {
		t.Parallel()
		s := agenttest.NewProvider(t).Script("work", work()...)
		turn := startClaude(t, s, apiKey).wait(t)
		turn.worked(t, s, "high")
		turn.wantResult(t, 0, result{Subtype: "success", Result: "The work is done."})
	})

	t.Run("runs several tools and writes a file", func(t *testing.T) {
		t.Parallel()
		s := agenttest.NewProvider(t).Script("tools",
			agenttest.Together(agenttest.Text("Both at once."), agenttest.Shell("echo one"), agenttest.Shell("echo two")),
			agenttest.Write("sub/out.txt", "written\n"),
			agenttest.Text("Both are done."),
		)
		turn := startClaude(t, s, apiKey).wait(t)
		turn.wantResult(t, 0, result{Subtype: "success", Result: "Both are done."})
		written, err := os.ReadFile(filepath.Join(turn.dir, "sub", "out.txt"))
		if err != nil || string(written) != "written\n" {
			t.Errorf("sub/out.txt: %q, %v", written, err)
		}
		requests := s.Requests()
		if len(requests) != 3 {
			t.Fatalf("%d requests, want one for each step", len(requests))
		}
		var results []string
		for _, r := range requests[1].Results {
			results = append(results, r.Text)
		}
		slices.Sort(results) // they come in the order in which the calls ended
		if diff := cmp.Diff([]string{"one", "two"}, results); diff != "" {
			t.Errorf("results of the first step (-want +got):\n%s", diff)
		}
	})

	t.Run("plays the demo", func(t *testing.T) {
		t.Parallel()
		p := agenttest.NewProvider(t)
		var s *agenttest.Script
		for _, sc := range agenttest.Scenarios() {
			if sc.Name == agenttest.DefaultScript {
				s = p.Script(sc.Name, sc.Steps...)
			}
		}
		turn := startClaude(t, s, apiKey).wait(t)
		turn.wantResult(t, 0, result{Subtype: "success", Result: turn.result.Result})
		if _, err := os.Stat(filepath.Join(turn.dir, "hello", "hello.go")); err != nil {
			t.Error(err)
		}
		for _, r := range s.Requests() {
			for _, got := range r.Results {
				if got.Error {
					t.Errorf("a tool call of the demo fails: %s", got.Text)
				}
			}
		}
	})

	t.Run("gives up on a refused credential", func(t *testing.T) {
		t.Parallel()
		s := agenttest.NewProvider(t).Script("401", agenttest.Fail(401, "authentication_error", "invalid x-api-key"))
		turn := startClaude(t, s, apiKey).wait(t)
		turn.wantResult(t, 1, result{Subtype: "success", IsError: true, Status: 401, Result: turn.result.Result})
	})

	t.Run("waits out a failure that goes away", func(t *testing.T) {
		t.Parallel()
		s := agenttest.NewProvider(t).Script("once",
			agenttest.Fail(529, "overloaded_error", "Overloaded").WithHeader(agenttest.RetryAfter(time.Second)).Once(),
			agenttest.Text("At last."))
		startClaude(t, s, apiKey).wait(t).wantResult(t, 0, result{Subtype: "success", Result: "At last."})
	})

	t.Run("tells when a subscription's limit ends", func(t *testing.T) {
		t.Parallel()
		reset := time.Now().Add(time.Hour)
		s := agenttest.NewProvider(t).Script("limit",
			agenttest.Fail(429, "rate_limit_error", "This request would exceed your rate limit").
				WithHeader(agenttest.RetryAfter(time.Hour)).
				WithHeader(agenttest.SubscriptionLimit("rejected", 1, reset)))
		turn := startClaude(t, s, oauthToken).wait(t)
		turn.wantResult(t, 1, result{Subtype: "success", IsError: true, Status: 429, Result: turn.result.Result})
		var limit struct {
			Info struct {
				Status   string
				ResetsAt int64
			} `json:"rate_limit_info"`
		}
		events := turn.events(t, "rate_limit_event")
		if len(events) == 0 {
			t.Fatal("no event tells of the limit")
		}
		decode(t, events[0], &limit)
		if limit.Info.Status != "rejected" || limit.Info.ResetsAt != reset.Unix() {
			t.Errorf("limit %+v, want rejected until %d", limit.Info, reset.Unix())
		}
		if got := s.Requests()[0].Credential(); got != "oauth-test" {
			t.Errorf("credential %q, want the token", got)
		}
	})

	t.Run("asks for the whole message after a cut", func(t *testing.T) {
		t.Parallel()
		s := agenttest.NewProvider(t).Script("cut", agenttest.Text("All of it.").Cut())
		turn := startClaude(t, s, apiKey).wait(t)
		turn.wantResult(t, 0, result{Subtype: "success", Result: "All of it."})
		requests := s.Requests()
		if last := requests[len(requests)-1]; len(requests) < 2 || last.Stream {
			t.Errorf("%d requests, want the last one for a whole message", len(requests))
		}
	})

	t.Run("waits while the provider is silent, and hangs up when told to stop", func(t *testing.T) {
		t.Parallel()
		gate := agenttest.NewGate()
		s := agenttest.NewProvider(t).Script("held", agenttest.Shell("true").Held(gate), agenttest.Hang())
		turn := startClaude(t, s, apiKey)
		first := waitFor(t, s, 1)
		gate.Open()
		second := waitFor(t, s, 2)
		<-first.Done()
		if err := turn.tree.Terminate(); err != nil {
			t.Fatal(err)
		}
		<-second.Done()
		if turn.wait(t); turn.exit.Code != 128+int(syscall.SIGTERM) || turn.result != nil {
			t.Errorf("exit %+v, result %+v, want 143 and none", turn.exit, turn.result)
		}
	})
}

const (
	apiKey     = "ANTHROPIC_API_KEY=sk-test"
	oauthToken = "CLAUDE_CODE_OAUTH_TOKEN=oauth-test"
)

// claudeTurn is one run of the CLI and how it ended.
type claudeTurn struct {
	*run
	result *result
}

type result struct {
	Subtype string
	IsError bool `json:"is_error"`
	Status  int  `json:"api_error_status"`
	Result  string
	Cost    float64 `json:"total_cost_usd"`
	Usage   struct {
		Input      int `json:"input_tokens"`
		Output     int `json:"output_tokens"`
		CacheRead  int `json:"cache_read_input_tokens"`
		CacheWrite int `json:"cache_creation_input_tokens"`
	}
}

func startClaude(t *testing.T, s *agenttest.Script, credential string) *claudeTurn {
	t.Helper()
	r := directories(t)
	r.writeJSON(t, "mcp.json", map[string]any{"mcpServers": map[string]any{"turnpike": map[string]any{
		"command": self(t), "args": reportServer, "env": map[string]any{"SEEN_BY_SERVER": "by the CLI"},
	}}})
	return &claudeTurn{run: r.start(t, cli{
		bin: agenttest.ClaudeBin(t),
		args: []string{
			"-p", "--output-format", "stream-json", "--verbose", "--model", "sonnet", "--effort", "high",
			"--permission-mode", "bypassPermissions", "--append-system-prompt", "an extra instruction",
			"--strict-mcp-config", "--mcp-config", filepath.Join(r.home, "mcp.json"),
		},
		env: []string{
			"CLAUDE_CONFIG_DIR=" + filepath.Join(r.home, "config"),
			"ANTHROPIC_BASE_URL=" + s.URL(),
			"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
			"CLAUDE_CODE_MAX_RETRIES=1",
			"ENABLE_TOOL_SEARCH=false",
			"IS_SANDBOX=1", // permits bypassPermissions to root
			credential,
		},
	})}
}

func (turn *claudeTurn) wait(t *testing.T) *claudeTurn {
	t.Helper()
	turn.run.wait(t)
	for _, e := range turn.events(t, "result") {
		turn.result = &result{}
		decode(t, e, turn.result)
	}
	return turn
}

func (turn *claudeTurn) wantResult(t *testing.T, exit int, want result) {
	t.Helper()
	if turn.result == nil {
		t.Fatalf("exit %+v without a result\n%s", turn.exit, &turn.stderr)
	}
	got := *turn.result
	got.Cost, got.Usage = want.Cost, want.Usage
	if turn.exit.Code != exit || got != want {
		t.Fatalf("exit %+v, result %+v\nwant exit %d, %+v\n%s", turn.exit, got, exit, want, &turn.stderr)
	}
}

func (turn *claudeTurn) events(t *testing.T, kind string) (found []json.RawMessage) {
	t.Helper()
	for _, line := range turn.out.all {
		var head struct{ Type string }
		if decode(t, line, &head); head.Type == kind {
			found = append(found, line)
		}
	}
	return found
}
