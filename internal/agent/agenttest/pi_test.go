package agenttest_test

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnpike/internal/agent/agenttest"
)

// TestPi shows that the real CLI takes the provider for the real one, in each of
// the APIs.
func TestPi(t *testing.T) {
	t.Parallel()

	for _, api := range []string{"openai-completions", "openai-responses", "anthropic-messages"} {
		t.Run("does the work by "+api, func(t *testing.T) {
			t.Parallel()
			s := agenttest.NewProvider(t).Script("work", work()...)
			r := startPi(t, s, api)
			r.wait(t)
			effort := "high"
			if api == "anthropic-messages" {
				effort = "" // said as a number of tokens to think with
			}
			r.worked(t, s, effort)
			if got := r.last(t); got.StopReason != "stop" || got.text() != "The work is done." || r.exit.Code != 0 {
				t.Errorf("last message %+v, exit %+v", got, r.exit)
			}
			want := piUsage{
				Input: agenttest.DefaultUsage.Input, Output: agenttest.DefaultUsage.Output,
				CacheRead: agenttest.DefaultUsage.CacheRead, Reasoning: agenttest.DefaultUsage.Reasoning,
			}
			if api == "anthropic-messages" {
				want.CacheWrite, want.Reasoning = agenttest.DefaultUsage.CacheWrite, 0
			}
			if got := r.last(t).Usage; got != want {
				t.Errorf("usage %+v, want %+v", got, want)
			}
		})
	}

	t.Run("fails with the provider, and exits as if it had not", func(t *testing.T) {
		t.Parallel()
		for name, tc := range map[string]struct {
			step agenttest.Step
			want string
			asks int
		}{
			"401":   {agenttest.Fail(http.StatusUnauthorized, "invalid_api_key", "Incorrect API key"), "401", 1},
			"429":   {agenttest.Fail(http.StatusTooManyRequests, "rate_limit_exceeded", "Slow down").WithHeader(agenttest.RetryAfter(time.Hour)), "429", 2},
			"quota": {agenttest.Fail(http.StatusTooManyRequests, "insufficient_quota", "You exceeded your current quota"), "429", 1},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := agenttest.NewProvider(t).Script(name, tc.step)
				r := startPi(t, s, "openai-completions")
				r.wait(t)
				if got := r.last(t); got.StopReason != "error" || !strings.HasPrefix(got.ErrorMessage, tc.want) || r.exit.Code != 0 || len(s.Requests()) != tc.asks {
					t.Errorf("last message %+v, exit %+v, %d requests", got, r.exit, len(s.Requests()))
				}
			})
		}
	})

	t.Run("tries again", func(t *testing.T) {
		t.Parallel()
		for name, step := range map[string]agenttest.Step{
			"500":          agenttest.Fail(http.StatusInternalServerError, "server_error", "Internal error"),
			"cut":          agenttest.Text("Never all of it.").Cut(),
			"stream-error": agenttest.Text("Never all of it.").StreamError("server_error", "Overloaded"),
		} {
			t.Run("after a "+name, func(t *testing.T) {
				t.Parallel()
				s := agenttest.NewProvider(t).Script(name, step.Once(), agenttest.Text("At last."))
				r := startPi(t, s, "openai-completions")
				r.wait(t)
				if got := r.last(t); got.StopReason != "stop" || got.text() != "At last." || len(s.Requests()) != 2 {
					t.Errorf("last message %+v after %d requests", got, len(s.Requests()))
				}
			})
		}
	})

	t.Run("waits while the provider is silent, and hangs up when told to stop", func(t *testing.T) {
		t.Parallel()
		gate := agenttest.NewGate()
		s := agenttest.NewProvider(t).Script("held", agenttest.Shell("true").HeldMid(gate), agenttest.Hang())
		r := startPi(t, s, "openai-completions")
		first := waitFor(t, s, 1)
		gate.Open()
		second := waitFor(t, s, 2)
		<-first.Done()
		if err := r.tree.Terminate(); err != nil {
			t.Fatal(err)
		}
		<-second.Done()
		if r.wait(t); r.exit.Code != 128+int(syscall.SIGTERM) {
			t.Errorf("exit %+v, want 143", r.exit)
		}
	})
}

type piRun struct{ *run }

func startPi(t *testing.T, s *agenttest.Script, api string) piRun {
	t.Helper()
	r := directories(t)
	base := s.URL() + "/v1"
	if api == "anthropic-messages" {
		base = s.URL()
	}
	r.writeJSON(t, "config/models.json", map[string]any{"providers": map[string]any{"scripted": map[string]any{
		"baseUrl": base, "api": api, "apiKey": "$SCRIPTED_API_KEY",
		"models": []any{map[string]any{
			"id": "some-model", "reasoning": true, "contextWindow": 200_000, "maxTokens": 8_000,
			"cost": map[string]any{"input": 3, "output": 15, "cacheRead": 0.3, "cacheWrite": 3.75},
		}},
	}}})
	r.writeJSON(t, "config/mcp.json", map[string]any{"mcpServers": map[string]any{"turnpike": map[string]any{
		"command": self(t), "args": reportServer, "env": map[string]any{"SEEN_BY_SERVER": "by the CLI"},
		"exposure": "direct", // or the model must write code to reach its tools
	}}})
	r.writeJSON(t, "config/settings.json", map[string]any{
		"retry": map[string]any{"maxRetries": 1, "baseDelayMs": 100},
	})
	return piRun{r.start(t, cli{
		bin: agenttest.PiBin(t),
		args: []string{
			"--mode", "json", "--provider", "scripted", "--model", "some-model", "--thinking", "high",
			"--append-system-prompt", "an extra instruction",
			"--no-approve", "--no-extensions", "-e", "builtin:mcp", // which is one of them
			"--no-skills", "--no-prompt-templates", "--no-context-files",
		},
		env: []string{
			"PI_CODING_AGENT_DIR=" + r.home + "/config",
			"PI_OFFLINE=1", "PI_TELEMETRY=0", "PI_SKIP_VERSION_CHECK=1",
			"SCRIPTED_API_KEY=sk-test",
		},
	})}
}

type piMessage struct {
	Role         string
	Content      []struct{ Type, Text string }
	StopReason   string
	ErrorMessage string
	Usage        piUsage
}

type piUsage struct{ Input, Output, CacheRead, CacheWrite, Reasoning int }

func (m piMessage) text() string {
	var all strings.Builder
	for _, c := range m.Content {
		all.WriteString(c.Text)
	}
	return all.String()
}

// last is the assistant's last message, of a run that came to its end.
func (r piRun) last(t *testing.T) piMessage {
	t.Helper()
	type head struct{ Type string }
	if len(said(t, r.run, func(e head) bool { return e.Type == "agent_settled" })) != 1 {
		t.Error("the run did not settle")
	}
	var last piMessage
	for _, line := range r.out.all {
		var h head
		if decode(t, line, &h); h.Type != "message_end" {
			continue
		}
		var role struct{ Message struct{ Role string } }
		if decode(t, line, &role); role.Message.Role != "assistant" {
			continue // a system message's content is a string
		}
		var e struct{ Message piMessage }
		decode(t, line, &e)
		last = e.Message
	}
	return last
}
