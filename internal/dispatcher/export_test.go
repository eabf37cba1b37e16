package dispatcher

import (
	"time"

	"turnpike/internal/job"
)

// Caution is the reaper's rule, for tests that drive it tick by tick.
type Caution struct{ c caution }

// NewCaution is the rule for leases of a length.
func NewCaution(lease time.Duration) *Caution { return &Caution{caution{lease: lease}} }

// Tick and Broke are its two events.
func (c *Caution) Tick(now, db time.Time) bool { return c.c.tick(now, db) }

// Broke is a tick that failed.
func (c *Caution) Broke() { c.c.broke() }

// Room is how many jobs a lane would be given.
func (s *Selection) Room(l job.LaneLoad) int { return s.room(l) }
