package agent

import "time"

// Profile is how a turn is run: which agent, which model, where, and with what.
type Profile struct {
	Name  string
	Agent string // one of Agents; empty is AgentClaude
	Model string
	// Fallback is the profile a caller runs the turn on when this one has no
	// capacity; nil is none. It may have a fallback of its own, without a cycle.
	Fallback        *Profile
	Effort          string
	MaxTurns        int           // zero is no limit
	Timeout         time.Duration // of the whole turn; zero is no limit
	AllowedTools    []string
	DisallowedTools []string
	// MCP are the servers the agent is given, by name.
	MCP map[string]MCPEntry
	// Sandbox is one of Sandboxes; empty is SandboxNone.
	Sandbox string
	// Confine has the operating system hold a host turn to its granted mounts.
	// A platform that cannot refuses the turn with ErrUnsupported.
	Confine bool
	// SandboxImage is the image of a container turn and the template of an sbx one.
	SandboxImage string
	// Dagger gives an sbx turn the Dagger CLI and an engine; nil is neither.
	Dagger *Dagger
	// SandboxDomains are the hosts the turn may reach: nil is the network the
	// worker's owner chose for the pool, empty is nothing.
	SandboxDomains          []string
	ContainerUseEnvironment string
	// VCSAccess asks for version control; the grants must allow it too.
	VCSAccess bool
	Shell     string
	Env       map[string]string
	Skills    []string
	// PiPackages are package sources an ordinary pi turn loads.
	PiPackages []string
}

// Placement is where p runs.
func (p Profile) Placement() Placement {
	s := p.Sandbox
	if s == "" {
		s = SandboxNone
	}
	return Placement{Sandbox: s, Confine: p.Confine}
}

// AgentName is the profile's agent, AgentClaude when it names none.
func (p Profile) AgentName() string {
	if p.Agent == "" {
		return AgentClaude
	}
	return p.Agent
}

// Dagger is an engine on the host and the CLI release that goes with it.
type Dagger struct {
	// Engine is "unix://<path>", "tcp://<host>:<port>" or "docker-container://<name>".
	Engine string
	// Version is the engine's own release: "v0.20.5" or "0.20.5".
	Version string
}

// MCPEntry is one MCP server, started over stdio (Command) or reached over HTTP (URL).
type MCPEntry struct {
	Type    string            `json:"type,omitempty"` // "stdio" or "http"; empty is told by Command and URL
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	// EnvVars are names of the turn's own environment the server inherits. Only
	// Codex must be told; the others pass their environment on.
	EnvVars []string `json:"-"`
	// BearerTokenEnv is the name of the variable that holds an HTTP bearer token.
	// Configuration files get a reference to it, never its value.
	BearerTokenEnv string `json:"-"`
}

// HostMCP is a stdio server of the worker's owner that is run on the host for a
// container or sandbox turn.
type HostMCP struct {
	Name  string
	Entry MCPEntry
	// Env overrides the turn's environment for the server; secrets stay in memory.
	Env             map[string]string
	ListenArgs      []string
	TokenEnv        string
	ListeningPrefix string
	Path            string
}

// HostServer is a server its caller already runs on the host's loopback.
type HostServer struct {
	Name string // the key of its Profile.MCP entry
	Port int
}
