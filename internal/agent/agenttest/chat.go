package agenttest

import (
	"encoding/json"
	"strings"
	"time"
)

// chat is the OpenAI chat completions API, as far as CLIs look at it.
type chat struct{}

type (
	chatRequest struct {
		Model  string `json:"model"`
		Stream bool   `json:"stream"`
		Effort string `json:"reasoning_effort"`
		Tools  []struct {
			Function struct {
				Name        string          `json:"name"`
				Description string          `json:"description"`
				Parameters  json.RawMessage `json:"parameters"`
			} `json:"function"`
		} `json:"tools"`
		Messages []struct {
			Role       string  `json:"role"`
			Content    content `json:"content"`
			ToolCallID string  `json:"tool_call_id"`
		} `json:"messages"`
	}
	chatCall struct {
		Index    int          `json:"index"`
		ID       string       `json:"id,omitempty"`
		Type     string       `json:"type,omitempty"`
		Function chatFunction `json:"function"`
	}
	chatFunction struct {
		Name      string `json:"name,omitempty"`
		Arguments string `json:"arguments"`
	}
)

func (chat) parse(body []byte, r *Request) error {
	var in chatRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return err
	}
	r.Model, r.Stream, r.Effort = in.Model, in.Stream, in.Effort
	for _, t := range in.Tools {
		r.Tools = append(r.Tools, Tool{Name: t.Function.Name, Description: t.Function.Description, Schema: t.Function.Parameters})
	}
	var system []string
	for _, m := range in.Messages {
		switch m.Role {
		case "system", "developer":
			system = append(system, m.Content.text())
		case "tool":
			r.result(ToolResult{CallID: m.ToolCallID, Text: m.Content.text()})
		case "user":
			for _, b := range m.Content {
				r.said(b.Text)
			}
		}
	}
	r.System = strings.Join(system, "\n")
	return nil
}

func (chat) whole(a answer) any {
	var text, thinking strings.Builder
	var calls []chatCall
	for _, p := range a.parts {
		text.WriteString(p.text)
		thinking.WriteString(p.thinking)
		if p.call != nil {
			calls = append(calls, chatCall{len(calls), p.call.id, "function", chatFunction{p.call.tool.Name, p.call.input}})
		}
	}
	m := object{"role": "assistant", "content": text.String()}
	if thinking.Len() > 0 {
		m["reasoning_content"] = thinking.String()
	}
	if len(calls) > 0 {
		m["tool_calls"] = calls
	}
	return object{
		"id": "chatcmpl-" + a.id, "object": "chat.completion", "created": time.Now().Unix(), "model": a.model,
		"choices": []any{object{"index": 0, "message": m, "finish_reason": finish(a)}},
		"usage":   chatUsage(a.usage),
	}
}

func (chat) events(a answer) []event {
	chunk := func(choices []any) object {
		return object{
			"id": "chatcmpl-" + a.id, "object": "chat.completion.chunk", "created": time.Now().Unix(), "model": a.model,
			"choices": choices,
		}
	}
	var list []event
	say := func(word bool, delta object, finish any) {
		choice := object{"index": 0, "delta": delta, "finish_reason": finish}
		list = append(list, event{data: chunk([]any{choice}), word: word})
	}
	say(false, object{"role": "assistant", "content": ""}, nil)
	calls := 0
	for _, p := range a.parts {
		switch {
		case p.call != nil:
			say(false, object{"tool_calls": []any{chatCall{calls, p.call.id, "function", chatFunction{Name: p.call.tool.Name}}}}, nil)
			say(true, object{"tool_calls": []any{chatCall{Index: calls, Function: chatFunction{Arguments: p.call.input}}}}, nil)
			calls++
		case p.thinking != "":
			say(true, object{"reasoning_content": p.thinking}, nil)
		default:
			for _, word := range words(p.text) {
				say(true, object{"content": word}, nil)
			}
		}
	}
	say(false, object{}, finish(a))
	last := chunk([]any{})
	last["usage"] = chatUsage(a.usage)
	return append(list, event{data: last}, event{data: done{}})
}

func finish(a answer) string {
	if a.calls() {
		return "tool_calls"
	}
	return "stop"
}

func chatUsage(u Usage) object {
	return object{
		"prompt_tokens":             u.Input + u.CacheRead,
		"completion_tokens":         u.Output,
		"total_tokens":              u.Input + u.CacheRead + u.Output,
		"prompt_tokens_details":     object{"cached_tokens": u.CacheRead},
		"completion_tokens_details": object{"reasoning_tokens": u.Reasoning},
	}
}

func (chat) problem(e apiError) any { return openAIProblem(e) }

func (chat) failure(_ answer, e apiError) event { return event{data: openAIProblem(e)} }
