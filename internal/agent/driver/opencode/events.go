package opencode

import (
	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/stream"
)

// event is every event of the stream at once, the plugin's among them; each fills the
// fields it has.
type event struct {
	Type      string `json:"type"`
	SessionID string `json:"sessionID"`
	Part      struct {
		Text string `json:"text"` // text

		// tool_use
		Tool  string `json:"tool"`
		State struct {
			Status string `json:"status"`
			Error  string `json:"error"`
		} `json:"state"`

		// step_finish
		Reason string  `json:"reason"`
		Tokens tokens  `json:"tokens"`
		Cost   float64 `json:"cost"`
	} `json:"part"`
	Error failure `json:"error"`

	// of the plugin
	Hello   bool   `json:"hello"`
	Session string `json:"session"`
	Model   *struct {
		Name   string `json:"name"`
		Priced bool   `json:"priced"`
	} `json:"model"`
	Asking *struct {
		Version string   `json:"version"`
		Efforts []string `json:"efforts"`
		Servers []struct {
			Name   string `json:"name"`
			Status string `json:"status"`
			Error  string `json:"error"`
		} `json:"servers"`
	} `json:"asking"`
	Kept  string `json:"kept"` // from being run
	Lost  string `json:"lost"` // why a conversation could not be kept or taken up
	Tool  string `json:"tool"`
	Spent *struct {
		Model  string  `json:"model"`
		Priced bool    `json:"priced"`
		Tokens tokens  `json:"tokens"`
		Cost   float64 `json:"cost"`
	} `json:"spent"`
	Stop *stop `json:"stop"`
	Exit *struct {
		Code float64 `json:"code"`
	} `json:"exit"`
}

// stop is why the plugin stopped the turn.
type stop struct {
	Why     string  `json:"why"`
	Message string  `json:"message"`
	Next    float64 `json:"next"` // when the CLI would ask again, in milliseconds since 1970
}

type failure struct {
	Name string `json:"name"`
	Data struct {
		Message         string            `json:"message"`
		StatusCode      float64           `json:"statusCode"`
		IsRetryable     bool              `json:"isRetryable"`
		ResponseHeaders map[string]string `json:"responseHeaders"`
		ResponseBody    string            `json:"responseBody"`
	} `json:"data"`
}

type tokens struct {
	Input     float64 `json:"input"`  // without what was cached
	Output    float64 `json:"output"` // without Reasoning
	Reasoning float64 `json:"reasoning"`
	Cache     struct {
		Read  float64 `json:"read"`
		Write float64 `json:"write"`
	} `json:"cache"`
}

// told is a step's usage, and whether there was any. Nothing is a price only of a model
// that has one.
func (t tokens) told(cost float64, priced bool) (agent.Usage, bool) {
	u := agent.Usage{
		InputTokens:      stream.Count(t.Input),
		OutputTokens:     stream.Count(t.Output) + stream.Count(t.Reasoning),
		CacheReadTokens:  stream.Count(t.Cache.Read),
		CacheWriteTokens: stream.Count(t.Cache.Write),
		ReasoningTokens:  stream.Count(t.Reasoning),
	}
	if u == (agent.Usage{}) && cost == 0 {
		return agent.Usage{}, false
	}
	if usd, ok := stream.Money(cost); ok && (usd > 0 || priced) {
		u.CostUSD = &usd
	}
	return u, true
}
