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

func budgetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "budget",
		Short: "Bound what jobs may cost together in any stretch of time of a length",
		Long: `A budget bounds what the jobs of a tenant, with a work tag, or with a profile may
cost together in any stretch of time of a length. While it is spent their jobs wait,
and those that run are stopped and end as failed/capped.

SCOPE is tenant, tag or profile.`,
		Args: cobra.ArbitraryArgs,
		RunE: cli.Group,
	}
	cmd.AddCommand(budgetSetCommand(), budgetListCommand(), budgetRemoveCommand())
	return cmd
}

func budgetSetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set SCOPE NAME USD",
		Short: "Set a budget, or raise or lower it; what was parked for it is looked at again",
		Example: `  dispatcher budget set tenant acme 50 --warn 40
  dispatcher budget set tag nightly 20 --per 168h --why "until the audit"`,
		Args:              cli.Args(cobra.ExactArgs(3)),
		ValidArgsFunction: completeBudgetScopes,
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := budgetBody(cmd, args)
			if err != nil {
				return err
			}
			body["limit_usd"] = args[2]
			if warn := flag(cmd, "warn"); warn != "" {
				body["warn_usd"] = warn
			}
			return budgetOrder(cmd, http.MethodPut, "v1/budgets", body)
		},
	}
	cmd.Flags().String("warn", "", "the warning level, in USD")
	budgetFlags(cmd)
	return cmd
}

func budgetRemoveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "remove SCOPE NAME",
		Short:             "Lift a budget",
		Args:              cli.Args(cobra.ExactArgs(2)),
		ValidArgsFunction: completeBudgetScopes,
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := budgetBody(cmd, args)
			if err != nil {
				return err
			}
			return budgetOrder(cmd, http.MethodPost, "v1/budgets/remove", body)
		},
	}
	budgetFlags(cmd)
	return cmd
}

func budgetFlags(cmd *cobra.Command) {
	cmd.Flags().Duration("per", 24*time.Hour, "the window: any stretch of time so long, from 1m to 744h")
	cmd.Flags().String("why", "", "why, for the record")
	clientFlags(cmd)
}

func budgetBody(cmd *cobra.Command, args []string) (map[string]any, error) {
	if !slices.Contains(job.BudgetScopes(), job.BudgetScope(args[0])) {
		return nil, cli.Usagef("scope %q: want one of %v", args[0], job.BudgetScopes())
	}
	per, err := cmd.Flags().GetDuration("per")
	if err != nil {
		return nil, err
	}
	return map[string]any{"scope": args[0], "name": args[1], "per": per.String(), "why": flag(cmd, "why")}, nil
}

func budgetOrder(cmd *cobra.Command, method, path string, body map[string]any) error {
	c, err := newClient(cmd)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.do(cmd.Context(), method, path, nil, raw, nil, nil)
}

func budgetListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List budgets: what is spent, what is left",
		Args:  cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newClient(cmd)
			if err != nil {
				return err
			}
			var out struct {
				Budgets []job.Budget `json:"budgets"`
			}
			if err := c.do(cmd.Context(), http.MethodGet, "v1/budgets", nil, nil, nil, &out); err != nil {
				return err
			}
			return cli.Print(cmd, out.Budgets, func() cli.Table {
				t := cli.Table{Header: []string{"SCOPE", "NAME", "PER", "STATE", "SPENT", "RUNNING", "LEFT", "LIMIT", "WARN", "UNTIL"}}
				for _, b := range out.Budgets {
					t.Rows = append(t.Rows, []string{string(b.Scope), b.Name, b.Per.String(), string(b.State), b.SpentUSD.String(), b.RunningUSD.String(),
						b.LeftUSD.String(), b.LimitUSD.String(), usd(b.WarnUSD), cli.Dash(stamp(b.Until))})
				}
				return t
			}, func() []string {
				var names []string
				for _, b := range out.Budgets {
					names = append(names, b.String())
				}
				return names
			})
		},
	}
	clientFlags(cmd)
	cli.OutputFlag(cmd)
	return cmd
}

func completeBudgetScopes(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	if len(args) == 0 {
		for _, s := range job.BudgetScopes() {
			out = append(out, string(s))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func orphansCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "orphans",
		Short: "List what may still run although nobody keeps its lease, or close one by hand",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Group(cmd, args)
			}
			c, err := newClient(cmd)
			if err != nil {
				return err
			}
			var out struct {
				Orphans []job.Orphan `json:"orphans"`
			}
			if err := c.do(cmd.Context(), http.MethodGet, "v1/orphans", nil, nil, nil, &out); err != nil {
				return err
			}
			return cli.Print(cmd, out.Orphans, func() cli.Table {
				t := cli.Table{Header: []string{"JOB", "ATTEMPT", "KIND", "STATE", "HOST", "WORKER", "NOTE"}}
				for _, o := range out.Orphans {
					t.Rows = append(t.Rows, []string{string(o.Job), strconv.Itoa(o.Attempt), o.Kind, string(o.State), cli.Dash(o.Host), o.Worker, cli.Dash(o.Note)})
				}
				return t
			}, func() []string {
				var names []string
				for _, o := range out.Orphans {
					names = append(names, fmt.Sprintf("%s %d %s", o.Job, o.Attempt, o.Kind))
				}
				return names
			})
		},
	}
	clientFlags(cmd)
	cli.OutputFlag(cmd)
	cmd.AddCommand(orphanGoneCommand())
	return cmd
}

func orphanGoneCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gone JOB",
		Short: "Record that what an attempt left is gone: only after a look at its machine",
		Long: `Gone closes the record of something that outlived its worker, when no worker will
ever do it: its machine was retired, say. It ends nothing.`,
		Example: `  dispatcher orphans gone 0198... --attempt 1 --kind process --why "machine retired"`,
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			attempt, err := cmd.Flags().GetInt("attempt")
			if err != nil {
				return err
			}
			if flag(cmd, "why") == "" {
				return cli.Usagef("say with --why how it is known to be gone")
			}
			body := map[string]any{"job": args[0], "attempt": attempt, "kind": flag(cmd, "kind"), "why": flag(cmd, "why")}
			return budgetOrder(cmd, http.MethodPost, "v1/orphans/gone", body)
		},
	}
	f := cmd.Flags()
	f.Int("attempt", 0, "the attempt's number (required)")
	f.String("kind", "process", "process, container or sandbox")
	f.String("why", "", "how it is known to be gone, for the record (required)")
	clientFlags(cmd)
	return cmd
}
