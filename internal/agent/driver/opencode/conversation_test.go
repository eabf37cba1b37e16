package opencode_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/opencode"
)

// converse gives the driver the lines and reports every progress it told of.
func converse(ctx context.Context, l agent.Launch, lines ...agent.Line) (agent.Conversation, []agent.Progress) {
	c := make(chan agent.Line, len(lines))
	for _, line := range lines {
		c <- line
	}
	close(c)
	if l.Turn == nil {
		l.Turn = &agent.Turn{}
	}
	var told []agent.Progress
	return opencode.Driver{}.Converse(ctx, l, agent.Pipes{Lines: c}, func(p agent.Progress) { told = append(told, p) }), told
}

func lines(text string) []agent.Line {
	var out []agent.Line
	for l := range strings.Lines(text) {
		out = append(out, agent.Line{Text: []byte(strings.TrimRight(l, "\n"))})
	}
	return out
}

// TestStreams holds what each captured run of the real CLI proves. They were made
// without our plugin.
func TestStreams(t *testing.T) {
	t.Parallel()
	captures, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(captures) == 0 {
		t.Fatalf("captures: %v, %v", captures, err)
	}
	for _, capture := range captures {
		name := strings.TrimSuffix(filepath.Base(capture), ".jsonl")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stream, err := os.ReadFile(capture)
			if err != nil {
				t.Fatal(err)
			}
			l := agent.Launch{Request: agent.Request{Profile: agent.Profile{Model: "fakechat/fake-model"}}}
			if strings.HasPrefix(name, "resume") {
				l.Request.ResumeID = "ses_dd6a581fcffecygwzWwZaOu2XZ"
			}
			got, told := converse(t.Context(), l, lines(string(stream))...)
			if len(told) > 0 && !got.IsError && cmp.Diff(got.Progress, told[len(told)-1]) != "" {
				t.Errorf("the last progress told is not the whole (-whole +told):\n%s", cmp.Diff(got.Progress, told[len(told)-1]))
			}
			golden(t, "testdata/"+name+".golden.json", got)
		})
	}
}

func golden(t *testing.T, path string, got any) {
	t.Helper()
	data, err := json.MarshalIndent(got, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	data = append(data, '\n')
	if *update {
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; write it with -update", err)
	}
	if diff := cmp.Diff(string(want), string(data)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

const (
	helloLine   = `{"type":"turnpike","hello":true}`
	sessionLine = `{"type":"turnpike","session":"ses_dd6a581fcffe"}`
	modelLine   = `{"type":"turnpike","model":{"name":"p/m","priced":true}}`
	askingLine  = `{"type":"turnpike","asking":{"version":"1.18.33","efforts":["low","high"],"servers":[]}}`
	startLine   = `{"type":"step_start","sessionID":"ses_dd6a581fcffe","part":{"type":"step-start"}}`
	textLine    = `{"type":"text","sessionID":"ses_dd6a581fcffe","part":{"text":"Hi"}}`
	toolLine    = `{"type":"turnpike","tool":"bash"}`
	stopLine    = `{"type":"step_finish","sessionID":"ses_dd6a581fcffe","part":{"reason":"stop","tokens":{"input":10,"output":4,"reasoning":1,"cache":{"read":2,"write":3}},"cost":0.5}}`
	exitLine    = `{"type":"turnpike","exit":{"code":0}}`
)

func whole(parts ...string) []agent.Line { return lines(strings.Join(parts, "\n")) }

func opened(more ...string) []agent.Line {
	return whole(append([]string{helloLine, sessionLine, modelLine, askingLine}, more...)...)
}

func TestConverse(t *testing.T) {
	t.Parallel()
	ctx := t.Context()

	t.Run("tells of the conversation first and ends with the plugin's word", func(t *testing.T) {
		t.Parallel()
		got, told := converse(ctx, agent.Launch{}, opened(startLine, textLine, stopLine, exitLine)...)
		want := agent.Progress{Conversation: "ses_dd6a581fcffe", AgentVersion: "1.18.33", Turns: 1, CostUSD: 0.5, CostKnown: true}
		if !got.Ended || got.IsError || got.ResultText != "Hi" || got.Progress != want || told[0].Conversation == "" || len(got.Diagnostics) > 0 {
			t.Errorf("%+v, told %+v", got, told)
		}
		usage := agent.Usage{InputTokens: 10, OutputTokens: 5, CacheReadTokens: 2, CacheWriteTokens: 3, ReasoningTokens: 1}
		u := got.Models["p/m"]
		if u.CostUSD == nil || *u.CostUSD != 0.5 {
			t.Errorf("cost %v", u.CostUSD)
		}
		u.CostUSD = nil
		if u != usage {
			t.Errorf("usage %+v", u)
		}
	})

	t.Run("knows a tool as it begins", func(t *testing.T) {
		t.Parallel()
		got, told := converse(ctx, agent.Launch{}, opened(startLine, toolLine)...)
		if got.ToolCalls != 1 || told[len(told)-1].ToolCalls != 1 || got.Ended || got.ErrorSubtype != agent.SubtypeNoResult {
			t.Errorf("%+v", got)
		}
		// Without the plugin one may have begun in a step that did not end.
		if got, _ := converse(ctx, agent.Launch{}, whole(startLine)...); got.ToolCalls != 1 {
			t.Errorf("%+v", got)
		}
	})

	t.Run("adds up what subagents spent, and knows no cost of a model without a price", func(t *testing.T) {
		t.Parallel()
		spent := `{"type":"turnpike","spent":{"model":"p/small","priced":%t,"tokens":{"input":7,"output":1,"reasoning":0,"cache":{"read":0,"write":0}},"cost":%s}}`
		got, _ := converse(ctx, agent.Launch{}, opened(startLine, fmt.Sprintf(spent, true, "0.25"), textLine, stopLine, exitLine)...)
		if got.CostUSD != 0.75 || !got.CostKnown || got.Models["p/small"].InputTokens != 7 {
			t.Errorf("%+v", got)
		}
		got, _ = converse(ctx, agent.Launch{}, opened(startLine, fmt.Sprintf(spent, false, "0"), textLine, stopLine, exitLine)...)
		if got.CostKnown || got.Models["p/small"].CostUSD != nil || got.Models["p/m"].CostUSD == nil {
			t.Errorf("%+v", got)
		}
	})

	t.Run("says why the plugin stopped the turn", func(t *testing.T) {
		t.Parallel()
		stopped := func(stop string) agent.Conversation {
			l := agent.Launch{Request: agent.Request{Profile: agent.Profile{MaxTurns: 2}}}
			got, _ := converse(ctx, l, opened(startLine, `{"type":"turnpike","stop":`+stop+`}`,
				`{"type":"error","sessionID":"ses_dd6a581fcffe","error":{"name":"UnknownError","data":{"message":"the turn was stopped"}}}`,
				`{"type":"turnpike","exit":{"code":1}}`)...)
			if !got.Ended || !got.IsError {
				t.Errorf("%s: %+v", stop, got)
			}
			return got
		}
		if got := stopped(`{"why":"turns"}`); got.ErrorSubtype != "error_max_turns" || got.Failure != "" {
			t.Errorf("%+v", got)
		}
		if got := stopped(`{"why":"loop"}`); got.ErrorSubtype != agent.SubtypeProtocol || got.Failure != agent.FailureOverloaded {
			t.Errorf("%+v", got)
		}
		if got := stopped(`{"why":"provider","message":"Internal server error","next":1}`); got.ErrorSubtype != "provider" || got.Failure != agent.FailureOverloaded || got.RateLimit != nil ||
			!slices.Contains(got.Diagnostics, "Internal server error") {
			t.Errorf("%+v", got)
		}
		next := time.Now().Add(time.Hour)
		got := stopped(fmt.Sprintf(`{"why":"provider","message":"Too Many Requests","next":%d}`, next.UnixMilli()))
		if got.Failure != agent.FailureLimited || !got.RateLimit.Blocking() || got.RateLimit.ResetsAt.Sub(next).Abs() > time.Second {
			t.Errorf("%+v", got)
		}
	})

	t.Run("does not know a conversation that it did not come to", func(t *testing.T) {
		t.Parallel()
		l := agent.Launch{Request: agent.Request{ResumeID: "ses_000000000000"}}
		exit := `{"type":"turnpike","exit":{"code":1}}`
		if got, _ := converse(ctx, l, whole(helloLine, exit)...); got.Failure != agent.FailureResume || got.ErrorSubtype != "unknown_conversation" {
			t.Errorf("%+v", got)
		}
		if got, _ := converse(ctx, l, whole(helloLine)...); got.Failure != "" {
			t.Errorf("%+v of one that was ended", got)
		}
		if got, _ := converse(ctx, agent.Launch{}, whole(helloLine, exit)...); got.Failure != "" {
			t.Errorf("%+v of one that is new", got)
		}
	})

	t.Run("fails where the last step did not end by itself, or an error came after it", func(t *testing.T) {
		t.Parallel()
		got, _ := converse(ctx, agent.Launch{}, opened(startLine, strings.Replace(stopLine, `"stop"`, `"length"`, 1), exitLine)...)
		if !got.IsError || got.ErrorSubtype != "stopped_length" {
			t.Errorf("%+v", got)
		}
		failed := `{"type":"error","sessionID":"ses_dd6a581fcffe","error":{"name":"APIError","data":{"message":"no","statusCode":401}}}`
		got, _ = converse(ctx, agent.Launch{}, opened(startLine, stopLine, failed, `{"type":"turnpike","exit":{"code":1}}`)...)
		if !got.Ended || got.ErrorSubtype != "APIError" || got.Failure != agent.FailureCredential {
			t.Errorf("%+v", got)
		}
		// One that it got over is none.
		if got, _ = converse(ctx, agent.Launch{}, opened(failed, startLine, textLine, stopLine, exitLine)...); got.IsError {
			t.Errorf("%+v", got)
		}
	})

	t.Run("gives up a turn whose rules nobody keeps", func(t *testing.T) {
		t.Parallel()
		for name, l := range map[string]agent.Launch{
			"tools":     {Turn: &agent.Turn{Tools: []string{"read"}}},
			"no tools":  {Turn: &agent.Turn{Tools: []string{}}},
			"without":   {Request: agent.Request{Profile: agent.Profile{DisallowedTools: []string{"bash"}}}},
			"few turns": {Request: agent.Request{Profile: agent.Profile{MaxTurns: 1}}},
		} {
			got, _ := converse(ctx, l, whole(startLine, textLine, stopLine)...)
			if !got.IsError || got.ErrorSubtype != agent.SubtypeProtocol || got.Ended {
				t.Errorf("%s: %+v", name, got)
			}
		}
	})

	t.Run("gives up a CLI that does not come to ask", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			c := make(chan agent.Line, 2)
			c <- lines(helloLine)[0]
			c <- lines(sessionLine)[0]
			got := opencode.Driver{Start: time.Minute}.Converse(t.Context(), agent.Launch{Turn: &agent.Turn{}}, agent.Pipes{Lines: c}, func(agent.Progress) {})
			if got.Ended || got.ErrorSubtype != agent.SubtypeFirstEvent || time.Since(began) != time.Minute {
				t.Errorf("%+v after %s", got, time.Since(began))
			}
		})
	})

	t.Run("tells of servers and code of the workspace", func(t *testing.T) {
		t.Parallel()
		l := agent.Launch{
			MCP:     map[string]agent.MCPEntry{"a": {Command: "x"}},
			Request: agent.Request{Profile: agent.Profile{Effort: "max"}},
		}
		got, _ := converse(ctx, l, whole(helloLine, sessionLine,
			`{"type":"turnpike","kept":"/work/.opencode/plugin/x.js"}`,
			`{"type":"turnpike","asking":{"version":"1","efforts":["low","high"],"servers":[{"name":"a","status":"connected"},{"name":"b","status":"failed","error":"ENOENT"}]}}`,
			`{"type":"tool_use","part":{"tool":"a_f","state":{"status":"error","error":"no\nway"}}}`,
			`{"type":"tool_use","part":{"tool":"bash","state":{"status":"error","error":"exit 1"}}}`,
			startLine, textLine, stopLine, exitLine)...)
		want := []string{
			"code that the workspace would have the CLI run was kept out: /work/.opencode/plugin/x.js",
			"MCP server b: failed: ENOENT", `effort "max" is not among the model's: low, high`, "MCP call of a_f failed: no way",
		}
		if diff := cmp.Diff(want, got.Diagnostics); diff != "" {
			t.Errorf("diagnostics (-want +got):\n%s", diff)
		}
	})

	t.Run("skips what is no event and is no success without an end", func(t *testing.T) {
		t.Parallel()
		got, _ := converse(ctx, agent.Launch{}, whole("! permission requested", "[]", "{}", "", helloLine, `{"type":"hologram","part":7}`, startLine)...)
		if got.ErrorSubtype != agent.SubtypeNoResult || !slices.Contains(got.Diagnostics, "3 lines of the agent's output were no events and were skipped") {
			t.Errorf("%+v", got)
		}
		if got, _ := converse(ctx, agent.Launch{}, whole("Illegal instruction")...); got.ErrorSubtype != agent.SubtypeProtocol {
			t.Errorf("%+v", got)
		}
		cut := agent.Line{Text: []byte(`{"type":"tool_use","part":{"tool":"wri`), Cut: true}
		if got, _ := converse(ctx, agent.Launch{}, cut); got.ToolCalls != 1 {
			t.Errorf("%+v", got)
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if got, _ := converse(ended, agent.Launch{}); got.Ended {
			t.Errorf("%+v", got)
		}
	})
}

// FuzzConverse: whatever a CLI prints, the conversation ends, and nothing it tells
// is below zero, out of bounds or unfit for JSON.
func FuzzConverse(f *testing.F) {
	captures, err := filepath.Glob("testdata/*.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	for _, capture := range captures {
		stream, err := os.ReadFile(capture)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(stream, uint8(0), uint8(0))
	}
	f.Add([]byte(strings.Join([]string{helloLine, sessionLine, modelLine, askingLine, startLine, toolLine, textLine, stopLine, exitLine}, "\n")), uint8(3), uint8(1))
	f.Add([]byte(`{"type":"turnpike","stop":{"why":"provider","next":1e300}}`), uint8(0), uint8(0))
	f.Add([]byte(`{"type":"step_finish","part":{"tokens":{"input":-1e300,"cache":{"read":1e300}},"cost":-1}}`), uint8(0), uint8(0))
	f.Fuzz(func(t *testing.T, stream []byte, cut, turns uint8) {
		var in []agent.Line
		for i, text := range bytes.Split(stream, []byte("\n")) {
			in = append(in, agent.Line{Text: text, Cut: cut != 0 && i%int(cut) == 0})
		}
		l := agent.Launch{Request: agent.Request{ResumeID: "ses_000000000000", Profile: agent.Profile{MaxTurns: int(turns)}}}
		got, told := converse(t.Context(), l, in...)
		tools := 0
		for _, p := range append(told, got.Progress) {
			if p.Turns < 0 || p.ToolCalls < tools || p.CostUSD < 0 || len(p.Conversation) > 128 {
				t.Errorf("progress %+v", p)
			}
			tools = p.ToolCalls
		}
		for model, u := range got.Models {
			if min(u.InputTokens, u.OutputTokens, u.CacheReadTokens, u.CacheWriteTokens, u.ReasoningTokens) < 0 ||
				u.CostUSD != nil && *u.CostUSD < 0 {
				t.Errorf("usage of %s: %+v", model, u)
			}
		}
		if !got.Ended && !got.IsError || got.IsError == (got.ErrorSubtype == "") || len(got.Diagnostics) > 64 {
			t.Errorf("%+v", got)
		}
		if _, err := json.Marshal(got); err != nil {
			t.Error(err)
		}
	})
}
