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

// answer is what a step says, before it is put into the words of an API.
type answer struct {
	id    string // without the API's prefix
	model string
	parts []part
	usage Usage
}

// part is one piece of an answer: exactly one of its fields is set.
type part struct {
	text     string
	thinking string
	call     *call
}

// call is a tool call. Its input is JSON, or the bare text that a freeform tool
// takes.
type call struct {
	id    string
	tool  Tool
	input string
}

// answer puts together what the resolved step says to the request.
func (s Step) answer(r *Request) (answer, error) {
	a := answer{id: rand.Text()[:20], model: r.Model, usage: s.usage}
	for _, b := range s.content {
		switch {
		case b.tool != "":
			c, err := newCall(r, b)
			if err != nil {
				return answer{}, err
			}
			a.parts = append(a.parts, part{call: c})
		case b.thinking != "":
			a.parts = append(a.parts, part{thinking: b.thinking})
		default:
			a.parts = append(a.parts, part{text: b.text})
		}
	}
	return a, nil
}

// newCall calls the offered tool of that name, or, as a confused model may, one
// that was not offered.
func newCall(r *Request, b block) (*call, error) {
	c := &call{id: newCallID(r.Step), tool: Tool{Name: b.tool}}
	if b.search {
		c.id = newSearchID(r.Step)
	}
	if t, ok := r.tool(b.tool); ok {
		c.tool = t
	}
	if text, ok := b.args.(string); ok && c.tool.Freeform {
		c.input = text
		return c, nil
	}
	input, err := json.Marshal(b.args)
	if err != nil {
		return nil, fmt.Errorf("arguments of %s: %w", b.tool, err)
	}
	if c.input = string(input); b.args == nil {
		c.input = "{}"
	}
	return c, nil
}

// calls says whether the answer ends with tool calls, whose results its sender is
// to come back with.
func (a answer) calls() bool {
	for _, p := range a.parts {
		if p.call != nil {
			return true
		}
	}
	return false
}

// A tool call's id bears the number of the step that made it; the random end
// keeps ids apart when a conversation runs through a script again. A search for
// a tool comes before the step's own calls and leaves it to be taken again.
var callID = regexp.MustCompile(`^call_(step|search)(\d{1,6})_`)

func newCallID(step int) string   { return fmt.Sprintf("call_step%d_%s", step, rand.Text()[:12]) }
func newSearchID(step int) string { return fmt.Sprintf("call_search%d_%s", step, rand.Text()[:12]) }

// searched says whether a call was a search that the step began with.
func searched(id string, step int) bool {
	return strings.HasPrefix(id, fmt.Sprintf("call_search%d_", step))
}

// stepAfter is the step that the result of a tool call leads to. Calls made by
// others, in a conversation begun elsewhere, count as those of step 0.
func stepAfter(id string) int {
	m := callID.FindStringSubmatch(id)
	if m == nil {
		return 1
	}
	step, _ := strconv.Atoi(m[2]) // the pattern admits nothing else
	if m[1] == "search" {
		return step
	}
	return step + 1
}

// codec is one API: how a request is read, and how an answer is said.
type codec interface {
	// parse fills in what the body says, results in their order included.
	parse(body []byte, r *Request) error
	// whole is the answer as one document.
	whole(a answer) any
	// events is the answer as a stream, a word at a time.
	events(a answer) []event
	// problem is the body of an HTTP error.
	problem(e apiError) any
	// failure ends a stream that has begun.
	failure(a answer, e apiError) event
}

// codecs are the APIs by their paths.
var codecs = map[string]codec{
	"/v1/messages":         messages{},
	"/v1/responses":        responses{},
	"/v1/chat/completions": chat{},
}

// event is one server-sent event of a streamed answer.
type event struct {
	name string // empty: it has none
	data any
	word bool // a piece of content, which a slow answer pauses before
}

// object is JSON with members that differ from event to event.
type object map[string]any

// done is the data of the event that closes a stream of chat completions, the only
// one that is no JSON.
type done struct{}

// encode is the event as bytes on the wire.
func (e event) encode() ([]byte, error) {
	var buf bytes.Buffer
	if e.name != "" {
		fmt.Fprintf(&buf, "event: %s\n", e.name)
	}
	buf.WriteString("data: ")
	if e.data == (done{}) {
		buf.WriteString("[DONE]\n")
	} else if err := json.NewEncoder(&buf).Encode(e.data); err != nil { // ends the line
		return nil, err
	}
	buf.WriteByte('\n')
	return buf.Bytes(), nil
}

func words(text string) []string { return strings.SplitAfter(text, " ") }
