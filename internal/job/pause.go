package job

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Scope is what a pause holds up.
type Scope string

// The scopes. A lane is named as Lane.String does, an account as requests name it;
// the credential that requests without an account get is "~" and the agent's name. A
// concurrency key is named TENANT/KEY.
const (
	ScopeLane    Scope = "lane"
	ScopeTenant  Scope = "tenant"
	ScopeAccount Scope = "account"
	ScopeKey     Scope = "key"
)

// Scopes lists every scope.
func Scopes() []Scope { return []Scope{ScopeLane, ScopeTenant, ScopeAccount, ScopeKey} }

// Check says whether name can be one of the scope.
func (s Scope) Check(name string) error {
	tenant, key, ok := strings.Cut(name, "/")
	switch {
	case !slices.Contains(Scopes(), s):
		return &FieldError{Field: "scope", Problem: fmt.Sprintf("%q: want one of %v", clip(string(s)), Scopes())}
	case name == "":
		return &FieldError{Field: "name", Problem: fmt.Sprintf("is required: which %s", s)}
	case s == ScopeKey && (!ok || tenant == "" || key == ""):
		return &FieldError{Field: "name", Problem: fmt.Sprintf("%q: want TENANT/KEY", clip(name))}
	}
	return nil
}

// PauseState is how a pause stands. One that is over slow starts its account when a limit
// made it; of any other there is nothing more to say.
type PauseState string

// The states of a pause.
const (
	PauseActive    PauseState = "active"
	PauseSlowStart PauseState = "slow start"
	PauseOver      PauseState = "over"
)

// Pause keeps jobs of a lane, tenant, account or key from being selected and claimed.
// What runs goes on.
type Pause struct {
	Scope  Scope      `json:"scope"`
	Name   string     `json:"name"`
	Until  *time.Time `json:"until,omitempty"` // nil: until it is lifted
	Active bool       `json:"active"`
	Reason string     `json:"reason,omitempty"`
	By     string     `json:"by,omitempty"`
	At     time.Time  `json:"at"`
	State  PauseState `json:"state"`
	// In slow start: how many live jobs the account has and may have at the moment, and
	// until when that is so.
	Live      *int       `json:"live,omitempty"`
	LiveMax   *int       `json:"live_max,omitempty"`
	SlowUntil *time.Time `json:"slow_until,omitempty"`
}

// EveryTenant is whom a queue limit holds that has none of its own.
const EveryTenant = "*"
