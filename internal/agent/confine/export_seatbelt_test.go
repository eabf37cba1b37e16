package confine

import "turnpike/internal/agent"

// Profile is the text of the profile that holds a turn to what is listed.
func Profile(mounts, system []agent.Mount, readOnly, denied []string, network bool) (string, error) {
	return seatbelt{Mounts: mounts, System: system, ReadOnly: readOnly, Denied: denied, Network: network}.profile()
}

// Settle is the text of the profile of c for a worker with this home and these
// directories of its own.
func Settle(c agent.Confinement, home string, private []string) (string, error) {
	s, err := settle(c, home, private)
	if err != nil {
		return "", err
	}
	return s.profile()
}

// Quote is a text as a literal of a profile.
var Quote = quote
