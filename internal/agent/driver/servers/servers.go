// Package servers checks what a turn's MCP servers ask for, before a driver writes
// them down in its CLI's own words. CLIs drop an entry they cannot use without a
// word, so it is refused here.
package servers

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"turnpike/internal/agent"
)

var (
	serverName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	envName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Authorization is the header that a bearer token goes into.
const Authorization = "Authorization"

// Check refuses an entry that is not one command or one URL, or whose bearer token
// the turn's environment does not have. It says whether the server is reached over
// HTTP; otherwise it is started.
func Check(name string, e agent.MCPEntry, env []string) (overHTTP bool, err error) {
	refuse := func(kind error, format string, args ...any) (bool, error) {
		return false, fmt.Errorf("MCP server %.64q: %w: %s", name, kind, fmt.Sprintf(format, args...))
	}
	if !serverName.MatchString(name) {
		return refuse(agent.ErrUnsupported, `a server's name has letters, digits, "_" and "-", at most 64`)
	}
	overHTTP = e.Type == "http" || e.Type == "" && e.URL != ""
	stdio := e.Type == "stdio" || e.Type == "" && e.URL == ""
	switch {
	case stdio && e.Command != "" && e.URL == "" && len(e.Headers) == 0 && e.BearerTokenEnv == "":
	case overHTTP && e.URL != "" && e.Command == "" && len(e.Args) == 0 && len(e.Env) == 0:
	default:
		return refuse(agent.ErrUnsupported, "it is neither a command (stdio) nor a URL (http) alone")
	}
	if e.BearerTokenEnv == "" {
		return overHTTP, nil
	}
	if !envName.MatchString(e.BearerTokenEnv) {
		return refuse(agent.ErrUnsupported, "%.64q is no variable's name", e.BearerTokenEnv)
	}
	if !slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, e.BearerTokenEnv+"=") }) {
		return refuse(agent.ErrNotGranted, "the turn does not have %s, its bearer token", e.BearerTokenEnv)
	}
	for header := range e.Headers {
		if http.CanonicalHeaderKey(header) == Authorization {
			return refuse(agent.ErrUnsupported, "it has both a bearer token and an %s header", Authorization)
		}
	}
	return overHTTP, nil
}

// Expands says where an entry holds one of the marks by which a CLI would put something else
// in its place, such as a variable's value.
func Expands(e agent.MCPEntry, marks ...string) (where string, found bool) {
	has := func(s string) bool {
		return slices.ContainsFunc(marks, func(mark string) bool { return strings.Contains(s, mark) })
	}
	inMap := func(m map[string]string) bool {
		for k, v := range m {
			if has(k) || has(v) {
				return true
			}
		}
		return false
	}
	switch {
	case has(e.Command):
		return "its command", true
	case slices.ContainsFunc(e.Args, has):
		return "an argument", true
	case inMap(e.Env):
		return "its environment", true
	case has(e.URL):
		return "its URL", true
	case inMap(e.Headers):
		return "a header", true
	}
	return "", false
}
