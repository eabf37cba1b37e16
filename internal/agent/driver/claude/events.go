package claude

import (
	"bytes"
	"encoding/json"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/stream"
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
	return stream.Forgive(json.Unmarshal(data, (*[]block)(b)))
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
	if stream.Forgive(json.Unmarshal(data, &parts)) == nil && len(parts) > 0 {
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
	out := &agent.RateLimit{Status: stream.Clip(r.Status), Type: stream.Clip(r.Type)}
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
		InputTokens:      stream.Count(m.Input),
		OutputTokens:     stream.Count(m.Output),
		CacheReadTokens:  stream.Count(m.CacheRead),
		CacheWriteTokens: stream.Count(m.CacheWrite),
		ReasoningTokens:  stream.Count(m.Thinking),
	}
	if c, known := money(m.Cost); known && m.CostBasis != "unknown" {
		u.CostUSD = &c
	}
	return u
}

// money is an amount that was told, and whether it can be one.
func money(f *float64) (float64, bool) {
	if f == nil {
		return 0, false
	}
	return stream.Money(*f)
}

// parse reads one line. It says no when the line is no event.
func parse(line agent.Line) (event, bool) {
	var e event
	if !stream.Object(line, &e) {
		return event{}, false
	}
	if e.Type == "" && line.Cut && (e.TotalCost != nil || e.ModelUsage != nil) {
		// A result names its type behind its text, which is what makes it long.
		e.Type = "result"
	}
	return e, e.Type != "" || line.Cut
}
