package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/job"
)

// Leftover is something started under a state directory that nobody showed to be
// gone: what a running worker's turns are, or what a dead one left.
type Leftover struct {
	Job      job.ID         `json:"job"`
	Attempt  int            `json:"attempt"`
	Worker   string         `json:"worker"`
	Identity agent.Identity `json:"identity"`
	Session  string         `json:"session,omitempty"`
	MarkedAt time.Time      `json:"marked_at"`
	// Alive says whether it was found just now, and Note why that is not known.
	Alive bool   `json:"alive"`
	Note  string `json:"note,omitempty"`
}

// Leftovers lists what the marks of the state directory at path name. It takes no
// lock: a worker may be serving there.
func Leftovers(ctx context.Context, path string, find func(context.Context, agent.Identity) (bool, error)) ([]Leftover, error) {
	all, err := (&StateDir{path: path}).marks().list()
	var out []Leftover
	for _, m := range all {
		for _, t := range m.Things {
			l := Leftover{Job: m.Lease.Job, Attempt: m.Lease.Attempt, Worker: m.Worker, Identity: t.Identity, Session: m.Session, MarkedAt: m.MarkedAt}
			alive, err := find(ctx, t.Identity)
			l.Alive = alive
			if err != nil {
				l.Note = text(err)
			}
			out = append(out, l)
		}
	}
	return out, err
}

// EndLeftovers ends everything the marks of a state directory name. The marks stay:
// the next worker reports by them what became of the attempts. Nobody may serve
// there, which holding its lock shows. It tries all and joins what failed.
func EndLeftovers(ctx context.Context, state *StateDir, end EndFunc) (ended int, err error) {
	all, err := state.marks().list()
	errs := []error{err}
	for _, m := range all {
		for _, t := range m.Things {
			found, err := end(ctx, t.Identity)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s of attempt %s: %w", t.Kind, m.key(), err))
			}
			if found {
				ended++
			}
		}
	}
	return ended, errors.Join(errs...)
}
