package agent

// Access is what a mount allows.
type Access string

// The two kinds of access.
const (
	ReadOnly  Access = "ro"
	ReadWrite Access = "rw"
)

// ToolsAll in Grants.Tools grants every built-in tool of the agent.
const ToolsAll = "*"

// MCPToolPrefix marks an MCP server in Grants.Tools: "mcp__<server>".
const MCPToolPrefix = "mcp__"

// Mount is a path of the host a turn may reach.
type Mount struct {
	Path   string
	Access Access
}

// Bind shows a path of the host inside a container or sandbox.
type Bind struct {
	Source      string
	Destination string
	Access      Access
}

// Grants are everything a turn may have. What is not here it does not get.
type Grants struct {
	// Env is the complete allowlist of environment variable names. A name ending
	// in "*" grants every name with that prefix. Host variables are inherited
	// only when listed; a variable the profile or request sets that is not listed
	// is refused.
	Env []string
	// Tools are built-in tool names (or ToolsAll) and "mcp__<server>" for each
	// MCP server. The profile may narrow them, never widen them.
	Tools []string
	// Mounts are the paths the turn may read or write. Where one lies inside
	// another the inner one decides. The working directory must lie inside one.
	Mounts []Mount
	// Within, when set, confines every mount: one that resolves outside it,
	// through ".." or a symbolic link, is refused.
	Within string
	// VCS grants version control: its credentials and configuration in the
	// environment, its executables, and writable metadata.
	VCS bool
	// DaggerEngine grants the engine at this address to an sbx turn that asks for it.
	DaggerEngine string
	// HostServers grants an sbx turn servers on the host's loopback.
	HostServers []HostServer
}

// Network is how much of the network a turn reaches. It is the pool's choice
// unless Profile.SandboxDomains narrows it.
type Network struct {
	// Open gives the turn the host's network as it is.
	Open bool
	// Domains, when not Open, are the hosts reachable through the egress proxy;
	// nil is any public host on 443 and 80, empty is nothing.
	Domains []string
	// Proxied says that Domains apply. With Open and Proxied both false the turn
	// has no network at all.
	Proxied bool
	// Hosts, when Proxied, lead "name:port" to the address that is dialled for it, public
	// or not: servers of the owner's own. Domains decides about their names, too.
	Hosts map[string]string
}

// Limits bound what a turn may use of its machine. They come from the pool, not
// from the request. Zero is no limit; one that cannot be enforced is refused.
type Limits struct {
	MemoryBytes int64
	Processes   int
	OpenFiles   int
	FileBytes   int64
	CPUs        float64
}

// Confinement is what the operating system enforces for a confined host turn.
type Confinement struct {
	// Sandbox is the profile's host sandbox, SandboxNone or SandboxClaude.
	Sandbox string
	// Mounts are the granted mounts; the inner one decides.
	Mounts []Mount
	// System are the system paths and the agent's runtime. They add to Mounts.
	System []Mount
	// Denied are files and directories that stay unreadable and unexecutable
	// inside Mounts and System. A denied file is denied whatever link leads to
	// it, and under a hard link in a directory that holds a denied path.
	Denied []string
	// ReadOnlyMetadata are version control metadata paths inside writable mounts
	// that stay read-only for a turn without version control.
	ReadOnlyMetadata []string
	// Workspace is the working directory on the host, and WorkDir the path it
	// has inside, fixed so that a conversation continues on any worker. They are
	// equal where paths cannot be moved.
	Workspace, WorkDir string
	// Network and Limits hold what the seed's listing leaves to the pool.
	Network Network
	Limits  Limits
	// Egress serves the turn's way out where Network is Proxied. Start refuses such a
	// confinement without one; Check needs none.
	Egress Egress
	// Pins are what Mounts and ReadOnlyMetadata were when they were verified. A
	// Confiner's Start refuses with ErrPolicyChanged what is something else by
	// then; a path without a pin it takes as it finds it.
	Pins []Pin
}

// Pin is the file a path named, whatever it names later.
type Pin struct {
	Path          string
	Device, Inode uint64
}

// Policy is what a session enforces on every turn it runs, in words one can ask
// questions of.
type Policy struct {
	// Sandbox is the kind.
	Sandbox string
	// Env is the allowlist that a turn's environment is built from.
	Env []string
	// Tools are the built-in tools an agent is started with; nil is all of them.
	// MCPServers are the servers it may be given.
	Tools      []string
	MCPServers []string
	// Mounts are the granted paths; the inner one decides.
	Mounts []Mount
	// System is what a host turn reaches beyond them: the system paths, and what the
	// agents need to run, of which a turn runs one. Nil for a box, which reaches its
	// image and nothing else of the host.
	System []Mount
	// VCS is whether version control is granted.
	VCS bool
	// DeniedExecutables are the names that are shadowed, and Denied the paths that can
	// neither be read nor executed, every other name of the same files in their
	// directories among them: of the host for a host turn, of the image for a
	// container. A sandbox has none.
	DeniedExecutables []string
	Denied            []string
	// Image is what a container runs, or the template of a sandbox; empty is the
	// template of its agent (SbxTemplates). Binds are all that either is given of the
	// host. A turn adds none but a mount again, where a link or a fixed path shows it.
	Image string
	Binds []Bind
	// Agent is the agent a sandbox is made for; empty for any other kind.
	Agent string
	// DaggerEngine and HostServers are what a sandbox reaches on the host, when a
	// profile asks for it.
	DaggerEngine string
	HostServers  []HostServer

	// Beyond the listing:

	// Confine is whether the operating system holds a host turn.
	Confine bool
	// Metadata is the version control metadata inside writable mounts that stays
	// read-only. Each turn looks for it anew and keeps what it finds.
	Metadata []string
	Network  Network
	Limits   Limits
}
