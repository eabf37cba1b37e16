package worker

import (
	"context"
	"errors"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/job"
)

// What was about to be started has no identity that could be ended. This file tests from
// inside: the moment is too short to be killed in.
func TestRecoveryOfWhatWasNotBegun(t *testing.T) {
	r := &Recovery{Worker: "w2", End: func(context.Context, agent.Identity) (bool, error) {
		return false, errors.New("the identity is incomplete")
	}}
	o, ended := r.end(t.Context(), &mark{}, thing{Identity: agent.Identity{Kind: agent.KindProcess}}, Past{})
	if !ended || o.State != job.OrphanGone || o.StoppedBy != "w2" {
		t.Errorf("%+v, ended %v", o, ended)
	}
}
