package pi

import (
	"bytes"
	"encoding/json"
	"strings"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/stream"
)

// event is every record of the CLI's output at once; each fills the fields it has.
type event struct {
	Type string `json:"type"`
	ID   string `json:"id"` // of a session, or what an answer is to

	// response
	Command string `json:"command"`
	Success bool   `json:"success"`
	Error   string `json:"error"` // also extension_error
	Data    struct {
		// to get_state
		SessionID     string  `json:"sessionId"`
		MessageCount  float64 `json:"messageCount"`
		ThinkingLevel string  `json:"thinkingLevel"`
		Model         struct {
			ID       string `json:"id"`
			Provider string `json:"provider"`
			Cost     Price  `json:"cost"`
		} `json:"model"`
		// to prompt
		Disposition string `json:"disposition"`
	} `json:"data"`

	// extension_ui_request
	Method     string `json:"method"`
	NotifyType string `json:"notifyType"`
	StatusKey  string `json:"statusKey"`
	StatusText string `json:"statusText"`

	// message_end, turn_end, and the text of a notification
	Message message `json:"message"`

	// tool_execution_start and tool_execution_end; the result also of compaction_end
	ToolName string `json:"toolName"`
	IsError  bool   `json:"isError"`
	Result   struct {
		Content content `json:"content"`
		Usage   *usage  `json:"usage"`
	} `json:"result"`
}

type message struct {
	Role         string  `json:"role"`
	Content      content `json:"content"`
	Provider     string  `json:"provider"`
	Model        string  `json:"model"`
	Usage        *usage  `json:"usage"`
	StopReason   string  `json:"stopReason"`
	ErrorMessage string  `json:"errorMessage"`

	bare string // a message that is only a text
}

func (m *message) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(data, []byte(`"`)) {
		return json.Unmarshal(data, &m.bare)
	}
	type plain message
	return stream.Forgive(json.Unmarshal(data, (*plain)(m)))
}

// text is what a message says.
func (m message) text() string {
	var all strings.Builder
	for _, b := range m.Content {
		if b.Type == "text" {
			all.WriteString(b.Text)
		}
	}
	return all.String()
}

type block struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// content is a list of blocks, or a bare string in the place of one.
type content []block

func (c *content) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(data, []byte(`"`)) {
		*c = content{{Type: "text"}}
		return json.Unmarshal(data, &(*c)[0].Text)
	}
	return stream.Forgive(json.Unmarshal(data, (*[]block)(c)))
}

type usage struct {
	Input      float64 `json:"input"`
	Output     float64 `json:"output"` // Reasoning among it
	CacheRead  float64 `json:"cacheRead"`
	CacheWrite float64 `json:"cacheWrite"`
	Reasoning  float64 `json:"reasoning"`
	Cost       struct {
		Total float64 `json:"total"`
	} `json:"cost"`
}

// told is the usage, and whether there was any. The CLI prices a model it has no price
// for at nothing, so nothing is a price only of a model that has one.
func (u *usage) told(priced bool) (agent.Usage, bool) {
	if u == nil {
		return agent.Usage{}, false
	}
	told := agent.Usage{
		InputTokens:      stream.Count(u.Input),
		OutputTokens:     stream.Count(u.Output),
		CacheReadTokens:  stream.Count(u.CacheRead),
		CacheWriteTokens: stream.Count(u.CacheWrite),
		ReasoningTokens:  stream.Count(u.Reasoning),
	}
	if told == (agent.Usage{}) && u.Cost.Total == 0 {
		return agent.Usage{}, false
	}
	if usd, ok := stream.Money(u.Cost.Total); ok && (usd > 0 || priced) {
		told.CostUSD = &usd
	}
	return told, true
}

// limit is what our extension tells of an answer that said "too many requests".
type limit struct {
	RetryAfter string `json:"retryAfter"` // seconds, or a date
	Reset      string `json:"reset"`      // seconds since 1970
}
