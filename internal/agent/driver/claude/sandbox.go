package claude

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"turnpike/internal/agent"
)

// settingsFile holds the settings of the CLI's own sandbox. They can be longer than an
// argument may be. Nothing the turn runs can write where it lies.
const settingsFile = "turnpike-settings.json"

// held are the built-in tools that the CLI can hold to the grants in its own sandbox:
// commands by bubblewrap, the others, which run in the CLI's own process, by its rules
// for paths and domains. Any other tool runs things in that process, outside.
var held = []string{
	"Bash", "Read", "Edit", "Write", "NotebookEdit", "Glob", "Grep",
	"Task", "TaskStop", "TodoWrite", "WebFetch", "WebSearch", skillTool, "ReportFindings",
}

// The sandbox's commands reach the CLI's proxy through a socket in its directory for
// temporary files, and the system takes no longer path for one.
const (
	socketName = "claude-http-0123456789abcdef.sock"
	maxSocket  = 107
)

var domainName = regexp.MustCompile(`^(\*\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`)

// settings are what the CLI is told by a file: the part of its format that is used.
type settings struct {
	DisableSkillShellExecution bool         `json:"disableSkillShellExecution"`
	DisableAllHooks            bool         `json:"disableAllHooks"`
	Permissions                *permissions `json:"permissions"`
	Sandbox                    *sandbox     `json:"sandbox"`
}

type permissions struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

// sandbox says every word that makes the sandbox stricter or keeps it on, also where it
// is the CLI's default: a default may change.
type sandbox struct {
	Enabled                  bool       `json:"enabled"`
	FailIfUnavailable        bool       `json:"failIfUnavailable"`
	AutoAllowBashIfSandboxed bool       `json:"autoAllowBashIfSandboxed"`
	AllowUnsandboxedCommands bool       `json:"allowUnsandboxedCommands"`
	ExcludedCommands         []string   `json:"excludedCommands"`
	EnableWeakerNested       bool       `json:"enableWeakerNestedSandbox"`
	AllowNestedUserNS        bool       `json:"allowNestedUserNamespaces"`
	Network                  network    `json:"network"`
	Filesystem               filesystem `json:"filesystem"`
}

type network struct {
	AllowedDomains      []string `json:"allowedDomains"`
	StrictAllowlist     bool     `json:"strictAllowlist"`
	AllowAllUnixSockets bool     `json:"allowAllUnixSockets"`
	AllowLocalBinding   bool     `json:"allowLocalBinding"`
}

type filesystem struct {
	Disabled   bool     `json:"disabled"`
	AllowWrite []string `json:"allowWrite"`
	DenyWrite  []string `json:"denyWrite"`
	DenyRead   []string `json:"denyRead"`
	AllowRead  []string `json:"allowRead"`
}

// ownSandbox renders what the CLI's sandbox and its rules for tools are to hold.
func ownSandbox(l agent.Launch) settings {
	c := l.Turn.OwnSandbox
	s := settings{
		DisableSkillShellExecution: true, DisableAllHooks: true,
		// Nothing that is not allowed here is asked about or done (see arguments).
		Permissions: &permissions{Allow: []string{"Bash", "Task", "TaskStop", "TodoWrite", "WebSearch", skillTool, "ReportFindings"}, Deny: []string{}},
		Sandbox: &sandbox{
			Enabled: true, FailIfUnavailable: true, AutoAllowBashIfSandboxed: true,
			ExcludedCommands: []string{},
			Network:          network{AllowedDomains: []string{}, StrictAllowlist: true},
			Filesystem: filesystem{
				AllowWrite: []string{}, DenyWrite: []string{},
				// What is not named after this is not there.
				DenyRead: []string{absolute("/")}, AllowRead: []string{},
			},
		},
	}
	allow, deny := &s.Permissions.Allow, &s.Permissions.Deny
	files := &s.Sandbox.Filesystem
	for _, m := range c.System {
		files.AllowRead = append(files.AllowRead, absolute(m.Path))
	}
	for _, m := range c.Mounts {
		files.AllowRead = append(files.AllowRead, absolute(m.Path))
		*allow = append(*allow, rules("Read", m.Path)...)
		if m.Access == agent.ReadWrite {
			files.AllowWrite = append(files.AllowWrite, absolute(m.Path))
			*allow = append(*allow, rules("Edit", m.Path)...)
		}
	}
	for _, p := range c.ReadOnly() {
		files.DenyWrite = append(files.DenyWrite, absolute(p))
		*deny = append(*deny, rules("Edit", p)...)
	}
	for _, p := range c.Denied {
		files.DenyRead = append(files.DenyRead, absolute(p))
		files.DenyWrite = append(files.DenyWrite, absolute(p))
		*deny = append(*deny, slices.Concat(rules("Read", p), rules("Edit", p))...)
	}
	for _, d := range c.Network.Domains {
		s.Sandbox.Network.AllowedDomains = append(s.Sandbox.Network.AllowedDomains, d)
		*allow = append(*allow, "WebFetch(domain:"+d+")")
	}
	for name := range l.MCP {
		*allow = append(*allow, agent.MCPToolPrefix+name)
	}
	slices.Sort(*allow)
	return s
}

// rules are the CLI's for a path and all that lies beneath it.
func rules(tool, p string) []string {
	return []string{tool + "(" + absolute(p) + ")", tool + "(" + absolute(p) + "/**)"}
}

// absolute is a path of the host in the CLI's settings, where one slash begins a path of
// the project.
func absolute(p string) string { return "/" + p }

// heldTools are the tools of a turn in the CLI's own sandbox.
func heldTools(t *agent.Turn) []string {
	if t.Tools == nil {
		return held
	}
	return builtIn(t.Tools)
}

// holdable refuses what the CLI's own sandbox cannot hold.
func holdable(l agent.Launch) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("claude: %w: %s", agent.ErrUnsupported, fmt.Sprintf(format, args...))
	}
	c := l.Turn.OwnSandbox
	if c == nil {
		return refuse("nobody says what its own sandbox is to hold")
	}
	for _, t := range heldTools(l.Turn) {
		if !slices.Contains(held, t) {
			return refuse("the tool %s runs outside its own sandbox; it can hold %s", t, strings.Join(held, ", "))
		}
	}
	over, _ := agent.Deciding(c.Mounts, c.Workspace)
	if slices.Contains(heldTools(l.Turn), "Bash") && over.Access != agent.ReadWrite {
		return refuse("its own sandbox runs commands only in a working directory that may be written; grant it read-write, take the tool Bash away, or confine the turn instead")
	}
	if socket := path.Join(l.HomeInside, tmpDir, socketName); len(socket) > maxSocket {
		return refuse("the sockets of its own sandbox would be %d bytes down, %d too many; give the worker a shorter directory for its sessions", len(socket), len(socket)-maxSocket)
	}
	for _, d := range c.Network.Domains {
		if !domainName.MatchString(d) {
			return refuse("%.64q is no host's name, nor \"*.\" and one", d)
		}
	}
	paths := append(c.ReadOnly(), c.Denied...)
	for _, m := range slices.Concat(c.Mounts, c.System) {
		paths = append(paths, m.Path)
	}
	for _, p := range paths {
		if !path.IsAbs(p) || path.Clean(p) != p || strings.ContainsAny(p, "*?[]{}()!\\\n\r") || strings.TrimSpace(p) != p {
			return refuse("path %q has characters that mean something else in the rules of its own sandbox", p)
		}
	}
	return nil
}

func renderSettings(s settings) ([]byte, error) { return json.MarshalIndent(s, "", "  ") }

// Leavings are what the CLI's own sandbox puts into a workspace to mount over, empty,
// and does not take away again.
func (Driver) Leavings(t *agent.Turn) []string {
	if t.OwnSandbox == nil {
		return nil
	}
	return []string{
		".claude/.cc-writes", ".claude",
		".git/NOTES_MERGE_WORKTREE", ".git/branches", ".git/config.worktree", ".git/glab-cli",
		".git/info/.claude-sandbox-noreplace", ".git/info", ".git/remotes", ".git/worktrees",
	}
}
