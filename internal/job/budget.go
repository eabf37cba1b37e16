package job

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// BudgetScope is what a budget holds together.
type BudgetScope string

// The scopes. A tag is one of a request's work tags; a profile is named by the profile
// that an attempt runs.
const (
	BudgetTenant  BudgetScope = "tenant"
	BudgetTag     BudgetScope = "tag"
	BudgetProfile BudgetScope = "profile"
)

// BudgetScopes lists every scope.
func BudgetScopes() []BudgetScope { return []BudgetScope{BudgetTenant, BudgetTag, BudgetProfile} }

// The shortest and the longest window of a budget.
const (
	MinBudgetPer = time.Minute
	MaxBudgetPer = 31 * 24 * time.Hour
)

// BudgetKey names a budget: a scope's name may have one for each length of time.
type BudgetKey struct {
	Scope BudgetScope `json:"scope"`
	Name  string      `json:"name"`
	Per   Duration    `json:"per"`
}

// String is the form people read: "tenant acme per 24h".
func (k BudgetKey) String() string {
	per := k.Per.String()
	for _, zero := range []string{"0s", "0m"} { // "24h0m0s", and not the end of "1m30s"
		if whole := strings.TrimSuffix(per, zero); strings.HasSuffix(whole, "m") || strings.HasSuffix(whole, "h") {
			per = whole
		}
	}
	return fmt.Sprintf("%s %s per %s", k.Scope, k.Name, per)
}

// Check says what is wrong with a key, by field.
func (k BudgetKey) Check() error {
	switch per := k.Per.Std(); {
	case !slices.Contains(BudgetScopes(), k.Scope):
		return &FieldError{Field: "scope", Problem: fmt.Sprintf("%q: want tenant, tag or profile", k.Scope)}
	case k.Name == "":
		return &FieldError{Field: "name", Problem: "is required"}
	case per < MinBudgetPer || per > MaxBudgetPer || per%time.Second != 0:
		return &FieldError{Field: "per", Problem: fmt.Sprintf("is %s; want whole seconds, from 1m to 744h", k.Per)}
	}
	return nil
}

// BudgetState is how a budget stands.
type BudgetState string

// The states of a budget.
const (
	BudgetOK      BudgetState = "ok"
	BudgetWarning BudgetState = "warning"
	BudgetSpent   BudgetState = "spent"
)

// Budget bounds what jobs may cost together in any stretch of time of a length.
type Budget struct {
	BudgetKey
	LimitUSD USD  `json:"limit_usd"`
	WarnUSD  *USD `json:"warn_usd,omitempty"` // nil: no warning
	// SpentUSD is what was settled in the window, RunningUSD what running attempts
	// have told so far.
	SpentUSD   USD         `json:"spent_usd"`
	RunningUSD USD         `json:"running_usd"`
	LeftUSD    USD         `json:"left_usd"`
	State      BudgetState `json:"state"`
	// Until is when a spent budget has something left again; nil while it is not
	// spent, and when it never will.
	Until  *time.Time `json:"until,omitempty"`
	Reason string     `json:"reason,omitempty"`
	By     string     `json:"by,omitempty"`
	At     time.Time  `json:"at"`
}

// Crossing is a budget whose state has changed since it was looked at last.
type Crossing struct {
	Budget
	From BudgetState
	// Returned is how many dispatched jobs went back to the queue.
	Returned int
}

// Left is the least that the budgets of a claimed job have left.
type Left struct {
	Budget BudgetKey
	USD    USD
}

// OverBudget is the cause of a turn that is stopped because a budget is spent.
type OverBudget struct {
	Budget          BudgetKey
	Spent, LimitUSD USD
}

func (o *OverBudget) Error() string {
	return fmt.Sprintf("the budget of %s is spent: %s of %s USD", o.Budget, o.Spent, o.LimitUSD)
}
