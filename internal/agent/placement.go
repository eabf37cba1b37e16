package agent

import (
	"fmt"
	"slices"
)

// The sandboxes a profile may name.
const (
	SandboxNone      = "none"      // the host
	SandboxClaude    = "claude"    // the host, with Claude Code's own sandbox on
	SandboxContainer = "container" // a container of the host's engine
	SandboxSbx       = "sbx"       // a Docker Sandboxes virtual machine
)

// Sandboxes lists the values of Profile.Sandbox.
func Sandboxes() []string {
	return []string{SandboxNone, SandboxClaude, SandboxContainer, SandboxSbx}
}

// The agents a profile may name.
const (
	AgentClaude   = "claude"
	AgentCodex    = "codex"
	AgentOpenCode = "opencode"
	AgentPi       = "pi"
)

// Agents lists the values of Profile.Agent, each the basename of its executable.
func Agents() []string {
	return []string{AgentClaude, AgentCodex, AgentOpenCode, AgentPi}
}

// Placement is where a turn runs and what holds it there.
type Placement struct {
	Sandbox string
	Confine bool
}

// Placements lists every placement there is.
func Placements() []Placement {
	return []Placement{
		{SandboxNone, false}, {SandboxNone, true},
		{SandboxClaude, false}, {SandboxClaude, true},
		{SandboxContainer, false}, {SandboxSbx, false},
	}
}

// String is the placement as one token: "none", "none-confined", "container".
func (p Placement) String() string {
	if p.Confine {
		return p.Sandbox + "-confined"
	}
	return p.Sandbox
}

// Host says whether the agent runs as a process of the host.
func (p Placement) Host() bool {
	return p.Sandbox == SandboxNone || p.Sandbox == SandboxClaude
}

// ParsePlacement reads the token String writes.
func ParsePlacement(token string) (Placement, error) {
	all := Placements()
	if i := slices.IndexFunc(all, func(p Placement) bool { return p.String() == token }); i >= 0 {
		return all[i], nil
	}
	return Placement{}, fmt.Errorf("placement %q: want one of %v", token, all)
}
