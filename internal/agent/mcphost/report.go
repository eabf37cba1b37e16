package mcphost

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnpike/internal/agent"
)

// ReportTool is the name of the tool the outcome is reported through.
const ReportTool = "report_outcome"

// What one report may hold, in bytes; tags in pieces.
const (
	maxStatus = 64
	maxNote   = 4 << 10
	maxKey    = 512
	maxTags   = 32
	maxTag    = 128
)

// Report says what an agent may report.
type Report struct {
	// Valid are the statuses it may report. Nil is any; empty is none, and then
	// the tool is not offered.
	Valid []string
	// Default is what the outcome says where the agent says nothing: its Work.
	Default agent.Outcome
	// Bridge is the executable whose main calls Entry; empty is this program's own.
	Bridge string
}

// reported is the one outcome of a turn.
type reported struct {
	mu      sync.Mutex // guards what follows
	outcome agent.Outcome
	done    bool
}

func (r *reported) get() (agent.Outcome, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.outcome, r.done
}

// set keeps the first outcome and refuses every other.
func (r *reported) set(o agent.Outcome) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return fmt.Errorf("the outcome was already reported as %q and stays so; nothing more is needed", r.outcome.Status)
	}
	r.outcome, r.done = o, true
	return nil
}

// addTo offers the tool on server and returns where the outcome will be kept.
func (r Report) addTo(server *mcp.Server) (*reported, error) {
	for i, s := range r.Valid {
		if err := checkStatus(s); err != nil {
			return nil, fmt.Errorf("valid outcome %q: %w: %w", s, agent.ErrUnsupported, err)
		}
		if slices.Contains(r.Valid[:i], s) {
			return nil, fmt.Errorf("valid outcome %q: %w: it is there twice", s, agent.ErrUnsupported)
		}
	}
	kept := &reported{}
	if r.Valid != nil && len(r.Valid) == 0 {
		return kept, nil
	}
	schema, err := r.schema()
	if err != nil {
		return nil, err
	}
	tool := &mcp.Tool{
		Name: ReportTool,
		Description: "Report how this turn ended, for whoever asked for it. " +
			"Call it exactly once, as the last thing you do: the first report counts and cannot be changed.",
		InputSchema: schema,
	}
	server.AddTool(tool, func(_ context.Context, call *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		outcome, err := r.parse(call.Params.Arguments)
		if err == nil {
			err = kept.set(outcome)
		}
		if err != nil {
			return toolError(err), nil
		}
		return &mcp.CallToolResult{Content: []mcp.Content{
			&mcp.TextContent{Text: fmt.Sprintf("Recorded %q. You can end the turn now.", outcome.Status)},
		}}, nil
	})
	return kept, nil
}

// toolError is an error that, unlike one of the protocol, is shown to the model, which
// can then call again and do better.
func toolError(err error) *mcp.CallToolResult {
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: err.Error()}}}
}

// decode reads the arguments of one call into in. Its errors are for the model to read.
func decode(arguments json.RawMessage, in any) error {
	d := json.NewDecoder(bytes.NewReader(arguments))
	d.DisallowUnknownFields()
	if err := d.Decode(in); err != nil {
		return fmt.Errorf("the arguments cannot be read: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the arguments cannot be read: there is something behind them")
	}
	return nil
}

// schema is what the model is told of the arguments. parse holds them to it.
func (r Report) schema() (json.RawMessage, error) {
	type object = map[string]any
	status := object{"type": "string", "minLength": 1, "maxLength": maxStatus, "description": "How the turn ended."}
	if r.Valid != nil {
		status["enum"] = r.Valid
	}
	schema, err := json.Marshal(object{
		"type":                 "object",
		"required":             []string{"status"},
		"additionalProperties": false,
		"properties": object{
			"status": status,
			"note":   object{"type": "string", "maxLength": maxNote, "description": "What the reader should know, in a short paragraph."},
			"work": object{
				"type":                 "object",
				"additionalProperties": false,
				"description":          "What the turn worked on. Leave it out unless it is something else than what was asked.",
				"properties": object{
					"key":  object{"type": "string", "maxLength": maxKey},
					"tags": object{"type": "array", "maxItems": maxTags, "items": object{"type": "string", "maxLength": maxTag}},
				},
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("write the schema of %s: %w", ReportTool, err)
	}
	return schema, nil
}

// parse reads the arguments of one call. Its errors are for the model to read.
func (r Report) parse(arguments json.RawMessage) (agent.Outcome, error) {
	var in struct {
		Status string `json:"status"`
		Note   string `json:"note"`
		Work   *struct {
			Key  string   `json:"key"`
			Tags []string `json:"tags"`
		} `json:"work"`
	}
	if err := decode(arguments, &in); err != nil {
		return agent.Outcome{}, err
	}
	out := r.Default
	out.Status, out.Note = in.Status, in.Note
	if in.Work != nil {
		out.Work.Key, out.Work.Tags = in.Work.Key, in.Work.Tags
	}
	return out, r.check(out)
}

func (r Report) check(o agent.Outcome) error {
	if r.Valid != nil && !slices.Contains(r.Valid, o.Status) {
		return fmt.Errorf("status %.*q is not allowed; it must be one of: %s", maxStatus, o.Status, strings.Join(r.Valid, ", "))
	}
	if err := checkStatus(o.Status); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if err := checkText(o.Note, maxNote); err != nil {
		return fmt.Errorf("note: %w", err)
	}
	if err := checkText(o.Work.Key, maxKey); err != nil {
		return fmt.Errorf("work.key: %w", err)
	}
	if len(o.Work.Tags) > maxTags {
		return fmt.Errorf("work.tags: has %d entries; at most %d", len(o.Work.Tags), maxTags)
	}
	for i, tag := range o.Work.Tags {
		if err := checkText(tag, maxTag); err != nil {
			return fmt.Errorf("work.tags[%d]: %w", i, err)
		}
	}
	return nil
}

func checkStatus(s string) error {
	if s == "" {
		return errors.New("is missing")
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		return errors.New("must not contain control characters")
	}
	return checkText(s, maxStatus)
}

// checkText keeps out what Postgres cannot hold, and too much.
func checkText(s string, most int) error {
	switch {
	case len(s) > most:
		return fmt.Errorf("has %d bytes; at most %d", len(s), most)
	case !utf8.ValidString(s):
		return errors.New("is not UTF-8")
	case strings.ContainsRune(s, 0):
		return errors.New("must not contain NUL")
	}
	return nil
}

// bridgePath is the bridge's executable as it is found on disk, links resolved. Empty
// is this program's own.
func bridgePath(path string) (string, error) {
	if path == "" {
		own, err := os.Executable()
		if err != nil {
			return "", err
		}
		path = own
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}
