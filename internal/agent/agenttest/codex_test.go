package agenttest_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"turnpike/internal/agent/agenttest"
)

// TestCodex shows that the real CLI takes the provider for the real one.
func TestCodex(t *testing.T) {
	t.Parallel()

	for model, about := range map[string]string{
		"gpt-5.5":    "patches files and searches for tools", // one the CLI knows
		"some-model": "writes by the shell and is offered all tools",
	} {
		t.Run("does the work: "+about, func(t *testing.T) {
			t.Parallel()
			s := agenttest.NewProvider(t).Script("work", work()...)
			r := startCodex(t, s, model)
			r.wait(t)
			r.worked(t, s, "high")
			turn := r.turn(t)
			if turn.Status != "completed" || turn.text != "The work is done." || r.exit.Code != 0 {
				t.Errorf("turn %+v, exit %+v", turn, r.exit)
			}
			u := agenttest.DefaultUsage
			if want := (codexUsage{u.Input + u.CacheRead, u.CacheRead, u.Output, u.Reasoning}); turn.last != want {
				t.Errorf("usage of the last request %+v, want %+v", turn.last, want)
			}
		})
	}

	t.Run("does without the WebSocket it tries first", func(t *testing.T) {
		t.Parallel()
		var upgrades atomic.Int32
		p := &agenttest.Provider{}
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Upgrade") == "websocket" {
				upgrades.Add(1)
			}
			p.ServeHTTP(w, r)
		}))
		defer srv.Close()
		p.Script(agenttest.DefaultScript, agenttest.Text("Hello."))
		r := directories(t)
		r.write(t, "config/config.toml", fmt.Sprintf("openai_base_url = %q\n", srv.URL+"/v1"))
		own := r.codex(t, "gpt-5.5")
		own.wait(t)
		if turn := own.turn(t); turn.Status != "completed" || turn.text != "Hello." || upgrades.Load() == 0 {
			t.Errorf("turn %+v after %d tries", turn, upgrades.Load())
		}
	})

	t.Run("fails with the provider", func(t *testing.T) {
		t.Parallel()
		reset := time.Now().Add(time.Hour)
		for name, tc := range map[string]struct {
			step agenttest.Step
			want string // the kind of error, as the CLI says it
			asks int
		}{
			"401":         {agenttest.Fail(http.StatusUnauthorized, "invalid_api_key", "Incorrect API key"), `{"httpConnectionFailed":{"httpStatusCode":401}}`, 2},
			"quota":       {agenttest.Fail(http.StatusTooManyRequests, "insufficient_quota", "You exceeded your current quota"), `"usageLimitExceeded"`, 1},
			"usage-limit": {agenttest.UsageLimit(reset).WithHeader(agenttest.PlanLimit(1, 5*time.Hour, reset)), `"usageLimitExceeded"`, 1},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := agenttest.NewProvider(t).Script(name, tc.step)
				r := startCodex(t, s, "gpt-5.5")
				r.wait(t)
				turn := r.turn(t)
				if turn.Status != "failed" || string(turn.Error.Info) != tc.want || len(s.Requests()) != tc.asks {
					t.Errorf("turn %s: %s after %d requests, want it failed: %s after %d",
						turn.Status, turn.Error.Info, len(s.Requests()), tc.want, tc.asks)
				}
				if name == "usage-limit" && (turn.limit.ResetsAt != reset.Unix() || turn.limit.UsedPercent != 100) {
					t.Errorf("limit %+v, want it spent until %d", turn.limit, reset.Unix())
				}
			})
		}
	})

	t.Run("waits, without a word, as long as it is told", func(t *testing.T) {
		t.Parallel()
		s := agenttest.NewProvider(t).Script("long",
			agenttest.Fail(http.StatusTooManyRequests, "rate_limit_exceeded", "Slow down").WithHeader(agenttest.RetryAfter(time.Hour)))
		r := startCodex(t, s, "gpt-5.5")
		<-waitFor(t, s, 1).Done()
		r.silent(t, s, 3*time.Second)
		r.kill(t)
	})

	t.Run("tries again", func(t *testing.T) {
		t.Parallel()
		for name, step := range map[string]agenttest.Step{
			"500":          agenttest.Fail(http.StatusInternalServerError, "server_error", "Internal error"),
			"cut":          agenttest.Text("Never all of it.").Cut(),
			"bad-json":     agenttest.Text("Never all of it.").BadJSON(),
			"stream-error": agenttest.Text("Never all of it.").StreamError("rate_limit_exceeded", "Please try again in 1s."),
		} {
			t.Run("after a "+name, func(t *testing.T) {
				t.Parallel()
				s := agenttest.NewProvider(t).Script(name, step.Once(), agenttest.Text("At last."))
				r := startCodex(t, s, "gpt-5.5")
				r.wait(t)
				if turn := r.turn(t); turn.Status != "completed" || turn.text != "At last." || len(s.Requests()) != 2 {
					t.Errorf("turn %+v after %d requests", turn, len(s.Requests()))
				}
			})
		}
	})

	t.Run("waits while the provider is silent, and hangs up when told to stop", func(t *testing.T) {
		t.Parallel()
		gate := agenttest.NewGate()
		s := agenttest.NewProvider(t).Script("held", agenttest.Shell("true").HeldMid(gate), agenttest.HangMid("I was about"))
		r := startCodex(t, s, "gpt-5.5")
		first := waitFor(t, s, 1)
		gate.Open()
		second := waitFor(t, s, 2)
		<-first.Done()
		if err := r.tree.Terminate(); err != nil {
			t.Fatal(err)
		}
		<-second.Done()
		if r.wait(t); r.exit.Code != 0 && r.exit.Signal != int(syscall.SIGTERM) {
			t.Errorf("exit %+v, want an end by the signal", r.exit)
		}
	})
}

type codexRun struct{ *run }

// startCodex starts the app server, which holds one turn and then ends.
func startCodex(t *testing.T, s *agenttest.Script, model string) codexRun {
	t.Helper()
	r := directories(t)
	// CODEX_HOME is the whole configuration there is. The built-in provider would
	// ignore OPENAI_BASE_URL.
	r.write(t, "config/config.toml", fmt.Sprintf(`
		model_provider = "scripted"

		[model_providers.scripted]
		name = "scripted"
		base_url = %q
		env_key = "OPENAI_API_KEY"
		wire_api = "responses"
		request_max_retries = 0
		stream_max_retries = 1

		[mcp_servers.turnpike]
		command = %q
		args = [%q]
		env = { SEEN_BY_SERVER = "by the CLI" }
		required = true
		`, s.URL()+"/v1", self(t), reportServer[0]))
	return r.codex(t, model, "OPENAI_API_KEY=sk-test")
}

func (r *run) codex(t *testing.T, model string, env ...string) codexRun {
	t.Helper()
	return codexRun{r.start(t, cli{
		bin: agenttest.CodexBin(t),
		args: []string{
			"app-server",
			"--disable", "plugins", // or it asks the network for them
		},
		env: append(env, "CODEX_HOME="+r.home+"/config"),
		talk: func(in io.Writer, out *lines) {
			call := json.NewEncoder(in)
			_ = call.Encode(map[string]any{"id": 1, "method": "initialize", "params": map[string]any{
				"clientInfo": map[string]any{"name": "agenttest", "version": "1"},
			}})
			for {
				line, more := out.next()
				if !more {
					return
				}
				var m struct {
					ID     int
					Method string
					Error  json.RawMessage
					Result struct{ Thread struct{ ID string } }
				}
				if json.Unmarshal(line, &m) != nil || m.Error != nil || m.Method == "turn/completed" {
					return // with its input the server ends
				}
				switch {
				case m.ID == 1 && m.Method == "":
					_ = call.Encode(map[string]any{"method": "initialized"})
					_ = call.Encode(map[string]any{"id": 2, "method": "thread/start", "params": map[string]any{
						"cwd": r.dir, "model": model, "approvalPolicy": "never", "sandbox": "danger-full-access",
						"developerInstructions": "an extra instruction",
					}})
				case m.ID == 2 && m.Method == "":
					_ = call.Encode(map[string]any{"id": 3, "method": "turn/start", "params": map[string]any{
						"threadId": m.Result.Thread.ID, "effort": "high",
						"input": []any{map[string]any{"type": "text", "text": cliPrompt}},
					}})
				}
			}
		},
	})}
}

// codexTurn is what the server told of its turn.
type codexTurn struct {
	Status string
	Error  struct {
		Message string
		Info    json.RawMessage `json:"codexErrorInfo"`
	}

	text  string
	last  codexUsage
	limit codexLimit
}

type codexUsage struct {
	Input     int `json:"inputTokens"`
	CacheRead int `json:"cachedInputTokens"`
	Output    int `json:"outputTokens"`
	Reasoning int `json:"reasoningOutputTokens"`
}

type codexLimit struct {
	UsedPercent int
	ResetsAt    int64
}

func (r codexRun) turn(t *testing.T) codexTurn {
	t.Helper()
	type message struct {
		Method string
		Params struct {
			Turn       codexTurn
			Item       struct{ Type, Text string }
			TokenUsage struct{ Last codexUsage }
			RateLimits struct{ Primary codexLimit }
		}
	}
	var turn codexTurn
	for _, m := range said(t, r.run, func(m message) bool { return m.Method != "" }) {
		switch {
		case m.Method == "turn/completed":
			turn.Status, turn.Error = m.Params.Turn.Status, m.Params.Turn.Error
		case m.Method == "item/completed" && m.Params.Item.Type == "agentMessage":
			turn.text = m.Params.Item.Text
		case m.Method == "thread/tokenUsage/updated":
			turn.last = m.Params.TokenUsage.Last
		case m.Method == "account/rateLimits/updated" && m.Params.RateLimits.Primary.ResetsAt != 0:
			turn.limit = m.Params.RateLimits.Primary
		}
	}
	return turn
}
