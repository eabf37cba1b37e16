package job

import (
	"encoding/json"
	"time"

	"turnpike/internal/work"
)

// ReportVersion is the version of Report as it is spooled.
const ReportVersion = 1

// Report is everything an attempt left, written by its worker once and settled
// idempotently by the lease's token. It is the spool's and the results stream's
// only form.
type Report struct {
	Version int    `json:"version"`
	Lease   Lease  `json:"lease"`
	Worker  string `json:"worker"`
	Host    string `json:"host"`

	Ending Ending `json:"ending"`
	// Reason is chosen for people to read; it holds no secret and no prompt.
	Reason string `json:"reason,omitempty"`
	// RetryAfter, when set, is when the cause is expected to be over.
	RetryAfter time.Time `json:"retry_after,omitzero"`

	Started   bool      `json:"started"`
	StartedAt time.Time `json:"started_at,omitzero"`
	EndedAt   time.Time `json:"ended_at"`
	ToolCalls int       `json:"tool_calls"`

	Agent        string `json:"agent,omitempty"`
	AgentVersion string `json:"agent_version,omitempty"`
	Model        string `json:"model,omitempty"` // asked for
	Conversation string `json:"conversation,omitempty"`
	// Resumable says that another attempt can continue the conversation: it is kept,
	// and the place it took place in is, or what was changed there.
	Resumable bool `json:"resumable,omitempty"`
	// Kept says that the conversation itself is: another job can continue it, in a place
	// of its own.
	Kept bool `json:"kept"`
	// Patch is what was changed in a workspace with a history; nil is nothing.
	Patch *Patch `json:"patch,omitempty"`

	DurationMS   int64  `json:"duration_ms"`
	ExitCode     int    `json:"exit_code"`
	Signal       int    `json:"signal,omitempty"`
	IsError      bool   `json:"is_error"`
	ErrorSubtype string `json:"error_subtype,omitempty"`
	ResultText   string `json:"result_text,omitempty"`
	NumTurns     int    `json:"num_turns"`
	TimedOut     bool   `json:"timed_out,omitempty"`
	CostCapped   bool   `json:"cost_capped,omitempty"`
	// CostUSD is the known cost of this attempt; nil is unknown, never zero.
	CostUSD *USD `json:"cost_usd,omitempty"`
	// CostPartial says that it cost at least that much: the turn broke off.
	CostPartial bool         `json:"cost_partial,omitempty"`
	Usage       []ModelUsage `json:"usage,omitempty"`

	Outcome   *Outcome        `json:"outcome,omitempty"`
	RateLimit json.RawMessage `json:"rate_limit,omitempty"`
	// Versions are the programs that took part, by name.
	Versions map[string]string `json:"versions,omitempty"`
	// Added is what the worker added to the request, recorded as design demands.
	Added []string `json:"added,omitempty"`
	// Notes are what the job's events should tell about the attempt.
	Notes []string `json:"notes,omitempty"`
	// SessionDir is where the turn's files are on the worker.
	SessionDir string `json:"session_dir,omitempty"`
	// Left is what could not be shown to be gone, to be written to orphans.
	Left []Orphan `json:"left,omitempty"`
	// Result is the runner's whole Result, as JSON.
	Result json.RawMessage `json:"result,omitempty"`
}

// ModelUsage is what one model was asked and gave in an attempt.
type ModelUsage struct {
	Model            string `json:"model"`
	InputTokens      int64  `json:"input_tokens"`
	OutputTokens     int64  `json:"output_tokens"`
	CacheReadTokens  int64  `json:"cache_read_tokens"`
	CacheWriteTokens int64  `json:"cache_write_tokens"`
	CostUSD          *USD   `json:"cost_usd,omitempty"` // nil is unknown
	// EstimatedUSD is what the worker's price list makes of an unknown cost.
	EstimatedUSD *USD `json:"estimated_usd,omitempty"`
}

// Outcome is what the agent itself reported.
type Outcome struct {
	Status string   `json:"status"`
	Note   string   `json:"note,omitempty"`
	Work   work.Ref `json:"work,omitzero"`
}

// Settled is what became of one Report.
type Settled struct {
	Job     ID
	Attempt int
	// How says which case the report met.
	How SettleCase
	// State is the job's state after it.
	State State
}

// SettleCase is one of the cases of settling.
type SettleCase string

// The cases.
const (
	SettledNow    SettleCase = "settled" // the lease was there
	SettledBefore SettleCase = "repeat"  // this very report, or one with its token, was settled already
	SettledLate   SettleCase = "late"    // the reaper had closed the attempt: filled in, state kept
	SettledNever  SettleCase = "unknown" // no such attempt: nothing was written
)

// Orphan is something that may outlive the worker that started it.
type Orphan struct {
	Job        ID              `json:"job"`
	Attempt    int             `json:"attempt"`
	Kind       string          `json:"kind"` // agent.Kind...
	Identity   json.RawMessage `json:"identity,omitempty"`
	Worker     string          `json:"worker"`
	Host       string          `json:"host,omitempty"` // of the worker
	State      OrphanState     `json:"state"`
	StoppedBy  string          `json:"stopped_by,omitempty"`
	Note       string          `json:"note,omitempty"`
	Transcript string          `json:"transcript,omitempty"`
	Turns      int             `json:"turns,omitempty"`
}

// OrphanState is where an orphan is in its life.
type OrphanState string

// The states of an orphan.
const (
	OrphanCreating    OrphanState = "creating"
	OrphanLive        OrphanState = "live"
	OrphanReaping     OrphanState = "reaping"
	OrphanGone        OrphanState = "gone"
	OrphanUnreachable OrphanState = "unreachable"
)
