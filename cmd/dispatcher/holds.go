package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/job"
)

// scopeNote says what the names of each scope are.
const scopeNote = `SCOPE is lane, tenant, account or key. A lane is named PLACEMENT/POOL, such as
none-confined/default, a concurrency key TENANT/KEY. The account of requests that
name none is ~AGENT, such as ~claude.`

func pauseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pause SCOPE NAME",
		Short: "Keep jobs of a lane, tenant, account or key from being started; what runs goes on",
		Long:  "Pause keeps jobs from being started, until they are resumed or --for is over.\n\n" + scopeNote,
		Example: `  dispatcher pause lane none-confined/default --why "kernel upgrade"
  dispatcher pause account '~claude' --for 2h
  dispatcher pause key acme/deploy --why "incident 12"`,
		Args:              cli.Args(cobra.ExactArgs(2)),
		ValidArgsFunction: completeScopes,
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{"scope": args[0], "name": args[1], "why": flag(cmd, "why")}
			d, err := cmd.Flags().GetDuration("for")
			if err != nil {
				return err
			}
			if d < 0 {
				return cli.Usagef("--for %s is in the past", d)
			}
			if d > 0 {
				body["until"] = time.Now().Add(d).UTC()
			}
			var out struct {
				Returned int `json:"returned"`
			}
			if err := order(cmd, args[0], http.MethodPost, "v1/pauses", body, &out); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s is paused; %d dispatched jobs went back to the queue\n", args[0], args[1], out.Returned)
			return nil
		},
	}
	cmd.Flags().Duration("for", 0, "how long; 0 is until it is resumed")
	cmd.Flags().String("why", "", "why, for the record")
	clientFlags(cmd)
	return cmd
}

func resumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resume SCOPE NAME",
		Short: "End a pause at once",
		Long: `Resume ends a pause: one that a person made, or one that a provider's limit or a
refused credential made. An account resumed by hand gets everything that waits for it
at once.

` + scopeNote,
		Example: `  dispatcher resume lane none-confined/default
  dispatcher resume account '~claude' --why "the key was renewed"`,
		Args:              cli.Args(cobra.ExactArgs(2)),
		ValidArgsFunction: completeScopes,
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{"scope": args[0], "name": args[1], "why": flag(cmd, "why")}
			if err := order(cmd, args[0], http.MethodPost, "v1/pauses/resume", body, nil); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s goes on\n", args[0], args[1])
			return nil
		},
	}
	cmd.Flags().String("why", "", "why, for the record")
	clientFlags(cmd)
	return cmd
}

func pausesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pauses",
		Short: "List what is paused, until when, by whom and why",
		Args:  cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newClient(cmd)
			if err != nil {
				return err
			}
			var out struct {
				Pauses []job.Pause `json:"pauses"`
			}
			if err := c.do(cmd.Context(), http.MethodGet, "v1/pauses", nil, nil, nil, &out); err != nil {
				return err
			}
			return cli.Print(cmd, out.Pauses, func() cli.Table {
				t := cli.Table{Header: []string{"SCOPE", "NAME", "STATE", "UNTIL", "LIVE", "BY", "REASON"}}
				for _, p := range out.Pauses {
					until := stamp(p.Until)
					if p.Until == nil {
						until = "it is resumed"
					}
					live := ""
					if p.Live != nil && p.LiveMax != nil {
						until, live = stamp(p.SlowUntil), fmt.Sprintf("%d of at most %d", *p.Live, *p.LiveMax)
					}
					t.Rows = append(t.Rows, []string{string(p.Scope), p.Name, string(p.State), until, cli.Dash(live), cli.Dash(p.By), cli.Dash(p.Reason)})
				}
				return t
			}, func() []string {
				var names []string
				for _, p := range out.Pauses {
					names = append(names, string(p.Scope)+" "+p.Name)
				}
				return names
			})
		},
	}
	clientFlags(cmd)
	cli.OutputFlag(cmd)
	return cmd
}

func limitCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "limit TENANT MAX",
		Short: "Bound how many unfinished jobs a tenant may have; more are answered 429",
		Long: `Limit bounds a tenant's unfinished jobs. The tenant "*" stands for every tenant
without a limit of its own; "none" as MAX lifts a limit.`,
		Example: `  dispatcher limit acme 500
  dispatcher limit '*' none`,
		Args: cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			most := -1
			if args[1] != "none" {
				var err error
				if most, err = strconv.Atoi(args[1]); err != nil || most < 0 {
					return cli.Usagef("MAX %q: want a number of jobs, or none", args[1])
				}
			}
			c, err := newClient(cmd)
			if err != nil {
				return err
			}
			body, err := json.Marshal(map[string]any{"tenant": args[0], "max": most})
			if err != nil {
				return err
			}
			return c.do(cmd.Context(), http.MethodPut, "v1/limits", nil, body, nil, nil)
		},
	}
	clientFlags(cmd)
	return cmd
}

func weightCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "weight TENANT N",
		Short: "Give a tenant N live jobs of a lane for each one of another tenant",
		Long: `Weight gives a tenant a larger share of every lane: where all have work, the live
jobs of a lane are shared by the weights of their tenants. Every tenant with work
has at least one live job before another has its second. N is 1 to 100; 1 is the
weight of every tenant that was given none, and takes it away.`,
		Example: `  dispatcher weight acme 4
  dispatcher weight acme 1`,
		Args: cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			weight, err := strconv.Atoi(args[1])
			if err != nil {
				return cli.Usagef("N %q: want a number from 1 to %d", args[1], job.MaxWeight)
			}
			if err := (job.Weight{Tenant: args[0], Weight: weight}).Check(); err != nil {
				return cli.Usagef("%w", err)
			}
			c, err := newClient(cmd)
			if err != nil {
				return err
			}
			body, err := json.Marshal(map[string]any{"tenant": args[0], "weight": weight})
			if err != nil {
				return err
			}
			return c.do(cmd.Context(), http.MethodPut, "v1/weights", nil, body, nil, nil)
		},
	}
	clientFlags(cmd)
	return cmd
}

func weightsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "weights",
		Short: "List the tenants that have a weight",
		Args:  cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newClient(cmd)
			if err != nil {
				return err
			}
			var out struct {
				Weights []job.Weight `json:"weights"`
			}
			if err := c.do(cmd.Context(), http.MethodGet, "v1/weights", nil, nil, nil, &out); err != nil {
				return err
			}
			return cli.Print(cmd, out.Weights, func() cli.Table {
				t := cli.Table{Header: []string{"TENANT", "WEIGHT", "BY", "SINCE"}}
				for _, w := range out.Weights {
					t.Rows = append(t.Rows, []string{w.Tenant, strconv.Itoa(w.Weight), cli.Dash(w.By), stamp(&w.At)})
				}
				return t
			}, func() []string {
				var names []string
				for _, w := range out.Weights {
					names = append(names, w.Tenant)
				}
				return names
			})
		},
	}
	clientFlags(cmd)
	cli.OutputFlag(cmd)
	return cmd
}

// order sends an operator's order about a scope.
func order(cmd *cobra.Command, scope, method, path string, body map[string]any, out any) error {
	if !slices.Contains(job.Scopes(), job.Scope(scope)) {
		return cli.Usagef("scope %q: want one of %v", scope, job.Scopes())
	}
	c, err := newClient(cmd)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.do(cmd.Context(), method, path, nil, raw, nil, out)
}

func completeScopes(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	if len(args) == 0 {
		for _, s := range job.Scopes() {
			out = append(out, string(s))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
