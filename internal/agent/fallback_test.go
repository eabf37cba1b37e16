package agent_test

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"turnpike/internal/agent"
)

func TestSelectProfile(t *testing.T) {
	t.Parallel()
	last := &agent.Profile{Name: "c", Agent: agent.AgentCodex}
	middle := &agent.Profile{Name: "b", Fallback: last}
	first := agent.Profile{Name: "a", Fallback: middle}
	self := &agent.Profile{Name: "s"}
	self.Fallback = self
	one, two := &agent.Profile{Name: "one"}, &agent.Profile{Name: "two"}
	one.Fallback, two.Fallback = two, one
	for _, c := range []struct {
		name    string
		profile agent.Profile
		busy    map[string]bool
		want    string
		err     error
	}{
		{name: "the first", profile: first, want: "a"},
		{name: "its fallback", profile: first, busy: map[string]bool{"a": true}, want: "b"},
		{name: "another agent", profile: first, busy: map[string]bool{"a": true, "b": true}, want: "c"},
		{name: "none", profile: first, busy: map[string]bool{"a": true, "b": true, "c": true}, err: agent.ErrNoCapacity},
		{name: "itself again", profile: *self, err: agent.ErrUnsupported},
		{name: "a circle of two", profile: agent.Profile{Name: "x", Fallback: one}, err: agent.ErrUnsupported},
		{name: "a circle it is part of", profile: *two, err: agent.ErrUnsupported},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := agent.SelectProfile(c.profile, func(p agent.Profile) bool { return !c.busy[p.Name] })
			if got.Name != c.want || !errors.Is(err, c.err) {
				t.Errorf("%q, %v; want %q, %v", got.Name, err, c.want, c.err)
			}
		})
	}
}

// TestSelectProfileOfAnyChain: however profiles point at one another, the answer is the
// first one with capacity before which nothing has any, or a refusal of the circle.
func TestSelectProfileOfAnyChain(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		profiles := make([]*agent.Profile, rapid.IntRange(1, 8).Draw(t, "profiles"))
		free := map[string]bool{}
		for i := range profiles {
			profiles[i] = &agent.Profile{Name: fmt.Sprint(i)}
			free[profiles[i].Name] = rapid.Bool().Draw(t, "free")
		}
		for _, p := range profiles {
			if to := rapid.IntRange(-1, len(profiles)-1).Draw(t, "fallback"); to >= 0 {
				p.Fallback = profiles[to]
			}
		}
		// The same, found another way: after as many steps as there are profiles
		// only a circle still goes on.
		want, circle, next := "", false, profiles[0]
		for steps := 0; next != nil; next, steps = next.Fallback, steps+1 {
			if steps > len(profiles) {
				circle = true
				break
			}
			if want == "" && free[next.Name] {
				want = next.Name
			}
		}
		got, err := agent.SelectProfile(*profiles[0], func(p agent.Profile) bool { return free[p.Name] })
		switch {
		case circle:
			if !errors.Is(err, agent.ErrUnsupported) {
				t.Fatalf("a circle: %q, %v", got.Name, err)
			}
		case want == "":
			if !errors.Is(err, agent.ErrNoCapacity) {
				t.Fatalf("no capacity: %q, %v", got.Name, err)
			}
		case err != nil || got.Name != want:
			t.Fatalf("%q, %v; want %q", got.Name, err, want)
		}
	})
}
