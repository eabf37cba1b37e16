package agenttest_test

import (
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"turnpike/internal/agent/agenttest"
)

// TestOpenCode shows that the real CLI takes the provider for the real one.
func TestOpenCode(t *testing.T) {
	t.Parallel()

	t.Run("does the work", func(t *testing.T) {
		t.Parallel()
		s := agenttest.NewProvider(t).Script("work", work()...)
		r := startOpenCode(t, s)
		r.wait(t)
		r.worked(t, s, "high")
		texts := said(t, r, func(e openCodeEvent) bool { return e.Type == "text" })
		if n := len(texts); n != 2 || texts[1].Part.Text != "The work is done." || r.exit.Code != 0 {
			t.Errorf("texts %+v, exit %+v", texts, r.exit)
		}
		ends := said(t, r, func(e openCodeEvent) bool { return e.Type == "step_finish" })
		if n := len(ends); n != 4 {
			t.Fatalf("%d steps, want 4", n)
		}
		last := ends[3].Part
		var want openCodeTokens
		want.Input, want.Reasoning = agenttest.DefaultUsage.Input, agenttest.DefaultUsage.Reasoning
		want.Output = agenttest.DefaultUsage.Output - agenttest.DefaultUsage.Reasoning
		want.Cache.Read = agenttest.DefaultUsage.CacheRead
		if last.Reason != "stop" || last.Tokens != want || last.Cost <= 0 {
			t.Errorf("last step %+v, want it to stop, to have used %+v, and a price", last, want)
		}
	})

	t.Run("gives up on a refused credential", func(t *testing.T) {
		t.Parallel()
		s := agenttest.NewProvider(t).Script("401", agenttest.Fail(http.StatusUnauthorized, "invalid_api_key", "Incorrect API key"))
		r := startOpenCode(t, s)
		r.wait(t)
		failures := said(t, r, func(e openCodeEvent) bool { return e.Type == "error" })
		if len(failures) != 1 || failures[0].Error.Data.StatusCode != http.StatusUnauthorized || r.exit.Code != 1 || len(s.Requests()) != 1 {
			t.Errorf("failures %+v, exit %+v, %d requests", failures, r.exit, len(s.Requests()))
		}
	})

	t.Run("waits, without a word, as long as it is told", func(t *testing.T) {
		t.Parallel()
		s := agenttest.NewProvider(t).Script("long",
			agenttest.Fail(http.StatusTooManyRequests, "rate_limit_exceeded", "Slow down").WithHeader(agenttest.RetryAfter(time.Hour)))
		r := startOpenCode(t, s)
		<-waitFor(t, s, 1).Done()
		r.silent(t, s, 3*time.Second)
		r.kill(t)
	})

	t.Run("tries again after a failure that goes away", func(t *testing.T) {
		t.Parallel()
		s := agenttest.NewProvider(t).Script("once",
			agenttest.Fail(http.StatusInternalServerError, "server_error", "Internal error").Once(), agenttest.Text("At last."))
		r := startOpenCode(t, s)
		r.wait(t)
		texts := said(t, r, func(e openCodeEvent) bool { return e.Type == "text" })
		if len(texts) != 1 || texts[0].Part.Text != "At last." || r.exit.Code != 0 || len(s.Requests()) != 2 {
			t.Errorf("texts %+v, exit %+v, %d requests", texts, r.exit, len(s.Requests()))
		}
	})

	t.Run("asks without end after cuts", func(t *testing.T) {
		t.Parallel()
		s := agenttest.NewProvider(t).Script("cut", agenttest.Text("Never all of it.").Cut())
		r := startOpenCode(t, s)
		waitFor(t, s, 3)
		r.kill(t)
	})

	t.Run("waits while the provider is silent, and leaves its tools behind when told to stop", func(t *testing.T) {
		t.Parallel()
		gate := agenttest.NewGate()
		s := agenttest.NewProvider(t).Script("held", agenttest.Shell("true").HeldMid(gate), agenttest.HangMid("I was about"))
		r := startOpenCode(t, s)
		first := waitFor(t, s, 1)
		gate.Open()
		second := waitFor(t, s, 2)
		<-first.Done()
		if err := r.tree.Terminate(); err != nil {
			t.Fatal(err)
		}
		<-second.Done()
		if r.wait(t); r.exit.Signal != int(syscall.SIGTERM) {
			t.Errorf("exit %+v, want an end by the signal", r.exit)
		}
	})
}

func startOpenCode(t *testing.T, s *agenttest.Script) *run {
	t.Helper()
	r := directories(t)
	r.writeJSON(t, "config.json", map[string]any{
		"provider": map[string]any{"scripted": map[string]any{
			"npm":     "@ai-sdk/openai-compatible", // it comes with the CLI
			"options": map[string]any{"baseURL": s.URL() + "/v1", "apiKey": "{env:SCRIPTED_API_KEY}"},
			"models": map[string]any{"some-model": map[string]any{
				"reasoning": true,
				"limit":     map[string]any{"context": 200_000, "output": 8_000},
				"cost":      map[string]any{"input": 3, "output": 15, "cache_read": 0.3},
			}},
		}},
		"mcp": map[string]any{"turnpike": map[string]any{
			"type": "local", "command": append([]string{self(t)}, reportServer...),
			"environment": map[string]any{"SEEN_BY_SERVER": "by the CLI"},
		}},
		"agent":    map[string]any{"build": map[string]any{"prompt": "an extra instruction"}},
		"snapshot": false,
	})
	xdg := func(kind string) string { return "XDG_" + kind + "_HOME=" + filepath.Join(r.home, kind) }
	return r.start(t, cli{
		bin: agenttest.OpenCodeBin(t),
		// Without a title it asks for one first, and that request fails on its own.
		args: []string{"run", "--format", "json", "--title", "turn", "--model", "scripted/some-model", "--variant", "high"},
		env: []string{
			"OPENCODE_CONFIG=" + filepath.Join(r.home, "config.json"),
			xdg("CONFIG"), xdg("DATA"), xdg("STATE"), xdg("CACHE"),
			"OPENCODE_DISABLE_PROJECT_CONFIG=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_AUTOUPDATE=1",
			"OPENCODE_DISABLE_LSP_DOWNLOAD=1", "OPENCODE_DISABLE_CLAUDE_CODE=1",
			"OPENCODE_EXPERIMENTAL_DISABLE_FILEWATCHER=1",
			"SCRIPTED_API_KEY=sk-test",
		},
	})
}

type openCodeEvent struct {
	Type string
	Part struct {
		Text, Reason string
		Tokens       openCodeTokens
		Cost         float64
	}
	Error struct {
		Name string
		Data struct {
			Message    string
			StatusCode int
		}
	}
}

type openCodeTokens struct {
	Input, Output, Reasoning int
	Cache                    struct{ Read, Write int }
}
