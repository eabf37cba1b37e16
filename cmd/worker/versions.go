package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"turnpike/internal/agent"
)

// tested are the releases of each CLI that its driver was held to: from that of the
// oldest captured stream to the one pinned in agents/, which the suites run.
var tested = map[string]releases{
	agent.AgentClaude:   {version{2, 1, 197}, version{2, 1, 332}},
	agent.AgentCodex:    {version{0, 171, 0}, version{0, 171, 0}},
	agent.AgentOpenCode: {version{1, 18, 33}, version{1, 18, 33}},
	agent.AgentPi:       {version{1, 6, 0}, version{1, 6, 0}},
}

// releases are those from the oldest to the newest, both included.
type releases struct{ oldest, newest version }

// version is a release of a CLI.
type version [3]int

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

func (r releases) String() string {
	if r.oldest == r.newest {
		return r.newest.String()
	}
	return r.oldest.String() + " to " + r.newest.String()
}

// has says whether a release is one of them, by what the CLI says of itself.
func (r releases) has(said string) bool {
	v, ok := parseVersion(said)
	return ok && slices.Compare(v[:], r.oldest[:]) >= 0 && slices.Compare(v[:], r.newest[:]) <= 0
}

var versionForm = regexp.MustCompile(`\b(\d{1,9})\.(\d{1,9})\.(\d{1,9})(-[0-9A-Za-z.-]+)?`)

// parseVersion finds the release in what a CLI says of itself. A release candidate is
// none: it comes before the release it is named for.
func parseVersion(said string) (v version, ok bool) {
	m := versionForm.FindStringSubmatch(said)
	if m == nil || m[4] != "" {
		return version{}, false
	}
	for i := range v {
		v[i], _ = strconv.Atoi(m[i+1]) // nine digits at most
	}
	return v, true
}
