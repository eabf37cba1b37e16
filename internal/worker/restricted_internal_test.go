package worker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/restricted"
	"turnpike/internal/job"
	"turnpike/internal/vcs"
)

// A restricted request becomes a turn with the grants of a read-only one, of the profile
// that was claimed alone.
func TestReadOnly(t *testing.T) {
	r := job.Request{
		Prompt: "Why?", SystemPrompt: "s", Restricted: true, ResumeID: "conv",
		Profile: job.Profile{Name: "reader", Agent: "claude", Sandbox: "none", Fallback: &job.Profile{Agent: "claude", Model: "m"}},
	}
	var ran []agent.Request
	backend := agent.Backend{Name: "claude", Credentials: []string{"KEY"}, Restricted: &agent.RestrictedCapabilities{Supported: true, FollowUp: true}}
	a := &attempt{request: r, profile: r.Profile, Turns: &Turns{
		Backends: func(string) (agent.Backend, bool) { return backend, true },
		Run: func(_ context.Context, l Launch) (*agent.Result, error) {
			ran = append(ran, l.Request)
			return &agent.Result{IsError: true, Failure: agent.FailureLimited, Models: map[string]agent.Usage{"opus": {OutputTokens: 1}}}, nil
		},
	}}
	launch := func(c *Ceiling) Launch {
		t.Helper()
		req, added, err := mapping{request: r, profile: r.Profile, name: "job.1", ceiling: c, workspace: vcs.Workspace{Dir: "/w"}}.agentRequest()
		if err != nil || len(added) != 2 {
			t.Fatal(added, err)
		}
		return Launch{Request: req}
	}
	res, err := a.readOnly(t.Context(), launch(&Ceiling{}))
	if err != nil || res.Failure != agent.FailureLimited || a.model != "opus" {
		t.Fatalf("%+v of model %q, %v", res, a.model, err)
	}
	if len(ran) != 1 {
		t.Fatalf("%d turns ran: the fallback is the queue's", len(ran))
	}
	want := &agent.Grants{Env: []string{"KEY"}, Tools: []string{"Read", "Grep", "Glob"}, Mounts: []agent.Mount{{Path: "/w", Access: agent.ReadOnly}}}
	if diff := cmp.Diff(want, ran[0].Grants); diff != "" {
		t.Errorf("grants (-want +got):\n%s", diff)
	}
	if p := ran[0].Profile; p.Timeout != restricted.DefaultTimeout || p.MaxTurns != restricted.DefaultMaxTurns || ran[0].ResumeID != "conv" || ran[0].ValidOutcomes == nil {
		t.Errorf("ran %+v", ran[0])
	}

	// A pool that allows less than the default gives what it allows.
	if got := launch(&Ceiling{MaxTimeout: job.Duration(time.Minute)}).Request.Profile.Timeout; got != time.Minute {
		t.Errorf("a timeout of %s, want the pool's", got)
	}
	backend.Restricted.FollowUp = false
	if _, err := a.readOnly(t.Context(), launch(&Ceiling{})); !errors.Is(err, agent.ErrUnsupported) {
		t.Errorf("an agent that cannot follow up: %v", err)
	}
	a.Backends = nil
	if _, err := a.readOnly(t.Context(), launch(&Ceiling{})); !errors.Is(err, agent.ErrUnsupported) {
		t.Errorf("a worker without read-only turns: %v", err)
	}
}

func TestCeilingOfRestricted(t *testing.T) {
	r := job.Request{
		Restricted: true, Profile: job.Profile{Agent: "claude", Sandbox: "none", Account: "team", Fallback: &job.Profile{Agent: "codex", Sandbox: "none"}},
		Workspace: job.Workspace{Scratch: true}, CostCapUSD: 1,
	}
	allows := Ceiling{
		Restricted: true, Placements: []string{"none"}, Agents: []string{"claude", "codex"}, Workspaces: WorkspaceRules{Scratch: true},
		Accounts: map[string]Account{"team": {Agents: []string{"claude"}}},
	}
	if err := allows.Check(r); err != nil {
		t.Error(err)
	}
	for what, less := range map[string]func(*Ceiling){
		"read-only turns": func(c *Ceiling) { c.Restricted = false },
		"the placement":   func(c *Ceiling) { c.Placements = nil },
		"the fallback":    func(c *Ceiling) { c.Agents = []string{"claude"} },
		"the workspace":   func(c *Ceiling) { c.Workspaces = WorkspaceRules{} },
		"the account":     func(c *Ceiling) { c.Accounts = map[string]Account{"team": {Agents: []string{"codex"}}} },
	} {
		c := allows
		less(&c)
		if err := c.Check(r); !errors.Is(err, agent.ErrNotGranted) {
			t.Errorf("without %s: %v", what, err)
		}
		if c.Hash() == allows.Hash() {
			t.Errorf("without %s the ceiling passes for the same", what)
		}
	}
}
