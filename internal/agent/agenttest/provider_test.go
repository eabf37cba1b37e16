package agenttest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent/agenttest"
)

func TestStream(t *testing.T) {
	t.Parallel()
	p := agenttest.NewProvider(t)

	t.Run("sends a text a word at a time, between its usage figures", func(t *testing.T) {
		t.Parallel()
		s := p.Script("text", agenttest.Text("two words").WithUsage(agenttest.Usage{Input: 1, Output: 2, CacheRead: 3, CacheWrite: 4}))
		events := streamed(t, ask(t, s, prompt("hi")))
		want := []string{
			"message_start", "content_block_start", "content_block_delta", "content_block_delta",
			"content_block_stop", "message_delta", "message_stop",
		}
		if diff := cmp.Diff(want, names(events)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		var start struct {
			Message struct {
				Model string
				Usage map[string]int
			}
		}
		decode(t, events[0].data, &start)
		wantUsage := map[string]int{
			"input_tokens": 1, "output_tokens": 1, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 4,
		}
		if diff := cmp.Diff(wantUsage, start.Message.Usage); diff != "" {
			t.Errorf("usage at the start (-want +got):\n%s", diff)
		}
		if start.Message.Model != "some-model" {
			t.Errorf("model %q, want the one asked for", start.Message.Model)
		}
		m := assemble(t, events)
		if m.text != "two words" || m.stop != "end_turn" || m.output != 2 {
			t.Errorf("assembled %+v, want the text, end_turn and 2 output tokens", m)
		}
	})

	t.Run("sends thinking, text and several calls in one message", func(t *testing.T) {
		t.Parallel()
		s := p.Script("calls", agenttest.Together(
			agenttest.Text("I'll do both.").Thinking("Both, then."),
			agenttest.Call("one", map[string]any{"a": "<&> \u2028 \x00"}),
			agenttest.Call("two", nil),
		))
		m := assemble(t, streamed(t, ask(t, s, prompt("hi"))))
		if m.thinking != "Both, then." || m.text != "I'll do both." || m.stop != "tool_use" {
			t.Errorf("assembled %+v, want thinking, text and stop reason tool_use", m)
		}
		if diff := cmp.Diff([]string{`one {"a":"<&> \u2028 \u0000"}`, "two {}"}, normal(t, m.calls)); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})

	t.Run("answers whole when no stream is asked for", func(t *testing.T) {
		t.Parallel()
		s := p.Script("whole", agenttest.Text("all of it").Cut())
		res := ask(t, s, strings.Replace(prompt("hi"), `"stream":true`, `"stream":false`, 1))
		defer res.Body.Close()
		var m struct {
			Content []struct{ Text string }
			Usage   map[string]int
		}
		if err := json.NewDecoder(res.Body).Decode(&m); err != nil {
			t.Fatal(err)
		}
		if len(m.Content) != 1 || m.Content[0].Text != "all of it" || m.Usage["output_tokens"] != agenttest.DefaultUsage.Output {
			t.Errorf("answer %+v, want the whole text and the default usage", m)
		}
	})

	broken := []struct {
		name string
		step agenttest.Step
		want func(tail string, err error) bool
	}{
		{
			"cut", agenttest.Text("never all").Cut(),
			func(_ string, err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) },
		},
		{
			"badjson", agenttest.Text("never all").BadJSON(),
			func(tail string, err error) bool {
				return err == nil && strings.HasSuffix(tail, "data: {\"type\":\"content_blo\n\n")
			},
		},
		{
			"error", agenttest.Text("never all").StreamError("overloaded_error", "Overloaded"),
			func(tail string, err error) bool {
				return err == nil && strings.Contains(tail, "event: error\n") && strings.Contains(tail, `"overloaded_error"`)
			},
		},
	}
	for _, tc := range broken {
		t.Run("breaks off after the first word: "+tc.name, func(t *testing.T) {
			t.Parallel()
			s := p.Script("broken-"+tc.name, tc.step)
			res := ask(t, s, prompt("hi"))
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			if got := string(body); !tc.want(got, err) || !strings.Contains(got, "never ") || strings.Contains(got, `"all"`) {
				t.Errorf("read %q, %v", got, err)
			}
		})
	}
}

func TestScript(t *testing.T) {
	t.Parallel()
	p := agenttest.NewProvider(t)

	t.Run("moves on with the results of its own calls", func(t *testing.T) {
		t.Parallel()
		s := p.Script("steps",
			agenttest.Together(agenttest.Call("one", nil), agenttest.Call("two", nil)),
			agenttest.Call("three", nil),
			agenttest.Text("done"))
		c := conversation{}
		c.say("user", textBlock("go"))
		for _, want := range []int{2, 1} {
			m := assemble(t, streamed(t, ask(t, s, c.body())))
			if len(m.calls) != want {
				t.Fatalf("calls %v, want %d", m.calls, want)
			}
			for _, id := range m.callIDs { // as two messages: CLIs may split them
				c.say("user", resultBlock(id, "ok"), textBlock("<system-reminder>\nnot a prompt"))
			}
		}
		if m := assemble(t, streamed(t, ask(t, s, c.body()))); m.text != "done" {
			t.Errorf("last answer %+v, want the closing text", m)
		}
		// The same request gets the same step; a new prompt starts again.
		if m := assemble(t, streamed(t, ask(t, s, c.body()))); m.text != "done" {
			t.Errorf("repeated request: %+v, want the closing text", m)
		}
		c.say("user", textBlock("again"))
		if m := assemble(t, streamed(t, ask(t, s, c.body()))); len(m.calls) != 2 {
			t.Errorf("after a new prompt: %+v, want the two calls", m)
		}
	})

	t.Run("gives way after its times are used up", func(t *testing.T) {
		t.Parallel()
		s := p.Script("times",
			agenttest.Fail(529, "overloaded_error", "Overloaded").Times(2),
			agenttest.Fail(500, "api_error", "Internal").Once(),
			agenttest.Text("at last"))
		var got []int
		for range 5 {
			res := ask(t, s, prompt("hi"))
			res.Body.Close()
			got = append(got, res.StatusCode)
		}
		if diff := cmp.Diff([]int{529, 529, 500, 200, 200}, got); diff != "" {
			t.Errorf("statuses (-want +got):\n%s", diff)
		}
	})

	t.Run("refuses what goes beyond its end, unless the last step repeats", func(t *testing.T) {
		t.Parallel()
		c := conversation{}
		c.say("user", textBlock("go"))
		c.say("user", resultBlock("call_step6_x", "ok"))
		short := ask(t, p.Script("short", agenttest.Text("only")), c.body())
		defer short.Body.Close()
		body, _ := io.ReadAll(short.Body)
		if short.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "script short has nothing for step 7") {
			t.Errorf("answer %d %s, want a 400 that names script and step", short.StatusCode, body)
		}
		loop := ask(t, p.Script("endless", agenttest.Text("one"), agenttest.Text("more").Repeat()), c.body())
		if m := assemble(t, streamed(t, loop)); m.text != "more" {
			t.Errorf("answer %+v, want the repeating step", m)
		}
	})

	t.Run("calls the report tool by its schema", func(t *testing.T) {
		t.Parallel()
		offer := `{"name":"mcp__turnpike__report_outcome","input_schema":{"type":"object","properties":{"status":%s}}}`
		for status, want := range map[string]string{
			`{"enum":["merged","stuck"]}`: `mcp__turnpike__report_outcome {"note":"n","status":"merged"}`,
			`{"type":"string"}`:           `mcp__turnpike__report_outcome {"note":"n","status":"done"}`,
		} {
			s := p.Script("report", agenttest.Report("n"))
			c := conversation{Tools: []json.RawMessage{json.RawMessage(fmt.Sprintf(offer, status))}}
			c.say("user", textBlock("go"))
			m := assemble(t, streamed(t, ask(t, s, c.body())))
			if diff := cmp.Diff([]string{want}, normal(t, m.calls)); diff != "" {
				t.Errorf("calls with status %s (-want +got):\n%s", status, diff)
			}
		}
		s := p.Script("noreport", agenttest.Report("n"))
		if m := assemble(t, streamed(t, ask(t, s, prompt("hi")))); len(m.calls) != 0 || m.text == "" {
			t.Errorf("answer without the tool %+v, want a text", m)
		}
	})

	t.Run("holds an answer until its gate opens", func(t *testing.T) {
		t.Parallel()
		gate := agenttest.NewGate()
		s := p.Script("held", agenttest.Text("let go").Held(gate))
		answered := make(chan string, 1)
		go func() { answered <- assemble(t, streamed(t, ask(t, s, prompt("hi")))).text }()
		r, err := s.Wait(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-r.Done():
			t.Fatal("answered before the gate opened")
		default:
		}
		gate.Open()
		if got := <-answered; got != "let go" {
			t.Errorf("answer %q", got)
		}
		<-r.Done()
	})

	t.Run("tells when the sender hung up", func(t *testing.T) {
		t.Parallel()
		s := p.Script("silent", agenttest.Hang())
		ctx, hangUp := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+"/v1/messages", strings.NewReader(prompt("hi")))
			if err != nil {
				failed <- err
				return
			}
			res, err := client.Do(req)
			if err == nil {
				res.Body.Close()
			}
			failed <- err
		}()
		r, err := s.Wait(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		hangUp()
		<-r.Done()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("sender got %v, want nothing but its own cancel", err)
		}
		if _, err := s.Wait(ctx, 2); !errors.Is(err, context.Canceled) {
			t.Errorf("waiting for a request that never comes: %v, want the context's end", err)
		}
	})
}

func TestProviderPaths(t *testing.T) {
	t.Parallel()
	p := agenttest.NewProvider(t)
	s := p.Script(agenttest.DefaultScript, agenttest.Text("by default"))
	base := strings.TrimSuffix(s.URL(), "/s/"+agenttest.DefaultScript)

	for _, tc := range []struct {
		method, path, body string
		want               int
	}{
		{"POST", "/v1/messages?beta=true", prompt("hi"), 200},
		{"POST", "/s/demo/v1/messages", prompt("hi"), 200},
		{"POST", "/s/demo/v1/messages/count_tokens", "{}", 200},
		{"POST", "/s/demo/v1/responses", responsesPrompt, 200},
		{"POST", "/s/demo/v1/chat/completions", chatPrompt, 200},
		{"GET", "/v1/models", "", 200},
		{"HEAD", "/", "", 200},
		{"POST", "/s/unheard-of/v1/messages", prompt("hi"), 404},
		{"GET", "/v1/messages", "", 404},
		{"POST", "/v1/messages", "not json", 400},
		{"POST", "/v1/responses", "not json", 400},
		{"POST", "/s/unheard-of/v1/chat/completions", chatPrompt, 404},
		{"UPGRADE", "/s/demo/v1/responses", "", 426},
	} {
		method, upgrade := tc.method, tc.method == "UPGRADE"
		if upgrade {
			method = http.MethodGet
		}
		req, err := http.NewRequestWithContext(t.Context(), method, base+tc.path, strings.NewReader(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		if upgrade {
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "websocket")
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != tc.want {
			t.Errorf("%s %s: %d, want %d", tc.method, tc.path, res.StatusCode, tc.want)
		}
	}
	if got := len(s.Requests()); got != 4 {
		t.Errorf("%d requests on record, want the 4 that asked the model", got)
	}
}

func TestScenarios(t *testing.T) {
	t.Parallel()
	p := agenttest.NewProvider(t)
	for _, sc := range agenttest.Scenarios() {
		if sc.About == "" {
			t.Errorf("scenario %s does not say what it is about", sc.Name)
		}
		p.Script(sc.Name, sc.Steps...) // panics when it cannot be followed
	}
}

// client keeps no connections, which would outlive the test.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}

func ask(t *testing.T, s *agenttest.Script, body string) *http.Response {
	t.Helper()
	return askAt(t, s, "/v1/messages?beta=true", body)
}

func askAt(t *testing.T, s *agenttest.Script, path, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

type sse struct {
	name string
	data []byte
}

// streamed reads a stream as strictly as the API describes it.
func streamed(t *testing.T, res *http.Response) []sse {
	t.Helper()
	defer res.Body.Close()
	if got := res.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/event-stream") {
		body, _ := io.ReadAll(res.Body)
		t.Fatalf("content type %q (%d %s), want a stream", got, res.StatusCode, body)
	}
	var events []sse
	in := bufio.NewScanner(res.Body)
	for in.Scan() {
		name, ok := strings.CutPrefix(in.Text(), "event: ")
		if !ok || !in.Scan() {
			t.Fatalf("line %q, want an event's name", in.Text())
		}
		data, ok := strings.CutPrefix(in.Text(), "data: ")
		if !ok || !in.Scan() || in.Text() != "" {
			t.Fatalf("line %q, want data and then an empty line", in.Text())
		}
		var typed struct{ Type string }
		decode(t, []byte(data), &typed)
		if typed.Type != name {
			t.Fatalf("event %s bears type %s", name, typed.Type)
		}
		events = append(events, sse{name, []byte(data)})
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	return events
}

func names(events []sse) (out []string) {
	for _, e := range events {
		out = append(out, e.name)
	}
	return out
}

type assembled struct {
	text, thinking, stop string
	calls, callIDs       []string
	output               int
}

// assemble puts a message together from its deltas, as a CLI does.
func assemble(t *testing.T, events []sse) assembled {
	t.Helper()
	var m assembled
	for _, e := range events {
		var d struct {
			ContentBlock struct{ Type, Name, ID string } `json:"content_block"`
			Delta        struct {
				Text, Thinking string
				PartialJSON    string `json:"partial_json"`
				StopReason     string `json:"stop_reason"`
			}
			Usage struct {
				Output int `json:"output_tokens"`
			}
		}
		decode(t, e.data, &d)
		switch e.name {
		case "content_block_start":
			if d.ContentBlock.Type == "tool_use" {
				m.calls = append(m.calls, d.ContentBlock.Name+" ")
				m.callIDs = append(m.callIDs, d.ContentBlock.ID)
			}
		case "content_block_delta":
			m.text += d.Delta.Text
			m.thinking += d.Delta.Thinking
			if d.Delta.PartialJSON != "" {
				m.calls[len(m.calls)-1] += d.Delta.PartialJSON
			}
		case "message_delta":
			m.stop, m.output = d.Delta.StopReason, d.Usage.Output
		}
	}
	return m
}

// normal rewrites the calls' arguments with one spelling of escapes.
func normal(t *testing.T, calls []string) (out []string) {
	t.Helper()
	for _, c := range calls {
		name, args, _ := strings.Cut(c, " ")
		var v map[string]any
		decode(t, []byte(args), &v)
		var b strings.Builder
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v); err != nil {
			t.Fatal(err)
		}
		out = append(out, name+" "+strings.TrimSpace(b.String()))
	}
	return out
}

func decode(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("decode %s: %v", data, err)
	}
}

// conversation is a request as it grows.
type conversation struct {
	Tools    []json.RawMessage `json:"tools,omitempty"`
	Messages []any             `json:"messages"`
}

func (c *conversation) say(role string, blocks ...map[string]any) {
	c.Messages = append(c.Messages, map[string]any{"role": role, "content": blocks})
}

func (c *conversation) body() string {
	data, err := json.Marshal(struct {
		Model  string `json:"model"`
		Stream bool   `json:"stream"`
		*conversation
	}{"some-model", true, c})
	if err != nil {
		panic(err) // maps and strings
	}
	return string(data)
}

func prompt(text string) string {
	c := conversation{}
	c.say("user", textBlock(text))
	return c.body()
}

func textBlock(text string) map[string]any {
	return map[string]any{"type": "text", "text": text}
}

func resultBlock(id, text string) map[string]any {
	return map[string]any{"type": "tool_result", "tool_use_id": id, "content": text}
}
