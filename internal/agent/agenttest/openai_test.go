package agenttest_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent/agenttest"
)

const (
	responsesPath = "/v1/responses"
	chatPath      = "/v1/chat/completions"

	responsesPrompt = `{"model":"m","stream":true,"input":"go","tools":[
		{"type":"custom","name":"apply_patch"},
		{"type":"namespace","name":"mcp__turnpike","tools":[{"type":"function","name":"report_outcome"}]}]}`
	chatPrompt = `{"model":"m","stream":true,"messages":[{"role":"user","content":"go"}],"tools":[
		{"type":"function","function":{"name":"turnpike_report_outcome"}},
		{"type":"function","function":{"name":"write","parameters":{"properties":{"filePath":{}}}}}]}`
)

// everything is a step with each kind of content.
func everything() agenttest.Step {
	return agenttest.Together(
		agenttest.Text("two words").Thinking("Hm."),
		agenttest.Write("/w/a.txt", "one\ntwo\n"),
		agenttest.Report("done"),
	).WithUsage(agenttest.Usage{Input: 1, Output: 20, Reasoning: 5, CacheRead: 300, CacheWrite: 4000})
}

func TestResponses(t *testing.T) {
	t.Parallel()
	p := agenttest.NewProvider(t)
	wantUsage := map[string]any{
		"input_tokens": 301.0, "output_tokens": 20.0, "total_tokens": 321.0,
		"input_tokens_details":  map[string]any{"cached_tokens": 300.0},
		"output_tokens_details": map[string]any{"reasoning_tokens": 5.0},
	}
	type item struct {
		Type, Name, Namespace, Input, Arguments string
		CallID                                  string `json:"call_id"`
		Content, Summary                        []struct{ Text string }
	}
	check := func(t *testing.T, items []item) {
		t.Helper()
		if len(items) != 4 {
			t.Fatalf("%d items, want 4: %+v", len(items), items)
		}
		patch := "*** Begin Patch\n*** Add File: /w/a.txt\n+one\n+two\n*** End Patch\n"
		if i := items[0]; i.Type != "reasoning" || i.Summary[0].Text != "Hm." {
			t.Errorf("first item %+v, want the reasoning", i)
		}
		if i := items[1]; i.Type != "message" || i.Content[0].Text != "two words" {
			t.Errorf("second item %+v, want the text", i)
		}
		if i := items[2]; i.Type != "custom_tool_call" || i.Name != "apply_patch" || i.Input != patch || i.CallID == "" {
			t.Errorf("third item %+v, want the patch", i)
		}
		if i := items[3]; i.Type != "function_call" || i.Namespace != "mcp__turnpike" || i.Name != "report_outcome" ||
			i.Arguments != `{"note":"done","status":"done"}` || i.CallID == items[2].CallID {
			t.Errorf("fourth item %+v, want the report", i)
		}
	}

	t.Run("streams each item in pieces, and then whole", func(t *testing.T) {
		t.Parallel()
		s := p.Script("responses", everything())
		var items []item
		pieces := map[string]string{}
		var last struct {
			Type     string
			Response struct {
				Status string
				Output []item
				Usage  map[string]any
			}
		}
		for i, e := range streamed(t, askAt(t, s, responsesPath, responsesPrompt)) {
			var d struct {
				Type     string
				Sequence int `json:"sequence_number"`
				Delta    string
				Item     item
			}
			decode(t, e.data, &d)
			if d.Sequence != i {
				t.Errorf("event %d has number %d", i, d.Sequence)
			}
			pieces[d.Type] += d.Delta
			if d.Type == "response.output_item.done" {
				items = append(items, d.Item)
			}
			decode(t, e.data, &last)
		}
		check(t, items)
		check(t, last.Response.Output)
		for kind, want := range map[string]string{
			"response.output_text.delta":             items[1].Content[0].Text,
			"response.custom_tool_call_input.delta":  items[2].Input,
			"response.function_call_arguments.delta": items[3].Arguments,
		} {
			if pieces[kind] != want {
				t.Errorf("%s: %q, want %q", kind, pieces[kind], want)
			}
		}
		if last.Type != "response.completed" || last.Response.Status != "completed" {
			t.Errorf("last event %+v", last)
		}
		if diff := cmp.Diff(wantUsage, last.Response.Usage); diff != "" {
			t.Errorf("usage (-want +got):\n%s", diff)
		}
	})

	t.Run("answers whole", func(t *testing.T) {
		t.Parallel()
		s := p.Script("responses-whole", everything())
		var whole struct {
			Output []item
			Usage  map[string]any
		}
		read(t, askAt(t, s, responsesPath, strings.Replace(responsesPrompt, `"stream":true`, `"stream":false`, 1)), &whole)
		check(t, whole.Output)
		if diff := cmp.Diff(wantUsage, whole.Usage); diff != "" {
			t.Errorf("usage (-want +got):\n%s", diff)
		}
	})

	t.Run("searches for the report tool, once", func(t *testing.T) {
		t.Parallel()
		s := p.Script("search", agenttest.Report("done"))
		call := func(body string) item {
			var whole struct{ Output []item }
			read(t, askAt(t, s, responsesPath, body), &whole)
			return whole.Output[0]
		}
		body := `{"tools":[{"type":"tool_search"}],"input":[{"role":"user","content":"go"}`
		var search struct {
			Output []struct {
				Type, Execution string
				CallID          string `json:"call_id"`
				Arguments       struct{ Query string }
			}
		}
		read(t, askAt(t, s, responsesPath, body+"]}"), &search)
		got := search.Output[0]
		if got.Type != "tool_search_call" || got.Arguments.Query != "report_outcome" || got.Execution != "client" {
			t.Fatalf("answer %+v, want a search", got)
		}
		body += `,{"type":"tool_search_output","call_id":"` + got.CallID + `","tools":[`
		if again := call(body + "]}]}"); again.Type != "message" {
			t.Errorf("after a search that found nothing: %+v, want a text", again)
		}
		body += `{"type":"namespace","name":"mcp__t","tools":[{"type":"function","name":"report_outcome"}]}`
		if found := call(body + "]}]}"); found.Namespace != "mcp__t" || found.Name != "report_outcome" {
			t.Errorf("after the search: %+v, want the report", found)
		}
	})
}

func TestChat(t *testing.T) {
	t.Parallel()
	p := agenttest.NewProvider(t)
	type call struct {
		Index    int
		ID       string
		Function struct{ Name, Arguments string }
	}
	type message struct {
		Content   string
		Reasoning string `json:"reasoning_content"`
		Calls     []call `json:"tool_calls"`
	}
	type document struct {
		Choices []struct {
			Delta, Message message
			Finish         string `json:"finish_reason"`
		}
		Usage map[string]any
	}
	wantUsage := map[string]any{
		"prompt_tokens": 301.0, "completion_tokens": 20.0, "total_tokens": 321.0,
		"prompt_tokens_details":     map[string]any{"cached_tokens": 300.0},
		"completion_tokens_details": map[string]any{"reasoning_tokens": 5.0},
	}
	check := func(t *testing.T, m message, finish string, usage map[string]any) {
		t.Helper()
		if m.Content != "two words" || m.Reasoning != "Hm." || len(m.Calls) != 2 || finish != "tool_calls" {
			t.Fatalf("message %+v, finish %q", m, finish)
		}
		if c := m.Calls[0]; c.Function.Name != "write" || c.Function.Arguments != `{"content":"one\ntwo\n","filePath":"/w/a.txt"}` || c.ID == "" {
			t.Errorf("first call %+v", c)
		}
		if c := m.Calls[1]; c.Function.Name != "turnpike_report_outcome" || c.Function.Arguments != `{"note":"done","status":"done"}` || c.ID == m.Calls[0].ID {
			t.Errorf("second call %+v", c)
		}
		if diff := cmp.Diff(wantUsage, usage); diff != "" {
			t.Errorf("usage (-want +got):\n%s", diff)
		}
	}

	t.Run("streams the message in pieces", func(t *testing.T) {
		t.Parallel()
		s := p.Script("chat", everything())
		res := askAt(t, s, chatPath, chatPrompt)
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		text, closed := strings.CutSuffix(string(body), "data: [DONE]\n\n")
		if !closed {
			t.Fatalf("the stream ends with %q", text[max(0, len(text)-80):])
		}
		var m message
		var finish string
		var last document
		for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n\n"), "\n\n") {
			last = document{}
			data, ok := strings.CutPrefix(line, "data: ")
			if !ok {
				t.Fatalf("event %q", line)
			}
			decode(t, []byte(data), &last)
			for _, c := range last.Choices {
				m.Content += c.Delta.Content
				m.Reasoning += c.Delta.Reasoning
				finish += c.Finish
				for _, piece := range c.Delta.Calls {
					if piece.Index == len(m.Calls) {
						m.Calls = append(m.Calls, piece)
						continue
					}
					m.Calls[piece.Index].Function.Arguments += piece.Function.Arguments
				}
			}
		}
		check(t, m, finish, last.Usage)
	})

	t.Run("answers whole", func(t *testing.T) {
		t.Parallel()
		s := p.Script("chat-whole", everything())
		var whole document
		read(t, askAt(t, s, chatPath, strings.Replace(chatPrompt, `"stream":true`, `"stream":false`, 1)), &whole)
		check(t, whole.Choices[0].Message, whole.Choices[0].Finish, whole.Usage)
	})
}

func TestOpenAIFailures(t *testing.T) {
	t.Parallel()
	p := agenttest.NewProvider(t)
	prompts := map[string]string{responsesPath: responsesPrompt, chatPath: chatPrompt}

	t.Run("break off after the first word", func(t *testing.T) {
		t.Parallel()
		failure := map[string]string{
			responsesPath: `"error":{"code":"server_error","message":"Overloaded"}`,
			chatPath:      `{"error":{"code":"server_error","message":"Overloaded","param":null,"type":"server_error"}}`,
		}
		text := agenttest.Text("never all")
		for path, body := range prompts {
			for name, step := range map[string]agenttest.Step{
				"cut": text.Cut(), "json": text.BadJSON(), "error": text.StreamError("server_error", "Overloaded"),
			} {
				res := askAt(t, p.Script("broken-"+name, step), path, body)
				got, err := io.ReadAll(res.Body)
				res.Body.Close()
				said := string(got)
				ok := map[string]bool{
					"cut":   errors.Is(err, io.ErrUnexpectedEOF),
					"json":  err == nil && strings.HasSuffix(said, "data: {\"type\":\"content_blo\n\n"),
					"error": err == nil && strings.Contains(said, failure[path]),
				}
				if !ok[name] || !strings.Contains(said, "never ") || strings.Contains(said, `"all"`) || strings.Contains(said, "DONE") {
					t.Errorf("%s, %s: read %q, %v", path, name, said, err)
				}
			}
		}
	})

	t.Run("say what is wrong in the API's form", func(t *testing.T) {
		t.Parallel()
		reset := time.Now().Add(time.Hour)
		for path, body := range prompts {
			var failed struct {
				Error map[string]any
			}
			s := p.Script("failed", agenttest.Fail(http.StatusTooManyRequests, "insufficient_quota", "No more"))
			read(t, askAt(t, s, path, body), &failed)
			want := map[string]any{"type": "insufficient_quota", "code": "insufficient_quota", "message": "No more", "param": nil}
			if diff := cmp.Diff(want, failed.Error); diff != "" {
				t.Errorf("%s: error (-want +got):\n%s", path, diff)
			}
			s = p.Script("limited", agenttest.UsageLimit(reset).WithHeader(agenttest.PlanLimit(1, 5*time.Hour, reset)))
			res := askAt(t, s, path, body)
			for name, want := range map[string]string{
				"Used-Percent": "100", "Window-Minutes": "300", "Reset-At": strconv.FormatInt(reset.Unix(), 10),
			} {
				if got := res.Header.Get("X-Codex-Primary-" + name); got != want {
					t.Errorf("%s: header %s is %q, want %q", path, name, got, want)
				}
			}
			failed.Error = nil
			read(t, res, &failed)
			if got := failed.Error; got["type"] != "usage_limit_reached" || got["resets_at"] != float64(reset.Unix()) {
				t.Errorf("%s: error %v, want the limit until %d", path, got, reset.Unix())
			}
		}
	})
}

// read decodes the whole of a document that answers.
func read(t *testing.T, res *http.Response, into any) {
	t.Helper()
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		t.Fatal(err)
	}
}
