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
    {"role":"assistant","content":[{"type":"tool_use","id":"toolu_step0_a","name":"Bash","input":{}}]},
    {"role":"user","content":[
      {"type":"tool_result","tool_use_id":"toolu_step0_a","is_error":true,"content":[{"type":"text","text":"no"}]},
      {"type":"text","text":"<system-reminder>go on</system-reminder>"}]}
  ]}`

func TestParseRequest(t *testing.T) {
	t.Parallel()

	t.Run("finds prompt, results, tools and working directory", func(t *testing.T) {
		t.Parallel()
		r, err := agenttest.ParseRequest([]byte(claudeRequest))
		if err != nil {
			t.Fatal(err)
		}
		if r.Prompt != "Say hello\n" || r.WorkDir != "/w/with space" || r.Step != 1 || !r.Stream || r.Model != "m" {
			t.Errorf("parsed %+v", r)
		}
		want := []agenttest.ToolResult{{CallID: "toolu_step0_a", Text: "no", Error: true}}
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
		r, err := agenttest.ParseRequest([]byte(c.body()))
		if err != nil {
			t.Fatal(err)
		}
		if r.Step != 1 {
			t.Errorf("step %d, want 1", r.Step)
		}
	})
}

func FuzzParseRequest(f *testing.F) {
	f.Add([]byte(claudeRequest))
	f.Add([]byte(prompt("hi")))
	f.Add([]byte(`{"system":"Working directory: /x","messages":[{"role":"user","content":null}]}`))
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_step999999_"}]}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := agenttest.ParseRequest(body)
		if err != nil {
			return
		}
		if r.Step < 0 || (len(r.Results) == 0) != (r.Step == 0) {
			t.Errorf("step %d with %d results", r.Step, len(r.Results))
		}
		if r.WorkDir != "" && !filepath.IsAbs(r.WorkDir) {
			t.Errorf("working directory %q is not absolute", r.WorkDir)
		}
	})
}
