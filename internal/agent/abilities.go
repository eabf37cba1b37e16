package agent

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
)

// Abilities are what an agent can do under its driver; what it cannot is refused.
// docs/agents.md is written from them. Whether a conversation can be continued is
// said by the driver's being a Conversations.
type Abilities struct {
	// Pricing says when the agent tells what a turn costs.
	Pricing Pricing
	// Efforts are the values of Profile.Effort; nil is none.
	Efforts []string
	// Shell says that the agent's tools use Profile.Shell.
	Shell bool
	// Skills says that the agent is given Profile.Skills.
	Skills bool
	// MCP are the types of MCPEntry the agent takes.
	MCP []string
	// Tested are the releases of the CLI the driver was held to.
	Tested Releases
}

// Pricing is when an agent tells what a turn costs.
type Pricing string

// The kinds of pricing.
const (
	PricingNever Pricing = "never"    // tokens only: a cost cap has no effect
	PricingStep  Pricing = "per step" // a stopped turn has the cost of the steps it finished
	PricingEnd   Pricing = "at the end"
)

// Priced says whether the agent tells costs at all. One that says nothing about it
// tells none.
func (a Abilities) Priced() bool { return cmp.Or(a.Pricing, PricingNever) != PricingNever }

// Releases are the releases of a CLI from First to Last, both included.
type Releases struct{ First, Last string }

// String is the range as a person reads it: "1.2.3", or "1.2.3 to 1.4.0".
func (r Releases) String() string {
	if r.First == r.Last {
		return cmp.Or(r.First, "none")
	}
	return r.First + " to " + r.Last
}

// Has says whether a release is in the range, given what a CLI says of its version,
// which may be more than the number. A release candidate is in no range.
func (r Releases) Has(version string) bool {
	v := number(version)
	return v != nil && slices.Compare(v, number(r.First)) >= 0 && slices.Compare(v, number(r.Last)) <= 0
}

var release = regexp.MustCompile(`\b(\d{1,9})\.(\d{1,9})\.(\d{1,9})(-[0-9A-Za-z.-]+)?`)

func number(version string) []int {
	m := release.FindStringSubmatch(version)
	if len(m) != 5 || m[4] != "" {
		return nil
	}
	var out []int
	for _, part := range m[1:4] {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil
		}
		out = append(out, n)
	}
	return out
}
