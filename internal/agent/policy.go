package agent

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Reads says whether a turn under p may read what is at path. Like Writes and Runs it is
// asked about paths of the host as its files are: absolute, clean and with their links
// resolved. Whatever else it is asked about, it says no to.
func (p Policy) Reads(path string) bool {
	if !plain(path) || p.denies(path) {
		return false
	}
	_, mounted := Deciding(p.Mounts, path)
	_, ofSystem := Deciding(p.System, path)
	return mounted || ofSystem
}

// Writes says whether a turn under p may change what is at path, or make it.
func (p Policy) Writes(path string) bool {
	if !plain(path) || p.denies(path) || slices.ContainsFunc(p.Metadata, func(m string) bool { return Inside(path, m) }) {
		return false
	}
	// What is of the system adds to what is granted and never narrows it.
	m, _ := Deciding(p.Mounts, path)
	s, _ := Deciding(p.System, path)
	return m.Access == ReadWrite || s.Access == ReadWrite
}

// Runs says whether a turn under p may execute what is at path, if it is a program:
// whatever it may read.
func (p Policy) Runs(path string) bool { return p.Reads(path) }

// Allows says whether a turn under p may be given a tool: a built-in one by its name, a
// server's as "mcp__<server>" or "mcp__<server>__<tool>".
func (p Policy) Allows(tool string) bool {
	server, ok := strings.CutPrefix(tool, MCPToolPrefix)
	if !ok {
		return tool != "" && (p.Tools == nil || slices.Contains(p.Tools, tool))
	}
	server, _, _ = strings.Cut(server, "__")
	return slices.Contains(p.MCPServers, server)
}

// AllowsEnv says whether a turn under p may have the variable of this name. One of
// version control it has with version control only.
func (p Policy) AllowsEnv(name string) bool { return name != "" && NameGranted(p.Env, name) }

// Placement is where turns under p run.
func (p Policy) Placement() Placement { return Placement{Sandbox: p.Sandbox, Confine: p.Confine} }

func (p Policy) denies(path string) bool {
	return slices.ContainsFunc(p.Denied, func(d string) bool { return Inside(path, d) })
}

func plain(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && !strings.ContainsRune(path, 0)
}

// Admit gives the request a session under p and g runs for req: with the session's
// grants where it brings none. It refuses, with ErrNotGranted, a request of other grants
// and one for anything but what p holds: another kind, image, agent or Dagger engine.
func Admit(p Policy, g Grants, req Request) (Request, error) {
	refuse := func(format string, args ...any) (Request, error) {
		return Request{}, fmt.Errorf("%w: %s", ErrNotGranted, fmt.Sprintf(format, args...))
	}
	switch engine := asked(req.Profile.Dagger); {
	case req.Grants != nil && !req.Grants.equal(g):
		return refuse("the request brings grants that are not its session's")
	case req.Profile.Placement() != p.Placement():
		return refuse("the request is for placement %q, its session for %q", req.Profile.Placement(), p.Placement())
	case req.Profile.SandboxImage != p.Image:
		return refuse("the request is for the image %q, its session for %q", req.Profile.SandboxImage, p.Image)
	case p.Agent != "" && req.Profile.AgentName() != p.Agent:
		return refuse("the request is for the agent %q, its session for %q", req.Profile.AgentName(), p.Agent)
	case engine != p.DaggerEngine:
		return refuse("the request is for the Dagger engine %q, its session for %q", engine, p.DaggerEngine)
	}
	req.Grants = &g
	return req, nil
}

func asked(d *Dagger) string {
	if d == nil {
		return ""
	}
	return d.Engine
}

// equal says whether two grants are written alike. Nothing and an empty list grant the
// same.
func (g Grants) equal(o Grants) bool {
	return slices.Equal(g.Env, o.Env) && slices.Equal(g.Tools, o.Tools) && slices.Equal(g.Mounts, o.Mounts) &&
		g.Within == o.Within && g.VCS == o.VCS && g.DaggerEngine == o.DaggerEngine && slices.Equal(g.HostServers, o.HostServers)
}
