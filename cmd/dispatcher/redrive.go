package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/job"
)

func redriveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "redrive",
		Short: "Run again, as new jobs, the finished jobs that match; each at most once ever",
		Long: `Redrive enqueues anew what failed, or was cancelled, and matches every flag given; the
oldest first. A job that was repeated before, by redrive or by retry, is passed over:
run it again after an interruption, or at once with someone else, and nothing runs
twice. --since and --until are about when a job ended: an age, or a time.

At least one of --state, --reason, --tenant and --name is needed; without --state it
is about what failed.`,
		Example: `  dispatcher redrive --reason crashed --tenant acme --since 24h --dry-run
  dispatcher redrive --state failed --reason limited,overloaded --since 2026-11-30T08:00:00Z`,
		Args: cli.Args(cobra.NoArgs),
		RunE: redrive,
	}
	f := cmd.Flags()
	f.StringSlice("state", nil, "failed or cancelled")
	f.StringSlice("reason", nil, "why it ended so: the word after the slash, as in failed/crashed")
	f.String("tenant", "", "only this tenant's jobs")
	f.String("lane", "", "only jobs that ran last on this lane, PLACEMENT/POOL")
	f.String("name", "", "only jobs of this name")
	f.String("tag", "", "only jobs whose request has this work tag")
	f.String("since", "", "only what ended since: 24h, or a time such as 2026-11-30T08:00:00Z")
	f.String("until", "", "only what ended before: 1h, or a time")
	f.Int("limit", 0, "how many at most; 0 is all")
	f.Bool("dry-run", false, "only show what would be enqueued")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{string(job.Failed), string(job.Cancel)}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	_ = cmd.RegisterFlagCompletionFunc("reason", cobra.FixedCompletions(job.Reasons(), cobra.ShellCompDirectiveNoFileComp))
	clientFlags(cmd)
	cli.OutputFlag(cmd)
	return cmd
}

func redrive(cmd *cobra.Command, _ []string) error {
	body, limit, err := redriveBody(cmd, time.Now())
	if err != nil {
		return err
	}
	c, err := newClient(cmd)
	if err != nil {
		return err
	}
	all := job.RedriveAnswer{Jobs: []job.Redriven{}}
	watched := cli.IsTerminal(cmd.ErrOrStderr())
	done := "redriven"
	if on(cmd, "dry-run") {
		done = "would be redriven"
	}
	for {
		body["limit"] = job.MaxRedrive
		if limit > 0 {
			body["limit"] = min(limit-all.Redriven, job.MaxRedrive)
		}
		var part job.RedriveAnswer
		err = redrivePart(cmd, c, body, &part)
		if err != nil {
			break // what was done before stands, and is told
		}
		all.Jobs = append(all.Jobs, part.Jobs...)
		all.Redriven += part.Redriven
		all.PassedOver += part.PassedOver
		all.Next = part.Next
		if part.Next == "" || limit > 0 && all.Redriven >= limit {
			break
		}
		body["after"] = part.Next
		if watched {
			fmt.Fprintf(cmd.ErrOrStderr(), "%d %s, %d passed over so far\n", all.Redriven, done, all.PassedOver)
		}
	}
	if err != nil && len(all.Jobs) == 0 {
		return err
	}
	if printed := printRedriven(cmd, all); printed != nil {
		return printed
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%d %s, %d passed over that were repeated before\n", all.Redriven, done, all.PassedOver)
	if err != nil {
		return fmt.Errorf("not all was looked at; the same command goes on: %w", err)
	}
	return nil
}

func redrivePart(cmd *cobra.Command, c *client, body map[string]any, into *job.RedriveAnswer) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.do(cmd.Context(), http.MethodPost, "v1/redrive", nil, raw, nil, into)
}

// redriveBody reads the flags; the server checks the rest.
func redriveBody(cmd *cobra.Command, now time.Time) (body map[string]any, limit int, err error) {
	body = map[string]any{"dry_run": on(cmd, "dry-run")}
	for _, name := range []string{"tenant", "lane", "name", "tag"} {
		if v := flag(cmd, name); v != "" {
			body[name] = v
		}
	}
	for flag, member := range map[string]string{"state": "states", "reason": "reasons"} {
		values, err := cmd.Flags().GetStringSlice(flag)
		if err != nil {
			return nil, 0, err
		}
		if len(values) > 0 {
			body[member] = values
		}
	}
	if !slices.ContainsFunc([]string{"states", "reasons", "tenant", "name"}, func(m string) bool { return body[m] != nil }) {
		return nil, 0, cli.Usagef("say which jobs: give --state, --reason, --tenant or --name at least")
	}
	for _, name := range []string{"since", "until"} {
		v := flag(cmd, name)
		if v == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339, v)
		if err != nil {
			age, err := time.ParseDuration(v)
			if err != nil || age < 0 {
				return nil, 0, cli.Usagef("--%s %q: want an age such as 24h, or a time such as 2026-11-30T08:00:00Z", name, v)
			}
			at = now.Add(-age)
		}
		body[name] = at.UTC()
	}
	if limit, err = cmd.Flags().GetInt("limit"); err != nil {
		return nil, 0, err
	}
	if limit < 0 {
		return nil, 0, cli.Usagef("--limit %d: want a number of jobs, or 0 for all", limit)
	}
	return body, limit, nil
}

func printRedriven(cmd *cobra.Command, all job.RedriveAnswer) error {
	return cli.Print(cmd, all, func() cli.Table {
		t := cli.Table{Header: []string{"JOB", "REPEATS", "NAME", "TENANT", "ENDED", "NOTE"}}
		for _, j := range all.Jobs {
			note := ""
			switch {
			case j.Refused:
				note = "its request is not taken any more"
			case j.Existing:
				note = "an unfinished job has its dedup key"
			}
			t.Rows = append(t.Rows, []string{cli.Dash(string(j.ID)), string(j.RetryOf), cli.Dash(clip(j.Name, 32)), j.Tenant,
				string(j.Ended) + "/" + j.Reason, cli.Dash(note)})
		}
		return t
	}, func() []string {
		var ids []string
		for _, j := range all.Jobs {
			if j.ID != "" && !j.Existing {
				ids = append(ids, string(j.ID))
			}
		}
		return ids
	})
}
