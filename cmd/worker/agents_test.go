package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/sandbox/container"
	"turnpike/internal/agent/sandbox/sbx"
)

var update = flag.Bool("update", false, "write docs/agents.md anew")

// Every driver this program has declares all there is to declare.
func TestDescriptors(t *testing.T) {
	for name, d := range drivers(nil) {
		t.Run(name, func(t *testing.T) {
			b := d.Descriptor()
			if b.Name != name || !slices.Contains(agent.Agents(), name) {
				t.Errorf("it is called %q", b.Name)
			}
			if len(b.Credentials) == 0 || len(b.ProviderEnv) == 0 {
				t.Error("no credentials, or no variables it is configured through")
			}
			if b.Restricted == nil {
				t.Error("nothing about read-only turns")
			}
			for _, p := range agent.Placements() {
				if s, declared := b.WritableTools[p]; !declared || !s.Supported && s.Remedy == "" {
					t.Errorf("placement %s: declared %t, %+v; one that is not supported says what to do instead", p, declared, s)
				}
			}
			for p := range b.WritableTools {
				if !slices.Contains(agent.Placements(), p) {
					t.Errorf("placement %s is none", p)
				}
			}
			if a := b.Abilities; a.Pricing == "" || len(a.Efforts) == 0 || len(a.MCP) == 0 || a.Tested.First == "" {
				t.Errorf("abilities %+v", a)
			}
		})
	}
}

// The page is what the descriptors say, so it cannot be wrong.
func TestAgentsPage(t *testing.T) {
	const page = "../../docs/agents.md"
	want := agentsPage()
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/agents.md is not what the descriptors say; write it anew with: go test ./cmd/worker -run TestAgentsPage -update\n(-want +got):\n%s", diff)
	}
}

func agentsPage() string {
	all := drivers(nil)
	var names []string
	for _, name := range agent.Agents() {
		if all[name] != nil {
			names = append(names, name)
		}
	}
	var b strings.Builder
	row := func(cells ...string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	table := func(header ...string) {
		row(header...)
		b.WriteString(strings.Repeat("|---", len(header)) + "|\n")
	}
	each := func(what string, cell func(agent.Driver, agent.Backend) string) {
		cells := []string{what}
		for _, name := range names {
			cells = append(cells, cell(all[name], all[name].Descriptor()))
		}
		row(cells...)
	}

	b.WriteString(`# What each agent can do

Written by ` + "`go test ./cmd/worker -run TestAgentsPage -update`" + ` from what the drivers declare; a test holds the page to it. What an agent
cannot do is refused before anything is started, with the reason. ` + "`worker probe`" + ` tells what *this machine* can do.

## Abilities

`)
	table(append([]string{""}, names...)...)
	each("tested with", func(_ agent.Driver, b agent.Backend) string { return b.Abilities.Tested.String() })
	each("tells its cost", func(_ agent.Driver, b agent.Backend) string { return string(b.Abilities.Pricing) })
	each("`cost_cap_usd` stops a turn", func(_ agent.Driver, b agent.Backend) string {
		return map[agent.Pricing]string{
			agent.PricingNever: "never", agent.PricingStep: "after the step that reaches it", agent.PricingEnd: "told at the end only",
		}[b.Abilities.Pricing]
	})
	each("`resume_id`, on any worker", func(d agent.Driver, _ agent.Backend) string {
		_, ok := d.(agent.Conversations)
		return verdict(ok)
	})
	each("`effort`", func(_ agent.Driver, b agent.Backend) string { return code(b.Abilities.Efforts) })
	each("MCP servers", func(_ agent.Driver, b agent.Backend) string { return code(b.Abilities.MCP) })
	each("`shell`", func(_ agent.Driver, b agent.Backend) string { return verdict(b.Abilities.Shell) })
	each("`skills`", func(_ agent.Driver, b agent.Backend) string { return verdict(b.Abilities.Skills) })
	each("read-only turns", func(_ agent.Driver, b agent.Backend) string {
		switch r := b.Restricted; {
		case r == nil || !r.Supported:
			return "no"
		case r.ReadServer:
			return "yes, by the runner's read server" + followUp(r)
		default:
			return "yes" + followUp(r)
		}
	})
	each("leftovers found by a marker in the command line", func(_ agent.Driver, b agent.Backend) string { return verdict(b.ArgvMarker) })

	b.WriteString(`
A cost is known only of a model that the agent has a price for; what it does not price a [price list](operations.md#prices) estimates.
Every agent's processes bear a marker in their environment, by which leftovers are found where the record of them was lost.

## Skills and packages

An agent tells the model what each skill of the turn is for, and where it is; the model then loads its text: by the tool ` + "`Skill`" + ` (claude),
` + "`skill`" + ` (opencode), ` + "`read`" + ` (pi) or the shell (codex). A turn that has skills and not that tool is refused. Skills of the workspace are not offered.
opencode lists a skill's files by ripgrep: ` + "`rg`" + ` must be on the turn's PATH, or a turn with skills is refused. (Its tools ` + "`grep`" + ` and ` + "`glob`" + ` need it too,
and would fetch it from the network the turn has.)

` + "`pi_packages`" + ` are for pi alone: names of the ceiling that stand for ` + "`npm:NAME@VERSION`" + `, ` + "`git:HOST/PATH@REF`" + `, the URL of a git repository, or an
absolute path. pi loads them for the one turn, inside whatever holds it; their code runs with the turn's rights, whatever its list of tools, while the tools
they bring must be in that list. What is fetched is fetched by the turn itself, each time, over the network it has, by ` + "`npm`" + ` on its PATH, or by git, which
then must be granted (` + "`vcs_access`" + ` and ` + "`grants.vcs`" + `); private registries are named by ` + "`npm_config_*`" + ` variables, never by the workspace. A path must lie in a granted
mount. A package that cannot be fetched ends the turn before the model is asked.

An adapter package for MCP is not loaded before them: pi has had MCP of its own since 1.0. Releases before that are not driven: the way they are
kept from loading what nobody granted, and the answers by which a prompt is known to have been taken, came with 1.0 as well.

## Placements

Whether a turn that may write can be held to the tools its grants name, where they are not ` + "`*`" + `. Where it cannot, a turn with a list of tools
is refused. ` + "`sbx`" + ` was tried with a stand-in for its program only ([security.md](security.md)).

`)
	table(append([]string{"", "run by this release"}, names...)...)
	var remedies []string
	for _, p := range agent.Placements() {
		here := probePlacement(p, probed{Confine: confine.Report{Mode: confine.Full}, Container: container.Report{OK: true}, Sandbox: sbx.Report{OK: true}}, nil)
		cells := []string{"`" + p.String() + "`", verdict(here.OK)}
		for _, name := range names {
			s := all[name].Descriptor().WritableTools[p]
			cell := verdict(s.Supported)
			if !s.Supported {
				if !slices.Contains(remedies, s.Remedy) {
					remedies = append(remedies, s.Remedy)
				}
				cell = fmt.Sprintf("no (%d)", slices.Index(remedies, s.Remedy)+1)
			}
			cells = append(cells, cell)
		}
		row(cells...)
	}
	b.WriteString("\n")
	for i, r := range remedies {
		fmt.Fprintf(&b, "%d. %s\n", i+1, r)
	}

	b.WriteString("\n## Credentials\n\nOne of them is enough; each that is set and granted is passed on.\n\n")
	table("", "a credential is", "configured by")
	for _, name := range names {
		d := all[name].Descriptor()
		var more []string
		for _, v := range d.ProviderEnv {
			if !slices.Contains(d.Credentials, v) {
				more = append(more, v)
			}
		}
		row(name, code(d.Credentials), code(more))
	}
	return b.String()
}

func followUp(r *agent.RestrictedCapabilities) string {
	if r.FollowUp {
		return ", and continued"
	}
	return ""
}

func code(words []string) string {
	if len(words) == 0 {
		return "none"
	}
	return "`" + strings.Join(words, "`, `") + "`"
}
