package job

import (
	"fmt"
	"time"
)

// MaxWeight is the most a tenant's weight can be.
const MaxWeight = 100

// Weight is how many live jobs of a lane a tenant is given for each one of a tenant that
// has none. While it has work, every tenant is given one, whatever the weights.
type Weight struct {
	Tenant string    `json:"tenant"`
	Weight int       `json:"weight"`
	By     string    `json:"by,omitempty"`
	At     time.Time `json:"at"`
}

// Check says whether it can be a weight; 1 is that of every tenant that has none.
func (w Weight) Check() error {
	switch {
	case !nameForm.MatchString(w.Tenant):
		return &FieldError{Field: "tenant", Problem: fmt.Sprintf("%q is not the name of a tenant", clip(w.Tenant))}
	case w.Weight < 1 || w.Weight > MaxWeight:
		return &FieldError{Field: "weight", Problem: fmt.Sprintf("is %d; want 1 to %d", w.Weight, MaxWeight)}
	}
	return nil
}
