package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/agent"
	"turnpike/internal/agent/procs"
	"turnpike/internal/worker"
)

func orphansCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "orphans",
		Short: "List or end what the worker of a state directory started and nobody showed to be gone",
		Args:  cobra.ArbitraryArgs,
		RunE:  cli.Group,
	}
	list := &cobra.Command{
		Use:   "list",
		Short: "List it; while a worker serves there, these are its running turns",
		Args:  cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := cli.LoadSettings(cmd)
			if err != nil {
				return err
			}
			left, err := worker.Leftovers(cmd.Context(), s.String("state-dir"), enginesAt(s).find)
			if printErr := cli.Print(cmd, left, func() cli.Table { return tabulate(left) }, func() []string { return namesOf(left) }); printErr != nil {
				return printErr
			}
			return err
		},
	}
	cli.OutputFlag(list)
	kill := &cobra.Command{
		Use:   "kill",
		Short: "End all of it, then whatever else bears this state directory's mark",
		Long: `Kill ends what the worker of a state directory left: each process by its pid, start
time and boot together, so never one that only has the same pid, each container by
its id and label; then whatever bears a mark of this state directory in its
environment, or as its label. A worker that still serves
there is left alone: stop it first. The next worker reports what became of the
attempts.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: killOrphans,
	}
	for _, c := range []*cobra.Command{list, kill} {
		c.Flags().String("state-dir", defaultStateDir(), "the worker's state directory")
		engineFlags(c)
		cmd.AddCommand(c)
	}
	return cmd
}

// enginesAt knows the engines of the worker with the state directory of the settings.
func enginesAt(s *cli.Settings) engines {
	dir := s.String("state-dir")
	return newEngines(s, dir, filepath.Join(dir, "sessions"), nil)
}

func killOrphans(cmd *cobra.Command, _ []string) (err error) {
	s, err := cli.LoadSettings(cmd)
	if err != nil {
		return err
	}
	state, err := worker.OpenStateDir(s.String("state-dir"))
	if errors.Is(err, worker.ErrLocked) {
		return fmt.Errorf("%w: stop it first; what it runs is no orphan: %w", err, agent.ErrUnsupported)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	boxes := enginesAt(s)
	ended, err := worker.EndLeftovers(cmd.Context(), state, boxes.end)
	swept, sweepErr := procs.Sweep(cmd.Context(), state.Sessions()) // what turns are marked with
	n, boxErr := boxes.sweep(cmd.Context(), state.Sessions())
	swept, sweepErr = swept+n, errors.Join(sweepErr, boxErr)
	fmt.Fprintf(cmd.OutOrStdout(), "%d ended by their records, %d more by their mark\n", ended, swept)
	return errors.Join(err, sweepErr)
}

func tabulate(left []worker.Leftover) cli.Table {
	t := cli.Table{Header: []string{"JOB", "ATTEMPT", "KIND", "ID", "ALIVE", "SINCE", "WORKER", "NOTE"}}
	for _, l := range left {
		t.Rows = append(t.Rows, []string{string(l.Job), strconv.Itoa(l.Attempt), l.Identity.Kind, idOf(l.Identity), verdict(l.Alive),
			l.MarkedAt.Local().Format(time.DateTime), l.Worker, cli.Dash(l.Note)})
	}
	return t
}

func idOf(i agent.Identity) string {
	switch {
	case i.ID != "":
		return i.ID
	case i.PID != 0:
		return "pid " + strconv.Itoa(i.PID)
	}
	return cli.Dash(i.Label)
}

func namesOf(left []worker.Leftover) []string {
	var out []string
	for _, l := range left {
		out = append(out, idOf(l.Identity))
	}
	return out
}
