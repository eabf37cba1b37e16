package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/agent"
	"turnpike/internal/agent/boundary"
	"turnpike/internal/agent/procs"
	"turnpike/internal/agent/runner"
	"turnpike/internal/agent/sandbox/container"
	"turnpike/internal/agent/sandbox/sbx"
	"turnpike/internal/job"
)

// engines run the turns of containers and sandboxes, by the profile's sandbox, and end
// what a dead worker left of them.
type engines map[string]agent.Engine

// engineFlags adds the settings of engines.
func engineFlags(cmd *cobra.Command) {
	cmd.Flags().String("container-engine", agent.ContainerEngine, "the container engine's program, for turns of placement container")
	cmd.Flags().String("sbx", agent.SandboxCLI, "the program of Docker Sandboxes, for turns of placement sbx")
	cmd.Flags().Bool("sbx-kit-network", false, "accept that an sbx turn limited to domains also reaches what sbx's kit for its agent allows")
}

// boxFlags adds how turns are run in their boxes.
func boxFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.String("container-home", boundary.DefaultContainerHome, "the agent's home in a container")
	f.String("container-listen", "", "address that the owner's MCP servers (host_mcp) listen on for turns in containers; by default loopback,\nor the engine's bridge for turns with the open network")
	f.String("container-use-repository", "", "repository whose container-use environments requests may name")
}

// newEngines knows the engines of the worker with this state directory.
func newEngines(s *cli.Settings, stateDir, sessions string, log *slog.Logger) engines {
	return engines{
		agent.SandboxContainer: &container.Engine{
			Bin: s.String("container-engine"), Dir: boxesDir(stateDir), Label: runner.BoxLabel("", sessions, "look"), Log: log,
		},
		agent.SandboxSbx: sbxEngine(s),
	}
}

func sbxEngine(s *cli.Settings) *sbx.Engine {
	return &sbx.Engine{Bin: s.String("sbx"), DockerBin: s.String("container-engine"), KitNetwork: s.Bool("sbx-kit-network")}
}

// boxesDir is where engines keep what they need, in a state directory.
func boxesDir(stateDir string) string { return filepath.Join(stateDir, "boxes") }

// makeBoxes makes that directory and removes what an earlier worker left in it.
func makeBoxes(stateDir string) error {
	dir := boxesDir(stateDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("directory of engines: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "look-*"))
	if err != nil {
		return err
	}
	for _, l := range left {
		if err := os.RemoveAll(l); err != nil {
			return fmt.Errorf("directory of engines: %w", err)
		}
	}
	return nil
}

// of is the engine that runs things of this kind; nil for what runs on the host.
func (e engines) of(kind string) agent.Engine {
	switch kind {
	case agent.KindContainer:
		return e[agent.SandboxContainer]
	case agent.KindSandbox:
		return e[agent.SandboxSbx]
	}
	return nil
}

// end ends what id names, whatever it is.
func (e engines) end(ctx context.Context, id agent.Identity) (bool, error) {
	if engine := e.of(id.Kind); engine != nil {
		return engine.End(ctx, id)
	}
	return procs.End(ctx, id)
}

// find says whether what id names is there.
func (e engines) find(ctx context.Context, id agent.Identity) (bool, error) {
	if engine := e.of(id.Kind); engine != nil {
		return engine.Find(ctx, id)
	}
	return procs.Find(ctx, id)
}

// sweep ends whatever of a worker's turns no record names. An engine that this machine
// does not have keeps nothing.
func (e engines) sweep(ctx context.Context, sessions string) (int, error) {
	n := 0
	for _, engine := range e {
		if !installed(engine) {
			continue
		}
		m, err := engine.Sweep(ctx, runner.BoxLabel("", sessions, ""))
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

// installed says whether an engine's program is here; where it is not, nothing of its
// was left.
func installed(engine agent.Engine) bool {
	var bin string
	switch e := engine.(type) {
	case *container.Engine:
		bin = cmp.Or(e.Bin, agent.ContainerEngine)
	case *sbx.Engine:
		bin = cmp.Or(e.Bin, agent.SandboxCLI)
	default:
		return true
	}
	_, err := exec.LookPath(bin)
	return err == nil
}

// containerProbe says whether turns of placement container can be run here.
func containerProbe(ctx context.Context, s *cli.Settings) container.Report {
	return (&container.Engine{Bin: s.String("container-engine")}).Probe(ctx)
}

// enginesWork refuses lanes whose engine cannot run turns. A limit that it cannot keep is
// refused by each turn that has it.
func enginesWork(ctx context.Context, s *cli.Settings, slots map[job.Lane]int) error {
	for lane := range slots {
		ok, missing := true, []string(nil)
		switch lane.Placement {
		case agent.SandboxContainer:
			r := containerProbe(ctx, s)
			ok, missing = r.OK, r.Missing
		case agent.SandboxSbx:
			r := sbxEngine(s).Probe(ctx)
			ok, missing = r.OK, r.Missing
		}
		if !ok {
			return fmt.Errorf("lane %s: %w: %s", lane, agent.ErrUnsupported, strings.Join(missing, "; "))
		}
	}
	return nil
}
