package agenttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
)

// Request is what a CLI asked of the model.
type Request struct {
	N      int // the how manieth of its script, from 1
	Step   int // the step of the script it has come to, from 0
	Path   string
	Header http.Header
	Body   []byte

	Model   string
	Stream  bool
	System  string       // the system prompt, whole
	Prompt  string       // the newest text a person wrote
	Results []ToolResult // what tools gave back since then
	Tools   []Tool       // what the model was offered
	WorkDir string       // the working directory the system prompt names

	done chan struct{}
}

// Tool is a tool offered to the model.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"input_schema"`
}

// ToolResult is what a tool call gave back to the model.
type ToolResult struct {
	CallID string
	Text   string
	Error  bool
}

// Done is closed when the request's answer has ended, or its sender hung up.
func (r *Request) Done() <-chan struct{} { return r.done }

// Credential is the API key or the bearer token the request was sent with.
func (r *Request) Credential() string {
	if key := r.Header.Get("X-Api-Key"); key != "" {
		return key
	}
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
}

// ToolWithSuffix finds an offered tool by how its name ends, since what goes
// before is the CLI's way of naming the server that has the tool.
func (r *Request) ToolWithSuffix(suffix string) (Tool, bool) {
	for _, t := range r.Tools {
		if strings.HasSuffix(t.Name, suffix) {
			return t, true
		}
	}
	return Tool{}, false
}

// firstAllowed is the first value that the tool's schema allows for an
// argument, or otherwise where the schema lists none.
func (t Tool) firstAllowed(argument, otherwise string) string {
	var schema struct {
		Properties map[string]struct {
			Enum []any `json:"enum"`
		} `json:"properties"`
	}
	if json.Unmarshal(t.Schema, &schema) == nil {
		for _, v := range schema.Properties[argument].Enum {
			if s, ok := v.(string); ok {
				return s
			}
		}
	}
	return otherwise
}

// messagesRequest is the part of a Messages API request that is read here.
type messagesRequest struct {
	Model    string  `json:"model"`
	Stream   bool    `json:"stream"`
	System   content `json:"system"`
	Tools    []Tool  `json:"tools"`
	Messages []struct {
		Role    string  `json:"role"`
		Content content `json:"content"`
	} `json:"messages"`
}

// content is a list of blocks, or a bare string in the place of one text block.
type content []contentBlock

type contentBlock struct {
	Type      string  `json:"type"`
	Text      string  `json:"text"`
	ToolUseID string  `json:"tool_use_id"`
	Content   content `json:"content"`
	IsError   bool    `json:"is_error"`
}

func (c *content) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(data, []byte(`"`)) {
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		*c = content{{Type: "text", Text: text}}
		return nil
	}
	return json.Unmarshal(data, (*[]contentBlock)(c))
}

func (c content) text() string {
	var texts []string
	for _, b := range c {
		if b.Type == "text" {
			texts = append(texts, b.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// reminder opens the text blocks that Claude Code adds to what a person wrote.
const reminder = "<system-reminder>"

var workDir = regexp.MustCompile(`(?im)^[\s-]*(?:primary )?working directory: *(/.*?)\s*$`)

// ParseRequest reads the body of a Messages API request.
func ParseRequest(body []byte) (*Request, error) {
	var in messagesRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, fmt.Errorf("parse messages request: %w", err)
	}
	r := &Request{
		Body:   body,
		Model:  in.Model,
		Stream: in.Stream,
		Tools:  in.Tools,
		done:   make(chan struct{}),
	}
	system := []string{in.System.text()}
	for _, m := range in.Messages {
		switch m.Role {
		case "system": // Claude Code keeps the changing part of its prompt there
			system = append(system, m.Content.text())
		case "user":
			r.take(m.Content)
		}
	}
	r.System = strings.Join(system, "\n")
	if m := workDir.FindStringSubmatch(r.System); m != nil {
		r.WorkDir = m[1]
	}
	for _, result := range r.Results {
		r.Step = max(r.Step, stepOfCall(result.CallID)+1)
	}
	return r, nil
}

// take follows the conversation: a prompt opens a turn, results continue it.
func (r *Request) take(c content) {
	for _, b := range c {
		switch {
		case b.Type == "tool_result":
			r.Results = append(r.Results, ToolResult{b.ToolUseID, b.Content.text(), b.IsError})
		case b.Type == "text" && !strings.HasPrefix(b.Text, reminder):
			r.Prompt, r.Results = b.Text, nil
		}
	}
}
