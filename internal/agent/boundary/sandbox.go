package boundary

import "turnpike/internal/agent"

// SandboxBoundary answers for turns in a Docker Sandboxes virtual machine. No
// launcher of this worker can hold one to its grants, so it refuses them all.
type SandboxBoundary struct{}

// Verify refuses req.
func (SandboxBoundary) Verify(agent.Request) (*agent.Turn, error) {
	return nil, unsupported("this worker runs no turns in sandboxes; use placement %q", confined)
}

// confined is what a refused placement is answered with.
var confined = agent.Placement{Sandbox: agent.SandboxNone, Confine: true}
