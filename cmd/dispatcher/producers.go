package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/job"
)

// maxBatchBytes is what one enqueue sends at most: the server's own bound.
const maxBatchBytes = 16 << 20

func enqueueCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "enqueue -f REQUEST.json",
		Short: "Enqueue a job, or a batch of them",
		Long: `Enqueue reads a request (a JSON object), or a batch (a JSON array of them), from a
file or from standard input ("-f -"), checks it here, and has the dispatcher
accept it: all of a batch or nothing. It prints the ids of the jobs.

Enqueueing again with the same --idempotency-key returns the same jobs.`,
		Example: `  dispatcher enqueue -f examples/request.json
  dispatcher enqueue -f examples/request.json --watch
  jq '.prompt = "fix the tests"' request.json | dispatcher enqueue -f -`,
		Args: cli.Args(cobra.NoArgs),
		RunE: enqueue,
	}
	cmd.Flags().StringP("file", "f", "", `request file, "-" for standard input`)
	cmd.Flags().String("idempotency-key", "", "a key of your own that makes repeating this call safe")
	cmd.Flags().BoolP("watch", "w", false, "follow the job's transcript, then end as the job ended")
	_ = cmd.MarkFlagFilename("file", "json") // fails only for a flag that is not there
	clientFlags(cmd)
	cli.OutputFlag(cmd)
	return cmd
}

func enqueue(cmd *cobra.Command, _ []string) error {
	file, key, watch := flag(cmd, "file"), flag(cmd, "idempotency-key"), on(cmd, "watch")
	if file == "" {
		return cli.Usagef("give the request: -f FILE, or -f - for standard input")
	}
	body, err := cli.ReadInput(cmd, file, maxBatchBytes)
	if err != nil {
		return err
	}
	if err := checkHere(body); err != nil {
		return err
	}
	c, err := newClient(cmd)
	if err != nil {
		return err
	}
	header := http.Header{}
	if key != "" {
		header.Set("Idempotency-Key", key)
	}
	accepted, err := c.enqueue(cmd.Context(), body, header)
	if err != nil {
		return err
	}
	if watch {
		if len(accepted) != 1 {
			return cli.Usagef("--watch follows one job; this batch has %d", len(accepted))
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "job %s\n", accepted[0].ID)
		return follow(cmd, c, accepted[0].ID)
	}
	return cli.Print(cmd, accepted, func() cli.Table {
		t := cli.Table{Header: []string{"JOB", "STATE", "NOTE"}}
		for _, a := range accepted {
			note := ""
			if a.Existing {
				note = "was there already"
			}
			t.Rows = append(t.Rows, []string{string(a.ID), string(a.State), cli.Dash(note)})
		}
		return t
	}, func() []string {
		var ids []string
		for _, a := range accepted {
			ids = append(ids, string(a.ID))
		}
		return ids
	})
}

// checkHere finds what is wrong with the requests before they travel. The server
// checks again: it trusts no client.
func checkHere(body []byte) error {
	if !strings.HasPrefix(strings.TrimSpace(string(body)), "[") {
		_, err := job.Decode(body)
		return err
	}
	var all []json.RawMessage
	if err := json.Unmarshal(body, &all); err != nil {
		return cli.Usagef("the batch is no JSON array of requests: %w", err)
	}
	for i, one := range all {
		if _, err := job.Decode(one); err != nil {
			return fmt.Errorf("request %d of the batch: %w", i, err)
		}
	}
	return nil
}

func (c *client) enqueue(ctx context.Context, body []byte, header http.Header) ([]job.Accepted, error) {
	var raw json.RawMessage
	if err := c.do(ctx, http.MethodPost, "v1/jobs", nil, body, header, &raw); err != nil {
		return nil, err
	}
	accepted := make([]job.Accepted, 1)
	var into any = &accepted[0]
	if strings.HasPrefix(string(raw), "[") {
		into = &accepted
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return accepted, nil
}

func getCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get JOB",
		Short: "Show one job: its state, attempts, costs and outcome",
		Example: `  dispatcher get 0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11
  dispatcher get 0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11 -o json
  dispatcher get 0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11 --patch | git apply`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := job.ParseID(args[0])
			if err != nil {
				return err
			}
			c, err := newClient(cmd)
			if err != nil {
				return err
			}
			switch {
			case on(cmd, "patch") && on(cmd, "watch"):
				return cli.Usagef("give --patch or --watch")
			case cmd.Flags().Changed("attempt") && !on(cmd, "patch"):
				return cli.Usagef("--attempt says which --patch; without it all attempts are shown")
			case on(cmd, "patch"):
				return printPatch(cmd, c, id)
			case on(cmd, "watch"):
				return watchJob(cmd, c, id)
			}
			return show(cmd, c, id)
		},
		ValidArgsFunction: completeJobs,
	}
	cmd.Flags().BoolP("watch", "w", false, "print each change until the job ends")
	cmd.Flags().Bool("patch", false, "print what the job changed in its git workspace, for git apply")
	cmd.Flags().Int("attempt", 0, "with --patch: of this attempt; 0 is the last that changed something")
	clientFlags(cmd)
	cli.OutputFlag(cmd)
	return cmd
}

func show(cmd *cobra.Command, c *client, id job.ID) error {
	v, err := c.job(cmd.Context(), id)
	if err != nil {
		return err
	}
	return cli.Print(cmd, v, func() cli.Table { return describe(v) }, func() []string { return []string{string(v.ID)} })
}

// watchInterval is how often a watched job is asked for.
const watchInterval = time.Second

// watchJob prints a line for each change of state until the job's end decides
// the exit code.
func watchJob(cmd *cobra.Command, c *client, id job.ID) error {
	var last string
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		v, err := c.job(cmd.Context(), id)
		if err != nil {
			return err
		}
		if v.State.Final() {
			if err := show(cmd, c, id); err != nil {
				return err
			}
			return ended(v)
		}
		if now := fmt.Sprintf("%s, attempt %d", v.State, v.Attempt); now != last {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s  %s\n", time.Now().Format(time.TimeOnly), now)
			last = now
		}
		select {
		case <-cmd.Context().Done():
			return context.Cause(cmd.Context())
		case <-tick.C:
		}
	}
}

// ended is the exit of a command that waited for a job.
func ended(v job.View) error {
	if v.State == job.Succeeded {
		return nil
	}
	return cli.ErrFailed
}

// describe lays one job out for reading.
func describe(v job.View) cli.Table {
	var t cli.Table
	row := func(k, val string) {
		if val != "" {
			t.Rows = append(t.Rows, []string{k, val})
		}
	}
	state := string(v.State)
	if v.Reason != "" {
		state += " (" + v.Reason + ")"
	}
	row("job", string(v.ID))
	row("name", v.Name)
	row("state", state)
	row("lane", v.Lane)
	row("agent", v.Agent)
	row("tenant", v.Tenant)
	row("work", v.Work.Key)
	row("retry of", string(v.RetryOf))
	row("created", stamp(&v.CreatedAt))
	row("runs at", stamp(&v.RunAt))
	row("worker", v.Worker)
	row("cost", usd(v.CostUSD))
	if v.EstimatedUSD != nil {
		row("estimated", estimate(v.EstimatedUSD)+"  of what has no known cost")
	}
	if v.Cancel != nil {
		row("cancel asked", strings.TrimSpace(v.Cancel.By+" "+v.Cancel.Why))
	}
	for _, w := range v.After {
		row("waits for", describeWaiting(w))
	}
	for _, w := range v.Before {
		row("awaited by", describeWaiting(w))
	}
	for _, a := range v.Attempts {
		how := string(a.Ending)
		if a.Late {
			how += ", late"
		}
		if a.Reason != "" {
			how += ": " + a.Reason
		}
		where := a.Worker
		if a.Profile > 0 {
			where = fmt.Sprintf("fallback %d, %s, %s", a.Profile, a.Agent, a.Worker)
		}
		row(fmt.Sprintf("attempt %d", a.Attempt), fmt.Sprintf("%s  (%s, %d turns, %s, on %s)",
			how, (time.Duration(a.DurationMS)*time.Millisecond).Round(100*time.Millisecond), a.NumTurns, usd(a.CostUSD), where))
		for _, u := range a.Usage {
			if u.EstimatedUSD != nil {
				row("  estimated", estimate(u.EstimatedUSD)+"  "+u.Model)
			}
		}
		if o := a.Outcome; o != nil {
			row("  outcome", strings.TrimSpace(o.Status+"  "+o.Note))
		}
		if p := a.Patch; p != nil {
			row("  changed", describePatch(p))
		}
		if a.ResultText != "" {
			row("  said", clip(a.ResultText, 200))
		}
	}
	for _, e := range v.Events {
		row("  "+stamp(&e.At), strings.TrimSpace(e.What+"  "+e.Note))
	}
	return t
}

func describeWaiting(w job.Waiting) string {
	s := string(w.ID) + "  " + string(w.State)
	if w.Reason != "" {
		s += " (" + w.Reason + ")"
	}
	return strings.TrimSpace(s + "  " + w.Name)
}

func listCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List jobs, newest first",
		Example: `  dispatcher list --state running
  dispatcher list --state failed --before 0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11 -o name`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := job.Filter{Tenant: flag(cmd, "tenant"), Pool: flag(cmd, "pool"), Name: flag(cmd, "name"), WorkKey: flag(cmd, "work")}
			states, err := cmd.Flags().GetStringSlice("state")
			if err != nil {
				return err
			}
			for _, s := range states {
				if !slices.Contains(job.States(), job.State(s)) {
					return cli.Usagef("state %q: want one of %v", s, job.States())
				}
				f.States = append(f.States, job.State(s))
			}
			if before := flag(cmd, "before"); before != "" {
				if f.Before, err = job.ParseID(before); err != nil {
					return err
				}
			}
			if f.Limit, err = cmd.Flags().GetInt("limit"); err != nil {
				return err
			}
			if f.Limit < 1 || f.Limit > 1000 {
				return cli.Usagef("limit %d: want 1 to 1000", f.Limit)
			}
			c, err := newClient(cmd)
			if err != nil {
				return err
			}
			jobs, err := c.list(cmd.Context(), f)
			if err != nil {
				return err
			}
			return cli.Print(cmd, jobs, func() cli.Table { return tabulate(jobs) }, func() []string {
				var ids []string
				for _, j := range jobs {
					ids = append(ids, string(j.ID))
				}
				return ids
			})
		},
	}
	cmd.Flags().StringSlice("state", nil, "only jobs in these states")
	cmd.Flags().String("tenant", "", "only this tenant's jobs")
	cmd.Flags().String("pool", "", "only this pool's jobs")
	cmd.Flags().String("name", "", "only jobs of this name")
	cmd.Flags().String("work", "", "only jobs with this work key")
	cmd.Flags().String("before", "", "go on below this job")
	cmd.Flags().Int("limit", 50, "how many at most")
	var states []string
	for _, s := range job.States() {
		states = append(states, string(s))
	}
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	clientFlags(cmd)
	cli.OutputFlag(cmd)
	return cmd
}

func tabulate(jobs []job.Summary) cli.Table {
	t := cli.Table{Header: []string{"JOB", "NAME", "STATE", "LANE", "AGENT", "ATTEMPT", "COST", "OUTCOME", "CREATED"}}
	for _, j := range jobs {
		state := string(j.State)
		if j.Reason != "" && j.State == job.Failed {
			state += "/" + j.Reason
		}
		t.Rows = append(t.Rows, []string{string(j.ID), cli.Dash(clip(j.Name, 32)), clip(state, 32), j.Lane, j.Agent,
			strconv.Itoa(j.Attempt), usd(j.CostUSD), cli.Dash(j.Outcome), stamp(&j.CreatedAt)})
	}
	return t
}

func cancelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cancel JOB...",
		Short: "Cancel jobs; a running turn is stopped by its worker",
		Long: `Cancel puts a durable mark on each job. One that does not run ends at once; one
that runs is stopped by its worker, which keeps what the turn did and cost. A
turn that ended by itself first keeps its result, and the command says so. Who
cancelled is on record by the name of the token.`,
		Args:              cli.Args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := json.Marshal(map[string]string{"why": flag(cmd, "why")})
			if err != nil {
				return err
			}
			return each(cmd, args, func(c *client, id job.ID) ([]string, error) {
				var a job.CancelAnswer
				if err := c.do(cmd.Context(), http.MethodPost, "v1/jobs/"+string(id)+"/cancel", nil, body, nil, &a); err != nil {
					return nil, err
				}
				note := ""
				if a.State == job.Running {
					note = "its worker " + a.Worker + " is stopping it"
				}
				return []string{string(id), string(a.State), cli.Dash(note)}, nil
			})
		},
	}
	cmd.Flags().String("why", "", "why, for the record")
	clientFlags(cmd)
	return cmd
}

func retryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry JOB...",
		Short: "Run finished jobs again, as new jobs",
		Long: `Retry enqueues the request of each job anew, without its run_at, its deadline and the
jobs it came after. The new job names the old one (retry_of), which stays as it is. A job
that is not finished is refused; for all that match something, see redrive.`,
		Args:              cli.Args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(cmd, args, func(c *client, id job.ID) ([]string, error) {
				var a job.Accepted
				if err := c.do(cmd.Context(), http.MethodPost, "v1/jobs/"+string(id)+"/retry", nil, nil, nil, &a); err != nil {
					return nil, err
				}
				return []string{string(a.ID), string(a.State), "repeats " + string(id)}, nil
			})
		},
	}
	clientFlags(cmd)
	return cmd
}

// each does one thing to every job named, prints a line for each, and ends with
// the first failure's kind once all were tried.
func each(cmd *cobra.Command, args []string, do func(*client, job.ID) ([]string, error)) error {
	ids := make([]job.ID, len(args))
	for i, a := range args {
		id, err := job.ParseID(a)
		if err != nil {
			return err
		}
		ids[i] = id
	}
	c, err := newClient(cmd)
	if err != nil {
		return err
	}
	t := cli.Table{Header: []string{"JOB", "STATE", "NOTE"}}
	var errs []error
	for _, id := range ids {
		row, err := do(c, id)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", id, err))
			continue
		}
		t.Rows = append(t.Rows, row)
	}
	if len(t.Rows) > 0 {
		if err := t.Write(cmd.OutOrStdout()); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

func reportCommand() *cobra.Command {
	by := []string{"tenant", "agent", "model", "pool", "name", "day"}
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Sum up costs, durations and endings",
		Long: `Report sums up finished work from Postgres. The same figures are there in plain
SQL for the role turnpike_reporter; docs/reporting.md lists the views.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			key := flag(cmd, "by")
			if !slices.Contains(by, key) {
				return cli.Usagef("--by %q: want one of %s", key, strings.Join(by, ", "))
			}
			since, err := cmd.Flags().GetDuration("since")
			if err != nil {
				return err
			}
			c, err := newClient(cmd)
			if err != nil {
				return err
			}
			var out struct {
				Rows []job.ReportRow `json:"rows"`
			}
			q := url.Values{"by": {key}, "since": {time.Now().Add(-since).UTC().Format(time.RFC3339)}}
			if err := c.do(cmd.Context(), http.MethodGet, "v1/report", q, nil, nil, &out); err != nil {
				return err
			}
			return cli.Print(cmd, out.Rows, func() cli.Table {
				t := cli.Table{Header: []string{strings.ToUpper(key), "JOBS", "SUCCEEDED", "FAILED", "CANCELLED", "ATTEMPTS", "TURNS", "COST", "ESTIMATED", "UNPRICED", "TIME"}}
				for _, r := range out.Rows {
					t.Rows = append(t.Rows, []string{cli.Dash(r.Key), n(r.Jobs), n(r.Succeeded), n(r.Failed), n(r.Cancelled), n(r.Attempts), n(r.Turns),
						usd(r.CostUSD), estimate(r.EstimatedUSD), n(r.Unpriced), (time.Duration(r.DurationMS) * time.Millisecond).Round(time.Second).String()})
				}
				return t
			}, nil)
		},
	}
	cmd.Flags().String("by", "tenant", "what to sum up by: "+strings.Join(by, ", "))
	cmd.Flags().Duration("since", 30*24*time.Hour, "how far to look back")
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(by, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	clientFlags(cmd)
	cli.OutputFlag(cmd)
	return cmd
}

// completeJobs offers the newest jobs.
func completeJobs(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := newClient(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	jobs, err := c.list(cmd.Context(), job.Filter{Limit: 20})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var out []string
	for _, j := range jobs {
		out = append(out, cobra.CompletionWithDesc(string(j.ID), strings.TrimSpace(j.Name+" "+string(j.State))))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// flag and on read flags that are known to be there.
func flag(cmd *cobra.Command, name string) string { return cmd.Flags().Lookup(name).Value.String() }
func on(cmd *cobra.Command, name string) bool     { return flag(cmd, name) == "true" }

func n(i int64) string { return strconv.FormatInt(i, 10) }

func usd(u *job.USD) string {
	if u == nil {
		return "unknown"
	}
	return "$" + u.String()
}

// estimate is what a price list makes of costs that are unknown, if there is one.
func estimate(u *job.USD) string {
	if u == nil {
		return ""
	}
	return "~" + usd(u)
}

func stamp(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.Local().Format(time.DateTime)
}

func clip(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:most-1]) + "…"
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}
