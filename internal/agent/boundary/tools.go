package boundary

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"turnpike/internal/agent"
)

var serverName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// tools gives the built-in tools the agent is started with, nil for all of them,
// after holding the profile's tools and servers to what is granted.
func tools(req agent.Request, backend agent.Backend) ([]string, error) {
	p, granted := req.Profile, req.Grants.Tools
	all := slices.Contains(granted, agent.ToolsAll)
	if err := servers(req); err != nil {
		return nil, err
	}
	for _, name := range slices.Concat(granted, p.AllowedTools, p.DisallowedTools) {
		if name == "" || strings.ContainsAny(name, "(), \t\n\x00") {
			return nil, unsupported("%q is not the name of a tool; a pattern cannot be held, name the whole tool", name)
		}
	}

	var builtin []string // nil is all of them
	if !all {
		builtin = []string{}
		for _, name := range granted {
			if !isServer(name) && !slices.Contains(builtin, name) {
				builtin = append(builtin, name)
			}
		}
	}
	if len(p.AllowedTools) > 0 && (!all || !slices.Contains(p.AllowedTools, agent.ToolsAll)) {
		narrowed := []string{}
		for _, name := range p.AllowedTools {
			switch {
			case isServer(name):
				// The profile's servers are its narrowing; one tool of a server
				// cannot be told from the others by every agent.
				if _, ok := p.MCP[strings.TrimPrefix(name, agent.MCPToolPrefix)]; !ok {
					return nil, unsupported("allowed tool %q is not a server of the profile; name the server, or disallow its other tools", name)
				}
			case !all && !slices.Contains(builtin, name):
				return nil, notGranted("tool %q is not granted", name)
			case !slices.Contains(narrowed, name):
				narrowed = append(narrowed, name)
			}
		}
		builtin = narrowed
	}
	if slices.Contains(p.DisallowedTools, agent.ToolsAll) {
		return nil, unsupported("disallowing %q; grant no tools instead", agent.ToolsAll)
	}
	builtin = slices.DeleteFunc(builtin, func(name string) bool { return slices.Contains(p.DisallowedTools, name) })

	if builtin != nil || len(p.DisallowedTools) > 0 {
		if s := backend.WritableTools[p.Placement()]; !s.Supported && !readOnly(req, backend, builtin) {
			return nil, unsupported("the agent %q cannot be held to a list of tools in placement %q%s", p.AgentName(), p.Placement(), remedy(s))
		}
	}
	return builtin, nil
}

// readOnly says whether the turn is one that an agent which cannot be held to a list
// of tools can still be held to: it writes nowhere and has no built-in tool at all.
func readOnly(req agent.Request, backend agent.Backend, builtin []string) bool {
	writes := slices.ContainsFunc(req.Grants.Mounts, func(m agent.Mount) bool { return m.Access != agent.ReadOnly })
	able := backend.Restricted != nil && backend.Restricted.Supported
	return able && !writes && builtin != nil && len(builtin) == 0 && len(req.Profile.DisallowedTools) == 0
}

func remedy(s agent.ToolSupport) string {
	if s.Remedy == "" {
		return ""
	}
	return ": " + s.Remedy
}

func isServer(tool string) bool { return strings.HasPrefix(tool, agent.MCPToolPrefix) }

// servers holds the profile's MCP servers to the grants: each by its name, and
// the variables it is given like any others, or a server would be a way around them.
func servers(req agent.Request) error {
	vcs := req.Grants.VCS && req.Profile.VCSAccess
	for _, name := range slices.Sorted(maps.Keys(req.Profile.MCP)) {
		entry := req.Profile.MCP[name]
		if !serverName.MatchString(name) || strings.Contains(name, "__") {
			return notGranted("%q is no name for an MCP server", name)
		}
		if !slices.Contains(req.Grants.Tools, agent.MCPToolPrefix+name) {
			return notGranted("MCP server %q is not granted (%s%s)", name, agent.MCPToolPrefix, name)
		}
		stdio := entry.Command != ""
		switch {
		case stdio == (entry.URL != ""):
			return notGranted("MCP server %q needs either a command or a URL", name)
		case entry.Type != "" && (entry.Type == "stdio") != stdio:
			return notGranted("MCP server %q is of type %q", name, entry.Type)
		}
		names := slices.Concat(slices.Sorted(maps.Keys(entry.Env)), entry.EnvVars)
		if entry.BearerTokenEnv != "" {
			names = append(names, entry.BearerTokenEnv)
		}
		for _, v := range names {
			if err := settable(req.Grants.Env, "MCP server "+name, v, vcs); err != nil {
				return err
			}
		}
	}
	return nil
}
