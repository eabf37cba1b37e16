package claude

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"time"

	"turnpike/internal/agent"
)

// event is every event of the stream at once; each fills the fields it has.
type event struct {
	Type      string `json:"type"`
	Subtype   string `json:"subtype"`
	SessionID string `json:"session_id"`

	// system/init
	Version    string `json:"claude_code_version"`
	MCPServers []struct {
		Name   string `json:"name"`
		Status string `json:"status"`
	} `json:"mcp_servers"`

	// assistant and user
	Message message `json:"message"`
	Parent  string  `json:"parent_tool_use_id"` // set on what a subagent says

	// assistant messages the CLI makes up to tell of a failed request, and the result
	Error     string  `json:"error"` // the CLI's own word for it
	APIStatus float64 `json:"api_error_status"`
	APIType   string  `json:"api_error_type"`
	APIError  string  `json:"api_error"`

	// system/api_retry
	ErrorStatus float64 `json:"error_status"`

	// rate_limit_event
	RateLimit *rateLimit `json:"rate_limit_info"`

	// result
	IsError        bool                  `json:"is_error"`
	TerminalReason string                `json:"terminal_reason"`
	Result         *string               `json:"result"`
	Errors         []string              `json:"errors"`
	NumTurns       *float64              `json:"num_turns"`
	TotalCost      *float64              `json:"total_cost_usd"` // of the conversation
	ModelUsage     map[string]modelUsage `json:"modelUsage"`     // of the conversation
	SinceLast      map[string]modelUsage `json:"model_usage_since_last_result"`
	Denials        []struct {
		Tool string `json:"tool_name"`
	} `json:"permission_denials"`
}

type message struct {
	ID      string `json:"id"`
	Model   string `json:"model"`
	Content blocks `json:"content"`
}

type block struct {
	Type      string `json:"type"`
	ID        string `json:"id"`
	Name      string `json:"name"`
	ToolUseID string `json:"tool_use_id"`
	IsError   bool   `json:"is_error"`
	Content   text   `json:"content"`
}

// blocks is a message's content, which may be a bare string.
type blocks []block

func (b *blocks) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(data, []byte("[")) {
		return nil
	}
	return partial(json.Unmarshal(data, (*[]block)(b)))
}

// text is what a tool gave back: a string, or blocks of text.
type text string

func (t *text) UnmarshalJSON(data []byte) error {
	var s string
	if json.Unmarshal(data, &s) == nil {
		*t = text(s)
		return nil
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if partial(json.Unmarshal(data, &parts)) == nil && len(parts) > 0 {
		*t = text(parts[0].Text)
	}
	return nil
}

type rateLimit struct {
	Status   string  `json:"status"`
	ResetsAt float64 `json:"resetsAt"` // seconds since 1970
	Type     string  `json:"rateLimitType"`
}

func (r *rateLimit) told() *agent.RateLimit {
	out := &agent.RateLimit{Status: clip(r.Status), Type: clip(r.Type)}
	if r.ResetsAt > 0 && r.ResetsAt < 1<<40 {
		out.ResetsAt = time.Unix(int64(r.ResetsAt), 0).UTC()
	}
	return out
}

type modelUsage struct {
	Input      float64  `json:"inputTokens"`
	Output     float64  `json:"outputTokens"`
	CacheRead  float64  `json:"cacheReadInputTokens"`
	CacheWrite float64  `json:"cacheCreationInputTokens"`
	Thinking   float64  `json:"thinkingTokens"`
	Cost       *float64 `json:"costUSD"`
	// CostBasis is "list" for a model whose price the CLI knows; "unknown" is one it
	// priced by a guess, which is no cost.
	CostBasis string `json:"costBasis"`
}

func (m modelUsage) told() agent.Usage {
	u := agent.Usage{
		InputTokens:      count(m.Input),
		OutputTokens:     count(m.Output),
		CacheReadTokens:  count(m.CacheRead),
		CacheWriteTokens: count(m.CacheWrite),
		ReasoningTokens:  count(m.Thinking),
	}
	if c, known := money(m.Cost); known && m.CostBasis != "unknown" {
		u.CostUSD = &c
	}
	return u
}

// count is a number of things that was told: whole, and never below nothing. Its
// bound leaves room to add many of them up.
func count(f float64) int64 {
	return int64(min(max(f, 0), 1<<50))
}

// money is an amount that was told, and whether it can be one.
func money(f *float64) (float64, bool) {
	if f == nil || *f < 0 || *f > 1e9 || math.IsNaN(*f) {
		return 0, false
	}
	return *f, true
}

// parse reads one line. It says no when the line is no event.
func parse(line agent.Line) (event, bool) {
	data := line.Text
	if line.Cut {
		data = whole(data)
	}
	var e event
	if partial(json.Unmarshal(data, &e)) != nil {
		return event{}, false
	}
	if e.Type == "" && line.Cut && (e.TotalCost != nil || e.ModelUsage != nil) {
		// A result names its type behind its text, which is what makes it long.
		e.Type = "result"
	}
	return e, e.Type != "" || line.Cut
}

// partial forgives a value of another type than expected: everything else of the
// line has been read.
func partial(err error) error {
	if mismatch := (*json.UnmarshalTypeError)(nil); errors.As(err, &mismatch) {
		return nil
	}
	return err
}

// whole makes an object of those members that head holds in full.
func whole(head []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(head))
	out := []byte("{")
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			break
		}
		key, isName := name.(string)
		var value json.RawMessage
		// A member that nothing follows may itself be cut: 12 out of 123.
		if !isName || d.Decode(&value) != nil || !d.More() {
			break
		}
		quoted, err := json.Marshal(key)
		if err != nil {
			break
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, quoted...), ':'), value...)
	}
	return append(out, '}')
}

// clip bounds what is kept of a name the CLI told.
func clip(s string) string {
	const most = 128
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}
