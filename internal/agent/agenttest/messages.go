package agenttest

import (
	"encoding/json"
	"strings"
)

// messages is the Anthropic Messages API, as far as CLIs look at it.
type messages struct{}

type (
	messagesRequest struct {
		Model  string  `json:"model"`
		Stream bool    `json:"stream"`
		System content `json:"system"`
		Output struct {
			Effort string `json:"effort"`
		} `json:"output_config"`
		Tools []struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Schema      json.RawMessage `json:"input_schema"`
		} `json:"tools"`
		Messages []struct {
			Role    string  `json:"role"`
			Content content `json:"content"`
		} `json:"messages"`
	}
	message struct {
		ID           string        `json:"id"`
		Type         string        `json:"type"`
		Role         string        `json:"role"`
		Model        string        `json:"model"`
		Content      []any         `json:"content"`
		StopReason   *string       `json:"stop_reason"`
		StopSequence *string       `json:"stop_sequence"`
		Usage        messagesUsage `json:"usage"`
	}
	messagesUsage struct {
		Input      int `json:"input_tokens"`
		CacheWrite int `json:"cache_creation_input_tokens"`
		CacheRead  int `json:"cache_read_input_tokens"`
		Output     int `json:"output_tokens"`
	}
	textBlock struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	thinkingBlock struct {
		Type      string `json:"type"`
		Thinking  string `json:"thinking"`
		Signature string `json:"signature"`
	}
	toolBlock struct {
		Type  string          `json:"type"`
		ID    string          `json:"id"`
		Name  string          `json:"name"`
		Input json.RawMessage `json:"input"`
	}
)

// signature stands for the provider's seal on a thinking block.
const signature = "c2lnbmF0dXJl"

func (messages) parse(body []byte, r *Request) error {
	var in messagesRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return err
	}
	r.Model, r.Stream, r.Effort = in.Model, in.Stream, in.Output.Effort
	for _, t := range in.Tools {
		r.Tools = append(r.Tools, Tool{Name: t.Name, Description: t.Description, Schema: t.Schema})
	}
	system := []string{in.System.text()}
	for _, m := range in.Messages {
		switch m.Role {
		case "system": // Claude Code keeps the changing part of its prompt there
			system = append(system, m.Content.text())
		case "user":
			for _, b := range m.Content {
				switch b.Type {
				case "tool_result":
					r.result(ToolResult{b.ToolUseID, b.Content.text(), b.IsError})
				case "text":
					r.said(b.Text)
				}
			}
		}
	}
	r.System = strings.Join(system, "\n")
	return nil
}

func (messages) message(a answer) message {
	m := message{
		ID: "msg_" + a.id, Type: "message", Role: "assistant", Model: a.model,
		Content: []any{},
		Usage:   messagesUsage{a.usage.Input, a.usage.CacheWrite, a.usage.CacheRead, a.usage.Output},
	}
	for _, p := range a.parts {
		switch {
		case p.call != nil:
			m.Content = append(m.Content, toolBlock{"tool_use", p.call.id, p.call.tool.Name, json.RawMessage(p.call.input)})
		case p.thinking != "":
			m.Content = append(m.Content, thinkingBlock{"thinking", p.thinking, signature})
		default:
			m.Content = append(m.Content, textBlock{"text", p.text})
		}
	}
	stop := "end_turn"
	if a.calls() {
		stop = "tool_use"
	}
	m.StopReason = &stop
	return m
}

func (api messages) whole(a answer) any { return api.message(a) }

func (api messages) events(a answer) []event {
	m := api.message(a)
	head := m
	head.Content, head.StopReason, head.Usage.Output = []any{}, nil, 1
	list := []event{{name: "message_start", data: object{"type": "message_start", "message": head}}}
	for i, b := range m.Content {
		start, deltas := pieces(b)
		list = append(list, event{
			name: "content_block_start",
			data: object{"type": "content_block_start", "index": i, "content_block": start},
		})
		for _, delta := range deltas {
			list = append(list, event{
				name: "content_block_delta", word: true,
				data: object{"type": "content_block_delta", "index": i, "delta": delta},
			})
		}
		list = append(list, event{
			name: "content_block_stop",
			data: object{"type": "content_block_stop", "index": i},
		})
	}
	return append(list,
		event{name: "message_delta", data: object{
			"type":  "message_delta",
			"delta": object{"stop_reason": m.StopReason, "stop_sequence": nil},
			"usage": object{"output_tokens": m.Usage.Output},
		}},
		event{name: "message_stop", data: object{"type": "message_stop"}})
}

// pieces is a block as it starts, empty, and what then fills it.
func pieces(b any) (start any, deltas []any) {
	switch b := b.(type) {
	case thinkingBlock:
		return thinkingBlock{Type: b.Type}, []any{
			object{"type": "thinking_delta", "thinking": b.Thinking},
			object{"type": "signature_delta", "signature": b.Signature},
		}
	case toolBlock:
		empty := b
		empty.Input = json.RawMessage("{}")
		return empty, []any{object{"type": "input_json_delta", "partial_json": string(b.Input)}}
	case textBlock:
		for _, word := range words(b.Text) {
			deltas = append(deltas, object{"type": "text_delta", "text": word})
		}
	}
	return textBlock{Type: "text"}, deltas
}

func (messages) problem(e apiError) any {
	return object{"type": "error", "error": object{"type": e.kind, "message": e.message}}
}

func (api messages) failure(_ answer, e apiError) event {
	return event{name: "error", data: api.problem(e)}
}
