package worker

import (
	"slices"
	"strings"
)

// The variables by which an account with git_hosts gives its credential.
const (
	gitUsername = "GIT_USERNAME"
	gitPassword = "GIT_PASSWORD"
)

// GitCredential is what an account that is bound to git hosts gives, from the worker's
// environment: GIT_PASSWORD, and GIT_USERNAME where the host asks for one of its own. The
// host itself is checked with the request.
func (c *Ceiling) GitCredential(account string, environ []string) (username, password string, ok bool) {
	a, known := c.Accounts[account]
	if !known || len(a.GitHosts) == 0 {
		return "", "", false
	}
	value := func(name string) string {
		if v, plain := a.Values[name]; plain {
			return v
		}
		source, named := a.Env[name]
		i := slices.IndexFunc(environ, func(kv string) bool { return named && strings.HasPrefix(kv, source+"=") })
		if i < 0 {
			return ""
		}
		return environ[i][len(source)+1:]
	}
	username, password = value(gitUsername), value(gitPassword)
	if username == "" {
		username = "git" // hosts that go by the token alone take any name
	}
	// Git asks line by line: a value of two lines would say something else.
	if password == "" || strings.ContainsAny(username+password, "\r\n\x00") {
		return "", "", false
	}
	return username, password, true
}
