// Command worker runs turns: it serves a pool, probes what its machine can
// enforce, runs one turn by hand and clears up what a dead worker left.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/mcphost"
	"turnpike/internal/agent/sandbox/container"
	"turnpike/internal/agent/sandbox/sbx"
)

func main() {
	// This program is also the launcher of confined turns, the stage of those in
	// containers and sandboxes and the bridge to their tools; started as one of those, it never gets
	// past these lines.
	confine.Entry()
	container.Entry()
	sbx.Entry()
	mcphost.Entry()
	os.Exit(cli.Main(root()))
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run coding-agent turns, held to exactly what they were granted",
		Long: `Worker pulls jobs of its pool, runs each as a turn of a coding agent that the
operating system holds to its grants, and writes result, outcome and costs to
Postgres.

Every setting is a flag, a variable (TURNPIKE_LOG_LEVEL for --log-level) or a line
of the file --config names, in this order. Secrets have no flag.

Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 refused, 5 unavailable.`,
		Args: cobra.ArbitraryArgs,
		RunE: cli.Group,
	}
	cmd.AddCommand(serveCommand(), probeCommand(), runCommand(), orphansCommand(), cli.HealthCommand(defaultListen, "Ask the worker on this machine whether it serves"))
	return cmd
}
