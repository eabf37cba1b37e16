package codex

import (
	"bytes"
	"encoding/json"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/stream"
)

// The methods this client knows.
const (
	methodInitialize   = "initialize"
	methodInitialized  = "initialized"
	methodThreadStart  = "thread/start"
	methodThreadResume = "thread/resume"
	methodInject       = "thread/inject_items"
	methodName         = "thread/name/set"
	methodSkillRoots   = "skills/extraRoots/set"
	methodSkillList    = "skills/list"
	methodTurnStart    = "turn/start"
	methodInterrupt    = "turn/interrupt"
)

// Our requests, by the id they bear.
const (
	askInitialize = iota + 1
	askThread
	askTurn
	askInterrupt
	askInject
	askName
	askSkillRoots
	askSkillList
)

// message is every message of the server at once; each fills the fields it has. A
// reply has an id and no method, a request both, a notification no id.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params params          `json:"params"`
	Result result          `json:"result"`
	Error  *problem        `json:"error"`
}

// reply is the number of our request that a message answers; 0 is none.
func (m message) reply() int {
	var id int
	if m.Method != "" || json.Unmarshal(m.ID, &id) != nil {
		return 0
	}
	return id
}

// request says whether the server waits for an answer.
func (m message) request() bool {
	return m.Method != "" && len(m.ID) > 0 && !bytes.Equal(m.ID, []byte("null"))
}

type result struct {
	UserAgent string `json:"userAgent"`
	Model     string `json:"model"`
	Thread    struct {
		ID string `json:"id"`
	} `json:"thread"`
	Turn turn `json:"turn"`
	// of the skills there are, by directory
	Data []struct {
		Skills []struct {
			Path string `json:"path"`
		} `json:"skills"`
	} `json:"data"`
}

type params struct {
	ThreadID string `json:"threadId"`
	TurnID   string `json:"turnId"`
	Turn     turn   `json:"turn"`
	Item     item   `json:"item"`

	// error
	Error     problem `json:"error"`
	WillRetry bool    `json:"willRetry"`

	// mcpServer/startupStatus/updated
	Name   string `json:"name"`
	Status string `json:"status"`

	// model/rerouted
	ToModel string `json:"toModel"`

	// thread/tokenUsage/updated
	TokenUsage struct {
		Total tokens `json:"total"`
		Last  tokens `json:"last"`
	} `json:"tokenUsage"`

	// account/rateLimits/updated
	RateLimits rateLimits `json:"rateLimits"`
}

type turn struct {
	ID     string  `json:"id"`
	Status string  `json:"status"`
	Error  problem `json:"error"`
}

type item struct {
	Type   string  `json:"type"`
	ID     string  `json:"id"`
	Text   string  `json:"text"`
	Status string  `json:"status"`
	Server string  `json:"server"`
	Tool   string  `json:"tool"`
	Error  problem `json:"error"`
	Result struct {
		IsError bool `json:"isError"`
		Content []struct {
			Text string `json:"text"`
		} `json:"content"`
	} `json:"result"`
}

// quiet are the items that act on nothing. An item of a kind that is not known yet
// counts as a tool's: a turn without any counts as having changed nothing.
var quiet = map[string]bool{
	"userMessage": true, "hookPrompt": true, "agentMessage": true, "plan": true, "reasoning": true,
	"enteredReviewMode": true, "exitedReviewMode": true, "contextCompaction": true,
}

// response says whether an item is part of what the model answered.
func (i item) response() bool {
	return i.tool() || i.Type == "agentMessage" || i.Type == "reasoning" || i.Type == "plan"
}

func (i item) tool() bool { return !quiet[i.Type] }

// failed says what went wrong with a call of an MCP server.
func (i item) failed() (why string, failed bool) {
	if i.Type != "mcpToolCall" || i.Status != "failed" && !i.Result.IsError {
		return "", false
	}
	if i.Error.Message != "" {
		return i.Error.Message, true
	}
	for _, part := range i.Result.Content {
		if part.Text != "" {
			return part.Text, true
		}
	}
	return "it does not say why", true
}

// problem is an error in any of the server's forms: a reply's, a turn's, or a text.
type problem struct {
	Message string
	Kind    string // "usageLimitExceeded"
	Status  int    // of the provider's answer; 0 is none
}

// UnmarshalJSON takes any form, and of one that it does not know nothing.
func (p *problem) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		p.Message = text
		return nil
	}
	var in struct {
		Message string `json:"message"`
		Info    kind   `json:"codexErrorInfo"`
	}
	if stream.Object(agent.Line{Text: data}, &in) {
		p.Message, p.Kind, p.Status = in.Message, in.Info.name, in.Info.status
	}
	return nil
}

// kind is the server's word for an error: a text, or an object of one member with
// that name, which may tell the status of the provider's answer.
type kind struct {
	name   string
	status int
}

func (k *kind) UnmarshalJSON(data []byte) error {
	var name string
	if json.Unmarshal(data, &name) == nil {
		k.name = name
		return nil
	}
	var members map[string]json.RawMessage
	if !stream.Object(agent.Line{Text: data}, &members) || len(members) != 1 {
		return nil
	}
	for name, about := range members {
		var http struct {
			Status float64 `json:"httpStatusCode"`
		}
		stream.Object(agent.Line{Text: about}, &http)
		k.name, k.status = name, int(stream.Count(http.Status))
	}
	return nil
}

// tokens are counts of a thread or of one request. The input includes what was
// cached, the output what was thought.
type tokens struct {
	Total      float64 `json:"totalTokens"`
	Input      float64 `json:"inputTokens"`
	CacheRead  float64 `json:"cachedInputTokens"`
	CacheWrite float64 `json:"cacheWriteInputTokens"`
	Output     float64 `json:"outputTokens"`
	Reasoning  float64 `json:"reasoningOutputTokens"`
}

// since is what was used on top of an earlier total.
func (t tokens) since(before tokens) agent.Usage {
	more := func(now, before float64) int64 { return stream.Count(now - before) }
	u := agent.Usage{
		OutputTokens:     more(t.Output, before.Output),
		CacheReadTokens:  more(t.CacheRead, before.CacheRead),
		CacheWriteTokens: more(t.CacheWrite, before.CacheWrite),
		ReasoningTokens:  more(t.Reasoning, before.Reasoning),
	}
	u.InputTokens = max(more(t.Input, before.Input)-u.CacheReadTokens-u.CacheWriteTokens, 0)
	return u
}

type rateLimits struct {
	Primary   *window `json:"primary"`
	Secondary *window `json:"secondary"`
	Reached   string  `json:"rateLimitReachedType"`
}

type window struct {
	Used     float64 `json:"usedPercent"`
	Minutes  float64 `json:"windowDurationMins"`
	ResetsAt float64 `json:"resetsAt"` // seconds since 1970
}

// told is the window that is nearest to its limit; nil when none was told of.
func (r rateLimits) told() *agent.RateLimit {
	var w *window
	for _, told := range []*window{r.Primary, r.Secondary} {
		if told != nil && *told != (window{}) && (w == nil || told.Used > w.Used) {
			w = told
		}
	}
	if w == nil && r.Reached == "" {
		return nil
	}
	out := &agent.RateLimit{Status: "allowed"}
	if w != nil {
		out.Type = w.kind()
		if w.ResetsAt > 0 && w.ResetsAt < 1<<40 {
			out.ResetsAt = time.Unix(int64(w.ResetsAt), 0).UTC()
		}
	}
	if r.Reached != "" || w.Used >= 100 {
		out.Status = statusRejected
	}
	return out
}

// statusRejected is the status of a limit that is used up.
const statusRejected = "rejected"

func (w window) kind() string {
	switch d := time.Duration(stream.Count(w.Minutes)) * time.Minute; {
	case d == 5*time.Hour:
		return "five_hour"
	case d == 7*24*time.Hour:
		return "seven_day"
	case w.Minutes > 0 && w.Minutes < 1e6:
		return d.String()
	}
	return ""
}

// parse reads one line. It says no when the line is no message.
func parse(line agent.Line) (message, bool) {
	var m message
	read := agent.Line{Text: line.Text}
	if line.Cut {
		read.Text = whole(line.Text)
	}
	if !stream.Object(read, &m) {
		return message{}, false
	}
	return m, m.Method != "" || len(m.ID) > 0 || line.Cut
}

// whole closes a JSON text that was cut, after the last value that is known to be
// complete, however deep inside it stands.
func whole(head []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(head))
	var open []byte     // the brackets that will close what is open
	var end int64       // where the last complete value ends
	var closing []byte  // the brackets that were open there
	var unsure struct { // a value that is only known to be complete once another follows
		end     int64
		closing []byte
		is      bool
	}
	name := false // the next token is a member's name
	for {
		token, err := d.Token()
		if err != nil {
			return append(bytes.Clone(head[:end]), closing...)
		}
		if unsure.is {
			end, closing, unsure.is = unsure.end, unsure.closing, false
		}
		inObject := len(open) > 0 && open[0] == '}'
		switch v := token.(type) {
		case json.Delim:
			switch v {
			case '{':
				open, name = append([]byte{'}'}, open...), true
			case '[':
				open, name = append([]byte{']'}, open...), false
			default:
				open = open[1:]
				name = len(open) > 0 && open[0] == '}'
			}
			end, closing = d.InputOffset(), open
		case string:
			if name {
				name = false
				continue
			}
			end, closing, name = d.InputOffset(), open, inObject
		default:
			// A number may go on: 12 out of 123.
			unsure.end, unsure.closing, unsure.is = d.InputOffset(), open, true
			name = inObject
		}
	}
}
