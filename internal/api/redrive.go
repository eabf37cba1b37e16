package api

import (
	"context"
	"slices"
	"time"

	"turnpike/internal/job"
)

type redriveInput struct {
	Bearer
	Body struct {
		States  []string   `json:"states,omitempty" enum:"failed,cancelled" doc:"absent: failed"`
		Reasons []string   `json:"reasons,omitempty" maxItems:"20" doc:"why they ended so: the word after the slash, as in failed/crashed"`
		Tenant  string     `json:"tenant,omitempty" maxLength:"128"`
		Lane    string     `json:"lane,omitempty" maxLength:"160" doc:"where they ran last, PLACEMENT/POOL"`
		Name    string     `json:"name,omitempty" maxLength:"200"`
		Tag     string     `json:"tag,omitempty" maxLength:"256" doc:"a work tag of their requests"`
		Since   *time.Time `json:"since,omitempty" doc:"only what ended since"`
		Until   *time.Time `json:"until,omitempty" doc:"only what ended before"`
		After   string     `json:"after,omitempty" doc:"go on: the next of the answer before"`
		Limit   int        `json:"limit,omitempty" minimum:"1" maximum:"500" doc:"how many at most in this answer; absent: 500"`
		DryRun  bool       `json:"dry_run,omitempty" doc:"only tell which"`
	}
}

type redriveOutput struct{ Body job.RedriveAnswer }

// redrive lets a producer redrive what it may retry: its own jobs, for its tenants.
func (s *Server) redrive(ctx context.Context, in *redriveInput) (*redriveOutput, error) {
	who, err := s.bearers.authorize(in.Authorization, Producer, Operator)
	if err != nil {
		return nil, s.fail(err)
	}
	b := in.Body
	r := job.Redrive{Reasons: b.Reasons, Lane: b.Lane, Name: b.Name, Tag: b.Tag, Limit: b.Limit, DryRun: b.DryRun}
	for _, state := range b.States {
		r.States = append(r.States, job.State(state))
	}
	if b.Since != nil {
		r.Since = *b.Since
	}
	if b.Until != nil {
		r.Until = *b.Until
	}
	if b.Tenant != "" {
		r.Tenants = []string{b.Tenant}
	}
	// Before the caller's own bounds are added: they are no filter.
	if err := r.Check(); err != nil {
		return nil, s.fail(err)
	}
	if b.After != "" {
		if r.After, err = job.ParseID(b.After); err != nil {
			return nil, s.fail(&job.FieldError{Field: "after", Problem: "want the next of an earlier answer"})
		}
	}
	if who.role == Producer {
		may := who.producer()
		r.Producer = who.name
		if b.Tenant != "" {
			if err := may.May(b.Tenant); err != nil {
				return nil, s.fail(err)
			}
		} else if !slices.Contains(may.Tenants, job.AnyTenant) {
			r.Tenants = may.Tenants
		}
	}
	answer, err := s.control.Redrive(ctx, r, who.name)
	if err != nil {
		return nil, s.fail(err)
	}
	return &redriveOutput{answer}, nil
}
