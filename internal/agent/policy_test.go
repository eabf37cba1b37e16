package agent_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnpike/internal/agent"
)

// TestPolicyAnswers walks up from a path to the mount that decides about it, and compares
// that with what the policy says.
func TestPolicyAnswers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		path := rapid.Custom(func(t *rapid.T) string {
			return "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "ab", "c"}), 0, 5).Draw(t, "names"), "/")
		})
		mount := rapid.Custom(func(t *rapid.T) agent.Mount {
			return agent.Mount{Path: path.Draw(t, "path"), Access: rapid.SampledFrom([]agent.Access{agent.ReadOnly, agent.ReadWrite}).Draw(t, "access")}
		})
		mounts := rapid.SliceOfDistinct(mount, func(m agent.Mount) string { return m.Path })
		p := agent.Policy{
			Mounts: mounts.Draw(t, "mounts"), System: mounts.Draw(t, "system"),
			Denied: rapid.SliceOfN(path, 0, 3).Draw(t, "denied"), Metadata: rapid.SliceOfN(path, 0, 2).Draw(t, "metadata"),
		}
		asked := path.Draw(t, "asked")
		decides := func(mounts []agent.Mount) agent.Access {
			for at := asked; ; at = filepath.Dir(at) {
				for _, m := range mounts {
					if m.Path == at {
						return m.Access
					}
				}
				if at == "/" {
					return ""
				}
			}
		}
		under := func(paths []string) bool {
			for at := asked; ; at = filepath.Dir(at) {
				for _, p := range paths {
					if p == at {
						return true
					}
				}
				if at == "/" {
					return false
				}
			}
		}
		m, s := decides(p.Mounts), decides(p.System)
		reads := (m != "" || s != "") && !under(p.Denied)
		writes := (m == agent.ReadWrite || s == agent.ReadWrite) && !under(p.Denied) && !under(p.Metadata)
		if p.Reads(asked) != reads || p.Runs(asked) != reads || p.Writes(asked) != writes {
			t.Fatalf("%s: reads %t, runs %t, writes %t; want reads %t, writes %t", asked, p.Reads(asked), p.Runs(asked), p.Writes(asked), reads, writes)
		}
	})
	everything := agent.Policy{Mounts: []agent.Mount{{Path: "/", Access: agent.ReadWrite}}}
	for _, odd := range []string{"", "a", "./a", "/a/../b", "/a/", "//a", "/a\x00"} {
		if everything.Reads(odd) || everything.Writes(odd) || everything.Runs(odd) {
			t.Errorf("%q is no path of a file, and yet it says yes", odd)
		}
	}
}

func TestPolicyAllows(t *testing.T) {
	t.Parallel()
	some := agent.Policy{Tools: []string{"Read"}, MCPServers: []string{"tracker"}, Env: []string{"LANG", "LC_*"}}
	for tool, want := range map[string]bool{
		"Read": true, "Write": false, "": false, "Rea": false,
		"mcp__tracker": true, "mcp__tracker__list": true, "mcp__track": false, "mcp__trackers": false, "mcp__": false, "tracker": false,
	} {
		if some.Allows(tool) != want {
			t.Errorf("it allows %q: %t", tool, !want)
		}
	}
	if all := (agent.Policy{}); !all.Allows("Anything") || all.Allows("mcp__tracker") || all.Allows("") {
		t.Error("nil tools are all of them, and no server")
	}
	if none := (agent.Policy{Tools: []string{}}); none.Allows("Read") {
		t.Error("no tools are none")
	}
	for name, want := range map[string]bool{"LANG": true, "LANGUAGE": false, "LC_ALL": true, "LC_": true, "LC": false, "": false} {
		if some.AllowsEnv(name) != want {
			t.Errorf("it allows the variable %q: %t", name, !want)
		}
	}
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	grants := agent.Grants{
		Env: []string{"LANG"}, Tools: []string{"Read"}, Mounts: []agent.Mount{{Path: "/w", Access: agent.ReadWrite}},
		DaggerEngine: "tcp://127.0.0.1:1", HostServers: []agent.HostServer{{Name: "a", Port: 1}},
	}
	none := agent.Policy{Sandbox: agent.SandboxNone, Confine: true}
	container := agent.Policy{Sandbox: agent.SandboxContainer, Image: "img"}
	sbx := agent.Policy{Sandbox: agent.SandboxSbx, Agent: agent.AgentCodex, Image: "tpl", DaggerEngine: grants.DaggerEngine}
	confined := agent.Profile{Confine: true}
	boxed := agent.Profile{Sandbox: agent.SandboxContainer, SandboxImage: "img"}
	machine := agent.Profile{Sandbox: agent.SandboxSbx, SandboxImage: "tpl", Agent: agent.AgentCodex}
	with := func(change func(*agent.Grants)) *agent.Grants {
		g := grants
		change(&g)
		return &g
	}
	dagger := func(p agent.Profile, engine string) agent.Profile {
		p.Dagger = &agent.Dagger{Engine: engine}
		return p
	}
	for name, c := range map[string]struct {
		policy  agent.Policy
		request agent.Request
		refused string
	}{
		"without grants":                       {none, agent.Request{Profile: confined}, ""},
		"with the same":                        {none, agent.Request{Profile: confined, Grants: with(func(*agent.Grants) {})}, ""},
		"with fewer":                           {none, agent.Request{Profile: confined, Grants: with(func(g *agent.Grants) { g.Tools = nil })}, "grants"},
		"with another mount":                   {none, agent.Request{Profile: confined, Grants: with(func(g *agent.Grants) { g.Mounts = []agent.Mount{{Path: "/w", Access: agent.ReadOnly}} })}, "grants"},
		"with another variable":                {none, agent.Request{Profile: confined, Grants: with(func(g *agent.Grants) { g.Env = []string{"*"} })}, "grants"},
		"with version control":                 {none, agent.Request{Profile: confined, Grants: with(func(g *agent.Grants) { g.VCS = true })}, "grants"},
		"with another boundary":                {none, agent.Request{Profile: confined, Grants: with(func(g *agent.Grants) { g.Within = "/" })}, "grants"},
		"with another engine":                  {none, agent.Request{Profile: confined, Grants: with(func(g *agent.Grants) { g.DaggerEngine = "" })}, "grants"},
		"with another server":                  {none, agent.Request{Profile: confined, Grants: with(func(g *agent.Grants) { g.HostServers = nil })}, "grants"},
		"unconfined":                           {none, agent.Request{}, "placement"},
		"of another kind":                      {none, agent.Request{Profile: boxed}, "placement"},
		"of the image":                         {container, agent.Request{Profile: boxed}, ""},
		"of another image":                     {container, agent.Request{Profile: agent.Profile{Sandbox: agent.SandboxContainer, SandboxImage: "other"}}, "image"},
		"of any agent in a box":                {container, agent.Request{Profile: agent.Profile{Sandbox: agent.SandboxContainer, SandboxImage: "img", Agent: agent.AgentPi}}, ""},
		"of no Dagger engine":                  {sbx, agent.Request{Profile: machine}, "Dagger"},
		"of another agent":                     {sbx, agent.Request{Profile: agent.Profile{Sandbox: agent.SandboxSbx, SandboxImage: "tpl"}}, "agent"},
		"of agent, template and Dagger engine": {sbx, agent.Request{Profile: dagger(machine, grants.DaggerEngine)}, ""},
		"of another Dagger engine":             {sbx, agent.Request{Profile: dagger(machine, "tcp://127.0.0.1:2")}, "Dagger"},
		"of a Dagger engine at none":           {none, agent.Request{Profile: dagger(confined, grants.DaggerEngine)}, "Dagger"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := agent.Admit(c.policy, grants, c.request)
			if c.refused != "" {
				if !errors.Is(err, agent.ErrNotGranted) || !strings.Contains(err.Error(), c.refused) {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Grants == nil || fmt.Sprint(*got.Grants) != fmt.Sprint(grants) {
				t.Errorf("it has the grants %+v", got.Grants)
			}
		})
	}
}
