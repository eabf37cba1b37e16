package restricted_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/restricted"
	"turnpike/internal/vcs"
)

// fake answers runs in order and keeps what it was asked.
type fake struct {
	answers []func() (*agent.Result, error)
	asked   []agent.Request
}

func (f *fake) run(_ context.Context, req agent.Request) (*agent.Result, error) {
	f.asked = append(f.asked, req)
	return f.answers[len(f.asked)-1]()
}

func ends(r agent.Result) func() (*agent.Result, error) {
	return func() (*agent.Result, error) { return &r, nil }
}

func limited(cost float64) func() (*agent.Result, error) {
	return ends(agent.Result{IsError: true, Failure: agent.FailureLimited, CostUSD: cost, CostKnown: cost > 0})
}

func backends(name string) (agent.Backend, bool) {
	b := agent.Backend{Name: name, Credentials: []string{"KEY"}, ProviderEnv: []string{"PROVIDER_*"}}
	switch name {
	case agent.AgentClaude:
		b.Restricted = &agent.RestrictedCapabilities{Supported: true, FollowUp: true}
	case agent.AgentCodex:
		b.Restricted = &agent.RestrictedCapabilities{Supported: true, FollowUp: true, ReadServer: true}
	case agent.AgentPi:
		b.Restricted = &agent.RestrictedCapabilities{}
	case agent.AgentOpenCode:
	default:
		return agent.Backend{}, false
	}
	return b, true
}

func newRunner(answers ...func() (*agent.Result, error)) (*restricted.Runner, *fake) {
	f := &fake{answers: answers}
	return &restricted.Runner{Run: f.run, Backends: backends}, f
}

func request() agent.Request {
	return agent.Request{Name: "ask", Prompt: "What is it?", Profile: agent.Profile{Name: "reader"}, Workspace: vcs.Workspace{Dir: "/ws"}}
}

func TestGrants(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		profile agent.Profile
		tools   []string
		server  bool
	}{
		"claude reads by itself":            {agent.Profile{}, []string{"Read", "Grep", "Glob"}, false},
		"codex reads through the server":    {agent.Profile{Agent: agent.AgentCodex}, nil, true},
		"a host placement may be said":      {agent.Profile{Sandbox: agent.SandboxNone, Confine: true}, []string{"Read", "Grep", "Glob"}, false},
		"a fallback is not the agent's own": {agent.Profile{Fallback: &agent.Profile{Model: "m"}}, []string{"Read", "Grep", "Glob"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, f := newRunner(ends(agent.Result{}))
			req := request()
			req.Profile = c.profile
			if _, err := r.RunRestricted(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			got := f.asked[0]
			want := &agent.Grants{
				Env: []string{"KEY", "PROVIDER_*"}, Tools: c.tools,
				Mounts: []agent.Mount{{Path: "/ws", Access: agent.ReadOnly}},
			}
			if diff := cmp.Diff(want, got.Grants); diff != "" {
				t.Error(diff)
			}
			if got.ReadServer != c.server || got.ValidOutcomes == nil || len(got.ValidOutcomes) > 0 || got.Profile.Fallback != nil ||
				got.Profile.Timeout != 15*time.Minute || got.Profile.MaxTurns != 40 {
				t.Errorf("%+v", got)
			}
		})
	}
	t.Run("limits of the profile stand", func(t *testing.T) {
		t.Parallel()
		r, f := newRunner(ends(agent.Result{}))
		req := request()
		req.Profile.Timeout, req.Profile.MaxTurns = time.Minute, 3
		if _, err := r.RunRestricted(t.Context(), req); err != nil || f.asked[0].Profile.Timeout != time.Minute || f.asked[0].Profile.MaxTurns != 3 {
			t.Errorf("%+v, %v", f.asked, err)
		}
	})
}

// TestRefusals sets every field there is, one by one: what is not a read-only turn's is
// refused by its name, in the profile and in its fallback.
func TestRefusals(t *testing.T) {
	t.Parallel()
	taken := []string{"Name", "Workspace", "SystemPrompt", "Prompt", "SessionDir", "CostCapUSD", "ResumeID",
		"Profile.Name", "Profile.Agent", "Profile.Model", "Profile.Fallback", "Profile.Effort", "Profile.MaxTurns", "Profile.Timeout", "Profile.Confine"}
	check := func(field string, req agent.Request) {
		t.Helper()
		r, f := newRunner(ends(agent.Result{}))
		r.Owner = func(context.Context, string) (string, bool, error) { return agent.AgentClaude, true, nil }
		_, err := r.RunRestricted(t.Context(), req)
		if slices.Contains(taken, field) {
			if err != nil {
				t.Errorf("%s: %v", field, err)
			}
			return
		}
		if !errors.Is(err, agent.ErrNotGranted) || !strings.Contains(err.Error(), "has no "+field) || len(f.asked) > 0 {
			t.Errorf("%s: %v after %d turns", field, err, len(f.asked))
		}
	}
	typ := reflect.TypeFor[agent.Request]()
	for i := range typ.NumField() {
		if typ.Field(i).Name == "Profile" {
			continue
		}
		req := request()
		fill(t, reflect.ValueOf(&req).Elem().Field(i))
		check(typ.Field(i).Name, req)
	}
	typ = reflect.TypeFor[agent.Profile]()
	for i := range typ.NumField() {
		req := request()
		if name := typ.Field(i).Name; name != "Agent" {
			fill(t, reflect.ValueOf(&req.Profile).Elem().Field(i))
		}
		check("Profile."+typ.Field(i).Name, req)
		back := request()
		back.Profile.Fallback = &req.Profile
		check("Profile."+typ.Field(i).Name, back)
	}
	req := request()
	req.ValidOutcomes = []string{}
	check("ValidOutcomes", req)
	req = request()
	req.Profile.SandboxDomains = []string{}
	check("Profile.SandboxDomains", req)
}

// fill makes a field say something.
func fill(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem())
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Struct:
		fill(t, v.Field(0))
	default:
		t.Fatalf("a field of kind %s", v.Kind())
	}
}

func TestAgents(t *testing.T) {
	t.Parallel()
	for _, name := range []string{agent.AgentPi, agent.AgentOpenCode, "other"} {
		r, f := newRunner()
		req := request()
		req.Profile.Agent = name
		if _, err := r.RunRestricted(t.Context(), req); !errors.Is(err, agent.ErrUnsupported) || len(f.asked) > 0 {
			t.Errorf("%s: %v", name, err)
		}
		req.Profile = agent.Profile{Fallback: &agent.Profile{Agent: name}}
		if _, err := r.RunRestricted(t.Context(), req); !errors.Is(err, agent.ErrUnsupported) || len(f.asked) > 0 {
			t.Errorf("fallback %s: %v", name, err)
		}
	}
}

func TestFallback(t *testing.T) {
	t.Parallel()
	chain := agent.Profile{Model: "a", Fallback: &agent.Profile{Model: "b", Fallback: &agent.Profile{Agent: agent.AgentCodex, Model: "c"}}}

	t.Run("follows capacity, and says who answered and who did not", func(t *testing.T) {
		t.Parallel()
		r, f := newRunner(limited(0.25), ends(agent.Result{IsError: true, Failure: agent.FailureOverloaded}), ends(agent.Result{ResultText: "it"}))
		req := request()
		req.Profile, req.SessionDir, req.CostCapUSD = chain, "/session", 1
		got, err := r.RunRestricted(t.Context(), req)
		if err != nil || got.ResultText != "it" || got.Model != "c" || len(got.Before) != 2 || got.Before[0].CostUSD != 0.25 {
			t.Fatalf("%+v, %v", got, err)
		}
		if f.asked[0].SessionDir != "/session" || f.asked[1].SessionDir != "" || f.asked[1].CostCapUSD != 0.75 || !f.asked[2].ReadServer {
			t.Errorf("%+v", f.asked)
		}
	})
	t.Run("passes over what the caller knows to have none", func(t *testing.T) {
		t.Parallel()
		r, f := newRunner(ends(agent.Result{}))
		r.HasCapacity = func(p agent.Profile) bool { return p.Model == "c" }
		req := request()
		req.Profile = chain
		if got, err := r.RunRestricted(t.Context(), req); err != nil || got.Model != "c" || len(f.asked) != 1 {
			t.Errorf("%+v, %v", got, err)
		}
		r.HasCapacity = func(agent.Profile) bool { return false }
		if _, err := r.RunRestricted(t.Context(), req); !errors.Is(err, agent.ErrNoCapacity) {
			t.Errorf("%v", err)
		}
	})
	t.Run("is for capacity alone", func(t *testing.T) {
		t.Parallel()
		r, f := newRunner(ends(agent.Result{IsError: true, Failure: agent.FailureCredential}))
		req := request()
		req.Profile = chain
		if got, err := r.RunRestricted(t.Context(), req); err != nil || got.Model != "a" || len(f.asked) != 1 {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("ends with the chain, the money and the fallback that cannot start", func(t *testing.T) {
		t.Parallel()
		r, _ := newRunner(limited(0), limited(0), limited(0))
		req := request()
		req.Profile = chain
		if got, err := r.RunRestricted(t.Context(), req); err != nil || got.Failure != agent.FailureLimited || got.Model != "c" {
			t.Errorf("%+v, %v", got, err)
		}
		r, f := newRunner(limited(1))
		req.CostCapUSD = 1
		if got, err := r.RunRestricted(t.Context(), req); err != nil || got.Model != "a" || len(f.asked) != 1 {
			t.Errorf("%+v, %v", got, err)
		}
		r, _ = newRunner(limited(0), func() (*agent.Result, error) { return nil, agent.ErrUnready })
		if got, err := r.RunRestricted(t.Context(), req); err != nil || got.Model != "a" || len(got.Before) != 0 || len(got.Diagnostics) != 1 {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("never goes in a circle", func(t *testing.T) {
		t.Parallel()
		r, f := newRunner()
		req := request()
		circle := &agent.Profile{Name: "b"}
		circle.Fallback = circle
		req.Profile.Fallback = circle
		if _, err := r.RunRestricted(t.Context(), req); !errors.Is(err, agent.ErrUnsupported) || len(f.asked) > 0 {
			t.Errorf("%v", err)
		}
	})
}

func TestFollowUp(t *testing.T) {
	t.Parallel()
	earlier := &agent.RestrictedResult{Result: &agent.Result{ClaudeID: "conv", Agent: agent.AgentClaude}}
	for name, c := range map[string]struct {
		id    string
		agent string
		owner func(context.Context, string) (string, bool, error)
		err   error
	}{
		"of its own":           {"conv", agent.AgentClaude, restricted.OwnerOf(earlier), nil},
		"of another agent":     {"conv", agent.AgentCodex, restricted.OwnerOf(earlier), agent.ErrNotGranted},
		"of nobody":            {"other", agent.AgentClaude, restricted.OwnerOf(earlier), agent.ErrNotGranted},
		"where none are known": {"conv", agent.AgentClaude, nil, agent.ErrNotGranted},
		"where the record fails": {"conv", agent.AgentClaude, func(context.Context, string) (string, bool, error) {
			return agent.AgentClaude, true, errors.New("away")
		}, agent.ErrUnready},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, f := newRunner(limited(0))
			r.Owner = c.owner
			req := request()
			req.ResumeID = c.id
			// Another agent does not have the conversation, so it is not asked.
			req.Profile = agent.Profile{Agent: c.agent, Fallback: &agent.Profile{Agent: agent.AgentCodex}}
			_, err := r.RunRestricted(t.Context(), req)
			if !errors.Is(err, c.err) || (err == nil) != (len(f.asked) == 1) {
				t.Errorf("%v after %d turns", err, len(f.asked))
			}
		})
	}
}
