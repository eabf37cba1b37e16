// Package restricted runs read-only turns: an agent that answers a question about a
// workspace and can change nothing, whatever it is told there. It fixes what such a
// turn is granted and refuses every request that asks for more; verifying the grants,
// and running the turn, are left to the runner it is given.
package restricted

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"turnpike/internal/agent"
)

// What holds where a profile says nothing.
const (
	DefaultTimeout  = 15 * time.Minute
	DefaultMaxTurns = 40
)

// readTools are the built-in tools of an agent that reads by itself.
var readTools = map[string][]string{
	agent.AgentClaude: {"Read", "Grep", "Glob"},
}

// What a request may say. Any other field that is set is refused by its name, one that
// is added to the contract later included.
var (
	requestFields = []string{"Name", "Profile", "Workspace", "SystemPrompt", "Prompt", "SessionDir", "ResumeID", "CostCapUSD"}
	profileFields = []string{"Name", "Agent", "Model", "Fallback", "Effort", "MaxTurns", "Timeout", "Confine"}
)

// Runner runs read-only turns.
type Runner struct {
	// Run runs one turn, as runner.Runner does.
	Run func(ctx context.Context, req agent.Request) (*agent.Result, error)
	// Backends describes the agents there are.
	Backends func(name string) (agent.Backend, bool)
	// HasCapacity says whether a profile can be run now; nil is always.
	HasCapacity func(agent.Profile) bool
	// Owner says which agent gave a conversation its id in an earlier read-only
	// turn; false is one that none did. Nil knows of none: every follow-up is refused.
	Owner func(ctx context.Context, conversation string) (name string, ok bool, err error)
}

// OwnerOf knows the conversations of these results, and no other.
func OwnerOf(earlier ...*agent.RestrictedResult) func(context.Context, string) (string, bool, error) {
	return func(_ context.Context, conversation string) (string, bool, error) {
		for _, r := range earlier {
			if r != nil && r.Result != nil && conversation != "" && r.ClaudeID == conversation {
				return r.Agent, true, nil
			}
		}
		return "", false, nil
	}
}

// RunRestricted runs one read-only turn. When the profile has no capacity, before it is
// started or as it is told, its fallback is run, and so on; a turn that only reads can
// be begun anew whatever it did. One that follows up on a conversation falls back to
// profiles of the same agent only, which alone has the conversation.
//
// Its error says that nothing was started, as that of Run, or is ErrNoCapacity where
// the caller has none for any profile. A turn whose last profile had none has the
// result of that.
func (r *Runner) RunRestricted(ctx context.Context, req agent.Request) (*agent.RestrictedResult, error) {
	chain, err := r.check(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("restricted turn %q: %w", req.Name, err)
	}
	usable := func(p agent.Profile) bool {
		return (req.ResumeID == "" || p.AgentName() == chain[0].AgentName()) && (r.HasCapacity == nil || r.HasCapacity(p))
	}
	out := &agent.RestrictedResult{}
	for next := &req.Profile; next != nil; {
		p, err := agent.SelectProfile(*next, usable)
		switch {
		case err != nil && out.Result != nil:
			return out, nil // how the last one ended says it better
		case err != nil:
			return nil, fmt.Errorf("restricted turn %q: %w", req.Name, err)
		}
		turn := r.turn(req, p)
		if out.Result != nil {
			turn.SessionDir = "" // one is used for one turn
			if turn.CostCapUSD > 0 && out.CostKnown {
				if turn.CostCapUSD -= out.CostUSD; turn.CostCapUSD <= 0 {
					return out, nil
				}
				req.CostCapUSD = turn.CostCapUSD
			}
			out.Before = append(out.Before, out.Result)
		}
		res, err := r.Run(ctx, turn)
		if err != nil {
			if out.Result == nil {
				return nil, err
			}
			// Something was started and is on record; the fallback was not.
			out.Before = out.Before[:len(out.Before)-1]
			out.Diagnostics = append(out.Diagnostics, fmt.Sprintf("fallback %q was not started: %v", p.Name, err))
			return out, nil
		}
		out.Result, out.Model = res, cmp.Or(p.Model, busiest(res.Models))
		if !res.IsError || res.Failure != agent.FailureLimited && res.Failure != agent.FailureOverloaded || ctx.Err() != nil {
			return out, nil //nolint:nilerr // a turn that was stopped has its result all the same
		}
		next = p.Fallback
	}
	return out, nil
}

// turn is the request as it is run: with the grants of every read-only turn.
func (r *Runner) turn(req agent.Request, p agent.Profile) agent.Request {
	backend, _ := r.Backends(p.AgentName()) // check saw to it that there is one
	// The next one is run from here, so that what answered is known.
	p.Fallback = nil
	p.Timeout = cmp.Or(p.Timeout, DefaultTimeout)
	p.MaxTurns = cmp.Or(p.MaxTurns, DefaultMaxTurns)
	req.Profile = p
	req.ValidOutcomes = []string{} // what it says is its result; it reports nothing
	req.ReadServer = backend.Restricted.ReadServer
	req.Grants = &agent.Grants{
		Env:    slices.Concat(backend.Credentials, backend.ProviderEnv),
		Tools:  slices.Clone(readTools[backend.Name]),
		Mounts: []agent.Mount{{Path: req.Workspace.Dir, Access: agent.ReadOnly}},
	}
	if backend.Restricted.ReadServer {
		req.Grants.Tools = nil
	}
	return req
}

// check refuses what no profile of the chain may be run with, and gives the chain.
func (r *Runner) check(ctx context.Context, req agent.Request) ([]agent.Profile, error) {
	if err := refuse("", reflect.ValueOf(req), requestFields); err != nil {
		return nil, err
	}
	chain, err := req.Profile.Chain()
	if err != nil {
		return nil, err
	}
	for _, p := range chain {
		p.Sandbox = p.Placement().Sandbox
		if p.Sandbox == agent.SandboxNone {
			p.Sandbox = "" // the same, said aloud
		}
		if err := refuse("Profile.", reflect.ValueOf(p), profileFields); err != nil {
			return nil, fmt.Errorf("profile %q: %w", p.Name, err)
		}
		if p.Timeout < 0 || p.MaxTurns < 0 {
			return nil, fmt.Errorf("profile %q: %w: a limit below zero", p.Name, agent.ErrUnsupported)
		}
		if err := r.able(p, req.ResumeID != "" && p.AgentName() == req.Profile.AgentName()); err != nil {
			return nil, fmt.Errorf("profile %q: %w", p.Name, err)
		}
	}
	return chain, r.owns(ctx, req)
}

// able refuses an agent that cannot be held to reading.
func (r *Runner) able(p agent.Profile, followsUp bool) error {
	backend, ok := r.Backends(p.AgentName())
	can := backend.Restricted
	switch {
	case !ok:
		return fmt.Errorf("%w: this worker does not run the agent %q", agent.ErrUnsupported, p.AgentName())
	case can == nil || !can.Supported || !can.ReadServer && readTools[backend.Name] == nil:
		return fmt.Errorf("%w: the agent %q cannot be held to reading", agent.ErrUnsupported, p.AgentName())
	case followsUp && !can.FollowUp:
		return fmt.Errorf("%w: the agent %q cannot follow up on a read-only turn", agent.ErrUnsupported, p.AgentName())
	}
	return nil
}

// owns refuses to follow up on a conversation that is not the agent's own: one of
// another agent, or of a turn that could do more than read.
func (r *Runner) owns(ctx context.Context, req agent.Request) error {
	if req.ResumeID == "" {
		return nil
	}
	var owner string
	if r.Owner != nil {
		name, ok, err := r.Owner(ctx, req.ResumeID)
		if err != nil {
			return fmt.Errorf("%w: find conversation %.64q: %w", agent.ErrUnready, req.ResumeID, err)
		}
		if ok {
			owner = name
		}
	}
	switch {
	case owner == "":
		return fmt.Errorf("%w: conversation %.64q is of no earlier read-only turn", agent.ErrNotGranted, req.ResumeID)
	case owner != req.Profile.AgentName():
		return fmt.Errorf("%w: conversation %.64q is of the agent %q", agent.ErrNotGranted, req.ResumeID, owner)
	}
	return nil
}

// refuse refuses a struct with any field set that is not listed.
func refuse(prefix string, v reflect.Value, listed []string) error {
	for i := range v.NumField() {
		field, value := v.Type().Field(i).Name, v.Field(i)
		// An empty map says nothing. An empty slice may: none, where nil is any.
		unset := value.IsZero() || value.Kind() == reflect.Map && value.Len() == 0
		if !unset && !slices.Contains(listed, field) {
			return fmt.Errorf("%w: a read-only turn has no %s%s", agent.ErrNotGranted, prefix, field)
		}
	}
	return nil
}

// busiest is the model that wrote the most, for a profile that leaves the choice to
// its agent.
func busiest(models map[string]agent.Usage) string {
	var most string
	for name, u := range models {
		if best := models[most]; most == "" || u.OutputTokens > best.OutputTokens || u.OutputTokens == best.OutputTokens && name < most {
			most = name
		}
	}
	return most
}
