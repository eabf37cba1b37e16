package e2e_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnpike/internal/agent/agenttest"
	"turnpike/internal/api"
	"turnpike/internal/job"
)

// hostileCeiling offers little, and all of it by name.
const hostileCeiling = `
placements: [none-confined]
agents: [claude]
tools: [Read, Write]
workspaces: {scratch: true, dirs: [{path: WORKSPACES, access: rw}], git: ["https://git.invalid/acme"]}
mounts: [{path: OFFERED, access: ro}]
network: open
env: {inherit: [LANG], set: ["APP_*"]}
accounts:
  default:
    env: {ANTHROPIC_API_KEY: MODEL_KEY, ANTHROPIC_BASE_URL: MODEL_URL}
    agents: [claude]
mcp: {urls: ["https://mcp.invalid/a"]}
`

// A producer that means harm asks, in every way a request has, for what the worker's owner
// did not offer. Each is refused with the field it is about, at the door or by the worker;
// no agent is started and the model is never asked.
func TestHostileProducer(t *testing.T) {
	t.Parallel()
	s := newSystem(t, agenttest.Text("Never said."))
	offered, outside := s.workspace("../offered"), s.workspace("../outside")
	s.dispatcher()
	s.workerUnder(strings.NewReplacer("WORKSPACES", s.workspaces(), "OFFERED", offered).Replace(hostileCeiling), "w1")
	dir := s.workspace("mine")
	for link, target := range map[string]string{
		filepath.Join(dir, "link"):                 outside,
		filepath.Join(s.workspaces(), "elsewhere"): outside,
	} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}

	profile := func(name string, value any) func(map[string]any) {
		return func(r map[string]any) { mapOf(r, "profile")[name] = value }
	}
	grant := func(name string, value any) func(map[string]any) {
		return func(r map[string]any) { grantsOf(r)[name] = value }
	}
	mount := func(path, access string) func(map[string]any) {
		return grant("mounts", []any{map[string]any{"path": "workspace:", "access": "rw"}, map[string]any{"path": path, "access": access}})
	}
	set := func(name, value string) func(map[string]any) {
		return func(r map[string]any) { r["env"] = map[string]any{name: value} }
	}
	server := func(entry map[string]any) func(map[string]any) {
		return func(r map[string]any) {
			mapOf(r, "profile")["mcp"] = map[string]any{"s": entry}
			grantsOf(r)["tools"] = []string{"Read", "mcp__s"}
		}
	}
	field := func(name string, value any) func(map[string]any) {
		return func(r map[string]any) { r[name] = value }
	}
	for name, tc := range map[string]struct {
		ask  func(map[string]any)
		says string
	}{
		// Wider grants.
		"an agent not offered":          {profile("agent", "codex"), "profile.agent"},
		"an agent through the fallback": {profile("fallback", map[string]any{"agent": "pi", "confine": true}), "profile.fallback.agent"},
		"every tool":                    {grant("tools", []string{"*"}), "grants.tools"},
		"a tool not offered":            {grant("tools", []string{"Bash"}), "grants.tools"},
		"a tool by a pattern":           {grant("tools", []string{"Bash(ls:*)"}), "grants.tools"},
		"version control":               {all(grant("vcs", true), profile("vcs_access", true)), "vcs"},
		"every variable":                {grant("env", []string{"*"}), "grants.env[0]"},
		"the worker's own variable":     {grant("env", []string{"TURNPIKE_DATABASE_URL"}), "grants.env[0]"},
		"a wider prefix":                {grant("env", []string{"A*"}), "grants.env[0]"},
		"a longer time":                 {profile("timeout", "25h"), "timeout"},

		// Variables that steer.
		"a loader variable":            {set("LD_PRELOAD", "/workspace/x.so"), "env.LD_PRELOAD"},
		"a provider's address":         {set("ANTHROPIC_BASE_URL", "http://evil.invalid"), "env.ANTHROPIC_BASE_URL"},
		"a provider's address by name": {set("APP_BASE_URL", "http://evil.invalid"), "env.APP_BASE_URL"},
		"a proxy":                      {set("HTTPS_PROXY", "http://evil.invalid"), "env.HTTPS_PROXY"},
		"a proxy in small letters":     {set("https_proxy", "http://evil.invalid"), "env.https_proxy"},
		"a git command":                {field("vcs_env", map[string]any{"GIT_SSH_COMMAND": "sh -c x"}), "vcs_env.GIT_SSH_COMMAND"},
		"a git command by env":         {set("GIT_SSH_COMMAND", "sh -c x"), "env.GIT_SSH_COMMAND"},
		"a path":                       {set("PATH", "/workspace"), "env.PATH"},
		"an interpreter's options":     {all(profile("env", map[string]any{"NODE_OPTIONS": "--require /workspace/x.js"})), "profile.env.NODE_OPTIONS"},
		"a container's variables":      {field("container_env", map[string]any{"LD_PRELOAD": "/x"}), "container_env.LD_PRELOAD"},
		"a secret in clear":            {set("APP_KEY", "ghp_"+strings.Repeat("a", 36)), "env.APP_KEY"},

		// The worker's credentials.
		"a credential for its own server": {server(map[string]any{"type": "http", "url": "https://mcp.invalid/a", "bearer_token_env": "ANTHROPIC_API_KEY"}), "profile.mcp.s"},
		"a credential to its own server":  {server(map[string]any{"type": "http", "url": "https://evil.invalid/", "bearer_token_env": "ANTHROPIC_API_KEY"}), "profile.mcp.s"},
		"its own server":                  {server(map[string]any{"type": "http", "url": "https://mcp.invalid.evil/a"}), "profile.mcp.s.url"},
		"a credential in a header":        {server(map[string]any{"type": "http", "url": "https://mcp.invalid/a", "headers": map[string]any{"Authorization": "${ANTHROPIC_API_KEY}"}}), "profile.mcp"},
		"a server's variable":             {server(map[string]any{"type": "http", "url": "https://mcp.invalid/a", "env_vars": []string{"TURNPIKE_DATABASE_URL"}}), "profile.mcp.s"},
		"an account that is not there":    {field("account", "other"), "account"},
		"a repository of another's":       {field("workspace", map[string]any{"git": map[string]any{"url": "https://git.invalid/acme/../evil"}}), "workspace.git.url"},
		"a credential for a repository":   {field("workspace", map[string]any{"git": map[string]any{"url": "https://git.invalid/acme/x", "credentials": []string{"default"}}}), "workspace.git.credentials[0]"},

		// What would run or be read on the host.
		"a command of its own": {server(map[string]any{"command": "/bin/sh", "args": []string{"-c", "id"}}), "profile.mcp.s.command"},
		"a host server":        {field("host_mcp", "shell"), "host_mcp"},
		"a server on loopback": {grant("host_servers", []any{map[string]any{"name": "pg", "port": 5432}}), "grants.host_servers[0]"},
		"a skill":              {profile("skills", []string{"../../etc"}), "profile.skills[0]"},
		"a package":            {all(profile("agent", "claude"), profile("pi_packages", []string{"npm:evil"})), "profile.pi_packages[0]"},
		"a shell":              {profile("shell", "/workspace/sh"), "profile.shell"},
		"a Dagger engine":      {grant("dagger_engine", "unix:///var/run/docker.sock"), "grants.dagger_engine"},
		"a directory of PATH":  {field("vcs_container_path", []string{"/usr/local/sbin"}), "vcs_container_path[0]"},
		"container-use":        {profile("container_use_environment", "prod"), "profile.container_use_environment"},

		// Paths.
		"a mount outside":                {mount(outside, "ro"), "grants.mounts[1]"},
		"more of a mount than offered":   {mount(offered, "rw"), "grants.mounts[1]"},
		"a mount around what is offered": {mount(s.dir, "ro"), "grants.mounts[1]"},
		"the root":                       {mount("/", "ro"), "grants.mounts[1]"},
		"the process table":              {mount("/proc", "ro"), "grants.mounts[1]"},
		"the state of the worker":        {mount(filepath.Join(s.dir, "w1"), "ro"), "grants.mounts[1]"},
		"a mount out of the workspace":   {all(in(dir), mount("workspace:../../outside", "ro")), "grants.mounts[1]"},
		"a mount through a link":         {all(in(dir), mount("workspace:link", "ro")), "link"},
		"a mount by a path with dots":    {mount(offered+"/../outside", "ro"), "grants.mounts[1]"},
		"a workspace outside":            {in(outside), "workspace.dir"},
		"a workspace by a link":          {in(filepath.Join(s.workspaces(), "elsewhere")), "workspace.dir"},
		"a workspace with dots":          {in(s.workspaces() + "/../outside"), "workspace.dir"},
		"a mount not within":             {all(in(dir), grant("within", "/etc")), `outside "/etc"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var doc struct {
				ID     job.ID `json:"id"`
				Errors []struct {
					Location string `json:"location"`
					Message  string `json:"message"`
				} `json:"errors"`
			}
			plain := func(r map[string]any) { grantsOf(r)["tools"] = []string{"Read"} }
			status := s.call(http.MethodPost, "/v1/jobs", request(all(plain, tc.ask)), &doc)
			if status == http.StatusUnprocessableEntity {
				if len(doc.Errors) == 0 || !strings.Contains(doc.Errors[0].Location+": "+doc.Errors[0].Message, tc.says) {
					t.Errorf("refused at the door for %+v, want %s", doc.Errors, tc.says)
				}
				return
			}
			if status != http.StatusCreated {
				t.Fatalf("status %d", status)
			}
			v := s.finished(doc.ID, job.Failed)
			if v.Reason != "refused" || len(v.Attempts) != 1 || v.Attempts[0].StartedAt != nil || !strings.Contains(v.Attempts[0].Reason, tc.says) {
				t.Errorf("it ended %s, by %+v", v.Reason, v.Attempts)
			}
		})
	}
	t.Cleanup(func() { // after the parallel subtests
		if n := len(s.script.Requests()); n > 0 {
			t.Errorf("the model was asked %d times", n)
		}
	})
}

// Another producer's work, and another tenant's, is out of reach: its jobs, transcripts and
// patches over HTTP, and its conversations by going on with them.
func TestOtherTenantsWork(t *testing.T) {
	t.Parallel()
	s := newSystem(t, agenttest.Write("note.txt", "between us\n"), agenttest.Text("What was said in confidence."))
	tokens := filepath.Join(s.dir, "tokens.yaml")
	if err := os.WriteFile(tokens, []byte(
		"- {name: anna, role: producer, tenants: [acme], sha256: "+api.HashToken("anna-token")+"}\n"+
			"- {name: eve, role: producer, tenants: [evil], sha256: "+api.HashToken("eve-token")+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.dispatcher("--tokens-file", tokens)
	s.worker("w1")
	s.token = "anna-token"
	id := s.enqueue(all(in(s.workspace("acme")), func(r map[string]any) { r["tenant"] = "acme" }))
	talk := s.finished(id, job.Succeeded).Attempts[0].Conversation
	if talk == "" {
		t.Fatal("the turn has no conversation")
	}
	asked := len(s.script.Requests())

	s.token = "eve-token"
	for _, path := range []string{"", "/transcript", "/transcript?attempt=1", "/patch", "/cancel", "/retry"} {
		method := http.MethodGet
		if path == "/cancel" || path == "/retry" {
			method = http.MethodPost
		}
		if status := s.call(method, "/v1/jobs/"+string(id)+path, nil, nil); status != http.StatusNotFound {
			t.Errorf("%s: %d, want it not to exist", path, status)
		}
	}
	for _, path := range []string{"/v1/jobs", "/v1/report?by=day", "/v1/pauses"} {
		if status := s.call(http.MethodGet, path, nil, nil); status != http.StatusForbidden {
			t.Errorf("%s: %d", path, status)
		}
	}
	resume := func(tenant string) func(map[string]any) {
		return all(in(s.workspace("acme")), func(r map[string]any) { r["tenant"], r["resume_id"], r["prompt"] = tenant, talk, "Repeat all of it." })
	}
	if status := s.call(http.MethodPost, "/v1/jobs", request(resume("acme")), nil); status != http.StatusUnprocessableEntity {
		t.Errorf("a job for another tenant: %d", status)
	}
	v := s.finished(s.enqueue(resume("evil")), job.Failed)
	if v.Reason != "refused" || v.Attempts[0].StartedAt != nil {
		t.Errorf("another tenant's conversation: %s, %+v", v.Reason, v.Attempts)
	}
	if n := len(s.script.Requests()); n != asked {
		t.Errorf("the model was asked %d times more", n-asked)
	}
}

// mapOf is an object of a request made by request.
func mapOf(r map[string]any, name string) map[string]any {
	m, ok := r[name].(map[string]any)
	if !ok {
		panic("the request has no " + name)
	}
	return m
}
