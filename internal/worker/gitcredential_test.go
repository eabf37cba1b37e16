package worker_test

import (
	"testing"

	"turnpike/internal/worker"
)

func TestGitCredential(t *testing.T) {
	t.Parallel()
	c, err := worker.ParseCeiling([]byte(`
accounts:
  forge: {env: {GIT_PASSWORD: FORGE_TOKEN}, values: {GIT_USERNAME: robot}, git_hosts: [git.example.com]}
  token: {env: {GIT_PASSWORD: FORGE_TOKEN}, git_hosts: [git.example.com]}
  model: {env: {ANTHROPIC_API_KEY: FORGE_TOKEN, GIT_PASSWORD: FORGE_TOKEN}, agents: [claude]}
  lines: {env: {GIT_PASSWORD: LINES}, git_hosts: [git.example.com]}
  empty: {env: {GIT_PASSWORD: NOTHING}, git_hosts: [git.example.com]}
`))
	if err != nil {
		t.Fatal(err)
	}
	environ := []string{"FORGE_TOKEN=t0", "LINES=a\nhost=b"}
	for name, want := range map[string]struct {
		username, password string
		ok                 bool
	}{
		"forge": {"robot", "t0", true}, "token": {"git", "t0", true},
		"model": {}, "lines": {}, "empty": {}, "unknown": {},
	} {
		username, password, ok := c.GitCredential(name, environ)
		if username != want.username || password != want.password || ok != want.ok {
			t.Errorf("%s: got %q, %q, %v", name, username, password, ok)
		}
	}
}
