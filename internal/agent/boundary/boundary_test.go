package boundary_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"turnpike/internal/agent"
	"turnpike/internal/agent/boundary"
	"turnpike/internal/vcs"
)

// confiner enforces everything, or what refuses says, and remembers what it was asked.
type confiner struct {
	asked   *agent.Confinement
	refuses error
}

func (c *confiner) Check(what agent.Confinement) error {
	c.asked = &what
	return c.refuses
}

func (c *confiner) Start(*exec.Cmd, agent.Confinement) error { panic("a boundary starts nothing") }

// world is a host with one workspace, and a request that is inside its grants.
type world struct {
	t        testing.TB
	dir      string // resolved
	ws       string
	boundary boundary.HostBoundary
	request  agent.Request
	confiner *confiner
}

func newWorld(t testing.TB) *world {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir, ws: filepath.Join(dir, "ws"), confiner: &confiner{}}
	w.mkdir("ws", "home", "sessions", "other", "system")
	every := map[agent.Placement]agent.ToolSupport{}
	for _, p := range agent.Placements() {
		every[p] = agent.ToolSupport{Supported: true}
	}
	w.boundary = boundary.HostBoundary{
		Environ:     func() []string { return []string{"HOME=" + w.path("home"), "LANG=C", "LC_ALL=C", "PATH=/usr/bin:/bin"} },
		Confiner:    w.confiner,
		SystemPaths: []agent.Mount{{Path: w.path("system"), Access: agent.ReadOnly}},
		SessionsDir: w.path("sessions"),
		Network:     agent.Network{Open: true},
		Backends: func(name string) (agent.Backend, bool) {
			return agent.Backend{Name: name, WritableTools: every}, name == agent.AgentClaude || name == agent.AgentPi
		},
	}
	w.request = agent.Request{
		Name: "r", Workspace: vcs.Workspace{Dir: w.ws},
		Profile: agent.Profile{Name: "p", Confine: true},
		Grants: &agent.Grants{
			Tools:  []string{agent.ToolsAll},
			Mounts: []agent.Mount{{Path: w.ws, Access: agent.ReadWrite}},
		},
	}
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) mkdir(names ...string) {
	w.t.Helper()
	for _, n := range names {
		if err := os.MkdirAll(w.path(n), 0o700); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) write(name, content string) {
	w.t.Helper()
	w.mkdir(filepath.Dir(name))
	if err := os.WriteFile(w.path(name), []byte(content), 0o700); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) link(target, name string) {
	w.t.Helper()
	if err := os.Symlink(target, w.path(name)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) socket(name string) {
	w.t.Helper()
	// The path is too long for a socket address, a relative one is not.
	l, err := net.Listen("unix", shortPath(w.t, w.path(name)))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = l.Close() })
}

func shortPath(t testing.TB, path string) string {
	t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	rel, err := filepath.Rel(wd, path)
	if err != nil || len(rel) > len(path) {
		return path
	}
	return rel
}

func (w *world) grant(name string, access agent.Access) {
	w.request.Grants.Mounts = append(w.request.Grants.Mounts, agent.Mount{Path: w.path(name), Access: access})
}

func (w *world) verify() *agent.Turn {
	w.t.Helper()
	turn, err := w.boundary.Verify(w.request)
	if err != nil {
		w.t.Fatalf("Verify: %v", err)
	}
	return turn
}

// TestVerifyRefuses has a row for each thing a turn must not have.
func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	notGranted, unsupported := agent.ErrNotGranted, agent.ErrUnsupported
	tests := map[string]struct {
		change func(*world)
		want   error
		says   string
	}{
		"no_grants": {func(w *world) { w.request.Grants = nil }, notGranted, "grants"},

		// Agent and placement.
		"an_unknown_agent":               {func(w *world) { w.request.Profile.Agent = "other" }, unsupported, "other"},
		"an_unknown_sandbox":             {func(w *world) { w.request.Profile.Sandbox = "vm" }, unsupported, "vm"},
		"a_container":                    {func(w *world) { w.request.Profile.Sandbox, w.request.Profile.Confine = agent.SandboxContainer, false }, unsupported, "container"},
		"a_confined_claude_sandbox":      {func(w *world) { w.request.Profile.Sandbox = agent.SandboxClaude }, unsupported, "none-confined"},
		"what_the_system_cannot_enforce": {func(w *world) { w.confiner.refuses = unsupported }, unsupported, "confine"},
		"a_dagger_engine":                {func(w *world) { w.request.Profile.Dagger = &agent.Dagger{} }, unsupported, "Dagger"},
		"a_granted_dagger_engine":        {func(w *world) { w.request.Grants.DaggerEngine = "tcp://x:1" }, unsupported, "Dagger"},
		"host_servers":                   {func(w *world) { w.request.Grants.HostServers = []agent.HostServer{{}} }, unsupported, "servers"},
		"a_host_MCP_server":              {func(w *world) { w.request.HostMCP = &agent.HostMCP{} }, unsupported, "MCP"},
		"an_image":                       {func(w *world) { w.request.Profile.SandboxImage = "i" }, unsupported, "image"},
		"a_container_use_environment":    {func(w *world) { w.request.Profile.ContainerUseEnvironment = "e" }, unsupported, "container-use"},
		"packages_of_another_agent":      {func(w *world) { w.request.Profile.PiPackages = []string{"p"} }, unsupported, "pi"},
		"packages_that_are_not_granted": {func(w *world) {
			w.request.Profile.Agent, w.request.Profile.PiPackages = agent.AgentPi, []string{w.path("other")}
		}, notGranted, "package"},
		"skills_that_are_not_granted": {func(w *world) {
			w.request.Profile.Skills, w.boundary.SkillDirs = []string{"s"}, []string{w.path("other")}
		}, notGranted, "skills"},

		// Network and limits.
		"limits_without_confinement":  {func(w *world) { w.request.Profile.Confine = false; w.boundary.Limits.Processes = 9 }, unsupported, "limits"},
		"a_bounded_network_without":   {func(w *world) { w.request.Profile.Confine = false; w.boundary.Network = agent.Network{Proxied: true} }, unsupported, "network"},
		"domains_without_confinement": {func(w *world) { w.request.Profile.Confine = false; w.request.Profile.SandboxDomains = []string{} }, unsupported, "network"},
		"a_domain_the_owner_does_not_give": {func(w *world) {
			w.boundary.Network = agent.Network{Proxied: true, Domains: []string{"a.example"}}
			w.request.Profile.SandboxDomains = []string{"b.example"}
		}, notGranted, "b.example"},
		"a_domain_without_any_network": {func(w *world) {
			w.boundary.Network = agent.Network{}
			w.request.Profile.SandboxDomains = []string{"a.example"}
		}, notGranted, "a.example"},

		// Environment.
		"a_profile_variable_that_is_not_listed": {func(w *world) { w.request.Profile.Env = map[string]string{"X": "secret"} }, notGranted, "variable X"},
		"a_request_variable_that_is_not_listed": {func(w *world) { w.request.Env = map[string]string{"X": "secret"} }, notGranted, "variable X"},
		"a_prefix_without_its_star": {func(w *world) {
			w.request.Grants.Env = []string{"X"}
			w.request.Env = map[string]string{"XY": "secret"}
		}, notGranted, "variable XY"},
		"a_name_shorter_than_the_prefix": {func(w *world) {
			w.request.Grants.Env = []string{"XY*"}
			w.request.Env = map[string]string{"X": "secret"}
		}, notGranted, "variable X"},
		"another_case": {func(w *world) {
			w.request.Grants.Env = []string{"x*"}
			w.request.Env = map[string]string{"X": "secret"}
		}, notGranted, "variable X"},
		"a_star_inside_a_name": {func(w *world) { w.request.Grants.Env = []string{"A*B"} }, notGranted, "A*B"},
		"an_empty_name":        {func(w *world) { w.request.Grants.Env = []string{"*"}; w.request.Env = map[string]string{"": "secret"} }, notGranted, "variable name"},
		"a_name_with_an_equals_sign": {func(w *world) {
			w.request.Grants.Env = []string{"*"}
			w.request.Env = map[string]string{"A=B": "secret"}
		}, notGranted, "variable name"},
		"a_value_with_a_NUL": {func(w *world) {
			w.request.Grants.Env = []string{"*"}
			w.request.Env = map[string]string{"A": "secret\x00B=secret"}
		}, notGranted, "variable A"},
		"a_version_control_variable_without_it": {func(w *world) {
			w.request.Grants.Env = []string{"*"}
			w.request.Env = map[string]string{"GIT_DIR": "secret"}
		}, notGranted, "GIT_DIR"},
		"its_variable_that_is_not_listed": {func(w *world) {
			w.request.Grants.VCS, w.request.Profile.VCSAccess = true, true
			w.request.VCSEnv = map[string]string{"GH_TOKEN": "secret"}
		}, notGranted, "GH_TOKEN"},
		"a_relative_shell": {func(w *world) { w.request.Profile.Shell = "bash" }, notGranted, "shell"},

		// Tools.
		"a_tool_that_is_not_granted": {func(w *world) {
			w.request.Grants.Tools = []string{"Read"}
			w.request.Profile.AllowedTools = []string{"Read", "Bash"}
		}, notGranted, `"Bash"`},
		"all_tools_where_some_are_granted": {func(w *world) {
			w.request.Grants.Tools = []string{"Read"}
			w.request.Profile.AllowedTools = []string{agent.ToolsAll}
		}, notGranted, `"*"`},
		"a_pattern_of_a_tool":    {func(w *world) { w.request.Profile.AllowedTools = []string{"Bash(rm *)"} }, unsupported, "Bash(rm *)"},
		"disallowing_everything": {func(w *world) { w.request.Profile.DisallowedTools = []string{agent.ToolsAll} }, unsupported, "grant no tools"},
		"a_list_the_agent_cannot_be_held_to": {func(w *world) {
			w.request.Grants.Tools = []string{"Read"}
			w.boundary.Backends = func(string) (agent.Backend, bool) {
				return agent.Backend{WritableTools: map[agent.Placement]agent.ToolSupport{
					w.request.Profile.Placement(): {Remedy: "grant them all"}}}, true
			}
		}, unsupported, "grant them all"},
		"a_server_that_is_not_granted": {func(w *world) {
			w.request.Profile.MCP = map[string]agent.MCPEntry{"s": {Command: "c"}}
		}, notGranted, "mcp__s"},
		"a_server_with_a_name_that_reads_as_another": {func(w *world) {
			w.request.Grants.Tools = append(w.request.Grants.Tools, "mcp__a__b")
			w.request.Profile.MCP = map[string]agent.MCPEntry{"a__b": {Command: "c"}}
		}, notGranted, "a__b"},
		"a_server_of_both_kinds": {func(w *world) {
			w.request.Grants.Tools = append(w.request.Grants.Tools, "mcp__s")
			w.request.Profile.MCP = map[string]agent.MCPEntry{"s": {Command: "c", URL: "http://h"}}
		}, notGranted, "command or a URL"},
		"a_server_that_is_not_of_its_type": {func(w *world) {
			w.request.Grants.Tools = append(w.request.Grants.Tools, "mcp__s")
			w.request.Profile.MCP = map[string]agent.MCPEntry{"s": {Command: "c", Type: "http"}}
		}, notGranted, "http"},
		"a_servers_variable_that_is_not_listed": {func(w *world) {
			w.request.Grants.Tools = append(w.request.Grants.Tools, "mcp__s")
			w.request.Profile.MCP = map[string]agent.MCPEntry{"s": {Command: "c", Env: map[string]string{"X": "secret"}}}
		}, notGranted, "variable X"},
		"a_servers_token_that_is_not_listed": {func(w *world) {
			w.request.Grants.Tools = append(w.request.Grants.Tools, "mcp__s")
			w.request.Profile.MCP = map[string]agent.MCPEntry{"s": {URL: "http://h", BearerTokenEnv: "X"}}
		}, notGranted, "variable X"},
		"one_tool_of_a_server": {func(w *world) { w.request.Profile.AllowedTools = []string{"mcp__s__t"} }, unsupported, "mcp__s__t"},

		// Mounts.
		"an_access_that_is_none": {func(w *world) { w.grant("other", "rwx") }, notGranted, "rwx"},
		"a_relative_mount":       {func(w *world) { w.request.Grants.Mounts[0].Path = "ws" }, notGranted, "absolute"},
		"an_empty_mount":         {func(w *world) { w.request.Grants.Mounts[0].Path = "" }, notGranted, "absolute"},
		"a_mount_that_is_absent": {func(w *world) { w.grant("absent", agent.ReadOnly) }, notGranted, "absent"},
		"a_mount_of_everything":  {func(w *world) { w.request.Grants.Mounts[0].Path = "/" }, notGranted, "root"},
		"a_mount_of_proc":        {func(w *world) { w.request.Grants.Mounts[0].Path = "/proc" }, notGranted, "/proc"},
		"a_mount_inside_proc":    {func(w *world) { w.request.Grants.Mounts[0].Path = "/proc/self" }, notGranted, "/proc"},
		"a_mount_of_sys":         {func(w *world) { w.request.Grants.Mounts[0].Path = "/sys/kernel" }, notGranted, "/sys"},
		"a_mount_of_dev":         {func(w *world) { w.request.Grants.Mounts[0].Path = "/dev/null" }, notGranted, "/dev"},
		"a_mount_of_run":         {func(w *world) { w.request.Grants.Mounts[0].Path = "/run" }, notGranted, "/run"},
		"a_link_to_run":          {func(w *world) { w.link("/run", "ws/run"); w.grant("ws/run", agent.ReadOnly) }, notGranted, "/run"},
		"the_home_directory":     {func(w *world) { w.grant("home", agent.ReadOnly) }, notGranted, "home"},
		"what_holds_the_home": {func(w *world) {
			w.mkdir("users/me")
			w.boundary.Environ = func() []string { return []string{"HOME=" + w.path("users/me")} }
			w.grant("users", agent.ReadOnly)
		}, notGranted, "home directory"},
		"the_sessions":             {func(w *world) { w.grant("sessions", agent.ReadOnly) }, notGranted, "sessions"},
		"another_session":          {func(w *world) { w.mkdir("sessions/s"); w.grant("sessions/s", agent.ReadOnly) }, notGranted, "sessions"},
		"a_link_into_the_sessions": {func(w *world) { w.link(w.path("sessions"), "ws/s"); w.grant("ws/s", agent.ReadOnly) }, notGranted, "sessions"},
		"the_workers_state":        {func(w *world) { w.boundary.Private = []string{w.path("other/state")}; w.grant("other", agent.ReadOnly) }, notGranted, "state"},
		"a_socket":                 {func(w *world) { w.socket("other/s"); w.grant("other/s", agent.ReadOnly) }, notGranted, "neither"},
		"a_directory_of_sockets":   {func(w *world) { w.socket("other/s"); w.grant("other", agent.ReadOnly) }, notGranted, "socket"},
		"what_holds_an_engines_socket": {func(w *world) {
			w.mkdir("other/deep")
			w.socket("other/deep/s")
			environ := w.boundary.Environ
			w.boundary.Environ = func() []string { return append(environ(), "DOCKER_HOST=unix://"+w.path("other/deep/s")) }
			w.grant("other", agent.ReadOnly)
		}, notGranted, "socket"},
		"one_mount_with_two_kinds_of_access": {func(w *world) { w.grant("ws", agent.ReadOnly) }, notGranted, "both"},
		"a_mount_outside_Within":             {func(w *world) { w.request.Grants.Within = w.ws; w.grant("other", agent.ReadOnly) }, notGranted, "outside"},
		"one_outside_through_dots": {func(w *world) {
			w.request.Grants.Within = w.ws
			w.grant("ws/../other", agent.ReadOnly)
			w.request.Grants.Mounts[1].Path = w.ws + "/../other"
		}, notGranted, "outside"},
		"one_outside_through_a_link": {func(w *world) {
			w.request.Grants.Within = w.ws
			w.link("../other", "ws/o")
			w.grant("ws/o", agent.ReadOnly)
		}, notGranted, "outside"},
		"one_outside_through_dots_after_a_link": {func(w *world) {
			w.mkdir("other/in", "ws/in")
			w.link("../other/in", "ws/o")
			w.request.Grants.Within = w.ws
			w.request.Grants.Mounts = append(w.request.Grants.Mounts, agent.Mount{Path: w.ws + "/o/../in", Access: agent.ReadOnly})
		}, notGranted, "outside"},
		"one_beside_Within_with_its_name": {func(w *world) { w.mkdir("ws2"); w.request.Grants.Within = w.ws; w.grant("ws2", agent.ReadOnly) }, notGranted, "outside"},
		"a_Within_that_is_absent":         {func(w *world) { w.request.Grants.Within = w.path("absent") }, notGranted, "within"},

		// Working directory and further directories.
		"a_working_directory_outside":    {func(w *world) { w.request.Workspace.Dir = w.path("other") }, notGranted, "working directory"},
		"one_that_leaves_through_a_link": {func(w *world) { w.link("../other", "ws/o"); w.request.Workspace.Dir = w.path("ws/o") }, notGranted, "working directory"},
		"one_that_is_relative":           {func(w *world) { w.request.Workspace.Dir = "." }, notGranted, "absolute"},
		"one_that_is_a_file":             {func(w *world) { w.write("ws/f", ""); w.request.Workspace.Dir = w.path("ws/f") }, notGranted, "directory"},
		"a_directory_to_write_that_is_only_read": {func(w *world) {
			w.boundary.AddDirs = []string{w.path("other")}
			w.grant("other", agent.ReadOnly)
		}, notGranted, "read-write"},

		// Version control.
		"version_control":             {func(w *world) { w.request.Profile.VCSAccess = true }, notGranted, "version control"},
		"writing_metadata_as_a_mount": {func(w *world) { w.mkdir("other/.git/hooks"); w.grant("other/.git/hooks", agent.ReadWrite) }, notGranted, "metadata"},
		"metadata_that_is_a_link":     {func(w *world) { w.mkdir("other/git"); w.link("../other/git", "ws/.git") }, unsupported, ".git"},
		"metadata_with_version_control_that_is_not_granted": {func(w *world) {
			w.request.Grants.VCS, w.request.Profile.VCSAccess = true, true
			w.request.Workspace.Metadata = []string{w.path("other")}
		}, notGranted, "metadata"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			test.change(w)
			turn, err := w.boundary.Verify(w.request)
			if turn != nil || !errors.Is(err, test.want) {
				t.Fatalf("got %+v, %v; want %v", turn, err, test.want)
			}
			if !strings.Contains(err.Error(), test.says) {
				t.Errorf("the refusal does not say %q: %v", test.says, err)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the refusal tells a value: %v", err)
			}
		})
	}
}

func TestVerifyEnvironment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.boundary.StripPrefix = "TURNPIKE_"
	w.boundary.Environ = func() []string {
		return []string{
			"HOME=" + w.path("home"), "TMPDIR=/tmp", "TURNPIKE_DB=s", "LC_ALL=C", "LC_=x", "LANG=C", "A=host",
			"GIT_DIR=s", "gh_token=s", "SSH_AUTH_SOCK=s", "=odd", "odder",
		}
	}
	w.request.Grants.Env = []string{"HOME", "TMPDIR", "TURNPIKE_*", "LC_*", "A", "B", "GIT_*", "gh_*", "SSH_*", "NOT_SET"}
	w.request.Profile.Env = map[string]string{"A": "profile", "B": "profile"}
	w.request.Env = map[string]string{"B": "request"}
	w.request.VCSEnv = map[string]string{"GIT_AUTHOR_NAME": "s"}
	w.request.ContainerEnv = map[string]string{"A": "container"}
	w.request.Profile.Shell = "/bin/bash"

	t.Run("is_what_is_granted_and_no_more", func(t *testing.T) {
		want := []string{"A=profile", "B=request", "LC_=x", "LC_ALL=C", "SHELL=/bin/bash"}
		if diff := cmp.Diff(want, w.verify().Env); diff != "" {
			t.Fatal(diff)
		}
	})
	t.Run("has_version_control's_own_with_it", func(t *testing.T) {
		w.request.Grants.VCS, w.request.Profile.VCSAccess = true, true
		got := w.verify().Env
		for _, want := range []string{"GIT_AUTHOR_NAME=s", "GIT_DIR=s", "gh_token=s", "SSH_AUTH_SOCK=s"} {
			if !slices.Contains(got, want) {
				t.Errorf("%s is missing in %v", want, got)
			}
		}
	})
	t.Run("keeps_the_host's_home_when_nothing_confines", func(t *testing.T) {
		w.request.Profile.Confine = false
		if got := w.verify().Env; !slices.Contains(got, "HOME="+w.path("home")) {
			t.Errorf("got %v", got)
		}
	})
}

// TestVerifyReadOnly: an agent that cannot be held to a list of tools can be held to
// none at all, in a turn that writes nowhere.
func TestVerifyReadOnly(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		able    *agent.RestrictedCapabilities
		access  agent.Access
		granted []string
		want    bool
	}{
		"no_tools_and_no_writable_mount": {&agent.RestrictedCapabilities{Supported: true}, agent.ReadOnly, nil, true},
		"a_writable_mount":               {&agent.RestrictedCapabilities{Supported: true}, agent.ReadWrite, nil, false},
		"a_tool":                         {&agent.RestrictedCapabilities{Supported: true}, agent.ReadOnly, []string{"Read"}, false},
		"an_agent_that_cannot":           {&agent.RestrictedCapabilities{}, agent.ReadOnly, nil, false},
		"an_agent_that_does_not_say":     {nil, agent.ReadOnly, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.boundary.Backends = func(string) (agent.Backend, bool) { return agent.Backend{Restricted: test.able}, true }
			w.request.Grants.Tools = test.granted
			for i := range w.request.Grants.Mounts {
				w.request.Grants.Mounts[i].Access = test.access
			}
			turn, err := w.boundary.Verify(w.request)
			if test.want != (err == nil) || err != nil && !errors.Is(err, agent.ErrUnsupported) {
				t.Fatalf("%+v, %v", turn, err)
			}
			if err == nil && (turn.Tools == nil || len(turn.Tools) > 0) {
				t.Errorf("tools %v", turn.Tools)
			}
		})
	}
}

func TestVerifyTools(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		granted, allowed, disallowed []string
		want                         []string
	}{
		"all_are_all":                 {granted: []string{"*"}},
		"all_disallowing_some_is_all": {granted: []string{"*"}, disallowed: []string{"Bash"}},
		"all_narrowed":                {granted: []string{"*"}, allowed: []string{"Read", "Grep", "Read"}, want: []string{"Read", "Grep"}},
		"all_allowed":                 {granted: []string{"*"}, allowed: []string{"*", "Read"}},
		"none_are_none":               {want: []string{}},
		"some":                        {granted: []string{"Read", "Bash", "Read"}, want: []string{"Read", "Bash"}},
		"some_narrowed":               {granted: []string{"Read", "Bash"}, allowed: []string{"Bash"}, want: []string{"Bash"}},
		"some_without_one":            {granted: []string{"Read", "Bash"}, disallowed: []string{"Bash"}, want: []string{"Read"}},
		"a_server_is_no_tool":         {granted: []string{"mcp__s"}, allowed: []string{"mcp__s"}, want: []string{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.request.Grants.Tools = test.granted
			w.request.Profile.AllowedTools, w.request.Profile.DisallowedTools = test.allowed, test.disallowed
			if slices.Contains(test.granted, "mcp__s") {
				w.request.Profile.MCP = map[string]agent.MCPEntry{"s": {Command: "c"}}
			}
			if diff := cmp.Diff(test.want, w.verify().Tools); diff != "" {
				t.Fatal(diff)
			}
		})
	}
}

func TestVerifyMounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mkdir("ws/vendor", "other/cache")
	w.link("../other", "ws/link")
	w.request.Grants.Mounts = []agent.Mount{
		{Path: w.path("ws/vendor"), Access: agent.ReadOnly},
		{Path: w.path("ws") + "/./vendor/..", Access: agent.ReadWrite},
		{Path: w.path("ws/link/cache"), Access: agent.ReadWrite},
	}
	w.boundary.AddDirs = []string{w.path("ws/link/cache"), w.path("ws/sub")}
	w.mkdir("ws/sub")
	w.request.Workspace.Dir = w.path("ws/sub")
	turn := w.verify()
	want := []agent.Mount{
		{Path: w.path("other/cache"), Access: agent.ReadWrite},
		{Path: w.path("ws"), Access: agent.ReadWrite},
		{Path: w.path("ws/vendor"), Access: agent.ReadOnly},
	}
	if diff := cmp.Diff(want, turn.Mounts); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{w.path("other/cache"), w.path("ws")}, turn.WriteDirs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(*turn.Confinement, *w.confiner.asked); diff != "" {
		t.Errorf("the confiner was asked for something else:\n%s", diff)
	}
	if turn.Confinement.Workspace != w.path("ws/sub") {
		t.Errorf("the workspace is %s", turn.Confinement.Workspace)
	}
}

func TestVerifyNetwork(t *testing.T) {
	t.Parallel()
	open, proxied := agent.Network{Open: true}, agent.Network{Proxied: true}
	for name, test := range map[string]struct {
		owner   agent.Network
		domains []string
		want    agent.Network
	}{
		"is_the_owner's_where_nothing_is_said": {proxied, nil, proxied},
		"is_nothing_for_an_empty_list":         {open, []string{}, agent.Network{}},
		"is_narrowed_from_open":                {open, []string{"a"}, agent.Network{Proxied: true, Domains: []string{"a"}}},
		"is_narrowed_from_any_public_host":     {proxied, []string{"a"}, agent.Network{Proxied: true, Domains: []string{"a"}}},
		"keeps_the_owner's_hosts": {
			agent.Network{Proxied: true, Hosts: map[string]string{"a:1": "b:1"}}, []string{"a"},
			agent.Network{Proxied: true, Domains: []string{"a"}, Hosts: map[string]string{"a:1": "b:1"}},
		},
		"is_narrowed_from_a_list": {agent.Network{Proxied: true, Domains: []string{"a", "b"}}, []string{"b"}, agent.Network{Proxied: true, Domains: []string{"b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.boundary.Network, w.request.Profile.SandboxDomains = test.owner, test.domains
			w.boundary.Limits = agent.Limits{Processes: 100}
			c := w.verify().Confinement
			if diff := cmp.Diff(test.want, c.Network); diff != "" || c.Limits.Processes != 100 {
				t.Fatalf("%s, limits %+v", diff, c.Limits)
			}
		})
	}
}

func TestVerifyVersionControl(t *testing.T) {
	t.Parallel()
	build := func(t *testing.T) *world {
		w := newWorld(t)
		w.mkdir("ws/.git", "ws/deep/er/.hg", "ws/.jj/x", "ws/vendor/.git", "other/repo/.git/worktrees/x", "ws/rw/.svn", "ws/bare.git/objects", "ws/bare.git/refs")
		w.write("ws/bare.git/HEAD", "ref: refs/heads/main\n")
		w.write("other/repo/.git/worktrees/x/commondir", "../..\n")
		w.write("ws/worktree/.git", "gitdir: "+w.path("other/repo/.git/worktrees/x")+"\n")
		w.write("ws/odd/.git", "nonsense")
		w.grant("ws/vendor", agent.ReadOnly)
		w.grant("ws/rw", agent.ReadWrite)
		w.grant("other", agent.ReadWrite)
		return w
	}
	t.Run("keeps_all_metadata_read_only_without_it", func(t *testing.T) {
		t.Parallel()
		w := build(t)
		w.request.Workspace.Metadata = []string{w.path("other/repo/.git/worktrees/x"), w.path("absent")}
		var want []string
		for _, p := range []string{"other/repo/.git", "ws/.git", "ws/.jj", "ws/bare.git", "ws/deep/er/.hg", "ws/odd/.git", "ws/rw/.svn", "ws/worktree/.git"} {
			want = append(want, w.path(p))
		}
		if diff := cmp.Diff(want, w.verify().Confinement.ReadOnlyMetadata); diff != "" {
			t.Fatal(diff)
		}
	})
	t.Run("leaves_it_writable_with_it", func(t *testing.T) {
		t.Parallel()
		w := build(t)
		w.request.Grants.VCS, w.request.Profile.VCSAccess = true, true
		w.request.Workspace.Metadata = []string{w.path("other/repo/.git")}
		turn := w.verify()
		if !turn.VCS || len(turn.Confinement.ReadOnlyMetadata)+len(turn.Confinement.Denied)+len(turn.DeniedExecutables) > 0 {
			t.Fatalf("got %+v, %+v", turn, turn.Confinement)
		}
	})
	t.Run("is_off_where_it_is_granted_but_not_asked_for", func(t *testing.T) {
		t.Parallel()
		w := build(t)
		w.request.Grants.VCS = true
		if turn := w.verify(); turn.VCS || len(turn.Confinement.ReadOnlyMetadata) == 0 {
			t.Fatalf("got %+v", turn)
		}
	})
	t.Run("denies_its_commands_whatever_leads_there", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.write("system/bin/git", "")
		w.write("system/bin/git-lfs", "")
		w.write("system/bin/legit", "")
		w.write("system/opt/hg.real", "")
		w.link("../opt/hg.real", "system/bin/hg")
		w.write("other/bin/gh", "") // not reachable
		w.boundary.Environ = func() []string {
			return []string{"PATH=relative:" + w.path("system/bin") + ":" + w.path("other/bin") + ":" + w.path("absent")}
		}
		w.request.Grants.Env = []string{"PATH"}
		turn := w.verify()
		var want []string
		for _, p := range []string{"system/bin/git", "system/bin/git-lfs", "system/bin/hg", "system/opt/hg.real"} {
			want = append(want, w.path(p))
		}
		if diff := cmp.Diff(want, turn.Confinement.Denied); diff != "" {
			t.Error(diff)
		}
		for _, name := range []string{"git", "git-lfs", "gh", "hg", "jj", "svn"} {
			if !slices.Contains(turn.DeniedExecutables, name) {
				t.Errorf("%s is not shadowed", name)
			}
		}
	})
	t.Run("denies_sockets_inside_what_may_be_written", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.mkdir("ws/d")
		w.socket("ws/d/s")
		if got := w.verify().Confinement.Denied; !slices.Equal(got, []string{w.path("ws/d/s")}) {
			t.Fatalf("got %v", got)
		}
	})
}

func TestEnginesRefuse(t *testing.T) {
	for name, b := range map[string]agent.Boundary{"container": boundary.ContainerBoundary{}, "sandbox": boundary.SandboxBoundary{}} {
		if _, err := b.Verify(newWorld(t).request); !errors.Is(err, agent.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDeciding compares which of nested mounts decides with walking up from the
// path, the way a person would.
func TestDeciding(t *testing.T) {
	names := rapid.SampledFrom([]string{"a", "b", "ab"})
	rapid.Check(t, func(t *rapid.T) {
		paths := rapid.Custom(func(t *rapid.T) string {
			return "/" + strings.Join(rapid.SliceOfN(names, 1, 4).Draw(t, "parts"), "/")
		})
		granted := rapid.MapOfN(paths, rapid.SampledFrom([]agent.Access{agent.ReadOnly, agent.ReadWrite}), 0, 6).Draw(t, "granted")
		var mounts []agent.Mount
		for p, a := range granted {
			mounts = append(mounts, agent.Mount{Path: p, Access: a})
		}
		path := paths.Draw(t, "path")
		var want agent.Mount
		for up := path; up != "/"; up = filepath.Dir(up) {
			if a, ok := granted[up]; ok {
				want = agent.Mount{Path: up, Access: a}
				break
			}
		}
		got, ok := agent.Deciding(mounts, path)
		if got != want || ok != (want != agent.Mount{}) {
			t.Fatalf("%s in %v: got %v, %v, want %v", path, mounts, got, ok, want)
		}
	})
}

// TestVerifyKeepsNestedMetadata draws trees of mounts with a repository in each
// directory: exactly those that may be written must be kept read-only.
func TestVerifyKeepsNestedMetadata(t *testing.T) {
	w := newWorld(t)
	var dirs []string
	for _, a := range []string{"", "a", "b"} {
		for _, b := range []string{"", "a", "b"} {
			dirs = append(dirs, filepath.Join("ws", a, b))
		}
	}
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	for _, d := range dirs {
		w.mkdir(filepath.Join(d, ".git"))
	}
	rapid.Check(t, func(t *rapid.T) {
		access := map[string]agent.Access{}
		w.request.Grants.Mounts = []agent.Mount{{Path: w.ws, Access: agent.ReadOnly}}
		access["ws"] = agent.ReadOnly
		for _, d := range rapid.SliceOfDistinct(rapid.SampledFrom(dirs), rapid.ID[string]).Draw(t, "mounts") {
			access[d] = rapid.SampledFrom([]agent.Access{agent.ReadOnly, agent.ReadWrite}).Draw(t, "access")
		}
		w.request.Grants.Mounts = nil
		for d, a := range access {
			w.request.Grants.Mounts = append(w.request.Grants.Mounts, agent.Mount{Path: w.path(d), Access: a})
		}
		var want []string
		for _, d := range dirs {
			for up := d; ; up = filepath.Dir(up) {
				if a, ok := access[up]; ok {
					if a == agent.ReadWrite {
						want = append(want, w.path(filepath.Join(d, ".git")))
					}
					break
				}
			}
		}
		slices.Sort(want)
		turn, err := w.boundary.Verify(w.request)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, turn.Confinement.ReadOnlyMetadata); diff != "" {
			t.Fatal(fmt.Sprint(access), diff)
		}
	})
}

// FuzzGitFile puts anything into a worktree's .git file, which an agent may have
// written: the file stays read-only, and nothing outside the mounts is ever named.
func FuzzGitFile(f *testing.F) {
	f.Add("gitdir: ../other\n")
	f.Add("gitdir: /proc/self/root")
	f.Add("gitdir: \x00")
	f.Add("gitdir: .\n")
	f.Fuzz(func(t *testing.T, content string) {
		w := newWorld(t)
		w.write("ws/.git", content)
		turn, err := w.boundary.Verify(w.request)
		if err != nil {
			if !errors.Is(err, agent.ErrUnsupported) {
				t.Fatal(err)
			}
			return
		}
		kept := turn.Confinement.ReadOnlyMetadata
		if !slices.ContainsFunc(kept, func(k string) bool { return agent.Inside(w.path("ws/.git"), k) }) {
			t.Fatalf("the file is not kept: %q", kept)
		}
		for _, k := range kept {
			if !agent.Inside(k, w.ws) {
				t.Fatalf("%q is outside", k)
			}
		}
	})
}
