package worker

// This file tests the mapping from inside: it is total over fields, which only the
// package itself can hand a half-made turn.

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/job"
	"turnpike/internal/vcs"
)

// owned are the fields that are not the producer's to fill.
var owned = map[string]string{
	"Request.ReadServer": "restricted turns only",
}

// full is a request that sets every field there is.
func full() (job.Request, *Ceiling) {
	env := map[string]string{"A": "1"}
	return job.Request{
			Name: "n", Prompt: "p", SystemPrompt: "s",
			Profile: job.Profile{
				Name: "r", Agent: "claude", Model: "m", Effort: "high", MaxTurns: 3, Timeout: job.Duration(time.Minute),
				AllowedTools: []string{"a"}, DisallowedTools: []string{"b"},
				MCP: map[string]job.MCPEntry{"x": {
					Type: "stdio", Command: "named", Args: []string{"z"}, Env: env, URL: "u", Headers: env, EnvVars: []string{"E"}, BearerTokenEnv: "T",
				}},
				Sandbox: "none", Confine: true, SandboxImage: "i", Dagger: &job.Dagger{Engine: "e", Version: "v"}, SandboxDomains: []string{"d"},
				Fallback:                &job.Profile{Agent: "claude", Model: "m2", Fallback: &job.Profile{Agent: "codex"}},
				ContainerUseEnvironment: "c", VCSAccess: true, Shell: "sh", Env: env, Skills: []string{"k"}, PiPackages: []string{"pkg"},
			},
			Grants: &job.Grants{
				Env: []string{"A"}, Tools: []string{"t"}, Mounts: []job.Mount{{Path: "workspace:sub", Access: "rw"}}, Within: "/w", VCS: true,
				DaggerEngine: "e", HostServers: []job.HostServer{{Name: "x", Port: 1}},
			},
			ValidOutcomes: []string{"ok"}, Env: env, ContainerEnv: env, VCSEnv: env, VCSContainerEnv: env, VCSContainerPath: []string{"/p"},
			HostMCP: "h", ResumeID: "conv", CostCapUSD: 2_000_000,
		}, &Ceiling{
			MCP:        MCPRules{Commands: map[string]MCPCommand{"named": {Path: "/bin/named", Args: []string{"y"}}}},
			HostMCP:    map[string]HostMCPServer{"h": {Command: "/bin/h", Args: []string{"a"}, Env: map[string]string{"X": "SRC"}, ListenArgs: []string{"l"}, TokenEnv: "T", ListeningPrefix: "on", Path: "/m"}},
			Shells:     map[string]string{"sh": "/bin/sh"},
			PiPackages: map[string]string{"pkg": "npm:pkg"},
		}
}

func mapped(t *testing.T) agent.Request {
	t.Helper()
	r, c := full()
	ws := t.TempDir()
	if err := os.Mkdir(filepath.Join(ws, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	req, _, err := mapping{
		request: r, profile: r.Profile, name: "job.1", session: "/session", ceiling: c,
		workspace: vcs.Workspace{Dir: ws, Metadata: []string{"/meta"}}, environ: []string{"SRC=value"},
	}.agentRequest()
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestEveryFieldIsMapped(t *testing.T) {
	req := mapped(t)
	check := func(name string, v reflect.Value) {
		for i := range v.NumField() {
			field := name + "." + v.Type().Field(i).Name
			switch zero := v.Field(i).IsZero(); {
			case zero && owned[field] == "":
				t.Errorf("%s is neither mapped nor listed as the worker's own: map it in request.go", field)
			case !zero && owned[field] != "":
				t.Errorf("%s is listed as the worker's own and is mapped", field)
			}
		}
	}
	check("Request", reflect.ValueOf(req))
	check("Profile", reflect.ValueOf(req.Profile))
	check("Grants", reflect.ValueOf(*req.Grants))
	check("MCPEntry", reflect.ValueOf(req.Profile.MCP["x"]))
	check("HostMCP", reflect.ValueOf(*req.HostMCP))
	check("Dagger", reflect.ValueOf(*req.Profile.Dagger))
}

// TestEveryFieldIsRead holds the other direction: what a producer may write is
// mapped under the same name, or is the queue's.
func TestEveryFieldIsRead(t *testing.T) {
	queues := []string{
		"APIVersion", "Restricted", "Account", "Work", "Pool", "Tenant", "Priority", "RunAt", "Deadline", "After", "DedupKey", "ConcurrencyKey", "Retry", "Limits",
	}
	queues = append(queues, "ResumeFrom") // becomes the ResumeID when it is claimed
	for _, pair := range []struct{ from, to reflect.Type }{
		{reflect.TypeFor[job.Request](), reflect.TypeFor[agent.Request]()},
		{reflect.TypeFor[job.Profile](), reflect.TypeFor[agent.Profile]()},
		{reflect.TypeFor[job.Grants](), reflect.TypeFor[agent.Grants]()},
		{reflect.TypeFor[job.MCPEntry](), reflect.TypeFor[agent.MCPEntry]()},
	} {
		for i := range pair.from.NumField() {
			name := pair.from.Field(i).Name
			if _, ok := pair.to.FieldByName(name); !ok && !slices.Contains(queues, name) {
				t.Errorf("%s.%s goes nowhere", pair.from, name)
			}
		}
	}
}

func TestMapping(t *testing.T) {
	req := mapped(t)
	t.Run("names stand for what the ceiling says", func(t *testing.T) {
		e := req.Profile.MCP["x"]
		if e.Command != "/bin/named" || !slices.Equal(e.Args, []string{"y", "z"}) {
			t.Errorf("got %s %v", e.Command, e.Args)
		}
		if req.Profile.Shell != "/bin/sh" || req.Profile.PiPackages[0] != "npm:pkg" {
			t.Errorf("got %s, %v", req.Profile.Shell, req.Profile.PiPackages)
		}
		if req.HostMCP.Env["X"] != "value" {
			t.Errorf("got %v", req.HostMCP.Env)
		}
	})
	t.Run("a claimed turn is told its fence, over what the request says", func(t *testing.T) {
		r, c := full()
		r.Grants.Mounts = nil
		r.Env = map[string]string{"TURNPIKE_FENCE": "9"}
		r.Profile.Env, r.VCSEnv, r.ContainerEnv, r.VCSContainerEnv = r.Env, r.Env, r.Env, r.Env
		got, added, err := mapping{
			request: r, profile: r.Profile, ceiling: c, environ: []string{"SRC=value"}, lease: job.Lease{Job: "j", Attempt: 2, Number: 7},
		}.agentRequest()
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"TURNPIKE_JOB": "j", "TURNPIKE_ATTEMPT": "2", "TURNPIKE_FENCE": "7"}
		if diff := cmp.Diff(want, got.Env); diff != "" || r.Env["TURNPIKE_FENCE"] != "9" {
			t.Errorf("variables (-want +got):\n%s\nthe request's own: %v", diff, r.Env)
		}
		if n := len(got.Profile.Env) + len(got.VCSEnv) + len(got.ContainerEnv) + len(got.VCSContainerEnv); n != 0 {
			t.Errorf("%d other places set it", n)
		}
		for name := range want {
			if !slices.Contains(got.Grants.Env, name) || !slices.Contains(added, "variable "+name) {
				t.Errorf("%s: granted %v, on record %v", name, got.Grants.Env, added)
			}
		}
	})
	t.Run("models of the agent's own fallbacks are told", func(t *testing.T) {
		if f := req.Profile.Fallback; f.Model != "m2" || f.Fallback != nil {
			t.Errorf("got %+v", f)
		}
	})
	t.Run("an earlier attempt's conversation goes before the request's", func(t *testing.T) {
		r, c := full()
		r.Grants.Mounts, r.HostMCP = nil, ""
		got, _, err := mapping{request: r, profile: r.Profile, ceiling: c, resume: "later"}.agentRequest()
		if err != nil || got.ResumeID != "later" {
			t.Errorf("got %q, %v", got.ResumeID, err)
		}
	})
	t.Run("only an attempt that was interrupted is told so", func(t *testing.T) {
		r, c := full()
		r.Grants.Mounts, r.HostMCP = nil, ""
		for earlier, want := range map[string]string{"": "p", "earlier": interrupted + "p"} {
			got, added, err := mapping{request: r, profile: r.Profile, ceiling: c, resume: earlier}.agentRequest()
			told := slices.ContainsFunc(added, func(s string) bool { return strings.Contains(s, "interrupted") })
			if err != nil || got.Prompt != want || told != (earlier != "") {
				t.Errorf("after %q: prompt %q, added %q, %v", earlier, got.Prompt, added, err)
			}
		}
	})
	t.Run("the pool's cost cap holds and is told", func(t *testing.T) {
		r, c := full()
		r.Grants.Mounts, r.HostMCP, r.CostCapUSD = nil, "", 0
		c.MaxCostUSD = 3_000_000
		got, added, err := mapping{request: r, profile: r.Profile, ceiling: c}.agentRequest()
		if err != nil || got.CostCapUSD != 3 || !slices.Contains(added, "cost cap 3.00 of the pool") {
			t.Errorf("got %v, %v, %v", got.CostCapUSD, added, err)
		}
	})
	t.Run("null and empty outcomes differ", func(t *testing.T) {
		r, c := full()
		r.Grants.Mounts, r.HostMCP = nil, ""
		for _, want := range [][]string{nil, {}} {
			r.ValidOutcomes, r.Profile.SandboxDomains = want, want
			got, _, err := mapping{request: r, profile: r.Profile, ceiling: c}.agentRequest()
			if err != nil || (got.ValidOutcomes == nil) != (want == nil) || (got.Profile.SandboxDomains == nil) != (want == nil) {
				t.Errorf("got %#v, %#v, %v", got.ValidOutcomes, got.Profile.SandboxDomains, err)
			}
		}
	})
}

func TestExpand(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ws := filepath.Join(base, "ws")
	for _, d := range []string{"ws/sub", "out"} {
		if err := os.MkdirAll(filepath.Join(base, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"ws/leads-out": "../out", "ws/stays": "sub", "alias": "ws"} {
		if err := os.Symlink(to, filepath.Join(base, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct{ path, want string }{
		{"workspace:", ws}, {"workspace:sub", ws + "/sub"}, {"workspace:stays", ws + "/sub"}, {"/abs", "/abs"},
		{"workspace:leads-out", ""}, {"workspace:..", ""}, {"workspace:sub/../../out", ""}, {"workspace:none", ""}, {"workspace:/etc", ""},
	} {
		t.Run(tc.path, func(t *testing.T) {
			got, err := mapping{workspace: vcs.Workspace{Dir: filepath.Join(base, "alias")}}.expand(tc.path)
			if got != tc.want || tc.want == "" && !errors.Is(err, agent.ErrNotGranted) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestContractsAgree(t *testing.T) {
	var placements []string
	for _, p := range agent.Placements() {
		placements = append(placements, p.String())
	}
	for name, pair := range map[string][2][]string{
		"placements": {job.Placements(), placements}, "agents": {job.Agents(), agent.Agents()}, "sandboxes": {job.Sandboxes(), agent.Sandboxes()},
	} {
		if d := cmp.Diff(pair[0], pair[1]); d != "" {
			t.Errorf("%s of job and agent differ:\n%s", name, d)
		}
	}
}

func TestEnviron(t *testing.T) {
	c := &Ceiling{
		Env: EnvRules{Inherit: []string{"LANG", "TEAM_*"}},
		Accounts: map[string]Account{
			"default": {Env: map[string]string{"KEY": "TEAM_KEY"}, Agents: []string{"claude"}},
			"other":   {Env: map[string]string{"KEY": "TEAM_OTHER"}, Agents: []string{"claude"}},
		},
	}
	worker := []string{"LANG=C", "TEAM_KEY=secret", "TEAM_OTHER=secret2", "TEAM_NAME=x", "DATABASE_URL=y", "KEY=ambient"}
	for _, tc := range []struct {
		account, agent string
		want           []string
	}{
		{"", "claude", []string{"LANG=C", "TEAM_NAME=x", "KEY=secret"}},
		{"other", "claude", []string{"LANG=C", "TEAM_NAME=x", "KEY=secret2"}},
		{"", "pi", []string{"LANG=C", "TEAM_NAME=x"}},
	} {
		a, err := c.account(tc.account, tc.agent)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tc.want, c.environ(worker, a)); d != "" {
			t.Errorf("account %q, agent %s:\n%s", tc.account, tc.agent, d)
		}
	}
}

func TestReplaceNUL(t *testing.T) {
	for in, want := range map[string]string{
		`"a\u0000b"`: `"a\ufffdb"`, `"a\\u0000b"`: `"a\\u0000b"`, `"a\\\u0000"`: `"a\\\ufffd"`, `"\u0000`: `"\ufffd`, `"\`: `"\`,
	} {
		if got := string(replaceNUL([]byte(in))); got != want {
			t.Errorf("%s: got %s", in, got)
		}
	}
}
