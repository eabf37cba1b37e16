package job

import (
	"encoding/json"
	"time"
)

// MessageVersion is the version of everything sent through the stream.
const MessageVersion = 1

// Delivery is a published hint that a job may be claimed. It carries no prompt
// and no secret.
type Delivery struct {
	Version  int    `json:"v"`
	Job      ID     `json:"job"`
	Dispatch int    `json:"dispatch"` // counts a job's publications
	Lane     Lane   `json:"-"`        // told by the subject
	Trace    string `json:"trace,omitempty"`
}

// Lease is the right to run one attempt and to write its result.
type Lease struct {
	Job     ID    `json:"job"`
	Attempt int   `json:"attempt"`
	Number  int64 `json:"number"` // fences: only grows
	Token   Token `json:"token"`
}

// Claim asks for the lease of one delivery.
type Claim struct {
	Job      ID
	Dispatch int
	Token    Token // brought by the worker; a repeated claim with it returns the same lease
}

// Claimed is a granted claim.
type Claimed struct {
	Lease
	Length     time.Duration // of the lease, by the database's clock from the claim
	Lane       Lane
	Name       string
	Tenant     string
	Account    string
	Profile    int             // index along the request's fallback chain
	TriesSpent int             // before this attempt
	Resume     string          // the conversation this attempt continues, from an earlier attempt
	Request    json.RawMessage // decoded strictly by the worker
	// Origin is where a request that says resume_from goes on; nil for any other.
	Origin *Origin
	// Left is what the job may cost at most by the budgets it is under; nil for none.
	Left *Left
}

// Origin is a job and the conversation that its last attempt left.
type Origin struct {
	Job          ID
	Conversation string
}

// Beat renews a lease and tells how the attempt stands. Zero values leave what
// the database has.
type Beat struct {
	Lease
	StartedAt    time.Time // once started
	Conversation string
	Turns        int
	ToolCalls    int
	CostUSD      *USD
	// Running is the orphan record's identity, once live.
	Running json.RawMessage
}

// Beaten is the answer to one Beat.
type Beaten struct {
	Job ID
	// Ours says that the lease still is the worker's and was renewed. A beat
	// renews even after the lease lapsed, as long as nobody reaped it.
	Ours bool
	// Cancelled, when set, asks the worker to stop the turn.
	Cancelled *Cancelled
	// Over, when set, does so because a budget is spent.
	Over *OverBudget
}
