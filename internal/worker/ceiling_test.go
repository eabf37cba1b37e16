package worker_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/job"
	"turnpike/internal/worker"
)

// ceiling is one that allows something of everything. ROOT stands for a directory.
const ceiling = `
placements: [none-confined, container]
agents: [claude]
tools: [Read, Bash]
workspaces:
  scratch: true
  dirs:
    - {path: ROOT/repos, access: rw}
    - {path: ROOT/repos/frozen, access: ro}
  git: ["https://git.example.com/acme"]
mounts:
  - {path: ROOT/data, access: rw}
  - {path: ROOT/data/ro, access: ro}
  - {path: ROOT/data/secret, access: none}
images: ["img@sha256:1"]
vcs: true
network: proxied
domains: [api.example.com, "*.pkg.example.com"]
env:
  inherit: [LANG, LC_*]
  set: [MY_*, GIT_AUTHOR_NAME]
accounts:
  default: {env: {ANTHROPIC_API_KEY: TEAM_KEY}, agents: [claude]}
  mcp: {env: {MCP_TOKEN: MCP_TOKEN}, agents: [claude], mcp_urls: ["https://mcp.example.com/a"]}
  codexonly: {env: {OPENAI_API_KEY: OPENAI_API_KEY}, agents: [codex]}
  forge: {env: {TOKEN: FORGE_TOKEN}, git_hosts: [git.example.com]}
providers:
  opencode: {openai: {base_url: "https://models.example.com/v1"}}
  pi: {ours: {base_url: "https://models.example.com", api: openai-completions, key_env: OUR_KEY, models: [{id: m, price: {input: 3, output: 15}}]}}
mcp:
  urls: ["https://mcp.example.com/a"]
  commands:
    files: {path: /usr/bin/files, args: [--safe]}
    free: {path: /usr/bin/free, more_args: true}
host_mcp:
  tools: {command: /usr/bin/tools}
host_servers: {db: 9000}
skills: [review]
pi_packages: {lint: "npm:lint@1"}
shells: {bash: /bin/bash}
container_use: [dev]
path_dirs: [/opt/wrap]
dagger_engines: ["tcp://127.0.0.1:1"]
limits: {memory: 2GiB, processes: 100, cpus: 1.5}
max_timeout: 2h
max_cost_usd: "5.00"
`

func tree(t testing.TB) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	for _, d := range []string{"repos/a", "repos/frozen/b", "data/x", "data/ro", "data/secret", "data-evil", "outside"} {
		must(t, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	must(t, os.Symlink(filepath.Join(root, "outside"), filepath.Join(root, "data/x/link")))
	return root
}

func parse(t testing.TB, text, root string) *worker.Ceiling {
	t.Helper()
	c, err := worker.ParseCeiling([]byte(strings.ReplaceAll(text, "ROOT", root)))
	must(t, err)
	return c
}

// request is one that the ceiling allows.
func request() job.Request {
	return job.Request{
		APIVersion: job.APIVersion, Prompt: "do it", Pool: "default",
		Profile:   job.Profile{Agent: "claude", Sandbox: "none", Confine: true},
		Grants:    &job.Grants{Tools: []string{"Read"}, Mounts: []job.Mount{{Path: "workspace:", Access: "rw"}}},
		Workspace: job.Workspace{Scratch: true},
	}
}

func TestCeilingCheck(t *testing.T) {
	root := tree(t)
	c := parse(t, ceiling, root)
	mount := func(path, access string) func(*job.Request) {
		return func(r *job.Request) {
			r.Grants.Mounts = append(r.Grants.Mounts, job.Mount{Path: strings.ReplaceAll(path, "ROOT", root), Access: access})
		}
	}
	server := func(e job.MCPEntry) func(*job.Request) {
		return func(r *job.Request) { r.Profile.MCP = map[string]job.MCPEntry{"s": e} }
	}
	set := func(name, value string) func(*job.Request) {
		return func(r *job.Request) { r.Env = map[string]string{name: value} }
	}
	for _, tc := range []struct {
		name   string
		change func(*job.Request)
		field  string // of the refusal; empty is allowed
	}{
		{"the plain request", func(*job.Request) {}, ""},
		{"no grants", func(r *job.Request) { r.Grants = nil }, "grants"},

		{"another placement", func(r *job.Request) { r.Profile.Confine = false }, "profile.sandbox"},
		{"another agent", func(r *job.Request) { r.Profile.Agent = "codex" }, "profile.agent"},
		{"an agent by default", func(r *job.Request) { r.Profile.Agent = "" }, ""},
		{"a fallback outside", func(r *job.Request) {
			r.Profile.Fallback = &job.Profile{Agent: "pi", Sandbox: "none", Confine: true}
		}, "profile.fallback.agent"},
		{"a tool", func(r *job.Request) { r.Grants.Tools = []string{"Bash(git:*)"} }, ""},
		{"another tool", func(r *job.Request) { r.Grants.Tools = []string{"WebFetch"} }, "grants.tools"},
		{"every tool", func(r *job.Request) { r.Grants.Tools = []string{"*"} }, "grants.tools"},
		{"an allowed tool outside", func(r *job.Request) { r.Profile.AllowedTools = []string{"WebFetch"} }, "profile.allowed_tools"},
		{"a server as a tool", func(r *job.Request) { r.Grants.Tools = []string{"mcp__s"} }, ""},
		{"an image", func(r *job.Request) {
			r.Profile.Sandbox, r.Profile.Confine, r.Profile.SandboxImage = "container", false, "img@sha256:1"
		}, ""},
		{"another image", func(r *job.Request) {
			r.Profile.Sandbox, r.Profile.Confine, r.Profile.SandboxImage = "container", false, "img:latest"
		}, "profile.sandbox_image"},
		{"no image", func(r *job.Request) { r.Profile.Sandbox, r.Profile.Confine = "container", false }, "profile.sandbox_image"},
		{"a longer timeout", func(r *job.Request) { r.Profile.Timeout = job.Duration(3 * 3600e9) }, "profile.timeout"},
		{"a higher cost cap", func(r *job.Request) { r.CostCapUSD = 6_000_000 }, "cost_cap_usd"},

		{"a domain", func(r *job.Request) { r.Profile.SandboxDomains = []string{"api.example.com", "a.b.pkg.example.com"} }, ""},
		{"no domain", func(r *job.Request) { r.Profile.SandboxDomains = []string{} }, ""},
		{"a domain that only ends alike", func(r *job.Request) { r.Profile.SandboxDomains = []string{"evilpkg.example.com"} }, "profile.sandbox_domains[0]"},
		{"a domain that only begins alike", func(r *job.Request) { r.Profile.SandboxDomains = []string{"api.example.com.evil"} }, "profile.sandbox_domains[0]"},
		{"the suffix itself", func(r *job.Request) { r.Profile.SandboxDomains = []string{"pkg.example.com"} }, "profile.sandbox_domains[0]"},

		{"a mount", mount("ROOT/data/x", "rw"), ""},
		{"the root itself would open what it denies", mount("ROOT/data", "rw"), "grants.mounts[1].path"},
		{"the root read-only would open what it denies", mount("ROOT/data", "ro"), "grants.mounts[1].path"},
		{"a read-only root", mount("ROOT/data/ro", "ro"), ""},
		{"a read-only root to write", mount("ROOT/data/ro", "rw"), "grants.mounts[1].path"},
		{"a carved out root", mount("ROOT/data/secret", "ro"), "grants.mounts[1].path"},
		{"a sibling with the same beginning", mount("ROOT/data-evil", "ro"), "grants.mounts[1].path"},
		{"a link that leads out", mount("ROOT/data/x/link", "ro"), "grants.mounts[1].path"},
		{"a path through a link that leads out", mount("ROOT/data/x/link/..", "ro"), "grants.mounts[1].path"},
		{"a path that is not there", mount("ROOT/data/none", "ro"), "grants.mounts[1].path"},
		{"a parent of every root", mount("/", "ro"), "grants.mounts[1].path"},

		{"a directory", func(r *job.Request) { r.Workspace = job.Workspace{Dir: root + "/repos/a"} }, ""},
		{"a read-only directory to write", func(r *job.Request) { r.Workspace = job.Workspace{Dir: root + "/repos/frozen/b"} }, "grants.mounts[0]"},
		{"another directory", func(r *job.Request) { r.Workspace = job.Workspace{Dir: root + "/outside"} }, "workspace.dir"},
		{"a repository", func(r *job.Request) { r.Workspace = git("https://git.example.com/acme/x.git") }, ""},
		{"a repository with its credential", func(r *job.Request) { r.Workspace = git("https://git.example.com/acme/x.git", "forge") }, ""},
		{"a credential for another place", func(r *job.Request) { r.Workspace = git("https://git.example.com/acme/x.git", "default") }, "workspace.git.credentials[0]"},
		{"a repository that only begins alike", func(r *job.Request) { r.Workspace = git("https://git.example.com/acme-evil/x") }, "workspace.git.url"},
		{"a repository through dots", func(r *job.Request) { r.Workspace = git("https://git.example.com/acme/../evil/x") }, "workspace.git.url"},
		{"a repository through escaped dots", func(r *job.Request) { r.Workspace = git("https://git.example.com/acme/%2e%2e/evil") }, "workspace.git.url"},
		{"a repository on another port", func(r *job.Request) { r.Workspace = git("https://git.example.com:444/acme/x") }, "workspace.git.url"},
		{"a repository on another host", func(r *job.Request) { r.Workspace = git("https://git.example.com.evil/acme/x") }, "workspace.git.url"},

		{"inherited variables", func(r *job.Request) { r.Grants.Env = []string{"LANG", "LC_ALL", "LC_*", "ANTHROPIC_API_KEY"} }, ""},
		{"another variable", func(r *job.Request) { r.Grants.Env = []string{"DATABASE_URL"} }, "grants.env[0]"},
		{"a wider prefix", func(r *job.Request) { r.Grants.Env = []string{"L*"} }, "grants.env[0]"},
		{"another account's variable", func(r *job.Request) { r.Grants.Env = []string{"MCP_TOKEN"} }, "grants.env[0]"},
		{"set by pattern", set("MY_SETTING", "1"), ""},
		{"set by name although it steers", set("GIT_AUTHOR_NAME", "x"), ""},
		{"set and not listed", set("OTHER", "1"), "env.OTHER"},
		{"a loader variable", set("LD_PRELOAD", "/x"), "env.LD_PRELOAD"},
		{"a steering variable under a pattern", set("MY_BASE_URL", "http://evil"), "env.MY_BASE_URL"},
		{"a proxy variable in small letters", set("https_proxy", "http://evil"), "env.https_proxy"},
		{"a secret", set("MY_KEY", "ghp_"+strings.Repeat("a", 36)), "env.MY_KEY"},
		{"a profile's variable", func(r *job.Request) { r.Profile.Env = map[string]string{"NODE_OPTIONS": "x"} }, "profile.env.NODE_OPTIONS"},
		{"a container's variable", func(r *job.Request) { r.ContainerEnv = map[string]string{"OTHER": "x"} }, "container_env.OTHER"},
		{"a version control variable", func(r *job.Request) { r.VCSEnv = map[string]string{"GIT_SSH_COMMAND": "x"} }, "vcs_env.GIT_SSH_COMMAND"},
		{"a container's version control variable", func(r *job.Request) { r.VCSContainerEnv = map[string]string{"GIT_DIR": "x"} }, "vcs_container_env.GIT_DIR"},

		{"an account", func(r *job.Request) { r.Account = "mcp" }, ""},
		{"another account", func(r *job.Request) { r.Account = "none" }, "account"},
		{"an account for another agent", func(r *job.Request) { r.Account = "codexonly" }, "account"},
		{"an account for no agent", func(r *job.Request) { r.Account = "forge" }, "account"},

		{"a server by URL", server(job.MCPEntry{URL: "https://mcp.example.com/a/b"}), ""},
		{"another server", server(job.MCPEntry{URL: "https://mcp.example.com/ab"}), "profile.mcp.s.url"},
		{"a server with the credential meant for it", func(r *job.Request) {
			r.Account = "mcp"
			server(job.MCPEntry{URL: "https://mcp.example.com/a", BearerTokenEnv: "MCP_TOKEN"})(r)
		}, ""},
		{"a server with a credential not meant for it", server(job.MCPEntry{URL: "https://mcp.example.com/a", BearerTokenEnv: "ANTHROPIC_API_KEY"}), "profile.mcp.s"},
		{"a server with a secret header", server(job.MCPEntry{URL: "https://mcp.example.com/a", Headers: map[string]string{"Authorization": "Bearer abcdefghijklmnopqrst"}}), "profile.mcp.s.headers"},
		{"a server with another variable", server(job.MCPEntry{URL: "https://mcp.example.com/a", EnvVars: []string{"DATABASE_URL"}}), "profile.mcp.s"},
		{"a command by name", server(job.MCPEntry{Command: "files"}), ""},
		{"a command by path", server(job.MCPEntry{Command: "/usr/bin/files"}), "profile.mcp.s.command"},
		{"a command with arguments", server(job.MCPEntry{Command: "files", Args: []string{"-x"}}), "profile.mcp.s.args"},
		{"a command that takes arguments", server(job.MCPEntry{Command: "free", Args: []string{"-x"}}), ""},
		{"a command with a variable", server(job.MCPEntry{Command: "files", Env: map[string]string{"LD_PRELOAD": "x"}}), "profile.mcp.s.env.LD_PRELOAD"},
		{"a command inside a container", func(r *job.Request) {
			r.Profile.Sandbox, r.Profile.Confine, r.Profile.SandboxImage = "container", false, "img@sha256:1"
			server(job.MCPEntry{Command: "/bin/anything"})(r)
		}, ""},

		{"a host server by name", func(r *job.Request) { r.HostMCP = "tools" }, ""},
		{"another host server", func(r *job.Request) { r.HostMCP = "shell" }, "host_mcp"},
		{"a loopback server", func(r *job.Request) { r.Grants.HostServers = []job.HostServer{{Name: "db", Port: 9000}} }, ""},
		{"a loopback server on another port", func(r *job.Request) { r.Grants.HostServers = []job.HostServer{{Name: "db", Port: 5432}} }, "grants.host_servers[0]"},
		{"a skill", func(r *job.Request) { r.Profile.Skills = []string{"review"} }, ""},
		{"another skill", func(r *job.Request) { r.Profile.Skills = []string{"x"} }, "profile.skills[0]"},
		{"a package by name", func(r *job.Request) { r.Profile.PiPackages = []string{"lint"} }, ""},
		{"a package by source", func(r *job.Request) { r.Profile.PiPackages = []string{"npm:lint@1"} }, "profile.pi_packages[0]"},
		{"a shell", func(r *job.Request) { r.Profile.Shell = "bash" }, ""},
		{"another shell", func(r *job.Request) { r.Profile.Shell = "zsh" }, "profile.shell"},
		{"a container-use environment", func(r *job.Request) { r.Profile.ContainerUseEnvironment = "dev" }, ""},
		{"another container-use environment", func(r *job.Request) { r.Profile.ContainerUseEnvironment = "x" }, "profile.container_use_environment"},
		{"a PATH directory", func(r *job.Request) { r.VCSContainerPath = []string{"/opt/wrap"} }, ""},
		{"another PATH directory", func(r *job.Request) { r.VCSContainerPath = []string{"/opt"} }, "vcs_container_path[0]"},
		{"an engine", func(r *job.Request) { r.Grants.DaggerEngine = "tcp://127.0.0.1:1" }, ""},
		{"another engine", func(r *job.Request) { r.Grants.DaggerEngine = "unix:///run/x" }, "grants.dagger_engine"},
		{"a profile with another engine", func(r *job.Request) { r.Profile.Dagger = &job.Dagger{Engine: "unix:///run/x"} }, "profile.dagger.engine"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := request()
			tc.change(&r)
			err := c.Check(r)
			if tc.field == "" {
				must(t, err)
				return
			}
			if !errors.Is(err, agent.ErrNotGranted) {
				t.Fatalf("got %v, want a refusal", err)
			}
			if !strings.HasPrefix(err.Error(), tc.field+":") {
				t.Errorf("got %q, want it to name %s", err, tc.field)
			}
			if !strings.Contains(err.Error(), "allow") && !strings.Contains(err.Error(), "leave") && !strings.Contains(err.Error(), "keep") && !strings.Contains(err.Error(), "name the") && !strings.Contains(err.Error(), "list") {
				t.Errorf("%q does not say what would be taken", err)
			}
		})
	}

	t.Run("an empty ceiling allows nothing", func(t *testing.T) {
		if err := parse(t, "", root).Check(request()); !errors.Is(err, agent.ErrNotGranted) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("version control needs both", func(t *testing.T) {
		r := request()
		r.Grants.VCS, r.Profile.VCSAccess = true, true
		must(t, c.Check(r))
		no := parse(t, strings.Replace(ceiling, "vcs: true", "vcs: false", 1), root)
		if err := no.Check(r); !errors.Is(err, agent.ErrNotGranted) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no network allows no domain", func(t *testing.T) {
		no := parse(t, strings.Replace(ceiling, "network: proxied\ndomains: [api.example.com, \"*.pkg.example.com\"]", "network: none", 1), root)
		r := request()
		must(t, no.Check(r))
		r.Profile.SandboxDomains = []string{"api.example.com"}
		if err := no.Check(r); !errors.Is(err, agent.ErrNotGranted) {
			t.Errorf("got %v", err)
		}
	})
}

func git(url string, credentials ...string) job.Workspace {
	return job.Workspace{Git: &job.Git{URL: url, Credentials: credentials}}
}

// swapped is a boundary whose mounts resolved elsewhere than Check saw.
type swapped []agent.Mount

func (s swapped) Verify(agent.Request) (*agent.Turn, error) { return &agent.Turn{Mounts: s}, nil }

func TestCeilingHold(t *testing.T) {
	root := tree(t)
	c := parse(t, ceiling, root)
	for _, tc := range []struct {
		name  string
		mount agent.Mount
		ok    bool
	}{
		{"a mount that still is inside", agent.Mount{Path: root + "/data/x", Access: "rw"}, true},
		{"the attempt's own workspace", agent.Mount{Path: "/own/ws/sub", Access: "rw"}, true},
		{"a mount that was swapped for a link", agent.Mount{Path: root + "/outside", Access: "ro"}, false},
		{"a mount that was swapped for a read-only one", agent.Mount{Path: root + "/data/ro", Access: "rw"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := c.Hold(swapped{tc.mount}, "/own/ws").Verify(agent.Request{})
			if ok := err == nil; ok != tc.ok {
				t.Errorf("got %v", err)
			}
			if err != nil && !errors.Is(err, agent.ErrNotGranted) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestParseCeiling(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"an unknown key":                         {"agents: [claude]\nagnets: []\n", "line 2: unknown key agnets"},
		"an unknown inner key":                   {"env:\n  inherits: [X]\n", "line 2: unknown key inherits"},
		"a key twice":                            {"vcs: true\nvcs: false\n", "line 2"},
		"two documents":                          {"vcs: true\n---\nvcs: true\n", "one YAML document"},
		"a list for a word":                      {"network: [open]\n", "line 1"},
		"an unknown agent":                       {"agents: [gpt]\n", "agents"},
		"an unknown placement":                   {"placements: [host]\n", "placements"},
		"an unknown network":                     {"network: vpn\n", "network"},
		"domains without a proxy":                {"network: open\ndomains: [a.b]\n", "domains"},
		"a domain in capitals":                   {"network: proxied\ndomains: [A.b]\n", "domains"},
		"a host without a port":                  {"hosts: {a.b: 'c.d:1'}\n", "hosts"},
		"a host that leads nowhere":              {"hosts: {'a.b:1': 'c.d'}\n", "hosts"},
		"a host with a port that is none":        {"hosts: {'a.b:x': 'c.d:1'}\n", "hosts"},
		"a relative mount":                       {"mounts: [{path: data, access: ro}]\n", "mounts.path"},
		"an unclean mount":                       {"mounts: [{path: /a/../b, access: ro}]\n", "mounts.path"},
		"a mount without access":                 {"mounts: [{path: /a}]\n", "mounts.access"},
		"every variable":                         {"env: {inherit: ['*']}\n", "env"},
		"a secret for a name":                    {"accounts: {a: {env: {KEY: sk-ant-api03-x}}}\n", "never holds"},
		"a size that is none":                    {"limits: {memory: lots}\n", "size"},
		"a negative limit":                       {"limits: {processes: -1}\n", "limits"},
		"a negative cost":                        {"max_cost_usd: \"-1\"\n", "max_cost_usd"},
		"a command without path":                 {"mcp: {commands: {x: {path: x}}}\n", "mcp.commands.x.path"},
		"a URL with a query":                     {"mcp: {urls: ['https://a/b?c']}\n", "mcp.urls"},
		"a port that is none":                    {"host_servers: {x: 0}\n", "host_servers.x"},
		"a provider of an agent that has one":    {"providers: {claude: {x: {}}}\n", "providers"},
		"a provider's secret":                    {"providers: {pi: {x: {key_env: sk-ant-api03-x}}}\n", "never holds"},
		"a provider's address with a credential": {"providers: {pi: {x: {base_url: 'http://a:b@c'}}}\n", "providers.pi.x.base_url"},
		"a provider's odd name":                  {"providers: {pi: {'x/y': {}}}\n", "providers.pi.x/y"},
		"a price that is none":                   {"providers: {pi: {x: {models: [{id: m, price: {input: .nan}}]}}}\n", "providers.pi.x.models[0].price"},
		"a model without id":                     {"providers: {pi: {x: {models: [{}]}}}\n", "providers.pi.x.models[0]"},
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			_, err := worker.ParseCeiling([]byte(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want it to say %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "worker.") {
				t.Errorf("%q speaks of our types", err)
			}
		})
	}
	t.Run("reads limits", func(t *testing.T) {
		got := parse(t, ceiling, "/r").AgentLimits()
		if want := (agent.Limits{MemoryBytes: 2 << 30, Processes: 100, CPUs: 1.5}); got != want {
			t.Errorf("got %+v", got)
		}
	})
}

func TestCeilingHash(t *testing.T) {
	hash := func(text string) string { return parse(t, text, "/r").Hash() }
	if hash("agents: [claude, pi]\nvcs: true\n") != hash("# a comment\nvcs: true\nagents: [pi, claude]\n") {
		t.Error("order and comments change the hash")
	}
	if hash("network: proxied\n") == hash("network: proxied\ndomains: []\n") {
		t.Error("no domains at all and any public host have one hash")
	}
	if hash("vcs: true\n") != hash("vcs: true\nnetwork: proxied\n") {
		t.Error("the network a pool has anyway changes the hash")
	}
	seen := map[string]string{}
	for _, text := range []string{"", "vcs: true", "agents: [pi]", "tools: [pi]", "mounts: [{path: /a, access: ro}]", "mounts: [{path: /a, access: rw}]",
		"workspaces: {dirs: [{path: /a, access: rw}]}", "accounts: {a: {env: {A: B}}}", "accounts: {a: {env: {A: C}}}", "providers: {pi: {a: {}}}",
		"providers: {pi: {a: {base_url: 'http://a'}}}", "hosts: {'a.b:1': 'c.d:1'}", "network: open", "limits: {processes: 1}", "max_timeout: 1h", "max_cost_usd: '1'"} {
		if other, ok := seen[hash(text)]; ok {
			t.Errorf("%q and %q have one hash", text, other)
		}
		seen[hash(text)] = text
	}
}

func FuzzParseCeiling(f *testing.F) {
	f.Add([]byte(ceiling))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("limits: {cpus: .nan}"))
	f.Add([]byte("---\n---\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := worker.ParseCeiling(text)
		if err != nil {
			if c != nil {
				t.Error("an error and a ceiling")
			}
			return
		}
		if again, err := worker.ParseCeiling(text); err != nil || again.Hash() != c.Hash() {
			t.Errorf("the same text hashes differently, or fails: %v", err)
		}
		// The plain request wants a placement, an agent, a tool and a workspace.
		if err := c.Check(request()); err == nil && (len(c.Placements) == 0 || len(c.Agents) == 0 || len(c.Tools) == 0) {
			t.Error("a ceiling that names nothing allowed something")
		}
	})
}
