package codex_test

import (
	"bufio"
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
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/codex"
)

// said is what the driver told the server.
type said struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params map[string]any  `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// peer is the server's end of the pipes.
type peer struct {
	lines chan agent.Line
	in    io.WriteCloser
	said  chan said // closed at the end of the input
}

func newPeer(tb testing.TB, buffer int) *peer {
	r, w := io.Pipe()
	p := &peer{lines: make(chan agent.Line, buffer), in: w, said: make(chan said, 4096)}
	go func() {
		defer close(p.said)
		lines := bufio.NewReader(r)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			var m said
			if err := json.Unmarshal(line, &m); err != nil {
				tb.Errorf("the driver said %q: %v", line, err)
			}
			p.said <- m
		}
	}()
	return p
}

func (p *peer) pipes() agent.Pipes { return agent.Pipes{In: p.in, Lines: p.lines} }

// all is everything that was said, once the input has ended.
func (p *peer) all() []said {
	var all []said
	for m := range p.said {
		all = append(all, m)
	}
	return all
}

func methods(all []said) []string {
	var names []string
	for _, m := range all {
		names = append(names, m.Method)
	}
	return names
}

func launchOf(r agent.Request) agent.Launch {
	return agent.Launch{Request: r, Turn: &agent.Turn{}, WorkDir: "/repo"}
}

// converse gives the driver the lines, and reports what it told of and said.
func converse(tb testing.TB, d codex.Driver, l agent.Launch, lines ...agent.Line) (agent.Conversation, []agent.Progress, []said) {
	tb.Helper()
	p := newPeer(tb, len(lines))
	for _, line := range lines {
		p.lines <- line
	}
	close(p.lines)
	var told []agent.Progress
	c := d.Converse(tb.Context(), l, p.pipes(), func(p agent.Progress) { told = append(told, p) })
	return c, told, p.all()
}

func lines(text ...string) []agent.Line {
	var out []agent.Line
	for _, l := range text {
		out = append(out, agent.Line{Text: []byte(l)})
	}
	return out
}

const unknownThread = "00000000-0000-7000-8000-000000000000"

// TestStreams holds what each captured conversation with the real server proves. The
// capture is the peer: it answers a request once the driver made it, and says
// everything else when its turn comes.
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
			data, err := os.ReadFile(capture)
			if err != nil {
				t.Fatal(err)
			}
			l := launchOf(agent.Request{Prompt: "Say hello"})
			switch name {
			case "resume":
				l.Request.ResumeID = "01a22952-ccb9-7f82-9452-28ef62e4a828"
			case "resume-unknown":
				l.Request.ResumeID = unknownThread
			case "mcp":
				l.MCP = map[string]agent.MCPEntry{"local": {}, "remote": {}, "broken": {}, "unauth": {}}
			case "mcp-required-fails":
				l.MCP = map[string]agent.MCPEntry{"broken": {}}
			}
			got, told, heard := replay(t, l, string(data))
			if len(told) > 0 && cmp.Diff(got.Progress, told[len(told)-1]) != "" && got.Failure != agent.FailureLimited {
				t.Errorf("the last progress told is not the whole (-whole +told):\n%s", cmp.Diff(got.Progress, told[len(told)-1]))
			}
			if name != "not-initialized" { // which the driver never is
				if diff := cmp.Diff(asked(string(data)), heard); diff != "" {
					t.Errorf("what the capture's client said (-) and the driver (+):\n%s", diff)
				}
			}
			golden(t, "testdata/"+name+".golden.json", got)
		})
	}
}

// asked is what the capture's client said: methods, and whole answers.
func asked(capture string) []string {
	var out []string
	for line := range strings.Lines(capture) {
		if text, ours := strings.CutPrefix(line, "-> "); ours {
			var m said
			if json.Unmarshal([]byte(text), &m) == nil {
				out = append(out, m.Method+string(m.Result))
			}
		}
	}
	return out
}

func replay(t *testing.T, l agent.Launch, capture string) (got agent.Conversation, told []agent.Progress, heard []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := newPeer(t, strings.Count(capture, "\n"))
	var conversing sync.WaitGroup
	var once sync.Once
	acted := make(chan struct{})
	conversing.Go(func() {
		got = codex.Driver{}.Converse(ctx, l, p.pipes(), func(p agent.Progress) {
			told = append(told, p)
			if p.ToolCalls == 1 {
				once.Do(func() { close(acted) })
			}
		})
	})
	// hear waits until the driver has made a request.
	made := map[string]bool{}
	hear := func(id string) {
		for !made[id] {
			m, open := <-p.said
			if !open {
				t.Fatalf("the driver ended before it made request %s", id)
			}
			heard = append(heard, m.Method+string(m.Result))
			if m.Method != "" {
				made[string(m.ID)] = true
			}
		}
	}
	initialized := strings.Contains(capture, `"method":"initialize"`)
	for line := range strings.Lines(capture) {
		direction, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		var m said
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Fatal(err)
		}
		switch {
		case direction == "->" && m.Method == "turn/interrupt":
			<-acted
			cancel() // what has the driver interrupt, and hear no more
			for m := range p.said {
				heard = append(heard, m.Method+string(m.Result))
			}
		case direction == "<-" && m.Method == "" && initialized && string(m.ID) != "4":
			hear(string(m.ID))
			fallthrough
		case direction == "<-":
			p.lines <- agent.Line{Text: []byte(text)}
		}
	}
	// The driver ends the conversation, and the server with it.
	for m := range p.said {
		heard = append(heard, m.Method+string(m.Result))
	}
	close(p.lines)
	conversing.Wait()
	return got, told, heard
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
	initReply   = `{"id":1,"result":{"userAgent":"turnpike/0.171.0 (Debian 12.0.0; x86_64) dumb (turnpike; 1)"}}`
	threadReply = `{"id":2,"result":{"thread":{"id":"th-1"},"model":"gpt-5.5"}}`
	turnReply   = `{"id":3,"result":{"turn":{"id":"tu-1","status":"inProgress"}}}`
	doneLine    = `{"method":"turn/completed","params":{"threadId":"th-1","turn":{"id":"tu-1","status":"completed","error":null}}}`
	limitLine   = `{"method":"error","params":{"error":{"message":"Reconnecting... 1/2","codexErrorInfo":{"responseStreamDisconnected":{"httpStatusCode":429}}},"willRetry":true,"threadId":"th-1","turnId":"tu-1"}}`
)

func itemLine(event, item string) string {
	return `{"method":"item/` + event + `","params":{"item":` + item + `,"threadId":"th-1","turnId":"tu-1"}}`
}

func message(text string) string {
	return itemLine("started", `{"type":"agentMessage","id":"m-`+text+`","text":""}`) + "\n" +
		itemLine("completed", `{"type":"agentMessage","id":"m-`+text+`","text":"`+text+`"}`)
}

func command(id string) string {
	return itemLine("started", `{"type":"commandExecution","id":"`+id+`"}`) + "\n" + itemLine("completed", `{"type":"commandExecution","id":"`+id+`"}`)
}

// usage is the total after n requests of one kind.
func usage(turn string, n int) string {
	counts := func(n int) string {
		data, _ := json.Marshal(map[string]int{
			"totalTokens": 110 * n, "inputTokens": 100 * n, "cachedInputTokens": 30 * n, "cacheWriteInputTokens": 20 * n,
			"outputTokens": 10 * n, "reasoningOutputTokens": 4 * n,
		})
		return string(data)
	}
	return `{"method":"thread/tokenUsage/updated","params":{"threadId":"th-1","turnId":"` + turn + `","tokenUsage":{"total":` + counts(n) + `,"last":` + counts(1) + `}}}`
}

// conversation is a whole one with those lines within its turn.
func conversation(turn ...string) []agent.Line {
	all := append([]string{initReply, threadReply, turnReply}, turn...)
	return lines(strings.Split(strings.Join(all, "\n"), "\n")...)
}

func TestConverse(t *testing.T) {
	t.Parallel()
	plain := launchOf(agent.Request{Prompt: "Say hello"})

	t.Run("skips what is no message and tells how much", func(t *testing.T) {
		t.Parallel()
		got, _, _ := converse(t, codex.Driver{}, plain,
			conversation("not json", `{"method":`, "", "5", "null", "{}", "[]", message("Hi"), usage("tu-1", 1), doneLine)...)
		if got.IsError || !got.Ended || got.ResultText != "Hi" || got.Turns != 1 || got.AgentVersion != "0.171.0" {
			t.Errorf("%+v", got)
		}
		want := []string{"6 lines of the agent's output were no messages and were skipped"}
		if diff := cmp.Diff(want, got.Diagnostics); diff != "" {
			t.Errorf("diagnostics (-want +got):\n%s", diff)
		}
	})

	t.Run("ignores methods, members and types it does not know", func(t *testing.T) {
		t.Parallel()
		got, _, _ := converse(t, codex.Driver{}, plain, conversation(
			`{"method":"hologram/updated","params":[1]}`,
			`{"method":"thread/status/changed","params":{"threadId":"th-1","status":{"type":"active"}}}`,
			`{"method":"account/rateLimits/updated","params":{"rateLimits":{"primary":"none"}}}`,
			`{"method":"error","params":{"error":7,"willRetry":"yes"}}`,
			`{"id":77,"result":{}}`, `{"id":"x","error":{"code":1}}`,
			message("Hi"), doneLine)...)
		if got.IsError || !got.Ended || got.Progress.Conversation != "th-1" || len(got.Diagnostics) > 0 || got.RateLimit != nil {
			t.Errorf("%+v", got)
		}
	})

	t.Run("is an error without the turn's end", func(t *testing.T) {
		t.Parallel()
		for _, c := range []struct {
			lines []agent.Line
			want  string
		}{
			{nil, agent.SubtypeNoResult},
			{conversation(message("Hi")), agent.SubtypeNoResult},
			{lines("Segmentation fault", "or so"), agent.SubtypeProtocol},
			{lines("<html>", initReply), agent.SubtypeNoResult},
		} {
			got, _, _ := converse(t, codex.Driver{}, plain, c.lines...)
			if got.Ended || !got.IsError || got.ErrorSubtype != c.want || got.Failure != "" || got.CostKnown {
				t.Errorf("%v: %+v, want %s", c.lines, got, c.want)
			}
		}
	})

	t.Run("asks nothing more of a server that refused", func(t *testing.T) {
		t.Parallel()
		refusal := func(id string) string { return `{"id":` + id + `,"error":{"code":-32603,"message":"no such luck"}}` }
		for _, c := range []struct {
			lines  []string
			resume string
			want   agent.Failure
			said   []string
		}{
			{[]string{refusal("1")}, "", "", []string{"initialize"}},
			{[]string{initReply, refusal("2")}, "", "", []string{"initialize", "initialized", "thread/start"}},
			{[]string{initReply, refusal("2")}, unknownThread, agent.FailureResume, []string{"initialize", "initialized", "thread/resume"}},
			{[]string{initReply, threadReply, refusal("3")}, "", "", []string{"initialize", "initialized", "thread/start", "turn/start"}},
		} {
			got, _, heard := converse(t, codex.Driver{}, launchOf(agent.Request{Prompt: "x", ResumeID: c.resume}), lines(c.lines...)...)
			if !got.Ended || !got.IsError || got.ErrorSubtype != "error_refused" || got.Failure != c.want ||
				!slices.Contains(got.Diagnostics, "no such luck") {
				t.Errorf("%q: %+v", c.lines, got)
			}
			if diff := cmp.Diff(c.said, methods(heard)); diff != "" {
				t.Errorf("%q: said (-want +got):\n%s", c.lines, diff)
			}
		}
	})

	t.Run("tells what this turn used of the conversation's total", func(t *testing.T) {
		t.Parallel()
		want := map[string]agent.Usage{"gpt-5.5": {InputTokens: 100, OutputTokens: 20, CacheReadTokens: 60, CacheWriteTokens: 40, ReasoningTokens: 8}}
		resumed := launchOf(agent.Request{Prompt: "x", ResumeID: unknownThread})
		for name, c := range map[string]struct {
			l     agent.Launch
			lines []agent.Line
		}{
			"of a new one": {plain, conversation(command("c"), usage("tu-1", 1), message("Hi"), usage("tu-1", 2), usage("tu-1", 2), doneLine)},
			"of one that goes on": {resumed, slices.Concat(lines(initReply, threadReply, usage("tu-0", 7), turnReply),
				lines(strings.Split(command("c"), "\n")...), lines(usage("tu-1", 8)), lines(strings.Split(message("Hi"), "\n")...), lines(usage("tu-1", 9), doneLine))},
			"of one whose earlier total was not told": {resumed, conversation(command("c"), usage("tu-1", 8), message("Hi"), usage("tu-1", 9), doneLine)},
		} {
			got, _, _ := converse(t, codex.Driver{}, c.l, c.lines...)
			if diff := cmp.Diff(want, got.Models); diff != "" || got.Turns != 2 || got.ToolCalls != 1 || got.CostKnown {
				t.Errorf("%s: %+v, usage (-want +got):\n%s", name, got.Progress, diff)
			}
		}
	})

	t.Run("tells usage of the model that answered", func(t *testing.T) {
		t.Parallel()
		got, _, _ := converse(t, codex.Driver{}, plain, conversation(
			command("c"), usage("tu-1", 1),
			`{"method":"model/rerouted","params":{"threadId":"th-1","turnId":"tu-1","fromModel":"gpt-5.5","toModel":"gpt-5.5-mini"}}`,
			message("Hi"), usage("tu-1", 3), doneLine)...)
		if got.Models["gpt-5.5"].OutputTokens != 10 || got.Models["gpt-5.5-mini"].OutputTokens != 20 {
			t.Errorf("%+v", got.Models)
		}
	})

	t.Run("leaves other threads' turns out, but not that they act", func(t *testing.T) {
		t.Parallel()
		other := func(s string) string { return strings.ReplaceAll(s, "th-1", "th-2") }
		got, _, _ := converse(t, codex.Driver{}, plain, conversation(
			other(message("Other")), other(command("c")), other(usage("tu-1", 5)), other(doneLine), message("Hi"), usage("tu-1", 1), doneLine)...)
		if got.Turns != 1 || got.ToolCalls != 1 || got.ResultText != "Hi" || got.Models["gpt-5.5"].OutputTokens != 10 {
			t.Errorf("%+v", got)
		}
	})

	t.Run("counts a response before its tokens are told", func(t *testing.T) {
		t.Parallel()
		got, told, _ := converse(t, codex.Driver{}, plain, conversation(
			itemLine("started", `{"type":"reasoning","id":"r"}`), itemLine("started", `{"type":"commandExecution","id":"c"}`))...)
		if got.Turns != 1 || got.ToolCalls != 1 || len(told) == 0 || told[0].Conversation != "th-1" {
			t.Errorf("%+v, told %+v", got.Progress, told)
		}
	})

	t.Run("counts tools, whatever they are and whenever they are told of", func(t *testing.T) {
		t.Parallel()
		late := itemLine("completed", `{"type":"commandExecution","id":"c"}`)
		got, _, _ := converse(t, codex.Driver{}, plain, conversation(
			itemLine("started", `{"type":"commandExecution","id":"c"}`), itemLine("completed", `{"type":"imageView","id":"i"}`),
			itemLine("started", `{"type":"hologram","id":"h"}`), itemLine("completed", `{"type":"contextCompaction","id":"x"}`),
			usage("tu-1", 1), late, message("Hi"), usage("tu-1", 2), doneLine)...)
		if got.ToolCalls != 3 || got.Turns != 2 {
			t.Errorf("%d tool calls in %d turns, want 3 in 2", got.ToolCalls, got.Turns)
		}
	})

	t.Run("starts the turn when every server started or failed", func(t *testing.T) {
		t.Parallel()
		status := func(name, status, err string) string {
			return `{"method":"mcpServer/startupStatus/updated","params":{"threadId":"th-1","name":"` + name + `","status":"` + status + `","error":` + err + `}}`
		}
		l := plain
		l.MCP = map[string]agent.MCPEntry{"a": {}, "b": {}, "c": {}}
		begun := lines(initReply, status("a", "starting", "null"), threadReply, status("a", "ready", "null"), status("b", "failed", `"no\nway"`))
		got, _, heard := converse(t, codex.Driver{}, l, begun...)
		if slices.Contains(methods(heard), "turn/start") {
			t.Errorf("said %v with a server to come", methods(heard))
		}
		if diff := cmp.Diff([]string{"MCP server b: failed: no way"}, got.Diagnostics); diff != "" {
			t.Errorf("diagnostics (-want +got):\n%s", diff)
		}
		_, _, heard = converse(t, codex.Driver{}, l, append(begun, lines(status("c", "cancelled", "null"))...)...)
		if !slices.Contains(methods(heard), "turn/start") {
			t.Errorf("said %v", methods(heard))
		}
	})

	t.Run("does not wait for a server for ever", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			l := plain
			l.MCP = map[string]agent.MCPEntry{"mute": {}}
			p := newPeer(t, 8)
			for _, line := range lines(initReply, threadReply) {
				p.lines <- line
			}
			var got agent.Conversation
			var conversing sync.WaitGroup
			conversing.Go(func() { got = codex.Driver{}.Converse(t.Context(), l, p.pipes(), func(agent.Progress) {}) })
			for m := range p.said {
				if m.Method == "turn/start" {
					break
				}
			}
			close(p.lines)
			conversing.Wait()
			p.all()
			if !slices.Contains(got.Diagnostics, "MCP server mute: it did not start in time") {
				t.Errorf("diagnostics %q", got.Diagnostics)
			}
		})
	})

	t.Run("tells of MCP calls that failed", func(t *testing.T) {
		t.Parallel()
		call := func(id, rest string) string {
			return itemLine("started", `{"type":"mcpToolCall","id":"`+id+`","server":"a","tool":"f"}`) + "\n" +
				itemLine("completed", `{"type":"mcpToolCall","id":"`+id+`","server":"a","tool":"f",`+rest+`}`)
		}
		got, _, _ := converse(t, codex.Driver{}, plain, conversation(
			call("1", `"status":"failed","error":{"message":"gone"}`),
			call("2", `"status":"completed","result":{"content":[{"type":"text","text":"no\nway"}],"isError":true}`),
			call("3", `"status":"failed"`), call("4", `"status":"completed","result":{"content":[{"text":"fine"}]},"error":null`), doneLine)...)
		want := []string{"MCP call of mcp__a__f failed: gone", "MCP call of mcp__a__f failed: no way", "MCP call of mcp__a__f failed: it does not say why"}
		if diff := cmp.Diff(want, got.Diagnostics); diff != "" {
			t.Errorf("diagnostics (-want +got):\n%s", diff)
		}
	})

	t.Run("refuses whatever the server asks, and says so", func(t *testing.T) {
		t.Parallel()
		for method, want := range map[string]string{
			"item/commandExecution/requestApproval": `{"decision":"decline"}`,
			"item/fileChange/requestApproval":       `{"decision":"decline"}`,
			"execCommandApproval":                   `{"decision":"denied"}`,
			"applyPatchApproval":                    `{"decision":"denied"}`,
			"mcpServer/elicitation/request":         `{"action":"decline"}`,
			"item/tool/requestUserInput":            `{"answers":{}}`,
			"item/tool/call":                        `{"contentItems":[],"success":false}`,
			"item/permissions/requestApproval":      "",
			"account/chatgptAuthTokens/refresh":     "",
			"hologram/request":                      "",
		} {
			for _, id := range []string{`0`, `"a-7"`} {
				got, _, heard := converse(t, codex.Driver{}, plain, conversation(`{"method":"`+method+`","id":`+id+`,"params":{"threadId":"th-1"}}`, doneLine)...)
				i := slices.IndexFunc(heard, func(m said) bool { return m.Method == "" })
				if i < 0 || string(heard[i].ID) != id || string(heard[i].Result) != want || (want == "") != (len(heard[i].Error) > 0) {
					t.Errorf("%s: answered with %+v", method, heard)
				}
				if got.IsError || len(got.Diagnostics) != 1 || !strings.Contains(got.Diagnostics[0], method) {
					t.Errorf("%s: %+v", method, got)
				}
			}
		}
	})

	t.Run("tells the fuller window, and a limit that ended the turn as used up", func(t *testing.T) {
		t.Parallel()
		limits := `{"method":"account/rateLimits/updated","params":{"rateLimits":{"primary":{"usedPercent":12,"windowDurationMins":300,"resetsAt":1795993250},"secondary":{"usedPercent":97,"windowDurationMins":10080,"resetsAt":1796000000}}}}`
		failed := `{"method":"turn/completed","params":{"threadId":"th-1","turn":{"id":"tu-1","status":"failed","error":{"message":"You’ve hit your usage limit.","codexErrorInfo":"usageLimitExceeded"}}}}`
		want := agent.RateLimit{Status: "allowed", Type: "seven_day", ResetsAt: time.Unix(1796000000, 0).UTC()}
		got, _, _ := converse(t, codex.Driver{}, plain, conversation(limits, message("Hi"), doneLine)...)
		if got.RateLimit == nil || *got.RateLimit != want || got.RateLimit.Blocking() {
			t.Errorf("%+v, want %+v", got.RateLimit, want)
		}
		want.Status = "rejected"
		got, told, _ := converse(t, codex.Driver{}, plain, conversation(limits, failed)...)
		if got.Failure != agent.FailureLimited || got.RateLimit == nil || *got.RateLimit != want || !got.RateLimit.Blocking() {
			t.Errorf("%q, %+v, want %+v", got.Failure, got.RateLimit, want)
		}
		if told[1].RateLimit.Blocking() {
			t.Error("what was told before is told otherwise now")
		}
	})

	t.Run("gives a conversation that goes on its own system prompt", func(t *testing.T) {
		t.Parallel()
		injected := `{"id":5,"result":{}}`
		l := launchOf(agent.Request{Prompt: "x", SystemPrompt: "Be brief.", ResumeID: unknownThread})
		_, _, heard := converse(t, codex.Driver{}, l, lines(initReply, threadReply)...)
		if want := []string{"initialize", "initialized", "thread/resume", "thread/inject_items"}; !slices.Equal(methods(heard), want) {
			t.Errorf("said %v, want %v", methods(heard), want)
		}
		_, _, heard = converse(t, codex.Driver{}, l, lines(initReply, threadReply, injected)...)
		if got := methods(heard); got[len(got)-1] != "turn/start" {
			t.Errorf("said %v", got)
		}
		l.Request.ResumeID = ""
		_, _, heard = converse(t, codex.Driver{}, l, lines(initReply, threadReply)...)
		if got := heard[2].Params["developerInstructions"]; got != "Be brief." || heard[3].Method != "turn/start" {
			t.Errorf("instructions %v, said %v", got, methods(heard))
		}
	})

	t.Run("offers the turn's skills and no other, or nothing at all", func(t *testing.T) {
		t.Parallel()
		l := launchOf(agent.Request{Prompt: "x"})
		l.Skills = []string{"/skills/acme"}
		rooted := `{"id":7,"result":{}}`
		found := `{"id":8,"result":{"data":[{"skills":[{"path":"/skills/acme/skills/a/SKILL.md"},{"path":"/repo/.agents/skills/b/SKILL.md"}]}]}}`
		_, _, heard := converse(t, codex.Driver{}, l, lines(initReply, rooted, found, threadReply)...)
		want := []string{"initialize", "initialized", "skills/extraRoots/set", "skills/list", "thread/start", "turn/start"}
		if !slices.Equal(methods(heard), want) {
			t.Fatalf("said %v, want %v", methods(heard), want)
		}
		off := map[string]any{"skills": map[string]any{"config": []any{map[string]any{"path": "/repo/.agents/skills/b/SKILL.md", "enabled": false}}}}
		if diff := cmp.Diff(off, heard[4].Params["config"]); diff != "" {
			t.Errorf("configuration of the thread (-want +got):\n%s", diff)
		}
		got, _, heard := converse(t, codex.Driver{}, l, lines(initReply, `{"id":7,"error":{"code":-32601,"message":"no such method"}}`)...)
		if !got.Ended || !got.IsError || len(heard) != 3 {
			t.Errorf("%+v, said %v", got, methods(heard))
		}
	})

	t.Run("names the thread, and goes on without a name", func(t *testing.T) {
		t.Parallel()
		l := launchOf(agent.Request{Prompt: "Go on."})
		l.Title = "acme: builder"
		refused := `{"id":6,"error":{"code":-32601,"message":"no such method"}}`
		got, _, heard := converse(t, codex.Driver{}, l, conversation(refused, message("Hi"), doneLine)...)
		i := slices.Index(methods(heard), "thread/name/set")
		if got.IsError || i < 0 || heard[i].Params["name"] != l.Title || heard[i].Params["threadId"] != "th-1" {
			t.Errorf("%+v, said %+v", got, heard)
		}
	})

	t.Run("gives the turn its access, and the thread none", func(t *testing.T) {
		t.Parallel()
		for _, tools := range [][]string{nil, {}} {
			l := launchOf(agent.Request{Prompt: "Do it.", Profile: agent.Profile{Model: "gpt-5.5", Effort: "high"}})
			l.Turn.Tools = tools
			_, _, heard := converse(t, codex.Driver{}, l, lines(initReply, threadReply)...)
			thread, turn := heard[2].Params, heard[3].Params
			if thread["sandbox"] != "read-only" || thread["approvalPolicy"] != "never" || thread["model"] != "gpt-5.5" || thread["cwd"] != "/repo" {
				t.Errorf("thread %v", thread)
			}
			var access any
			if tools == nil {
				access = map[string]any{"type": "dangerFullAccess"}
			}
			want := map[string]any{
				"threadId": "th-1", "approvalPolicy": "never", "effort": "high",
				"input": []any{map[string]any{"type": "text", "text": "Do it."}},
			}
			if access != nil {
				want["sandboxPolicy"] = access
			}
			if diff := cmp.Diff(want, turn); diff != "" {
				t.Errorf("turn (-want +got):\n%s", diff)
			}
		}
	})

	t.Run("bounds what a stream can make it keep", func(t *testing.T) {
		t.Parallel()
		var s []string
		for i := range 1000 {
			s = append(s, itemLine("completed", `{"type":"mcpToolCall","id":"`+strings.Repeat("i", i)+`","status":"failed","error":{"message":"`+strings.Repeat("é", 1000+i)+`"}}`))
		}
		got, _, _ := converse(t, codex.Driver{}, plain, conversation(s...)...)
		if len(got.Diagnostics) > 64 || len(got.Diagnostics[0]) > 600 {
			t.Errorf("%d diagnostics, the first of %d bytes", len(got.Diagnostics), len(got.Diagnostics[0]))
		}
	})
}

func TestMaxTurns(t *testing.T) {
	t.Parallel()
	interrupted := strings.Replace(doneLine, "completed\",", "interrupted\",", 1)
	for name, c := range map[string]struct {
		turn        []string
		interrupted bool
		want        string
	}{
		"an answer in the last turn":         {[]string{command("c"), usage("tu-1", 1), message("Hi"), usage("tu-1", 2), doneLine}, false, ""},
		"a tool in the last turn":            {[]string{command("c"), usage("tu-1", 1), command("d"), usage("tu-1", 2), interrupted}, true, "error_max_turns"},
		"a tool that is not shown":           {[]string{command("c"), usage("tu-1", 1), usage("tu-1", 2), interrupted}, true, "error_max_turns"},
		"a tool behind a text":               {[]string{command("c"), usage("tu-1", 1), message("Hi"), command("d"), usage("tu-1", 2), interrupted}, true, "error_max_turns"},
		"an answer that was not the last":    {[]string{command("c"), usage("tu-1", 1), message("Hi"), usage("tu-1", 2), message("Ha"), interrupted}, true, "error_max_turns"},
		"an end before the turn was stopped": {[]string{command("c"), usage("tu-1", 1), command("d"), usage("tu-1", 2), doneLine}, true, ""},
		"no end at all":                      {[]string{command("c"), usage("tu-1", 1), command("d"), usage("tu-1", 2)}, true, "error_max_turns"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := launchOf(agent.Request{Prompt: "x", Profile: agent.Profile{MaxTurns: 2}})
			got, _, heard := converse(t, codex.Driver{}, l, conversation(c.turn...)...)
			if got.ErrorSubtype != c.want || got.IsError != (c.want != "") || got.Failure != "" {
				t.Errorf("%+v, want %q", got, c.want)
			}
			i := slices.IndexFunc(heard, func(m said) bool { return m.Method == "turn/interrupt" })
			if i >= 0 != c.interrupted {
				t.Errorf("said %v", methods(heard))
			}
			if i >= 0 && (heard[i].Params["threadId"] != "th-1" || heard[i].Params["turnId"] != "tu-1") {
				t.Errorf("interrupted %v", heard[i].Params)
			}
		})
	}
}

// TestClocks: nothing the server does or leaves undone holds a conversation for ever.
func TestClocks(t *testing.T) {
	t.Parallel()
	plain := launchOf(agent.Request{Prompt: "x"})
	talk := func(t *testing.T, d codex.Driver, ctx context.Context, from ...agent.Line) (agent.Conversation, []said, time.Duration) {
		p := newPeer(t, len(from))
		for _, line := range from {
			p.lines <- line
		}
		began := time.Now()
		got := d.Converse(ctx, plain, p.pipes(), func(agent.Progress) {})
		return got, p.all(), time.Since(began)
	}

	t.Run("a CLI that lingers after its turn", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			got, _, took := talk(t, codex.Driver{Linger: time.Minute}, t.Context(), conversation(message("Hi"), doneLine)...)
			if !got.Ended || got.IsError || took != time.Minute {
				t.Errorf("%+v after %s", got, took)
			}
		})
	})

	t.Run("a provider that asks for a long wait", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			got, heard, took := talk(t, codex.Driver{Patience: time.Minute, Linger: time.Second}, t.Context(), conversation(limitLine,
				`{"method":"account/rateLimits/updated","params":{"rateLimits":{"primary":null}}}`)...)
			if got.Failure != agent.FailureLimited || got.ErrorSubtype != "retry_timeout" || took != time.Minute+time.Second {
				t.Errorf("%+v after %s", got, took)
			}
			if names := methods(heard); names[len(names)-1] != "turn/interrupt" {
				t.Errorf("said %v", names)
			}
		})
	})

	t.Run("a wait that is over", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			got, _, took := talk(t, codex.Driver{Patience: time.Minute}, ctx, conversation(limitLine, itemLine("started", `{"type":"reasoning","id":"r"}`))...)
			if got.Failure != "" || took != time.Hour {
				t.Errorf("%+v after %s", got, took)
			}
		})
	})

	t.Run("a context that ends", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if got, _, _ := talk(t, codex.Driver{}, ctx, conversation()...); got.Ended {
			t.Errorf("%+v", got)
		}
	})

	t.Run("a CLI that does not listen", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, in := io.Pipe()
			c := make(chan agent.Line, 8)
			for _, line := range conversation() {
				c <- line
			}
			began := time.Now()
			got := codex.Driver{}.Converse(ctx, plain, agent.Pipes{In: in, Lines: c}, func(agent.Progress) {})
			if got.Ended || time.Since(began) > time.Minute+2*time.Second {
				t.Errorf("%+v after %s", got, time.Since(began))
			}
		})
	})
}

func TestCutLines(t *testing.T) {
	t.Parallel()
	plain := launchOf(agent.Request{Prompt: "x"})
	cutAt := func(line string, n int) agent.Line { return agent.Line{Text: []byte(line[:n]), Cut: true} }

	t.Run("a tool is counted however little is known of it", func(t *testing.T) {
		t.Parallel()
		line := itemLine("started", `{"type":"fileChange","id":"call_1","changes":[{"path":"/repo/a","diff":"`+strings.Repeat("x", 200)+`"}]}`)
		for n := len(`{"method":"item/started",`); n < len(line); n++ {
			got, _, _ := converse(t, codex.Driver{}, plain, append(conversation(), cutAt(line, n))...)
			if got.ToolCalls != 1 {
				t.Fatalf("cut at %d, %s: %d tool calls", n, line[:n], got.ToolCalls)
			}
		}
	})

	t.Run("what a message said is lost, and that is told", func(t *testing.T) {
		t.Parallel()
		line := itemLine("completed", `{"type":"agentMessage","id":"m","text":"`+strings.Repeat("x", 200)+`"}`)
		end := strings.Replace(doneLine, `"status"`, `"items":[{"type":"agentMessage","text":"`+strings.Repeat("x", 200)+`"}],"status"`, 1)
		got, _, _ := converse(t, codex.Driver{}, plain, append(conversation(usage("tu-1", 1)), cutAt(line, 150), cutAt(end, 200))...)
		if !got.Ended || got.IsError || got.ToolCalls != 0 || got.Models["gpt-5.5"].OutputTokens != 10 ||
			!slices.Contains(got.Diagnostics, "a message of the agent was too long a line to be kept") {
			t.Errorf("%+v", got)
		}
	})

	t.Run("an end that lost its status is no success behind an error", func(t *testing.T) {
		t.Parallel()
		fatal := strings.Replace(limitLine, `"willRetry":true`, `"willRetry":false`, 1)
		got, _, _ := converse(t, codex.Driver{}, plain, append(conversation(fatal), cutAt(doneLine, 80))...)
		if !got.Ended || !got.IsError {
			t.Errorf("%+v", got)
		}
	})

	t.Run("nothing is taken for more than it is", func(t *testing.T) {
		t.Parallel()
		text := `{"a":{"b":[1,23,{"c":"d\"e"},null,true],"f":-1.5e3},"g":"h"}`
		var all any
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			t.Fatal(err)
		}
		for n := range len(text) {
			got := codex.Whole([]byte(text[:n]))
			var part any
			if len(got) > 0 && json.Unmarshal(got, &part) != nil {
				t.Fatalf("%s became %s", text[:n], got)
			}
			if !within(part, all) {
				t.Fatalf("%s became %s", text[:n], got)
			}
		}
		if got := string(codex.Whole([]byte(`{"n":12`))); got != "{}" {
			t.Errorf("a number that may go on became %s", got)
		}
	})
}

// within says whether part is all with things left out.
func within(part, all any) bool {
	switch p := part.(type) {
	case nil:
		return true
	case map[string]any:
		a, ok := all.(map[string]any)
		for k, v := range p {
			ok = ok && within(v, a[k])
		}
		return ok
	case []any:
		a, ok := all.([]any)
		ok = ok && len(p) <= len(a)
		for i := range p {
			ok = ok && within(p[i], a[i])
		}
		return ok
	}
	return part == all
}

// FuzzConverse: whatever a server says, the conversation ends, everything it asks is
// answered, and nothing that is told is below zero, out of bounds or unfit for JSON.
func FuzzConverse(f *testing.F) {
	captures, err := filepath.Glob("testdata/*.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	for _, capture := range captures {
		data, err := os.ReadFile(capture)
		if err != nil {
			f.Fatal(err)
		}
		var stream []byte
		for line := range bytes.Lines(data) {
			if text, theirs := bytes.CutPrefix(line, []byte("<- ")); theirs {
				stream = append(stream, text...)
			}
		}
		f.Add(stream, uint8(0), false, uint8(0))
	}
	f.Add([]byte(initReply+"\n"+threadReply+"\n"+turnReply+"\n"+command("c")+"\n"+usage("tu-1", 1)+"\n"+doneLine), uint8(2), true, uint8(1))
	f.Add([]byte(`{"method":"thread/tokenUsage/updated","params":{"tokenUsage":{"total":{"totalTokens":-1e300,"inputTokens":1e300}}}}`), uint8(0), false, uint8(0))
	f.Fuzz(func(t *testing.T, stream []byte, cut uint8, resumed bool, maxTurns uint8) {
		var in []agent.Line
		for i, text := range bytes.Split(stream, []byte("\n")) {
			in = append(in, agent.Line{Text: text, Cut: cut != 0 && i%int(cut) == 0})
		}
		l := launchOf(agent.Request{Prompt: "x", Profile: agent.Profile{MaxTurns: int(maxTurns)}})
		if resumed {
			l.Request.ResumeID = unknownThread
		}
		got, told, heard := converse(t, codex.Driver{}, l, in...)
		tools := 0
		for _, p := range append(told, got.Progress) {
			if p.Turns < 0 || p.ToolCalls < tools || p.CostKnown || len(p.Conversation) > 128 || len(p.AgentVersion) > 128 {
				t.Errorf("progress %+v", p)
			}
			tools = p.ToolCalls
		}
		for model, u := range got.Models {
			if min(u.InputTokens, u.OutputTokens, u.CacheReadTokens, u.CacheWriteTokens, u.ReasoningTokens) < 0 || u.CostUSD != nil {
				t.Errorf("usage of %s: %+v", model, u)
			}
		}
		if !got.Ended && !got.IsError || got.IsError == (got.ErrorSubtype == "") || len(got.Diagnostics) > 64 {
			t.Errorf("%+v", got)
		}
		if n := len(heard); n == 0 || heard[0].Method != "initialize" {
			t.Errorf("said %v", methods(heard))
		}
		for _, method := range []string{"initialize", "thread/start", "thread/resume", "turn/start", "turn/interrupt"} {
			count := 0
			for _, m := range heard {
				if m.Method == method {
					count++
				}
			}
			if count > 1 {
				t.Errorf("said %s %d times", method, count)
			}
		}
		if _, err := json.Marshal(got); err != nil {
			t.Error(err)
		}
	})
}
