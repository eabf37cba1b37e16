package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/job"
)

func scheduleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedule",
		Short: "Enqueue a request at the times of a cron expression",
		Long: `A schedule enqueues a request at the times of a cron expression in a time zone: each
time once, whichever dispatcher leads. Schedules are kept in Postgres.`,
		Args: cobra.ArbitraryArgs,
		RunE: cli.Group,
	}
	cmd.AddCommand(scheduleSetCommand(), scheduleListCommand(), scheduleGetCommand(), scheduleNextCommand(),
		scheduleOrderCommand("pause", "Keep a schedule from acting; its jobs go on", "is paused"),
		scheduleOrderCommand("resume", "Let a paused schedule act again, from now on", "goes on"),
		scheduleOrderCommand("remove", "Remove a schedule; its jobs stay", "is removed"))
	return cmd
}

func scheduleSetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set NAME --cron EXPRESSION -f REQUEST.json",
		Short: "Set a schedule, or change it",
		Long: `Set takes five fields (minute, hour, day of month, month, day of week), or @hourly,
@daily, @weekly, @monthly or @yearly. The request is one as for enqueue, without run_at,
deadline, after and resume_from; the schedule is its tenant's.

Times that came while no dispatcher could act are missed. --missed says what becomes of
them: skip, once (one job for all) or all (a job for each of the newest 100).
--overlap says what becomes of a time when the last job is not finished: skip it, queue
the next job all the same, or cancel the last one and enqueue the next.`,
		Example: `  dispatcher schedule set nightly --cron '0 3 * * 1-5' --tz Europe/Berlin -f examples/request.json
  dispatcher schedule set watch --cron '*/10 * * * *' --overlap cancel -f -`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: setSchedule,
	}
	timeFlags(cmd)
	f := cmd.Flags()
	f.StringP("file", "f", "", `request file, "-" for standard input`)
	f.String("missed", string(job.MissedOnce), "what becomes of missed times: skip, once or all")
	f.String("overlap", "", "what becomes of a time when the last job is not finished: skip, queue or cancel\n(default skip, but queue with --missed all)")
	_ = cmd.MarkFlagFilename("file", "json") // these fail only for flags that are not there
	_ = cmd.RegisterFlagCompletionFunc("missed", cobra.FixedCompletions([]string{"skip", "once", "all"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("overlap", cobra.FixedCompletions([]string{"skip", "queue", "cancel"}, cobra.ShellCompDirectiveNoFileComp))
	clientFlags(cmd)
	cli.OutputFlag(cmd)
	return cmd
}

// timeFlags say when a schedule acts.
func timeFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.String("cron", "", `when, such as "0 3 * * 1-5"`)
	f.String("tz", "UTC", "time zone of the expression, such as Europe/Berlin")
	f.String("from", "", "not before this time (RFC 3339)")
	f.String("until", "", "not after this time (RFC 3339)")
}

// timesOf reads what timeFlags say.
func timesOf(cmd *cobra.Command) (s job.Schedule, err error) {
	s.Cron, s.Zone = flag(cmd, "cron"), flag(cmd, "tz")
	for name, at := range map[string]*time.Time{"from": &s.From, "until": &s.Until} {
		text := flag(cmd, name)
		if text == "" {
			continue
		}
		if *at, err = time.Parse(time.RFC3339, text); err != nil {
			return s, cli.Usagef("--%s %q: want a time such as 2030-01-31T09:00:00Z", name, text)
		}
	}
	return s, nil
}

func setSchedule(cmd *cobra.Command, args []string) error {
	s, err := timesOf(cmd)
	if err != nil {
		return err
	}
	if s.Cron == "" || flag(cmd, "file") == "" {
		return cli.Usagef("give the times and the request: --cron '0 3 * * *' -f FILE, or -f - for standard input")
	}
	if s.Request, err = cli.ReadInput(cmd, flag(cmd, "file"), maxBatchBytes); err != nil {
		return err
	}
	if _, err := job.Decode(s.Request); err != nil { // before it is part of anything
		return err
	}
	s.Missed, s.Overlap = job.Missed(flag(cmd, "missed")), job.Overlap(flag(cmd, "overlap"))
	body, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if _, err := job.DecodeSchedule(args[0], body); err != nil {
		return err
	}
	c, err := newClient(cmd)
	if err != nil {
		return err
	}
	var v job.ScheduleView
	if err := c.do(cmd.Context(), http.MethodPut, schedulePath(args[0]), nil, body, nil, &v); err != nil {
		return err
	}
	return printSchedule(cmd, v)
}

func schedulePath(name string) string { return "v1/schedules/" + url.PathEscape(name) }

// tenantFlag adds whose schedules are meant.
func tenantFlag(cmd *cobra.Command) {
	cmd.Flags().String("tenant", job.DefaultTenant, "whose schedule")
}

func tenantOf(cmd *cobra.Command) url.Values { return url.Values{"tenant": {flag(cmd, "tenant")}} }

func scheduleGetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get NAME",
		Short: "Show one schedule: its times, its last job, what was out of the ordinary",
		Args:  cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := askSchedule(cmd, args[0])
			if err != nil {
				return err
			}
			return printSchedule(cmd, v)
		},
		ValidArgsFunction: completeSchedules,
	}
	tenantFlag(cmd)
	clientFlags(cmd)
	cli.OutputFlag(cmd)
	return cmd
}

func askSchedule(cmd *cobra.Command, name string) (v job.ScheduleView, err error) {
	c, err := newClient(cmd)
	if err != nil {
		return v, err
	}
	err = c.do(cmd.Context(), http.MethodGet, schedulePath(name), tenantOf(cmd), nil, nil, &v)
	return v, err
}

func printSchedule(cmd *cobra.Command, v job.ScheduleView) error {
	return cli.Print(cmd, v, func() cli.Table { return describeSchedule(v) }, func() []string { return []string{v.Name} })
}

func describeSchedule(v job.ScheduleView) cli.Table {
	var t cli.Table
	row := func(k, val string) {
		if val != "" {
			t.Rows = append(t.Rows, []string{k, val})
		}
	}
	row("schedule", v.Name)
	row("tenant", v.Tenant)
	row("cron", v.Cron)
	row("time zone", v.Zone)
	row("from", stamp(&v.From))
	row("until", stamp(&v.Until))
	row("missed", string(v.Missed))
	row("overlap", string(v.Overlap))
	row("set by", v.Producer+" "+stamp(&v.SetAt))
	if v.Paused != nil {
		row("paused by", strings.Join([]string{v.Paused.By, stamp(&v.Paused.At), v.Paused.Why}, " "))
	} else {
		row("next", nextOf(v))
	}
	row("last", stamp(v.LastAt))
	row("last job", strings.TrimSpace(string(v.LastJob)+" "+string(v.LastState)))
	row("jobs made", n(v.Fired))
	row("times skipped", n(v.Skipped))
	if v.NoteAt != nil {
		row(stamp(v.NoteAt), v.Note)
	}
	return t
}

// nextOf is when a schedule acts next.
func nextOf(v job.ScheduleView) string {
	switch {
	case v.Paused != nil:
		return "paused"
	case v.NextAt == nil:
		return "never"
	}
	return stamp(v.NextAt)
}

func scheduleListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List schedules: when each acts next, and how its last job stands",
		Args:    cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := listSchedules(cmd, flag(cmd, "tenant"))
			if err != nil {
				return err
			}
			return cli.Print(cmd, all, func() cli.Table {
				t := cli.Table{Header: []string{"TENANT", "NAME", "CRON", "TZ", "MISSED", "OVERLAP", "NEXT", "LAST", "STATE", "JOBS", "SKIPPED"}}
				for _, v := range all {
					t.Rows = append(t.Rows, []string{v.Tenant, v.Name, v.Cron, v.Zone, string(v.Missed), string(v.Overlap), nextOf(v),
						cli.Dash(stamp(v.LastAt)), cli.Dash(string(v.LastState)), n(v.Fired), n(v.Skipped)})
				}
				return t
			}, func() []string {
				var names []string
				for _, v := range all {
					names = append(names, v.Name)
				}
				return names
			})
		},
	}
	cmd.Flags().String("tenant", "", "only this tenant's")
	clientFlags(cmd)
	cli.OutputFlag(cmd)
	return cmd
}

func listSchedules(cmd *cobra.Command, tenant string) ([]job.ScheduleView, error) {
	c, err := newClient(cmd)
	if err != nil {
		return nil, err
	}
	q := url.Values{}
	if tenant != "" {
		q.Set("tenant", tenant)
	}
	var out struct {
		Schedules []job.ScheduleView `json:"schedules"`
	}
	err = c.do(cmd.Context(), http.MethodGet, "v1/schedules", q, nil, nil, &out)
	return out.Schedules, err
}

func completeSchedules(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, err := listSchedules(cmd, "")
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var out []string
	for _, v := range all {
		out = append(out, cobra.CompletionWithDesc(v.Name, v.Tenant+" "+v.Cron))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// scheduleOrderCommand is what is done to a schedule by its name alone.
func scheduleOrderCommand(does, short, done string) *cobra.Command {
	cmd := &cobra.Command{
		Use:               does + " NAME",
		Short:             short,
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: completeSchedules,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient(cmd)
			if err != nil {
				return err
			}
			body, err := json.Marshal(map[string]string{"why": flag(cmd, "why")})
			if err != nil {
				return err
			}
			method, path := http.MethodPost, schedulePath(args[0])+"/"+does
			if does == "remove" {
				method, path = http.MethodDelete, schedulePath(args[0])
			}
			if err := c.do(cmd.Context(), method, path, tenantOf(cmd), body, nil, nil); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "schedule %s %s\n", args[0], done)
			return nil
		},
	}
	cmd.Flags().String("why", "", "why, for the record")
	tenantFlag(cmd)
	clientFlags(cmd)
	return cmd
}

// nextTime is a line of `schedule next`.
type nextTime struct {
	At   time.Time `json:"at"`
	Here string    `json:"here"` // by the clocks of the zone
}

func scheduleNextCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "next NAME | next --cron EXPRESSION",
		Short: "Show the next times of a schedule, or of an expression",
		Long: `Next computes the next times here: of a schedule, or, with --cron, of an expression
that is no schedule yet; then no dispatcher is asked.`,
		Example: `  dispatcher schedule next nightly -n 3
  dispatcher schedule next --cron '30 2 * * *' --tz Europe/Berlin`,
		Args:              cli.Args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeSchedules,
		RunE: func(cmd *cobra.Command, args []string) error {
			most, err := cmd.Flags().GetInt("count")
			if err != nil {
				return err
			}
			if most < 1 || most > 1000 {
				return cli.Usagef("-n %d: want 1 to 1000", most)
			}
			s, err := timesOf(cmd)
			switch {
			case err != nil:
				return err
			case (s.Cron == "") == (len(args) == 0):
				return cli.Usagef("give the NAME of a schedule, or --cron")
			case len(args) == 1:
				v, err := askSchedule(cmd, args[0])
				if err != nil {
					return err
				}
				s = v.Schedule
			}
			return printNext(cmd, s, most)
		},
	}
	timeFlags(cmd)
	cmd.Flags().IntP("count", "n", 5, "how many")
	tenantFlag(cmd)
	clientFlags(cmd)
	cli.OutputFlag(cmd)
	return cmd
}

func printNext(cmd *cobra.Command, s job.Schedule, most int) error {
	table, err := s.Timetable()
	if err != nil {
		return err
	}
	next := []nextTime{}
	for at := table.Next(time.Now()); !at.IsZero() && len(next) < most; at = table.Next(at) {
		next = append(next, nextTime{at.UTC(), at.Format("Mon 2006-01-02 15:04 MST")})
	}
	return cli.Print(cmd, next, func() cli.Table {
		t := cli.Table{Header: []string{"#", s.Zone, "UTC"}}
		for i, at := range next {
			t.Rows = append(t.Rows, []string{strconv.Itoa(i + 1), at.Here, at.At.Format(time.RFC3339)})
		}
		return t
	}, func() []string {
		var times []string
		for _, at := range next {
			times = append(times, at.At.Format(time.RFC3339))
		}
		return times
	})
}
