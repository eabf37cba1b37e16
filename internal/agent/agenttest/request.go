package agenttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
)

// Request is what a CLI asked of the model, in whichever API.
type Request struct {
	N      int // the how manieth of its script, from 1
	Step   int // the step of the script it has come to, from 0
	Path   string
	Header http.Header
	Body   []byte

	Model   string
	Effort  string // how hard to think, in the CLI's word for it; empty: not said
	Stream  bool
	System  string       // the system prompt, whole
	Prompt  string       // the newest text a person wrote
	Results []ToolResult // what tools gave back since then
	Tools   []Tool       // what the model was offered
	WorkDir string       // the working directory the CLI names

	codec codec
	done  chan struct{}
}

// Tool is a tool offered to the model.
type Tool struct {
	Name        string // of an MCP tool in a namespace: NAMESPACE__TOOL
	Description string
	Schema      json.RawMessage
	Freeform    bool // it takes a text, not JSON

	namespace, bare string // how it is called, when it is in a namespace
}

// ToolResult is what a tool call gave back to the model.
type ToolResult struct {
	CallID string
	Text   string
	Error  bool // said by the Messages API only
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

func (r *Request) tool(name string) (Tool, bool) {
	for _, t := range r.Tools {
		if t.Name == name {
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

// content is a list of blocks, or a bare string in the place of one text block.
// All three APIs have it so, with names of their own for a block of text.
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
		if b.Text != "" {
			texts = append(texts, b.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// added open the texts that CLIs put among what a person wrote.
var added = []string{
	"<system-reminder>",        // Claude Code
	"<environment_context>",    // Codex
	"# AGENTS.md instructions", // Codex
	"<turn_aborted>",           // Codex
}

// workDir is how the CLIs name the working directory: Claude Code and opencode in
// words, Codex and pi as an element.
var workDir = regexp.MustCompile(`(?im)^[\s-]*(?:primary )?working directory: *(/.*?)\s*$|<cwd>\s*(/.*?)\s*</cwd>`)

// ParseRequest reads the body of a request to the API at path, such as
// /v1/messages.
func ParseRequest(path string, body []byte) (*Request, error) {
	api, ok := codecs[path]
	if !ok {
		return nil, fmt.Errorf("parse request: no API at %s", path)
	}
	r := &Request{Path: path, Body: body, codec: api, done: make(chan struct{})}
	if err := api.parse(body, r); err != nil {
		return nil, fmt.Errorf("parse request to %s: %w", path, err)
	}
	r.lookForWorkDir(r.System)
	for _, result := range r.Results {
		r.Step = max(r.Step, stepAfter(result.CallID))
	}
	return r, nil
}

// said follows the conversation: a prompt opens a turn.
func (r *Request) said(text string) {
	for _, opening := range added {
		if strings.HasPrefix(text, opening) {
			r.lookForWorkDir(text)
			return
		}
	}
	if text != "" {
		r.Prompt, r.Results = text, nil
	}
}

// result follows the conversation: results continue a turn.
func (r *Request) result(t ToolResult) { r.Results = append(r.Results, t) }

func (r *Request) lookForWorkDir(text string) {
	if m := workDir.FindStringSubmatch(text); m != nil {
		r.WorkDir = m[1] + m[2]
	}
}
