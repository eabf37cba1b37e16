// Command dispatcher accepts jobs, selects what may run, publishes it to workers
// and keeps the record; and it is the command line of producers and operators.
package main

import (
	"os"
	_ "time/tzdata" // schedules have the same zones on every machine

	"github.com/spf13/cobra"

	"turnpike/cmd/internal/cli"
)

func main() { os.Exit(cli.Main(root())) }

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dispatcher",
		Short: "The queue of Turnpike: accept, select, publish, record",
		Long: `Dispatcher is the queue of Turnpike. "dev" runs a whole installation on this
machine; "serve" is one dispatcher of an installation; the other commands are for
those who enqueue jobs and look after them.

Every setting is a flag, a variable (TURNPIKE_LOG_LEVEL for --log-level) or a line
of the file --config names, in this order. Secrets have no flag.

Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 refused, 5 unavailable.`,
		Args: cobra.ArbitraryArgs,
		RunE: cli.Group,
	}
	cmd.AddGroup(
		&cobra.Group{ID: "jobs", Title: "Jobs:"},
		&cobra.Group{ID: "running", Title: "Running it:"},
	)
	for _, c := range []*cobra.Command{enqueueCommand(), getCommand(), listCommand(), logsCommand(), cancelCommand(), retryCommand(), redriveCommand(), reportCommand(),
		pauseCommand(), resumeCommand(), pausesCommand(), limitCommand(), weightCommand(), weightsCommand(), budgetCommand(), scheduleCommand()} {
		c.GroupID = "jobs"
		cmd.AddCommand(c)
	}
	for _, c := range []*cobra.Command{devCommand(), serveCommand(), migrateCommand(), doctorCommand(), orphansCommand(), cli.HealthCommand(defaultServer, "Ask the dispatcher on this machine whether it is ready")} {
		c.GroupID = "running"
		cmd.AddCommand(c)
	}
	return cmd
}
