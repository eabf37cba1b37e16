package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"turnpike/cmd/internal/cli"
	"turnpike/cmd/internal/transcript"
	"turnpike/internal/api"
	"turnpike/internal/job"
)

func logsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logs JOB",
		Short: "Print what the agent of a job printed",
		Long: `Logs prints the transcript of a job's attempts as it was streamed, for reading: what
the agent said, each tool call and what it gave on a line, and what each attempt that
ended came to. -f follows it until the job ends; --raw prints the agent's own events.
The stream is kept for a limited time; the worker's session directory has the whole
transcript.`,
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := job.ParseID(args[0])
			if err != nil {
				return err
			}
			c, err := newClient(cmd)
			if err != nil {
				return err
			}
			if on(cmd, "follow") {
				return follow(cmd, c, id)
			}
			p := newPrinter(cmd)
			if err := tail(cmd.Context(), c, id, p.attempt, false, p.event); err != nil {
				return err
			}
			if p.raw {
				return nil
			}
			v, err := c.job(cmd.Context(), id)
			if err != nil {
				return err
			}
			return p.summary(v)
		},
	}
	cmd.Flags().BoolP("follow", "f", false, "go on until the job ends, then end as it did")
	cmd.Flags().Bool("raw", false, "print the agent's own events instead of a summary of each")
	cmd.Flags().Int("attempt", 0, "only this attempt; 0 is all")
	clientFlags(cmd)
	return cmd
}

// follow prints a job's transcript as it grows, through every attempt, and ends
// as the job ends.
func follow(cmd *cobra.Command, c *client, id job.ID) error {
	p := newPrinter(cmd)
	if err := tail(cmd.Context(), c, id, p.attempt, true, p.event); err != nil {
		return err
	}
	v, err := c.job(cmd.Context(), id)
	if err != nil {
		return err
	}
	if !p.raw {
		if err := p.summary(v); err != nil {
			return err
		}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "job %s %s%s\n", id, v.State, prefixed(": ", v.Reason))
	if !v.State.Final() {
		return fmt.Errorf("the transcript ended before the job did: %w", job.ErrUnavailable)
	}
	return ended(v)
}

// tail has each event of a transcript shown.
func tail(ctx context.Context, c *client, id job.ID, attempt int, follow bool, show func(api.Event) error) error {
	q := url.Values{}
	if follow {
		q.Set("follow", "true")
	}
	if attempt > 0 {
		q.Set("attempt", strconv.Itoa(attempt))
	}
	res, err := c.send(ctx, http.MethodGet, "v1/jobs/"+string(id)+"/transcript", q, nil, http.Header{"Accept": {"application/x-ndjson"}})
	if err != nil {
		return err
	}
	defer res.Body.Close()
	for d := json.NewDecoder(res.Body); ; {
		var e api.Event
		switch err := d.Decode(&e); {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("the transcript was cut off: %w", errors.Join(job.ErrUnavailable, err))
		}
		if err := show(e); err != nil {
			return err
		}
	}
}

// printer prints a transcript: the agent's own lines, or what they say to a person.
type printer struct {
	w   io.Writer
	raw bool
	// safe keeps raw lines from steering the terminal they are shown on.
	safe    bool
	attempt int // only this one; 0 is all

	last int // the attempt of the last event
}

// newPrinter reads the flags of the command, as far as it has them.
func newPrinter(cmd *cobra.Command) *printer {
	p := &printer{w: cmd.OutOrStdout(), safe: cli.IsTerminal(cmd.OutOrStdout())}
	if cmd.Flags().Lookup("raw") != nil {
		p.raw = on(cmd, "raw")
	}
	if f := cmd.Flags().Lookup("attempt"); f != nil {
		p.attempt, _ = strconv.Atoi(f.Value.String()) // the flag set parsed it
	}
	return p
}

func (p *printer) event(e api.Event) error {
	var lines []string
	switch {
	case e.End == "error":
		return fmt.Errorf("the transcript was cut off: %w", job.ErrUnavailable)
	case e.End != "", p.raw && e.Line == "":
		return nil
	case p.raw && p.safe:
		return p.print(cli.OneLine(e.Line))
	case p.raw:
		return p.print(e.Line)
	case e.Dropped > 0:
		lines = []string{fmt.Sprintf("... %d lines were not streamed; the worker's session directory has them", e.Dropped)}
	default:
		lines = transcript.Lines([]byte(e.Line))
	}
	if e.Attempt > 1 && e.Attempt != p.last {
		lines = append([]string{fmt.Sprintf("--- attempt %d", e.Attempt)}, lines...)
	}
	p.last = e.Attempt
	return p.print(lines...)
}

// summary tells what each attempt that ended came to, as it is on record.
func (p *printer) summary(v job.View) error {
	for _, a := range v.Attempts {
		if p.attempt != 0 && a.Attempt != p.attempt {
			continue
		}
		cost := "cost " + usd(a.CostUSD)
		for _, u := range a.Usage {
			if u.EstimatedUSD != nil {
				cost += ", " + estimate(u.EstimatedUSD) + " by the price list"
			}
		}
		if err := p.print(fmt.Sprintf("=== attempt %d %s: %d turns, %s, %s", a.Attempt, a.Ending, a.NumTurns, cost,
			(time.Duration(a.DurationMS) * time.Millisecond).Round(100*time.Millisecond))); err != nil {
			return err
		}
	}
	return nil
}

func (p *printer) print(lines ...string) error {
	if len(lines) == 0 {
		return nil
	}
	_, err := io.WriteString(p.w, strings.Join(lines, "\n")+"\n")
	return err
}
