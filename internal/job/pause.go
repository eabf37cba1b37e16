package job

import "time"

// Scope is what a pause holds up.
type Scope string

// The scopes. A lane is named as Lane.String does, an account as requests name it;
// the credential that requests without an account get is "~" and the agent's name.
const (
	ScopeLane    Scope = "lane"
	ScopeTenant  Scope = "tenant"
	ScopeAccount Scope = "account"
)

// Scopes lists every scope.
func Scopes() []Scope { return []Scope{ScopeLane, ScopeTenant, ScopeAccount} }

// Pause keeps jobs of a lane, tenant or account from being selected and claimed.
// What runs goes on.
type Pause struct {
	Scope  Scope      `json:"scope"`
	Name   string     `json:"name"`
	Until  *time.Time `json:"until,omitempty"` // nil: until it is lifted
	Active bool       `json:"active"`
	Reason string     `json:"reason,omitempty"`
	By     string     `json:"by,omitempty"`
	At     time.Time  `json:"at"`
}

// EveryTenant is whom a queue limit holds that has none of its own.
const EveryTenant = "*"
