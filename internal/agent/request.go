package agent

import (
	"turnpike/internal/vcs"
)

// Request is everything one turn needs.
type Request struct {
	// Name identifies the turn in logs.
	Name    string
	Profile Profile
	// ValidOutcomes are the statuses the agent may report: nil accepts any,
	// empty accepts none.
	ValidOutcomes []string
	// HostMCP optionally starts a caller-owned stdio server on the host for a
	// container or sandbox turn.
	HostMCP *HostMCP
	// ContainerEnv overrides Env only inside a container or a sandbox.
	ContainerEnv map[string]string
	Workspace    vcs.Workspace
	// VCSEnv and VCSContainerEnv are the caller's identity, credentials and
	// configuration, injected only when the profile allows version control.
	VCSEnv          map[string]string
	VCSContainerEnv map[string]string
	// VCSContainerPath are directories put in front of the image's PATH, only
	// when the profile allows version control.
	VCSContainerPath []string
	// ReadServer gives the agent the worker's own tools that read the workspace, as
	// a read-only turn needs whose agent has none (RestrictedCapabilities).
	ReadServer bool
	// SystemPrompt is appended to the agent's own.
	SystemPrompt string
	Prompt       string
	Env          map[string]string
	// SessionDir is the turn's session directory; empty has one made.
	SessionDir string
	// Grants are the turn's complete capabilities; nil is refused.
	Grants *Grants
	// ResumeID is the agent's own id of an earlier conversation to continue.
	ResumeID string
	// CostCapUSD, above zero, stops the turn once its known cost reaches it.
	CostCapUSD float64
}
