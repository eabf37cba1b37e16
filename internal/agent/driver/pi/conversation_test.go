package pi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/pi"
)

// input is a CLI's standard input.
type input struct {
	mu  sync.Mutex // guards all
	all bytes.Buffer
}

func (i *input) Write(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.all.Write(p)
}

func (*input) Close() error { return nil }

// converse gives the driver the lines and reports every progress it told of.
func converse(ctx context.Context, request agent.Request, in io.WriteCloser, lines ...agent.Line) (agent.Conversation, []agent.Progress) {
	c := make(chan agent.Line, len(lines))
	for _, l := range lines {
		c <- l
	}
	close(c)
	var told []agent.Progress
	l := agent.Launch{Request: request, Turn: &agent.Turn{}}
	return pi.Driver{}.Converse(ctx, l, agent.Pipes{In: in, Lines: c}, func(p agent.Progress) { told = append(told, p) }), told
}

func lines(text string) []agent.Line {
	var out []agent.Line
	for l := range strings.Lines(text) {
		out = append(out, agent.Line{Text: []byte(strings.TrimRight(l, "\n"))})
	}
	return out
}

// TestStreams holds what each captured run of the real CLI proves. Most are of JSON
// mode, whose events are the same.
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
			var request agent.Request
			if strings.HasPrefix(name, "resume") {
				request.ResumeID = "01a2295a-bf69-721e-a1dd-4ff225ae3c86"
			}
			got, told := converse(t.Context(), request, &input{}, lines(string(stream))...)
			if len(told) > 0 && cmp.Diff(got.Progress, told[len(told)-1]) != "" {
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
	versionLine  = `{"type":"extension_ui_request","id":"u1","method":"setStatus","statusKey":"turnpike.version","statusText":"1.6.0"}`
	stateLine    = `{"id":"state","type":"response","command":"get_state","success":true,"data":{"model":{"id":"m","provider":"p","cost":{"input":3,"output":15,"cacheRead":0,"cacheWrite":0}},"thinkingLevel":"medium","sessionId":"s-1","messageCount":0}}`
	unpricedLine = `{"id":"state","type":"response","command":"get_state","success":true,"data":{"model":{"id":"m","provider":"p","cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0}},"sessionId":"s-1","messageCount":4}}`
	takenLine    = `{"id":"prompt","type":"response","command":"prompt","success":true,"data":{"disposition":"started"}}`
	textLine     = `{"type":"message_end","message":{"role":"assistant","content":[{"type":"text","text":"Hi"}],"provider":"p","model":"m","usage":{"input":10,"output":5,"cacheRead":0,"cacheWrite":0,"cost":{"total":0.5}},"stopReason":"stop"}}`
	turnLine     = `{"type":"turn_end","message":{"role":"assistant","stopReason":"stop"},"toolResults":[]}`
	bashLine     = `{"type":"tool_execution_start","toolCallId":"t1","toolName":"bash","args":{"command":"true"}}`
	settledLine  = `{"type":"agent_settled","aborted":false}`
)

func whole(parts ...string) []agent.Line { return lines(strings.Join(parts, "\n")) }

func failed(message string) string {
	data, err := json.Marshal(message)
	if err != nil {
		panic(err)
	}
	return `{"type":"message_end","message":{"role":"assistant","content":[],"provider":"p","model":"m","usage":{"input":0},"stopReason":"error","errorMessage":` + string(data) + `}}`
}

func TestConverse(t *testing.T) {
	t.Parallel()

	t.Run("asks for the state, then gives the prompt", func(t *testing.T) {
		t.Parallel()
		for prompt, want := range map[string]string{"Say \"hello\".\nNow.": "Say \"hello\".\nNow.", "/mcp reconnect": "\n/mcp reconnect"} {
			in := &input{}
			converse(t.Context(), agent.Request{Prompt: prompt}, in, whole(stateLine, takenLine, textLine, settledLine)...)
			said := strings.Split(strings.TrimSpace(in.all.String()), "\n")
			var second struct{ Type, Message string }
			if len(said) != 2 || !strings.Contains(said[0], `"get_state"`) || json.Unmarshal([]byte(said[1]), &second) != nil ||
				second.Type != "prompt" || second.Message != want {
				t.Errorf("said %q", said)
			}
		}
	})

	t.Run("tells the version only once it knows of which conversation", func(t *testing.T) {
		t.Parallel()
		got, told := converse(t.Context(), agent.Request{}, &input{}, whole(versionLine, stateLine, takenLine, textLine, turnLine, settledLine)...)
		want := agent.Progress{Conversation: "s-1", AgentVersion: "1.6.0", Turns: 1, CostUSD: 0.5, CostKnown: true}
		if !got.Ended || got.IsError || got.ResultText != "Hi" || got.Progress != want || told[0].Conversation != "s-1" {
			t.Errorf("%+v, told %+v", got, told)
		}
	})

	t.Run("knows no cost of a model without a price", func(t *testing.T) {
		t.Parallel()
		free := strings.Replace(textLine, `"total":0.5`, `"total":0`, 1)
		got, _ := converse(t.Context(), agent.Request{}, &input{}, whole(unpricedLine, free, settledLine)...)
		if got.CostKnown || got.Models["p/m"].CostUSD != nil || got.Models["p/m"].InputTokens != 10 {
			t.Errorf("%+v", got)
		}
		got, _ = converse(t.Context(), agent.Request{}, &input{}, whole(stateLine, free, settledLine)...)
		if !got.CostKnown || got.CostUSD != 0 {
			t.Errorf("%+v, want a price of nothing for a model that has prices", got)
		}
	})

	t.Run("adds up messages, tools' own requests and compactions", func(t *testing.T) {
		t.Parallel()
		tool := `{"type":"message_end","message":{"role":"toolResult","content":[],"usage":{"input":1,"cost":{"total":0.25}}}}`
		compaction := `{"type":"compaction_end","reason":"threshold","result":{"summary":"x","usage":{"output":2,"cost":{"total":0.125}}}}`
		got, _ := converse(t.Context(), agent.Request{}, &input{}, whole(stateLine, textLine, tool, compaction, textLine, settledLine)...)
		if got.CostUSD != 1.375 || !got.CostKnown || got.Models["p/m"].InputTokens != 21 || got.Models["p/m"].OutputTokens != 12 {
			t.Errorf("%+v", got)
		}
	})

	t.Run("is not over when the agent ends and retries", func(t *testing.T) {
		t.Parallel()
		retrying := `{"type":"agent_end","messages":[],"willRetry":true}` + "\n" + `{"type":"auto_retry_start","attempt":1,"maxAttempts":1,"delayMs":1,"errorMessage":"500"}`
		got, _ := converse(t.Context(), agent.Request{}, &input{}, whole(stateLine, failed("500: {}"), retrying)...)
		if got.Ended || got.ErrorSubtype != agent.SubtypeNoResult {
			t.Errorf("%+v", got)
		}
		got, _ = converse(t.Context(), agent.Request{}, &input{}, whole(stateLine, failed("500: {}"), retrying, textLine, settledLine)...)
		if !got.Ended || got.IsError || got.ResultText != "Hi" {
			t.Errorf("%+v", got)
		}
	})

	t.Run("tells when a limit passes", func(t *testing.T) {
		t.Parallel()
		const message = "429: {\"type\":\"rate_limit_error\"}"
		limit := func(text string) string {
			data, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			return `{"type":"extension_ui_request","method":"setStatus","statusKey":"turnpike.limit","statusText":` + string(data) + `}`
		}
		got, _ := converse(t.Context(), agent.Request{}, &input{}, whole(stateLine, limit(`{"retryAfter":"7200","reset":""}`), failed(message), settledLine)...)
		if in := time.Until(got.RateLimit.ResetsAt); got.Failure != agent.FailureLimited || !got.RateLimit.Blocking() || in < time.Hour || in > 3*time.Hour {
			t.Errorf("%+v, %+v", got, got.RateLimit)
		}
		got, _ = converse(t.Context(), agent.Request{}, &input{}, whole(stateLine, limit(`{"retryAfter":"2","reset":""}`), failed(message), settledLine)...)
		if got.Failure != agent.FailureOverloaded || got.RateLimit != nil {
			t.Errorf("%+v", got)
		}
		got, _ = converse(t.Context(), agent.Request{}, &input{}, whole(stateLine, failed(`429: {"type":"usage_limit_reached","resets_at":4102444800}`), settledLine)...)
		if got.Failure != agent.FailureLimited || got.RateLimit == nil || got.RateLimit.ResetsAt.Unix() != 4102444800 {
			t.Errorf("%+v", got)
		}
	})

	t.Run("stops at the limit of turns, by the extension or without it", func(t *testing.T) {
		t.Parallel()
		used := strings.Replace(textLine, `"stopReason":"stop"`, `"stopReason":"toolUse"`, 1)
		reached := `{"type":"extension_ui_request","method":"setStatus","statusKey":"turnpike.turns","statusText":"reached"}`
		r := agent.Request{Profile: agent.Profile{MaxTurns: 1}}
		got, _ := converse(t.Context(), r, &input{}, whole(stateLine, used, reached, turnLine, settledLine)...)
		if !got.Ended || !got.IsError || got.ErrorSubtype != "error_max_turns" || got.Turns != 1 {
			t.Errorf("%+v", got)
		}
		in := &input{}
		got, _ = converse(t.Context(), r, in, whole(stateLine, used, turnLine, `{"type":"turn_start"}`, settledLine)...)
		if got.ErrorSubtype != "error_max_turns" || !strings.Contains(in.all.String(), `"type":"abort"`) {
			t.Errorf("%+v, said %s", got, in.all.String())
		}
	})

	t.Run("fails where the model's last message did not end by itself", func(t *testing.T) {
		t.Parallel()
		for why, want := range map[string]string{"length": "stopped_length", "aborted": "stopped_aborted", "toolUse": "stopped_toolUse"} {
			got, _ := converse(t.Context(), agent.Request{}, &input{}, whole(strings.Replace(textLine, `"stop"`, `"`+why+`"`, 1), settledLine)...)
			if !got.Ended || !got.IsError || got.ErrorSubtype != want {
				t.Errorf("%s: %+v", why, got)
			}
		}
	})

	t.Run("ends where the prompt is not taken", func(t *testing.T) {
		t.Parallel()
		no := `{"id":"prompt","type":"response","command":"prompt","success":false,"error":"No API key found for p."}`
		got, _ := converse(t.Context(), agent.Request{}, &input{}, whole(stateLine, no, textLine)...)
		if !got.Ended || !got.IsError || got.ErrorSubtype != "prompt_rejected" || got.Failure != agent.FailureCredential || got.ResultText != "" {
			t.Errorf("%+v", got)
		}
		got, _ = converse(t.Context(), agent.Request{}, &input{}, whole(stateLine, strings.Replace(takenLine, "started", "handled", 1))...)
		if !got.Ended || got.ErrorSubtype != agent.SubtypeProtocol {
			t.Errorf("%+v", got)
		}
	})

	t.Run("says that a conversation begins anew, or thinks less", func(t *testing.T) {
		t.Parallel()
		r := agent.Request{ResumeID: "s-1", Profile: agent.Profile{Effort: "max"}}
		got, _ := converse(t.Context(), r, &input{}, whole(stateLine, textLine, settledLine)...)
		want := []string{`effort "max" is not among the model's, it thinks at "medium"`, "conversation s-1 was not found and begins anew under its id"}
		if diff := cmp.Diff(want, got.Diagnostics); diff != "" {
			t.Errorf("diagnostics (-want +got):\n%s", diff)
		}
		if got, _ := converse(t.Context(), agent.Request{ResumeID: "s-1"}, &input{}, whole(unpricedLine, textLine, settledLine)...); len(got.Diagnostics) > 0 {
			t.Errorf("diagnostics %q of a conversation that goes on", got.Diagnostics)
		}
	})

	t.Run("tells of servers and extensions that failed and leaves no question open", func(t *testing.T) {
		t.Parallel()
		in := &input{}
		got, _ := converse(t.Context(), agent.Request{}, in, whole(stateLine,
			`{"type":"extension_ui_request","id":"n","method":"notify","message":"MCP servers need attention:\n  dead: failed: spawn /x ENOENT","notifyType":"warning"}`,
			`{"type":"extension_ui_request","id":"n","method":"notify","message":"All is well.","notifyType":"info"}`,
			`{"type":"extension_ui_request","id":"q-7","method":"confirm","title":"Sure?"}`,
			`{"type":"extension_error","extensionPath":"/x","event":"tool_call","error":"oops"}`,
			`{"type":"tool_execution_end","toolName":"mcp__a__f","isError":true,"result":{"content":[{"type":"text","text":"no\nway"}]}}`,
			`{"type":"tool_execution_end","toolName":"bash","isError":true,"result":{"content":[{"type":"text","text":"exit 1"}]}}`,
			textLine, settledLine)...)
		want := []string{
			"pi: MCP servers need attention: dead: failed: spawn /x ENOENT", "pi: nobody is there to answer a question of an extension",
			"pi: an extension failed: oops", "MCP call of mcp__a__f failed: no way",
		}
		if diff := cmp.Diff(want, got.Diagnostics); diff != "" {
			t.Errorf("diagnostics (-want +got):\n%s", diff)
		}
		if !strings.Contains(in.all.String(), `{"id":"q-7","type":"extension_ui_response","cancelled":true}`) {
			t.Errorf("said %s", in.all.String())
		}
	})

	t.Run("skips what is no record and is no success without an end", func(t *testing.T) {
		t.Parallel()
		got, _ := converse(t.Context(), agent.Request{}, &input{}, whole("Warning: x", "[]", "5", "{}", "", stateLine, `{"type":"hologram","message":[7]}`, textLine)...)
		if got.Ended || got.ErrorSubtype != agent.SubtypeNoResult || got.Progress.CostUSD != 0.5 ||
			!slices.Contains(got.Diagnostics, "4 lines of the agent's output were no records and were skipped") {
			t.Errorf("%+v", got)
		}
		if got, _ := converse(t.Context(), agent.Request{}, &input{}, whole("SyntaxError: x")...); got.ErrorSubtype != agent.SubtypeProtocol {
			t.Errorf("%+v", got)
		}
		if got, _ := converse(t.Context(), agent.Request{}, &input{}, whole(settledLine)...); got.ErrorSubtype != agent.SubtypeProtocol || !got.Ended {
			t.Errorf("%+v", got)
		}
	})

	t.Run("counts a tool call of which only the head is known", func(t *testing.T) {
		t.Parallel()
		for _, n := range []int{5, 30, 60} {
			got, _ := converse(t.Context(), agent.Request{}, &input{}, agent.Line{Text: []byte(bashLine[:n]), Cut: true})
			if got.ToolCalls != 1 {
				t.Errorf("cut at %d: %d tool calls", n, got.ToolCalls)
			}
		}
	})

	t.Run("gives up when the context ends, though the CLI does not read", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r, w := io.Pipe()
		defer r.Close()
		got := pi.Driver{}.Converse(ctx, agent.Launch{Turn: &agent.Turn{}}, agent.Pipes{In: w, Lines: make(chan agent.Line)}, func(agent.Progress) {})
		if got.Ended {
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
	f.Add([]byte(strings.Join([]string{versionLine, stateLine, takenLine, bashLine, textLine, turnLine, settledLine}, "\n")), uint8(3), uint8(1))
	f.Add([]byte(`{"type":"message_end","message":{"role":"assistant","usage":{"input":-1e300,"cost":{"total":-1}}}}`), uint8(0), uint8(0))
	f.Fuzz(func(t *testing.T, stream []byte, cut, turns uint8) {
		var in []agent.Line
		for i, text := range bytes.Split(stream, []byte("\n")) {
			in = append(in, agent.Line{Text: text, Cut: cut != 0 && i%int(cut) == 0})
		}
		r := agent.Request{ResumeID: "s-1", Profile: agent.Profile{MaxTurns: int(turns)}}
		got, told := converse(t.Context(), r, &input{}, in...)
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
