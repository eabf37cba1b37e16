package job

import (
	"fmt"
	"slices"
	"time"
)

// MaxRedrive is how many jobs one call of Redrive looks at closely and enqueues at most.
const MaxRedrive = 500

// Redrive says which finished jobs are to run again, as new jobs. Zero values do not
// narrow it, but for States: none is those that failed.
type Redrive struct {
	States  []State // Failed and Cancel
	Reasons []string
	// Tenants and Producer also say what the caller may redrive.
	Tenants   []string
	Producer  string
	Lane      string // where it ran last
	Name, Tag string
	// Since and Until are about when it ended.
	Since, Until time.Time
	// After continues where an earlier call stopped.
	After  ID
	Limit  int  // default and at most MaxRedrive
	DryRun bool // only tell which
}

// Check refuses what cannot be redriven, and what would be everything.
func (r Redrive) Check() error {
	for _, s := range r.States {
		if s != Failed && s != Cancel {
			return &FieldError{Field: "state", Problem: fmt.Sprintf("%q: want %s or %s; what succeeded is not redriven", clip(string(s)), Failed, Cancel)}
		}
	}
	for _, reason := range r.Reasons {
		if !slices.Contains(Reasons(), reason) {
			return &FieldError{Field: "reason", Problem: fmt.Sprintf("%q: want one of %v: the word after the slash, as in failed/crashed", clip(reason), Reasons())}
		}
	}
	switch {
	case len(r.States) == 0 && len(r.Reasons) == 0 && len(r.Tenants) == 0 && r.Name == "":
		return &FieldError{Field: "state", Problem: "say which jobs: by state, reason, tenant or name at least"}
	case !r.Since.IsZero() && !r.Until.IsZero() && !r.Since.Before(r.Until):
		return &FieldError{Field: "until", Problem: "is not after since"}
	case r.Limit < 0 || r.Limit > MaxRedrive:
		return &FieldError{Field: "limit", Problem: fmt.Sprintf("is %d; want 1 to %d", r.Limit, MaxRedrive)}
	}
	return nil
}

// RedriveAnswer is what one call of Redrive did, or would do.
type RedriveAnswer struct {
	// Redriven is how many of Jobs have a new job now, or would have one.
	Redriven int `json:"redriven"`
	// PassedOver is how many match and were repeated before.
	PassedOver int        `json:"passed_over"`
	Jobs       []Redriven `json:"jobs" nullable:"false"`
	// Next is where to go on; empty when everything was looked at.
	Next ID `json:"next,omitempty"`
}

// Redriven is a finished job that matched, and was not repeated before.
type Redriven struct {
	RetryOf ID     `json:"retry_of"`
	Name    string `json:"name,omitempty"`
	Tenant  string `json:"tenant"`
	Ended   State  `json:"ended"` // how it ended, and why
	Reason  string `json:"reason,omitempty"`
	// ID is the new job's, or that of the unfinished job that has its dedup key. Without
	// one its request is refused now, or nothing was to be done.
	ID       ID   `json:"id,omitempty"`
	Existing bool `json:"existing,omitempty"`
	Refused  bool `json:"refused,omitempty"`
}
