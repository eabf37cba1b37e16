package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/agent"
	"turnpike/internal/job"
	"turnpike/internal/worker"
)

func runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run -f REQUEST.json --ceiling FILE",
		Short: "Run one turn, without a queue, and print its Result as JSON",
		Long: `Run checks a request, holds it to the ceiling, runs it as a turn and prints its
Result as JSON. It needs neither Postgres nor NATS. A request outside the ceiling
is refused with exit code 4 before anything is started; a malformed one with 2.
The exit code is 1 when the turn itself failed.`,
		Example: `  worker run -f examples/request.json --ceiling examples/ceiling.yaml
  worker run -f examples/request.json --ceiling examples/ceiling.yaml --transcript | jq .cost_usd`,
		Args: cli.Args(cobra.NoArgs),
		RunE: runOne,
	}
	// Not the directory of a worker that may be serving.
	turnFlags(cmd, filepath.Join(filepath.Dir(defaultStateDir()), "run"), "warn")
	cmd.Flags().StringP("file", "f", "", `request file, "-" for standard input`)
	cmd.Flags().Bool("transcript", false, "copy what the agent prints to standard error as it runs")
	_ = cmd.MarkFlagFilename("file", "json") // fails only for a flag that is not there
	return cmd
}

func runOne(cmd *cobra.Command, _ []string) (err error) {
	s, err := cli.LoadSettings(cmd)
	if err != nil {
		return err
	}
	if s.String("file") == "" {
		return cli.Usagef("give the request: -f FILE, or -f - for standard input")
	}
	body, err := cli.ReadInput(cmd, s.String("file"), job.MaxRequestBytes)
	if err != nil {
		return err
	}
	request, err := job.Decode(body)
	if err != nil {
		return err
	}
	b, err := setUp(cmd, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.state.Close()) }()
	recovery := &worker.Recovery{State: b.state, Worker: b.turns.Worker, Host: b.turns.Host, End: b.turns.End, Sessions: b.turns.Sessions, Clean: b.turns.Clean, Prices: b.turns.Prices, Log: b.log}
	if err := recovery.Run(cmd.Context()); err != nil {
		b.log.Warn("what an earlier run left", "error", err)
	}
	var stream worker.Transcript
	switch {
	case s.Bool("transcript"):
		stream = copied{cmd.ErrOrStderr()}
	case cli.IsTerminal(cmd.ErrOrStderr()):
		fmt.Fprintln(cmd.ErrOrStderr(), "running; --transcript shows what the agent prints")
	}
	res, err := b.turns.RunLocal(cmd.Context(), request, stream)
	if res == nil {
		return err
	}
	if err != nil {
		b.log.Warn("the turn ended, and not everything about it went well", "error", err)
	}
	enc := json.NewEncoder(cmd.OutOrStdout())
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(res); err != nil {
		return err
	}
	return turnFailed(res)
}

// turnFailed is the exit of a turn that ran: its Result is printed already.
func turnFailed(res *agent.Result) error {
	if res.IsError {
		return cli.ErrFailed
	}
	return nil
}

// copied writes a transcript's lines on as they come.
type copied struct{ to io.Writer }

func (c copied) Line(line []byte) {
	_, _ = c.to.Write(append(line[:len(line):len(line)], '\n')) // what a person watches may be closed any time
}

func (copied) Close(context.Context) int { return 0 }
