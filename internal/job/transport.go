package job

import (
	"fmt"
	"time"
)

// Transport is how a worker learns what was dispatched on its lanes. Whichever it is,
// the claim alone grants a job.
type Transport string

// The transports.
const (
	ByNATS     Transport = "nats"     // a message of the lane's stream for each dispatch
	ByPostgres Transport = "postgres" // the workers look for what is dispatched
)

// ParseTransport reads a setting.
func ParseTransport(s string) (Transport, error) {
	switch t := Transport(s); t {
	case ByNATS, ByPostgres:
		return t, nil
	}
	return "", fmt.Errorf("transport %q: want %s or %s: %w", s, ByNATS, ByPostgres, ErrInvalid)
}

// Offered are dispatched jobs of a lane that nobody has claimed.
type Offered struct {
	Jobs []Offer
	// All says that nothing else was there. AsOf is when, by the database's clock.
	All  bool
	AsOf time.Time
}

// Offer is one of them.
type Offer struct {
	Delivery
	At time.Time // dispatched, by the database's clock
}
