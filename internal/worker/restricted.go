package worker

import (
	"context"
	"fmt"

	"turnpike/internal/agent"
	"turnpike/internal/agent/restricted"
)

// readOnly runs a restricted turn with the one profile that was selected. Where that has
// no capacity the fallback is another attempt, as it is of every turn.
func (a *attempt) readOnly(ctx context.Context, l Launch) (*agent.Result, error) {
	if a.Backends == nil {
		return nil, fmt.Errorf("restricted: this worker runs no read-only turns: %w", agent.ErrUnsupported)
	}
	r := restricted.Runner{
		Backends: a.Backends,
		Run: func(ctx context.Context, req agent.Request) (*agent.Result, error) {
			l.Request = req
			return a.Run(ctx, l)
		},
		// fetchConversation found it among those of this tenant, this agent and
		// read-only turns.
		Owner: func(_ context.Context, id string) (string, bool, error) {
			return agentName(a.profile.Agent), id == a.continues(), nil
		},
	}
	res, err := r.RunRestricted(ctx, l.Request)
	if res == nil {
		return nil, err
	}
	a.model = res.Model
	return res.Result, err
}
