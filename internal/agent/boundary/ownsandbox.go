package boundary

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"turnpike/internal/agent"
)

// sandboxPrograms are what Claude Code's own sandbox is made with.
var sandboxPrograms = []string{"bwrap", "socat"}

// usualPath is where programs are looked for by a turn whose environment has no PATH.
const usualPath = "/usr/local/bin:/usr/bin:/bin"

// ownSandbox is what Claude Code is told to have its own sandbox enforce. What that
// sandbox has no words for is refused, and so is whatever could switch it off: its
// programs are found, and it is configured, in the turn's environment.
func (h HostBoundary) ownSandbox(req agent.Request, turn agent.Turn, dir string, denied []string, network agent.Network) (*agent.Confinement, error) {
	if runtime.GOOS != "linux" {
		return nil, unsupported("the sandbox %q is driven on Linux only", agent.SandboxClaude)
	}
	switch {
	case h.Limits != (agent.Limits{}):
		return nil, unsupported("the sandbox %q knows no limits; use placement %q, or a pool without limits", agent.SandboxClaude, confined)
	case network.Open, network.Proxied && network.Domains == nil:
		return nil, unsupported("the sandbox %q takes a list of domains and cannot open the network as far as this pool does; name the turn's sandbox_domains, [] for none", agent.SandboxClaude)
	}
	if err := keepsSandbox(turn); err != nil {
		return nil, err
	}
	c, err := h.confinement(req, turn, dir, denied)
	if err != nil {
		return nil, err
	}
	c.WorkDir, c.Network = dir, network
	// Its rules only ever take away from what is writable, so nothing is given back.
	for _, ro := range c.ReadOnly() {
		for _, m := range c.Mounts {
			if m.Access == agent.ReadWrite && m.Path != ro && agent.Inside(m.Path, ro) {
				return nil, unsupported("the sandbox %q cannot have %q writable inside %q, which must stay read-only; use placement %q", agent.SandboxClaude, m.Path, ro, confined)
			}
		}
	}
	return c, nil
}

// keepsSandbox refuses a turn whose environment might do without the sandbox: by other
// settings of the CLI, by code that is loaded into what starts the sandbox, or by
// programs in the place of the sandbox's own.
func keepsSandbox(turn agent.Turn) error {
	path := ""
	for _, pair := range turn.Env {
		name, value, _ := strings.Cut(pair, "=")
		if name == "PATH" {
			path = value
		}
		if name != "CLAUDE_CODE_OAUTH_TOKEN" && agent.NameGranted(unsettling, name) {
			return unsupported("variable %s could change or undo the sandbox %q; do not grant it", name, agent.SandboxClaude)
		}
	}
	if path == "" {
		path = usualPath
	}
	for _, program := range sandboxPrograms {
		at, err := lookPath(path, program, turn.Mounts)
		if err != nil {
			return err
		}
		if at == "" {
			return unsupported("the sandbox %q needs the program %s, which is not on the turn's PATH; install the packages bubblewrap and socat", agent.SandboxClaude, program)
		}
	}
	return nil
}

// unsettling are variables by which Claude Code is told to be less strict, or by which
// the programs it starts outside its sandbox are told to load something.
var unsettling = []string{
	"CLAUDE_*", "CLAUDECODE", "IS_SANDBOX", "SANDBOX_RUNTIME", "SRT_*",
	"LD_*", "BASH_ENV", "ENV", "BASH_FUNC_*", "SHELLOPTS", "BASHOPTS", "PROMPT_COMMAND", "ZDOTDIR",
	"NODE_*", "BUN_*", "RIPGREP_CONFIG_PATH",
}

// lookPath finds a program as the turn would. The directories on the way to it must not
// be the turn's to write, or the turn could put another in front.
func lookPath(path, program string, mounts []agent.Mount) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			return "", unsupported("the turn's PATH has %q, which depends on where the sandbox %q is started from", dir, agent.SandboxClaude)
		}
		actual, err := resolveExisting(dir)
		if err != nil {
			continue // what is not there cannot be run
		}
		if m, ok := agent.Deciding(mounts, actual); ok && m.Access == agent.ReadWrite {
			return "", unsupported("the turn's PATH has %q, which the turn may write, before the programs of the sandbox %q", dir, agent.SandboxClaude)
		}
		at := filepath.Join(actual, program)
		if info, err := os.Stat(at); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return at, nil
		}
	}
	return "", nil
}
