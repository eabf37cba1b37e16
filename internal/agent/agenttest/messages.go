package agenttest

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A tool call's id bears the number of the step that made it; the random end
// keeps ids apart when a conversation runs through a script again.
var callID = regexp.MustCompile(`^toolu_step(\d{1,6})_`)

func newCallID(step int) string {
	return fmt.Sprintf("toolu_step%d_%s", step, rand.Text()[:12])
}

// stepOfCall is the step that made a tool call; calls made by others, in a
// conversation begun elsewhere, count as step 0.
func stepOfCall(id string) int {
	if m := callID.FindStringSubmatch(id); m != nil {
		step, _ := strconv.Atoi(m[1]) // the pattern admits nothing else
		return step
	}
	return 0
}

// The Messages API's shapes, as far as CLIs look at them.
type (
	message struct {
		ID           string   `json:"id"`
		Type         string   `json:"type"`
		Role         string   `json:"role"`
		Model        string   `json:"model"`
		Content      []any    `json:"content"`
		StopReason   *string  `json:"stop_reason"`
		StopSequence *string  `json:"stop_sequence"`
		Usage        apiUsage `json:"usage"`
	}
	apiUsage struct {
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

// answer is the whole message that a step answers with.
func (s Step) answer(r *Request) (message, error) {
	m := message{
		ID: "msg_" + rand.Text()[:20], Type: "message", Role: "assistant", Model: r.Model,
		Content: []any{},
		Usage:   apiUsage{s.usage.Input, s.usage.CacheWrite, s.usage.CacheRead, s.usage.Output},
	}
	stop := "end_turn"
	for _, b := range s.content {
		switch {
		case b.tool != "":
			input, err := json.Marshal(b.args)
			if err != nil {
				return message{}, fmt.Errorf("arguments of %s: %w", b.tool, err)
			}
			if b.args == nil {
				input = []byte("{}")
			}
			m.Content = append(m.Content, toolBlock{"tool_use", newCallID(r.Step), b.tool, input})
			stop = "tool_use"
		case b.thinking != "":
			m.Content = append(m.Content, thinkingBlock{"thinking", b.thinking, signature})
		default:
			m.Content = append(m.Content, textBlock{"text", b.text})
		}
	}
	m.StopReason = &stop
	return m, nil
}

// event is one server-sent event of a streamed message.
type event struct {
	name string
	data any
	word bool // a piece of content, which a slow answer pauses before
}

// object is JSON with members that differ from event to event.
type object map[string]any

// events is the message as a stream, a word at a time.
func (m message) events() []event {
	head := m
	head.Content, head.StopReason, head.Usage.Output = []any{}, nil, 1
	list := []event{{name: "message_start", data: object{"type": "message_start", "message": head}}}
	for i, b := range m.Content {
		start, deltas := pieces(b)
		list = append(list, event{name: "content_block_start",
			data: object{"type": "content_block_start", "index": i, "content_block": start}})
		for _, delta := range deltas {
			list = append(list, event{name: "content_block_delta", word: true,
				data: object{"type": "content_block_delta", "index": i, "delta": delta}})
		}
		list = append(list, event{name: "content_block_stop",
			data: object{"type": "content_block_stop", "index": i}})
	}
	return append(list,
		event{name: "message_delta", data: object{"type": "message_delta",
			"delta": object{"stop_reason": m.StopReason, "stop_sequence": nil},
			"usage": object{"output_tokens": m.Usage.Output}}},
		event{name: "message_stop", data: object{"type": "message_stop"}})
}

// pieces is a block as it starts, empty, and what then fills it.
func pieces(b any) (start any, deltas []any) {
	switch b := b.(type) {
	case textBlock:
		for _, word := range strings.SplitAfter(b.Text, " ") {
			deltas = append(deltas, object{"type": "text_delta", "text": word})
		}
		return textBlock{Type: b.Type}, deltas
	case thinkingBlock:
		return thinkingBlock{Type: b.Type}, []any{
			object{"type": "thinking_delta", "thinking": b.Thinking},
			object{"type": "signature_delta", "signature": b.Signature},
		}
	case toolBlock:
		empty := b
		empty.Input = json.RawMessage("{}")
		return empty, []any{object{"type": "input_json_delta", "partial_json": string(b.Input)}}
	}
	panic(fmt.Sprintf("agenttest: a message has no %T", b))
}

// encode is the event as bytes on the wire.
func (e event) encode() ([]byte, error) {
	var buf bytes.Buffer
	fmt.Fprintf(&buf, "event: %s\ndata: ", e.name)
	if err := json.NewEncoder(&buf).Encode(e.data); err != nil { // ends the line
		return nil, err
	}
	buf.WriteByte('\n')
	return buf.Bytes(), nil
}

func (e apiError) body() object {
	return object{"type": "error", "error": object{"type": e.kind, "message": e.message}}
}
