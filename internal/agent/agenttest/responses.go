package agenttest

import (
	"encoding/json"
	"maps"
	"strings"
	"time"
)

// responses is the OpenAI Responses API, as far as CLIs look at it.
type responses struct{}

type (
	responsesRequest struct {
		Model        string `json:"model"`
		Stream       bool   `json:"stream"`
		Instructions string `json:"instructions"`
		Reasoning    struct {
			Effort string `json:"effort"`
		} `json:"reasoning"`
		Tools []responsesTool `json:"tools"`
		Input responsesInput  `json:"input"`
	}
	// responsesTool is a tool, or a namespace that holds some.
	responsesTool struct {
		Type        string          `json:"type"`
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
		Tools       []responsesTool `json:"tools"`
	}
	responsesItem struct {
		Type    string          `json:"type"`
		Role    string          `json:"role"`
		Content content         `json:"content"`
		CallID  string          `json:"call_id"`
		Output  content         `json:"output"`
		Tools   []responsesTool `json:"tools"`
	}
	// responsesInput is a list of items, or a bare string in the place of one text.
	responsesInput []responsesItem
)

func (in *responsesInput) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var text content
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		*in = responsesInput{{Role: "user", Content: text}}
		return nil
	}
	return json.Unmarshal(data, (*[]responsesItem)(in))
}

// searchTool is how the tool by which a model finds others goes here.
const searchTool = "tool_search"

func (api responses) parse(body []byte, r *Request) error {
	var in responsesRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return err
	}
	r.Model, r.Stream, r.Effort = in.Model, in.Stream, in.Reasoning.Effort
	r.Tools = api.tools(in.Tools)
	system := []string{in.Instructions}
	for _, item := range in.Input {
		switch {
		case strings.HasSuffix(item.Type, "_output"):
			r.result(ToolResult{CallID: item.CallID, Text: item.Output.text()})
		case item.Role == "user":
			for _, b := range item.Content {
				r.said(b.Text)
			}
		case item.Role == "developer" || item.Role == "system":
			system = append(system, item.Content.text())
		}
		r.Tools = append(r.Tools, api.tools(item.Tools)...) // what a search found
	}
	r.System = strings.Join(system, "\n")
	return nil
}

func (api responses) tools(list []responsesTool) []Tool {
	var out []Tool
	for _, t := range list {
		switch t.Type {
		case "namespace":
			for _, inner := range api.tools(t.Tools) {
				inner.namespace, inner.bare = t.Name, inner.Name
				inner.Name = t.Name + "__" + inner.Name
				out = append(out, inner)
			}
		case "function", "custom":
			out = append(out, Tool{Name: t.Name, Description: t.Description, Schema: t.Parameters, Freeform: t.Type == "custom"})
		case searchTool:
			out = append(out, Tool{Name: searchTool, Description: t.Description, Schema: t.Parameters})
		}
	}
	return out
}

// items are the answer's parts as they are when they are complete.
func (responses) items(a answer) []object {
	var list []object
	for _, p := range a.parts {
		switch c := p.call; {
		case c == nil && p.thinking != "":
			list = append(list, object{
				"type": "reasoning", "id": "rs_" + a.id,
				"summary": []any{object{"type": "summary_text", "text": p.thinking}},
			})
		case c == nil:
			list = append(list, object{
				"type": "message", "id": "msg_" + a.id, "role": "assistant", "status": "completed",
				"content": []any{outputText(p.text)},
			})
		case c.tool.Name == searchTool:
			list = append(list, object{
				"type": "tool_search_call", "id": "tsc_" + c.id, "call_id": c.id, "status": "completed",
				"execution": "client", "arguments": json.RawMessage(c.input),
			})
		case c.tool.Freeform:
			list = append(list, named(c.tool, object{
				"type": "custom_tool_call", "id": "ctc_" + c.id, "call_id": c.id, "status": "completed",
				"input": c.input,
			}))
		default:
			list = append(list, named(c.tool, object{
				"type": "function_call", "id": "fc_" + c.id, "call_id": c.id, "status": "completed",
				"arguments": c.input,
			}))
		}
	}
	return list
}

// named adds a call's tool, which may be one of a namespace.
func named(t Tool, item object) object {
	item["name"] = t.Name
	if t.namespace != "" {
		item["namespace"], item["name"] = t.namespace, t.bare
	}
	return item
}

func outputText(text string) object {
	return object{"type": "output_text", "text": text, "annotations": []any{}}
}

func (responses) response(a answer, status string, output []object) object {
	return object{
		"id": "resp_" + a.id, "object": "response", "created_at": time.Now().Unix(), "model": a.model,
		"status": status, "output": output,
	}
}

func (api responses) whole(a answer) any {
	r := api.response(a, "completed", api.items(a))
	r["usage"] = object{
		"input_tokens":          a.usage.Input + a.usage.CacheRead,
		"input_tokens_details":  object{"cached_tokens": a.usage.CacheRead},
		"output_tokens":         a.usage.Output,
		"output_tokens_details": object{"reasoning_tokens": a.usage.Reasoning},
		"total_tokens":          a.usage.Input + a.usage.CacheRead + a.usage.Output,
	}
	return r
}

func (api responses) events(a answer) []event {
	var list []event
	say := func(word bool, kind string, members object) {
		members["type"], members["sequence_number"] = kind, len(list)
		list = append(list, event{name: kind, data: members, word: word})
	}
	say(false, "response.created", object{"response": api.response(a, "in_progress", []object{})})
	for i, item := range api.items(a) {
		in := func(members object) object {
			members["output_index"], members["item_id"] = i, item["id"]
			return members
		}
		begun := maps.Clone(item)
		begun["status"] = "in_progress"
		for _, late := range []string{"content", "summary"} {
			if begun[late] != nil {
				begun[late] = []any{}
			}
		}
		for _, late := range []string{"arguments", "input"} {
			if _, text := begun[late].(string); text {
				begun[late] = ""
			}
		}
		say(false, "response.output_item.added", object{"output_index": i, "item": begun})
		switch item["type"] {
		case "message":
			text := a.parts[i].text
			say(false, "response.content_part.added", in(object{"content_index": 0, "part": outputText("")}))
			for _, word := range words(text) {
				say(true, "response.output_text.delta", in(object{"content_index": 0, "delta": word}))
			}
			say(false, "response.output_text.done", in(object{"content_index": 0, "text": text}))
			say(false, "response.content_part.done", in(object{"content_index": 0, "part": outputText(text)}))
		case "reasoning":
			text := a.parts[i].thinking
			say(false, "response.reasoning_summary_part.added", in(object{"summary_index": 0, "part": object{"type": "summary_text", "text": ""}}))
			say(true, "response.reasoning_summary_text.delta", in(object{"summary_index": 0, "delta": text}))
			say(false, "response.reasoning_summary_text.done", in(object{"summary_index": 0, "text": text}))
			say(false, "response.reasoning_summary_part.done", in(object{"summary_index": 0, "part": object{"type": "summary_text", "text": text}}))
		case "function_call":
			say(true, "response.function_call_arguments.delta", in(object{"delta": item["arguments"]}))
			say(false, "response.function_call_arguments.done", in(object{"arguments": item["arguments"]}))
		case "custom_tool_call":
			say(true, "response.custom_tool_call_input.delta", in(object{"delta": item["input"]}))
			say(false, "response.custom_tool_call_input.done", in(object{"input": item["input"]}))
		}
		say(false, "response.output_item.done", object{"output_index": i, "item": item})
	}
	say(false, "response.completed", object{"response": api.whole(a)})
	return list
}

func (responses) problem(e apiError) any { return openAIProblem(e) }

func (api responses) failure(a answer, e apiError) event {
	r := api.response(a, "failed", []object{})
	r["error"] = object{"code": e.kind, "message": e.message}
	return event{name: "response.failed", data: object{"type": "response.failed", "response": r}}
}

// openAIProblem is the form of errors that both OpenAI APIs share. A plan's usage
// limit has one of its own.
func openAIProblem(e apiError) any {
	if e.kind == usageLimit {
		return object{"error": object{
			"type": e.kind, "message": e.message, "plan_type": "plus", "resets_at": e.resets.Unix(),
		}}
	}
	return object{"error": object{"message": e.message, "type": e.kind, "param": nil, "code": e.kind}}
}
