package agenttest_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent/agenttest"
)

const claudeRequest = `{
  "model": "m", "stream": true,
  "system": [{"type":"text","text":"You are an agent."}],
  "tools": [{"name":"Bash","description":"Run","input_schema":{"type":"object"}}],
  "messages": [
    {"role":"user","content":[
      {"type":"text","text":"<system-reminder>\nWorking directory: /wrong\n</system-reminder>"},
      {"type":"text","text":"Say hello\n"}]},
    {"role":"system","content":"# Environment\n - Primary working directory: /w/with space \n - Platform: linux"},
    {"role":"assistant","content":[{"type":"tool_use","id":"call_step0_a","name":"Bash","input":{}}]},
    {"role":"user","content":[
      {"type":"tool_result","tool_use_id":"call_step0_a","is_error":true,"content":[{"type":"text","text":"no"}]},
      {"type":"text","text":"<system-reminder>go on</system-reminder>"}]}
  ]}`

func TestParseRequest(t *testing.T) {
	t.Parallel()

	t.Run("finds prompt, results, tools and working directory", func(t *testing.T) {
		t.Parallel()
		r, err := agenttest.ParseRequest("/v1/messages", []byte(claudeRequest))
		if err != nil {
			t.Fatal(err)
		}
		if r.Prompt != "Say hello\n" || r.WorkDir != "/w/with space" || r.Step != 1 || !r.Stream || r.Model != "m" {
			t.Errorf("parsed %+v", r)
		}
		want := []agenttest.ToolResult{{CallID: "call_step0_a", Text: "no", Error: true}}
		if diff := cmp.Diff(want, r.Results); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
		if _, ok := r.ToolWithSuffix("ash"); !ok {
			t.Error("the offered tool is not found by its suffix")
		}
	})

	t.Run("counts calls of others as the first step", func(t *testing.T) {
		t.Parallel()
		c := conversation{}
		c.say("user", textBlock("go"))
		c.say("user", resultBlock("toolu_01abc", "x"))
		r, err := agenttest.ParseRequest("/v1/messages", []byte(c.body()))
		if err != nil {
			t.Fatal(err)
		}
		if r.Step != 1 {
			t.Errorf("step %d, want 1", r.Step)
		}
	})
}

const responsesRequest = `{
  "model": "m", "stream": true, "instructions": "You are an agent.", "reasoning": {"effort": "low"},
  "tools": [
    {"type":"function","name":"exec_command","parameters":{"type":"object"}},
    {"type":"custom","name":"apply_patch","format":{"type":"grammar"}},
    {"type":"namespace","name":"mcp__turnpike","tools":[{"type":"function","name":"report_outcome","parameters":{}}]},
    {"type":"web_search"}],
  "input": [
    {"type":"message","role":"developer","content":[{"type":"input_text","text":"Be terse."}]},
    {"type":"message","role":"user","content":[{"type":"input_text","text":"<environment_context>\n  <cwd>/w/with space</cwd>\n</environment_context>"}]},
    {"type":"message","role":"user","content":[{"type":"input_text","text":"Say hello"}]},
    {"type":"custom_tool_call","call_id":"call_step0_a","name":"apply_patch","input":"x"},
    {"type":"custom_tool_call_output","call_id":"call_step0_a","output":"patched"},
    {"type":"tool_search_output","call_id":"call_search1_b","tools":[
      {"type":"namespace","name":"mcp__other","tools":[{"type":"function","name":"found"}]}]}
  ]}`

const chatRequest = `{
  "model": "m", "stream": true, "reasoning_effort": "low",
  "tools": [{"type":"function","function":{"name":"bash","parameters":{"type":"object"}}}],
  "messages": [
    {"role":"system","content":"You are an agent.\n  Working directory: /w/with space\n"},
    {"role":"user","content":"Say hello"},
    {"role":"assistant","content":null,"tool_calls":[{"id":"call_step0_a","type":"function","function":{"name":"bash","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"call_step0_a","content":"hello"}
  ]}`

func TestParseOpenAIRequest(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct {
		path, body string
		system     string
		tools      []string
		results    []agenttest.ToolResult
	}{
		{
			"/v1/responses", responsesRequest, "You are an agent.\nBe terse.",
			[]string{"exec_command", "apply_patch", "mcp__turnpike__report_outcome", "mcp__other__found"},
			[]agenttest.ToolResult{{CallID: "call_step0_a", Text: "patched"}, {CallID: "call_search1_b"}},
		},
		{
			"/v1/chat/completions", chatRequest, "You are an agent.\n  Working directory: /w/with space\n",
			[]string{"bash"}, []agenttest.ToolResult{{CallID: "call_step0_a", Text: "hello"}},
		},
	} {
		r, err := agenttest.ParseRequest(tc.path, []byte(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		if r.Prompt != "Say hello" || r.WorkDir != "/w/with space" || r.Step != 1 || !r.Stream || r.Model != "m" || r.Effort != "low" {
			t.Errorf("parsed %+v", r)
		}
		if diff := cmp.Diff(tc.system, r.System); diff != "" {
			t.Errorf("system prompt (-want +got):\n%s", diff)
		}
		var tools []string
		for _, tool := range r.Tools {
			tools = append(tools, tool.Name)
		}
		if diff := cmp.Diff(tc.tools, tools); diff != "" {
			t.Errorf("tools (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(tc.results, r.Results); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	paths := []string{"/v1/messages", "/v1/responses", "/v1/chat/completions"}
	for _, body := range []string{
		claudeRequest, responsesRequest, chatRequest, prompt("hi"),
		`{"system":"Working directory: /x","messages":[{"role":"user","content":null}]}`,
		`{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_step999999_"}]}]}`,
		`{"input":"hi"}`,
	} {
		for i := range paths {
			f.Add(i, []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, api int, body []byte) {
		r, err := agenttest.ParseRequest(paths[uint(api)%uint(len(paths))], body)
		if err != nil {
			return
		}
		if r.Step < 0 || (len(r.Results) == 0 && r.Step != 0) {
			t.Errorf("step %d with %d results", r.Step, len(r.Results))
		}
		if r.WorkDir != "" && !filepath.IsAbs(r.WorkDir) {
			t.Errorf("working directory %q is not absolute", r.WorkDir)
		}
	})
}
