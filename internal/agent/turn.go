package agent

// Boundary decides whether a request stays inside its grants.
type Boundary interface {
	// Verify gives the turn the request may have. Its error wraps ErrNotGranted
	// or ErrUnsupported; it starts nothing and writes nothing.
	Verify(req Request) (*Turn, error)
}

// Turn is a request that was verified: exactly what the agent is started with.
type Turn struct {
	// Env is the complete environment as NAME=value pairs, before the driver's
	// own configuration variables.
	Env []string
	// Tools are the built-in tools passed to the agent; nil is all of them.
	Tools []string
	// Mounts are the granted paths with their symbolic links resolved.
	Mounts []Mount
	// WriteDirs are writable directories beyond the working directory that the
	// agent is told about.
	WriteDirs []string
	// VCS is whether version control is granted and requested.
	VCS bool
	// DeniedExecutables are shadowed on the turn's PATH.
	DeniedExecutables []string
	// Binds are everything a container or sandbox sees of the host; nil for a host turn.
	Binds []Bind
	// Confinement is what the operating system enforces; nil when nothing does.
	Confinement *Confinement
	// OwnSandbox is what the agent is told to have its own sandbox enforce, in the
	// placement that has one (SandboxClaude); nil in any other.
	OwnSandbox *Confinement
	// Box is what an engine enforces for a container or sandbox turn, as far as its
	// boundary decides it: the runner adds what it brings itself. Nil for a host turn.
	Box *Box
	// DaggerEngine is the engine the turn reaches; empty for none.
	DaggerEngine string
	// HostServers are the granted host servers the profile's MCP entries reach.
	HostServers []HostServer
}
