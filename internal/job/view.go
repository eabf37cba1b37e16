package job

import (
	"encoding/json"
	"time"

	"turnpike/internal/work"
)

// Entry is a validated request about to be enqueued.
type Entry struct {
	Request Request
	// Body is the request as it is kept, the exact bytes that were validated.
	Body json.RawMessage
	// Producer is who enqueues it, for the record.
	Producer string
	// IdempotencyKey, when set, makes enqueueing the same body again return the
	// same job, and another body ErrConflict. It is the producer's own.
	IdempotencyKey string
	RetryOf        ID // the finished job this one repeats
	// Offer asks for the job to be dispatched at once, where nothing has to be decided
	// about it. It is Dispatched in the answer then, for the first time, and is to be
	// published by whoever asked.
	Offer bool
}

// Accepted is the answer to one Entry.
type Accepted struct {
	ID    ID    `json:"id"`
	Lane  Lane  `json:"-"`
	State State `json:"state"`
	// Existing says that an earlier job was returned instead of a new one.
	Existing bool `json:"existing,omitempty"`
}

// Selected is a job that was just dispatched and is to be published, or one
// whose publication is to be repeated.
type Selected struct {
	Delivery
	Tenant string
}

// Unchecked is a job that a producer enqueued by SQL, whose request nobody decoded yet.
type Unchecked struct {
	ID      ID
	Request json.RawMessage
}

// LaneLoad is what selection must know of one lane.
type LaneLoad struct {
	Lane       Lane
	Slots      int // free and busy, of workers seen lately
	Free       int // free slots of workers seen lately
	Dispatched int // selected and not yet claimed
	Paused     bool
	Ready      bool // it has jobs that may be selected
}

// Outlook is what a dispatcher finds when it looks for work.
type Outlook struct {
	Unchecked bool // requests that were enqueued in SQL are yet to be decoded
	Due       bool // a time came: of a scheduled job, a deadline, or the end of a pause
	Lanes     []LaneLoad
}

// Reaped is an attempt the reaper closed because its lease lapsed.
type Reaped struct {
	Job     ID
	Attempt int
	Worker  string
	State   State // of the job afterwards
}

// WorkerInfo is how a worker registers and tells that it is alive.
type WorkerInfo struct {
	ID      string // unique per process: host, pid and start
	Host    string
	Version string
	// Ceiling is the hash of the worker's ceiling; a pool has one.
	Ceiling string
	Lanes   []LaneSlots
	// State is the directory identity (hash) its spool and sessions live in.
	StateDir string
	Draining bool
	// Inert are the agents of its ceiling that never tell what a turn costs.
	Inert []string
}

// LaneSlots is a worker's capacity on one lane.
type LaneSlots struct {
	Lane   Lane
	Slots  int
	Free   int
	Closed string // why the worker serves it no more; empty while it does
	// Via is how the worker finds the lane's jobs now; empty: it does not tell.
	Via Transport
}

// Filter narrows List. Zero values do not.
type Filter struct {
	States  []State
	Tenant  string
	Pool    string
	Name    string
	WorkKey string
	// Before continues a listing: only jobs older than this id.
	Before ID
	Limit  int // default 50, at most 1000
}

// Summary is a job as lists show it.
type Summary struct {
	ID      ID     `json:"id"`
	Name    string `json:"name,omitempty"`
	Tenant  string `json:"tenant"`
	Lane    string `json:"lane"`
	Agent   string `json:"agent"`
	State   State  `json:"state"`
	Reason  string `json:"reason,omitempty"`
	Attempt int    `json:"attempt"`
	CostUSD *USD   `json:"cost_usd"` // known cost so far; null is unknown
	// EstimatedUSD is what price lists make of costs that are unknown; it is no part
	// of CostUSD.
	EstimatedUSD *USD       `json:"estimated_usd,omitempty"`
	Outcome      string     `json:"outcome,omitempty"`
	CreatedAt    time.Time  `json:"created_at"`
	RunAt        time.Time  `json:"run_at"`
	StartedAt    *time.Time `json:"started_at,omitempty"`
	EndedAt      *time.Time `json:"ended_at,omitempty"`
}

// View is a job as one looks at it.
type View struct {
	Summary
	Work       work.Ref        `json:"work,omitzero"`
	Producer   string          `json:"producer,omitempty"`
	RetryOf    ID              `json:"retry_of,omitempty"`
	DispatchNo int             `json:"dispatch_no,omitempty"`
	TriesSpent int             `json:"tries_spent"`
	Worker     string          `json:"worker,omitempty"`
	LeaseUntil *time.Time      `json:"lease_until,omitempty"`
	Cancel     *CancelView     `json:"cancel,omitempty"`
	After      []Waiting       `json:"after,omitempty"`  // jobs it waits for
	Before     []Waiting       `json:"before,omitempty"` // jobs that wait for it
	Attempts   []AttemptView   `json:"attempts"`
	Events     []EventView     `json:"events,omitempty"`
	Request    json.RawMessage `json:"request,omitempty"`
}

// Waiting is a job that is not finished, at the other end of a wait.
type Waiting struct {
	ID     ID     `json:"id"`
	Name   string `json:"name,omitempty"`
	State  State  `json:"state"`
	Reason string `json:"reason,omitempty"`
}

// CancelView is a cancel request on record.
type CancelView struct {
	By  string    `json:"by,omitempty"`
	Why string    `json:"why,omitempty"`
	At  time.Time `json:"at"`
}

// AttemptView is an attempt that ended.
type AttemptView struct {
	Attempt      int             `json:"attempt"`
	Profile      int             `json:"profile"` // index along the request's fallback chain
	Lane         string          `json:"lane"`
	Ending       Ending          `json:"ending"`
	Reason       string          `json:"reason,omitempty"`
	Worker       string          `json:"worker"`
	Host         string          `json:"host,omitempty"`
	Agent        string          `json:"agent,omitempty"`
	AgentVersion string          `json:"agent_version,omitempty"`
	Late         bool            `json:"late,omitempty"`
	ClaimedAt    time.Time       `json:"claimed_at"`
	StartedAt    *time.Time      `json:"started_at,omitempty"`
	EndedAt      time.Time       `json:"ended_at"`
	DurationMS   int64           `json:"duration_ms"`
	ExitCode     *int            `json:"exit_code,omitempty"`
	NumTurns     int             `json:"num_turns"`
	CostUSD      *USD            `json:"cost_usd"`
	Usage        []ModelUsage    `json:"usage,omitempty"`
	Outcome      *Outcome        `json:"outcome,omitempty"`
	Conversation string          `json:"conversation,omitempty"`
	Resumable    bool            `json:"resumable,omitempty"`
	Patch        *Patch          `json:"patch,omitempty"`
	ResultText   string          `json:"result_text,omitempty"`
	Result       json.RawMessage `json:"result,omitempty"`
}

// EventView is something that happened to a job.
type EventView struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
	Note string    `json:"note,omitempty"`
}

// CancelAnswer is what cancelling did.
type CancelAnswer struct {
	ID ID `json:"id"`
	// State is the job's state after the call: cancelled when it was not
	// running, running when its worker is yet to stop it.
	State State `json:"state"`
	// Worker runs it; empty when nobody does.
	Worker string `json:"worker,omitempty"`
	Lane   Lane   `json:"-"`
}

// ReportRow is one line of the cost and outcome report.
type ReportRow struct {
	Key       string `json:"key"`
	Jobs      int64  `json:"jobs"`
	Succeeded int64  `json:"succeeded"`
	Failed    int64  `json:"failed"`
	Cancelled int64  `json:"cancelled"`
	Attempts  int64  `json:"attempts"`
	CostUSD   *USD   `json:"cost_usd"`
	// EstimatedUSD is what price lists make of costs that are unknown; it is no part
	// of CostUSD.
	EstimatedUSD *USD  `json:"estimated_usd"`
	Unpriced     int64 `json:"unpriced_attempts"` // started attempts whose cost is unknown
	Turns        int64 `json:"turns"`
	DurationMS   int64 `json:"duration_ms"`
}
