package claude_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/claude"
)

// converse gives the driver the lines and reports every progress it told of.
func converse(ctx context.Context, d claude.Driver, resume string, lines ...agent.Line) (agent.Conversation, []agent.Progress) {
	c := make(chan agent.Line, len(lines))
	for _, l := range lines {
		c <- l
	}
	close(c)
	var told []agent.Progress
	l := agent.Launch{Request: agent.Request{ResumeID: resume}, Turn: &agent.Turn{}}
	return d.Converse(ctx, l, agent.Pipes{Lines: c}, func(p agent.Progress) { told = append(told, p) }), told
}

func lines(text string) []agent.Line {
	var out []agent.Line
	for l := range strings.Lines(text) {
		out = append(out, agent.Line{Text: []byte(strings.TrimRight(l, "\n"))})
	}
	return out
}

// TestStreams holds what each captured run of the real CLI proves.
func TestStreams(t *testing.T) {
	t.Parallel()
	// The captures were made with one retry each, or as many as the CLI's default.
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
			resume := ""
			if strings.HasPrefix(name, "resume") {
				resume = "b06bd418-9edc-4913-a751-efe817909adc"
			}
			got, told := converse(t.Context(), claude.Driver{}, resume, lines(string(stream))...)
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
	initLine = `{"type":"system","subtype":"init","session_id":"s-1","claude_code_version":"2.1.332","mcp_servers":[]}`
	textLine = `{"type":"assistant","message":{"id":"m1","model":"sonnet","content":[{"type":"text","text":"Hi"}]},"session_id":"s-1"}`
	bashLine = `{"type":"assistant","message":{"id":"m2","model":"sonnet","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{}}]},"session_id":"s-1"}`
	doneLine = `{"type":"result","subtype":"success","is_error":false,"num_turns":1,"result":"Hi","total_cost_usd":0.5,` +
		`"model_usage_since_last_result":{"sonnet":{"inputTokens":1,"outputTokens":2,"costUSD":0.5}}}`
)

func TestConverse(t *testing.T) {
	t.Parallel()

	t.Run("skips what is no event and tells how much", func(t *testing.T) {
		t.Parallel()
		got, _ := converse(t.Context(), claude.Driver{}, "",
			lines(initLine+"\nnot json\n{\"type\":\n\n5\nnull\n{}\n[]\n"+textLine+"\n"+doneLine+"\n")...)
		if got.IsError || !got.Ended || got.ResultText != "Hi" || got.Turns != 1 {
			t.Errorf("%+v", got)
		}
		want := []string{"6 lines of the agent's output were no events and were skipped"}
		if diff := cmp.Diff(want, got.Diagnostics); diff != "" {
			t.Errorf("diagnostics (-want +got):\n%s", diff)
		}
	})

	t.Run("ignores events, members and types it does not know", func(t *testing.T) {
		t.Parallel()
		got, _ := converse(t.Context(), claude.Driver{}, "", lines(initLine+`
{"type":"hologram","session_id":7,"message":"none"}
{"type":"assistant","message":{"id":"m1","content":"a bare string"},"parent_tool_use_id":null,"error":null}
{"type":"assistant","message":[1,2]}
{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t9","content":[7]}]}}
{"type":"rate_limit_event","rate_limit_info":null}
`+doneLine)...)
		if got.IsError || !got.Ended || got.Conversation != "s-1" || len(got.Diagnostics) > 0 {
			t.Errorf("%+v", got)
		}
	})

	t.Run("is an error without a result", func(t *testing.T) {
		t.Parallel()
		for stream, want := range map[string]string{
			"":                             agent.SubtypeNoResult,
			initLine + "\n" + textLine:     agent.SubtypeNoResult,
			"Segmentation fault\nor so":    agent.SubtypeProtocol,
			"<html>\n" + initLine + "\nhm": agent.SubtypeNoResult,
		} {
			got, _ := converse(t.Context(), claude.Driver{}, "", lines(stream)...)
			if got.Ended || !got.IsError || got.ErrorSubtype != want || got.Failure != "" || got.CostKnown {
				t.Errorf("%q: %+v, want %s", stream, got, want)
			}
		}
	})

	t.Run("adds several results up", func(t *testing.T) {
		t.Parallel()
		second := strings.Replace(doneLine, `"result":"Hi"`, `"result":"Bye"`, 1)
		got, told := converse(t.Context(), claude.Driver{}, "", lines(initLine+"\n"+doneLine+"\n"+second)...)
		if got.CostUSD != 1 || !got.CostKnown || got.ResultText != "Bye" || got.Models["sonnet"].OutputTokens != 4 ||
			*got.Models["sonnet"].CostUSD != 1 {
			t.Errorf("%+v", got)
		}
		if told[1].CostUSD != 0.5 {
			t.Errorf("progress told: %+v", told)
		}
	})

	t.Run("knows no cost where only all runs' total is told", func(t *testing.T) {
		t.Parallel()
		old := `{"type":"result","subtype":"success","result":"Hi","total_cost_usd":0.5,"modelUsage":{"sonnet":{"costUSD":0.5}}}`
		got, _ := converse(t.Context(), claude.Driver{}, "", lines(old)...)
		if !got.CostKnown || got.CostUSD != 0.5 || len(got.Models) != 1 {
			t.Errorf("first run: %+v", got)
		}
		got, _ = converse(t.Context(), claude.Driver{}, "b06bd418-9edc-4913-a751-efe817909adc", lines(old)...)
		if got.CostKnown || got.CostUSD != 0 || len(got.Models) > 0 {
			t.Errorf("resumed: %+v", got)
		}
	})

	t.Run("knows no cost where a model has no price", func(t *testing.T) {
		t.Parallel()
		got, _ := converse(t.Context(), claude.Driver{}, "", lines(`{"type":"result","subtype":"success","total_cost_usd":0,`+
			`"model_usage_since_last_result":{"a":{"inputTokens":5,"costUSD":0.1},"b":{"inputTokens":7}}}`)...)
		if got.CostKnown || got.Models["b"].CostUSD != nil || got.Models["b"].InputTokens != 7 {
			t.Errorf("%+v", got)
		}
		got, _ = converse(t.Context(), claude.Driver{}, "", lines(`{"type":"result","subtype":"success","total_cost_usd":0.3,`+
			`"model_usage_since_last_result":{"own":{"inputTokens":5,"costUSD":0.3,"costBasis":"unknown"}}}`)...)
		if got.CostKnown || got.CostUSD != 0 || got.Models["own"].CostUSD != nil {
			t.Errorf("a guessed price counts: %+v", got)
		}
	})

	t.Run("counts an agent's messages once and its subagents' tools too", func(t *testing.T) {
		t.Parallel()
		sub := strings.Replace(bashLine, `"session_id"`, `"parent_tool_use_id":"t1","session_id"`, 1)
		got, _ := converse(t.Context(), claude.Driver{}, "", lines(textLine+"\n"+textLine+"\n"+bashLine+"\n"+sub)...)
		if got.Turns != 2 || got.ToolCalls != 2 {
			t.Errorf("%d turns, %d tool calls", got.Turns, got.ToolCalls)
		}
	})

	t.Run("tells of servers that did not start and MCP calls that failed", func(t *testing.T) {
		t.Parallel()
		got, _ := converse(t.Context(), claude.Driver{}, "", lines(
			`{"type":"system","subtype":"init","mcp_servers":[{"name":"a","status":"connected"},{"name":"b","status":"failed"},{"name":"c","status":"needs-auth"}]}
{"type":"assistant","message":{"id":"m","content":[{"type":"tool_use","id":"x","name":"mcp__a__f"},{"type":"tool_use","id":"y","name":"Bash"}]}}
{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"x","is_error":true,"content":[{"type":"text","text":"no\nway"}]},{"type":"tool_result","tool_use_id":"y","is_error":true,"content":"exit 1"}]}}
`)...)
		want := []string{"MCP server b: failed", "MCP server c: needs-auth", "MCP call of mcp__a__f failed: no way"}
		if diff := cmp.Diff(want, got.Diagnostics); diff != "" {
			t.Errorf("diagnostics (-want +got):\n%s", diff)
		}
	})

	t.Run("bounds what a stream can make it keep", func(t *testing.T) {
		t.Parallel()
		var s strings.Builder
		for i := range 1000 {
			s.WriteString(`{"type":"result","errors":["` + strings.Repeat("é", 1000+i) + `"]}` + "\n")
		}
		got, _ := converse(t.Context(), claude.Driver{}, "", lines(s.String())...)
		if len(got.Diagnostics) > 64 || len(got.Diagnostics[0]) > 600 {
			t.Errorf("%d diagnostics, the first of %d bytes", len(got.Diagnostics), len(got.Diagnostics[0]))
		}
	})

	t.Run("gives up when the context ends", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		got := claude.Driver{}.Converse(ctx, agent.Launch{Turn: &agent.Turn{}}, agent.Pipes{Lines: make(chan agent.Line)},
			func(agent.Progress) {})
		if got.Ended {
			t.Errorf("%+v", got)
		}
	})

	t.Run("does not wait for ever for a CLI that lingers after its result", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c := make(chan agent.Line, 3)
			for _, l := range lines(initLine + "\n" + doneLine) {
				c <- l
			}
			began := time.Now()
			got := claude.Driver{Linger: time.Minute}.Converse(t.Context(), agent.Launch{Turn: &agent.Turn{}},
				agent.Pipes{Lines: c}, func(agent.Progress) {})
			if !got.Ended || time.Since(began) != time.Minute {
				t.Errorf("ended %t after %s", got.Ended, time.Since(began))
			}
		})
	})
}

func TestCutLines(t *testing.T) {
	t.Parallel()
	cutAt := func(line string, n int) agent.Line { return agent.Line{Text: []byte(line[:n]), Cut: true} }

	t.Run("a result that lost its text keeps its cost", func(t *testing.T) {
		t.Parallel()
		line := `{"total_cost_usd":0.25,"modelUsage":{"sonnet":{"outputTokens":3,"costUSD":0.25}},"is_error":false,` +
			`"subtype":"success","result":"` + strings.Repeat("x", 1000) + `","type":"result"}`
		got, _ := converse(t.Context(), claude.Driver{}, "", append(lines(initLine), cutAt(line, 500))...)
		if !got.Ended || got.IsError || got.CostUSD != 0.25 || !got.CostKnown || got.Models["sonnet"].OutputTokens != 3 {
			t.Errorf("%+v", got)
		}
		if !slices.ContainsFunc(got.Diagnostics, func(d string) bool { return strings.Contains(d, "its text is lost") }) {
			t.Errorf("diagnostics %q", got.Diagnostics)
		}
	})

	t.Run("a number is not taken for a shorter one", func(t *testing.T) {
		t.Parallel()
		line := `{"type":"result","subtype":"success","total_cost_usd":0.25}`
		for n := range len(line) {
			got, _ := converse(t.Context(), claude.Driver{}, "", cutAt(line, n))
			if got.CostKnown || got.CostUSD != 0 {
				t.Fatalf("cut at %d: cost %v", n, got.CostUSD)
			}
		}
	})

	t.Run("a message may hold a tool call", func(t *testing.T) {
		t.Parallel()
		for _, line := range []string{bashLine, `{"message":{"content":[{"type":"tool_use"}]},"type":"assistant"}`} {
			if got, _ := converse(t.Context(), claude.Driver{}, "", cutAt(line, 60)); got.ToolCalls != 1 {
				t.Errorf("%s: %d tool calls", line[:60], got.ToolCalls)
			}
		}
	})

	t.Run("a tool's result is none", func(t *testing.T) {
		t.Parallel()
		line := `{"type":"user","message":{"content":[{"type":"tool_result","content":"` + strings.Repeat("x", 100) + `"}]}}`
		if got, _ := converse(t.Context(), claude.Driver{}, "", cutAt(line, 90)); got.ToolCalls != 0 {
			t.Errorf("%d tool calls", got.ToolCalls)
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
		f.Add(stream, uint8(0), false)
	}
	f.Add([]byte(doneLine+"\n"+doneLine+"\n"+bashLine), uint8(2), true)
	f.Add([]byte(`{"type":"result","num_turns":-1,"total_cost_usd":-1,"modelUsage":{"a":{"inputTokens":-1e300}}}`), uint8(0), false)
	f.Fuzz(func(t *testing.T, stream []byte, cut uint8, resumed bool) {
		var in []agent.Line
		for i, text := range bytes.Split(stream, []byte("\n")) {
			in = append(in, agent.Line{Text: text, Cut: cut != 0 && i%int(cut) == 0})
		}
		resume := ""
		if resumed {
			resume = "b06bd418-9edc-4913-a751-efe817909adc"
		}
		got, told := converse(t.Context(), claude.Driver{}, resume, in...)
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
