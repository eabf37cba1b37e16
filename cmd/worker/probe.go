package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/sandbox/container"
	"turnpike/internal/agent/sandbox/sbx"
	"turnpike/internal/job"
)

// probed is what a machine can run.
type probed struct {
	Placements []placementProbe `json:"placements"`
	Agents     []agentProbe     `json:"agents"`
	Confine    confine.Report   `json:"confinement"`
	Container  container.Report `json:"container"`
	Sandbox    sbx.Report       `json:"sbx"`
	Tools      []toolProbe      `json:"tools"`
	// Transport is how a worker with these settings learns of jobs.
	Transport job.Transport `json:"transport"`
}

type placementProbe struct {
	Placement string `json:"placement"`
	OK        bool   `json:"ok"`
	// How says what enforces it here, or why not and what would.
	How string `json:"how"`
}

type agentProbe struct {
	Agent   string `json:"agent"`
	OK      bool   `json:"ok"`
	Version string `json:"version,omitempty"`
	Path    string `json:"path,omitempty"`
	// Tested says whether this release of the CLI is among those its driver was tested
	// with, which TestedReleases tells. An untested one is run all the same.
	Tested         bool   `json:"tested"`
	TestedReleases string `json:"tested_releases"`
	// Cannot lists what a turn of this agent cannot have.
	Cannot []string `json:"cannot,omitempty"`
	Note   string   `json:"note,omitempty"`
}

type toolProbe struct {
	Tool string `json:"tool"`
	OK   bool   `json:"ok"`
	Note string `json:"note"`
}

func probeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Tell which placements and agents this machine can run, and why not",
		Long: `Probe tries out what this machine can enforce and which agents it has. It starts
no agent's turn and changes nothing.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := cli.LoadSettings(cmd)
			if err != nil {
				return err
			}
			bins, err := binaries(s.Strings("bin"))
			if err != nil {
				return err
			}
			transport, err := job.ParseTransport(s.String("transport"))
			if err != nil {
				return cli.Usagef("%w", err)
			}
			p := probe(cmd.Context(), confineOptions(s, nil), containerProbe(cmd.Context(), s), sbxEngine(s).Probe(cmd.Context()), bins)
			p.Transport = transport
			return cli.Print(cmd, p, p.table, p.names)
		},
	}
	turnFlags(cmd, defaultStateDir(), "info")
	cmd.Flags().Lookup("ceiling").Usage = "without effect here, as whatever else is for turns alone"
	transportFlag(cmd)
	cli.OutputFlag(cmd)
	return cmd
}

func probe(ctx context.Context, o confine.Options, boxes container.Report, sandboxes sbx.Report, bins map[string]string) probed {
	p := probed{Confine: confine.Platform(o).Probe(ctx), Container: boxes, Sandbox: sandboxes}
	own := ownSandbox(ctx)
	for _, pl := range agent.Placements() {
		p.Placements = append(p.Placements, probePlacement(pl, p, own))
	}
	all := drivers(nil)
	for _, name := range agent.Agents() {
		p.Agents = append(p.Agents, probeAgent(ctx, name, all[name], bins[name]))
	}
	p.Tools = append(p.Tools, probeGit())
	return p
}

// probePlacement says how this machine runs a placement, given what was found of it and
// whether Claude Code's own sandbox works.
func probePlacement(pl agent.Placement, found probed, own error) placementProbe {
	report := found.Confine
	out := placementProbe{Placement: pl.String()}
	switch pl {
	case agent.Placement{Sandbox: agent.SandboxNone}:
		out.OK, out.How = true, "nothing holds the turn but its agent's own list of tools"
	case agent.Placement{Sandbox: agent.SandboxNone, Confine: true}:
		out.OK, out.How = report.Mode != confine.None, report.Reason
		switch report.Mode {
		case confine.Full:
			out.How = "namespaces, pinned mounts, Landlock, seccomp, no capabilities"
		case confine.LandlockOnly:
			out.How = "Landlock and seccomp only: " + report.Reason
		case confine.Seatbelt:
			out.How = "a Seatbelt profile and an account of processes; no namespaces. Never run on a Mac where this was built"
		}
	case agent.Placement{Sandbox: agent.SandboxClaude}:
		out.OK, out.How = true, "Claude Code's own sandbox: bubblewrap for commands, its rules for its other tools; none-confined holds more"
		if own != nil {
			out.OK, out.How = false, own.Error()
		}
	case agent.Placement{Sandbox: agent.SandboxClaude, Confine: true}:
		out.How = "refused on Linux: Claude Code's own sandbox needs mounts that confinement forbids; none-confined holds more"
	case agent.Placement{Sandbox: agent.SandboxContainer}:
		out.OK, out.How = found.Container.OK, strings.Join(found.Container.Missing, "; ")
		if out.OK {
			out.How = found.Container.Version + ": no capabilities, read-only root, seccomp, all of it looked at again inside each container"
		}
	case agent.Placement{Sandbox: agent.SandboxSbx}:
		out.OK, out.How = found.Sandbox.OK, strings.Join(found.Sandbox.Missing, "; ")
		if out.OK {
			out.How = found.Sandbox.Version + ": a virtual machine of the turn's own, its network by sbx's proxy, no credential inside; never run where this was built"
		}
	default:
		out.How = "not in this release"
	}
	return out
}

func probeAgent(ctx context.Context, name string, d agent.Driver, bin string) agentProbe {
	about := d.Descriptor()
	out := agentProbe{Agent: name, Path: bin, TestedReleases: about.Abilities.Tested.String(), Cannot: cannot(about)}
	if bin == "" {
		out.Note = fmt.Sprintf("no executable %q on the PATH; `make agents` installs the pinned one, or give --bin %s=PATH", name, name)
		return out
	}
	v, err := agentVersion(ctx, bin)
	if err != nil {
		out.Note = "it does not run: " + err.Error()
		return out
	}
	out.Version, out.Tested = v, about.Abilities.Tested.Has(v)
	// What the driver would refuse at each turn is better known now.
	if _, err := d.Runtime(bin); err != nil {
		out.Note = err.Error()
		return out
	}
	out.OK = true
	return out
}

func probeGit() toolProbe {
	t := toolProbe{Tool: "git", Note: "git workspaces are refused without it"}
	path, err := exec.LookPath("git")
	if err != nil {
		return t
	}
	t.OK, t.Note = true, path
	return t
}

func (p probed) table() cli.Table {
	t := cli.Table{Header: []string{"WHAT", "", "HOW"}}
	for _, pl := range p.Placements {
		t.Rows = append(t.Rows, []string{"placement " + pl.Placement, verdict(pl.OK), pl.How})
	}
	for _, a := range p.Agents {
		t.Rows = append(t.Rows, []string{"agent " + a.Agent, verdict(a.OK), a.how()})
		for _, c := range a.Cannot {
			t.Rows = append(t.Rows, []string{"agent " + a.Agent, "", c})
		}
	}
	for _, f := range p.Confine.Facts {
		t.Rows = append(t.Rows, []string{"confinement " + f.Name, verdict(f.OK), f.Detail})
	}
	if p.Container.OK {
		for _, m := range p.Container.Missing {
			t.Rows = append(t.Rows, []string{"container " + m, verdict(false), "turns that have it are refused"})
		}
		for _, w := range p.Container.Weaknesses {
			name, what, _ := strings.Cut(w, " ")
			t.Rows = append(t.Rows, []string{"container " + name, "", what})
		}
	}
	if p.Sandbox.OK {
		for _, m := range p.Sandbox.Missing {
			t.Rows = append(t.Rows, []string{"sbx", verdict(false), "turns without version control are refused: " + m})
		}
	}
	for _, x := range p.Tools {
		t.Rows = append(t.Rows, []string{"tool " + x.Tool, verdict(x.OK), x.Note})
	}
	how := "messages of NATS; Postgres is asked while it is away"
	if p.Transport == job.ByPostgres {
		how = "Postgres is asked; without NATS no conversation is kept, and transcripts and patches stay in session directories"
	}
	t.Rows = append(t.Rows, []string{"transport " + string(p.Transport), "", how})
	return t
}

// how tells an agent's release, whether it is a tested one, and where it is.
func (a agentProbe) how() string {
	if !a.OK {
		return strings.TrimSpace(a.Version + "  " + a.Note)
	}
	state := "tested"
	if !a.Tested {
		state = "untested; tested: " + a.TestedReleases
	}
	return fmt.Sprintf("%s (%s)  %s", a.Version, state, a.Path)
}

// names are the placements that can be served.
func (p probed) names() []string {
	var out []string
	for _, pl := range p.Placements {
		if pl.OK {
			out = append(out, pl.Placement)
		}
	}
	slices.Sort(out)
	return out
}

func verdict(ok bool) string {
	if ok {
		return "yes"
	}
	return "no"
}
