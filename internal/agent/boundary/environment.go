package boundary

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"turnpike/internal/agent"
)

// variables are set by somebody other than the host.
type variables struct {
	who  string
	vars map[string]string
}

// environment is the turn's whole environment: what is granted of the host's,
// then the profile's, the request's and, with version control, the caller's own; last
// what is set for the place the turn runs in.
func (h HostBoundary) environment(req agent.Request, vcs bool, inside ...variables) ([]string, error) {
	p, granted := req.Profile, req.Grants.Env
	for _, entry := range granted {
		if !validName(strings.TrimSuffix(entry, "*")) && entry != "*" {
			return nil, notGranted("environment grant %q is no variable name and no prefix ending in *", entry)
		}
	}
	env := map[string]string{}
	for _, pair := range h.environ() {
		name, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok, name == "", !agent.NameGranted(granted, name):
		case h.StripPrefix != "" && strings.HasPrefix(name, h.StripPrefix):
		case !vcs && vcsVariable(name):
		case h.inherits != nil && !h.inherits(name):
		case p.Confine && (name == "HOME" || name == "TMPDIR"):
			// They name places of the host that a confined turn does not have.
		default:
			env[name] = value
		}
	}
	sets := []variables{{"profile", p.Env}, {"request", req.Env}}
	if vcs {
		sets = append(sets, variables{"version control", req.VCSEnv})
	}
	for _, set := range append(sets, inside...) {
		// In name order, so that a refusal names the same variable every time.
		for _, name := range slices.Sorted(maps.Keys(set.vars)) {
			value := set.vars[name]
			if err := settable(granted, set.who, name, vcs); err != nil {
				return nil, err
			}
			if strings.ContainsRune(value, 0) {
				return nil, notGranted("the value of variable %s, set by the %s, holds a NUL", name, set.who)
			}
			env[name] = value
		}
	}
	if p.Shell != "" {
		if !filepath.IsAbs(p.Shell) {
			return nil, notGranted("shell %q is not an absolute path", p.Shell)
		}
		env["SHELL"] = p.Shell
	}
	return pairs(env), nil
}

// pairs gives env as NAME=value, in name order.
func pairs(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return out
}

// settable refuses a variable that somebody other than the host sets.
func settable(granted []string, who, name string, vcs bool) error {
	switch {
	case !validName(name):
		return notGranted("%q, set by the %s, is no variable name", name, who)
	case !agent.NameGranted(granted, name):
		return notGranted("variable %s, set by the %s, is not granted", name, who)
	case !vcs && vcsVariable(name):
		return notGranted("variable %s, set by the %s, belongs to version control, which is not granted", name, who)
	}
	return nil
}

func validName(name string) bool {
	return name != "" && !strings.ContainsAny(name, "=*\x00")
}

// vcsVariable says whether a variable carries version control's identity,
// credentials or configuration.
func vcsVariable(name string) bool {
	return agent.NameGranted(agent.VCSVariables(), strings.ToUpper(name))
}
