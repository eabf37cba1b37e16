package agent

import (
	"time"

	"turnpike/internal/work"
)

// Outcome is what the agent itself reported through the report tool.
type Outcome struct {
	Work   work.Ref `json:"work"`
	Status string   `json:"status"`
	Note   string   `json:"note,omitempty"`
}

// RateLimit is the last rate-limit event of a turn's stream.
type RateLimit struct {
	// Status is the provider's word. Only "allowed" and "allowed_warning" are
	// known to let the turn go on; anything else counts as blocking.
	Status string `json:"status,omitempty"`
	// Type is the window: "five_hour", "seven_day".
	Type string `json:"type,omitempty"`
	// ResetsAt is when the window rolls; zero when unknown.
	ResetsAt time.Time `json:"resets_at,omitzero"`
}

// Blocking says whether the provider refuses further work until ResetsAt.
func (r *RateLimit) Blocking() bool {
	return r != nil && r.Status != "" && r.Status != "allowed" && r.Status != "allowed_warning"
}

// Subtypes the runner itself gives. Others are the agent's own, or
// "signal_<name>" for an agent that a signal ended.
const (
	SubtypeCostCap    = "cost_cap"
	SubtypeTimeout    = "timeout"             // Profile.Timeout passed
	SubtypeFirstEvent = "first_event_timeout" // the agent said nothing at all
	SubtypeIdle       = "idle_timeout"        // the agent fell silent
	SubtypeCancelled  = "cancelled"           // the caller's context ended
	SubtypeNoResult   = "no_result"           // the stream ended without a final event
	SubtypeProtocol   = "protocol"            // the stream cannot be what the agent says
	SubtypeUnrecorded = "unrecorded"          // what was started could not be recorded, so it was stopped
)

// Failure classifies why a turn failed, for policies that act on it. Empty means
// either success or a failure of the work itself.
type Failure string

// The failures a driver can tell apart.
const (
	FailureLimited    Failure = "limited"    // usage or session limit, or 429 with a reset
	FailureOverloaded Failure = "overloaded" // 500, 529, transient throttling
	FailureCredential Failure = "credential" // 401, 403, billing
	FailureResume     Failure = "resume"     // the conversation to continue is unknown
)

// Usage is what one model was asked and gave in this turn. CostUSD is nil when
// the agent did not price it; it is never zero for unknown.
type Usage struct {
	InputTokens      int64    `json:"input_tokens"`
	OutputTokens     int64    `json:"output_tokens"`
	CacheReadTokens  int64    `json:"cache_read_tokens"`
	CacheWriteTokens int64    `json:"cache_write_tokens"`
	ReasoningTokens  int64    `json:"reasoning_tokens,omitempty"`
	CostUSD          *float64 `json:"cost_usd,omitempty"`
}

// Finding is something in the workspace, after the turn, that its owner should
// look at before trusting the tree: configuration another program would execute.
type Finding struct {
	Path string `json:"path"`
	What string `json:"what"`
}

// Result is everything known about a turn that was started.
type Result struct {
	Name       string        `json:"name"`
	Role       string        `json:"role"` // Profile.Name
	SessionDir string        `json:"session_dir"`
	Transcript string        `json:"transcript"`
	StartedAt  time.Time     `json:"started_at"`
	Duration   time.Duration `json:"duration"` // nanoseconds
	ExitCode   int           `json:"exit_code"`
	// Signal is the signal that ended the agent, or 0; its name is in ErrorSubtype.
	Signal int `json:"signal,omitempty"`
	// ClaudeID is the conversation id whichever agent gave it; the name stays for
	// older readers of result.json. Agent is the only one that can continue it.
	ClaudeID     string  `json:"claude_session_id,omitempty"`
	Agent        string  `json:"agent,omitempty"`
	ResultText   string  `json:"result_text,omitempty"`
	IsError      bool    `json:"is_error"`
	ErrorSubtype string  `json:"error_subtype,omitempty"`
	NumTurns     int     `json:"num_turns"`
	CostUSD      float64 `json:"cost_usd"`
	// CostKnown says whether the stream reported any cost. A turn killed before
	// it did has no cost rather than a cost of zero; nothing derives one.
	CostKnown bool `json:"cost_known"`
	// CostPartial says that the known cost may not be all: the turn broke off, perhaps in
	// the middle of a request whose cost nobody told.
	CostPartial bool `json:"cost_partial,omitempty"`
	// CostCapped says the known cost reached Request.CostCapUSD.
	CostCapped bool       `json:"cost_capped,omitempty"`
	TimedOut   bool       `json:"timed_out"`
	Outcome    Outcome    `json:"outcome"`
	HasOutcome bool       `json:"has_outcome"`
	RateLimit  *RateLimit `json:"rate_limit,omitempty"`
	// Diagnostics are failures the agent reported that ResultText may not
	// mention, one line each.
	Diagnostics []string `json:"diagnostics,omitempty"`

	// Beyond the listing:

	// Failure classifies an error for retry and pause policies.
	Failure Failure `json:"failure,omitempty"`
	// ToolCalls counts the tool calls the agent began: none means that nothing
	// can have changed.
	ToolCalls int `json:"tool_calls"`
	// Models is the usage of this turn by model.
	Models map[string]Usage `json:"models,omitempty"`
	// AgentVersion is the CLI's own version, as its stream or --version told.
	AgentVersion string `json:"agent_version,omitempty"`
	// WorkDir is the working directory as the agent saw it: a conversation goes on in
	// no other.
	WorkDir  string    `json:"work_dir,omitempty"`
	Findings []Finding `json:"findings,omitempty"`
}

// SessionLimited says whether the turn failed because its account's usage or session
// limit is reached: the same turn would fail again until RateLimit.ResetsAt.
func (r *Result) SessionLimited() bool {
	return r.IsError && (r.Failure == FailureLimited || r.Failure == "" && r.RateLimit.Blocking())
}
