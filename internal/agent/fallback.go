package agent

import "fmt"

// Chain gives the profile and what it falls back to, in order. A chain that comes back
// to a profile it has passed is refused: it has no end, and nobody meant it.
func (p Profile) Chain() ([]Profile, error) {
	chain := []Profile{p}
	passed := map[*Profile]bool{}
	for next := p.Fallback; next != nil; next = next.Fallback {
		if passed[next] {
			return nil, fmt.Errorf("profile %q: %w: its fallbacks go in a circle, by %q", p.Name, ErrUnsupported, next.Name)
		}
		passed[next] = true
		chain = append(chain, *next)
	}
	return chain, nil
}

// SelectProfile gives the first profile of p's chain of fallbacks that has capacity.
// Its error is ErrNoCapacity where none has, and refuses a chain without an end whoever
// has capacity. What was selected keeps its own fallbacks.
func SelectProfile(p Profile, hasCapacity func(Profile) bool) (Profile, error) {
	chain, err := p.Chain()
	if err != nil {
		return Profile{}, err
	}
	for _, q := range chain {
		if hasCapacity(q) {
			return q, nil
		}
	}
	return Profile{}, fmt.Errorf("profile %q and its %d fallbacks: %w", p.Name, len(chain)-1, ErrNoCapacity)
}
