package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/buildinfo"
	"turnpike/internal/job"
	"turnpike/internal/queue"
	"turnpike/internal/store"
)

// finding is one thing the doctor looked at, and what it found.
type finding struct {
	Check  string `json:"check" yaml:"check"`
	Status status `json:"status" yaml:"status"`
	What   string `json:"what,omitempty" yaml:"what,omitempty"`
	Do     string `json:"do,omitempty" yaml:"do,omitempty"`
}

// status is how bad a finding is: only what is wrong fails the command.
type status string

const (
	fine  status = "ok"
	look  status = "look"
	wrong status = "wrong"
)

// judgements are what a complaint of a check means, and what to do about it.
var judgements = map[string]struct {
	status status
	do     string
}{
	"rights":       {wrong, "run `dispatcher migrate` with its own login; take roles from logins that have several"},
	"leader":       {wrong, "start a dispatcher, or see why it cannot reach the database: its /readyz and log say"},
	"workers":      {wrong, "start a worker; one that runs cannot reach the database: its /readyz and log say"},
	"lanes":        {wrong, "start a worker with --slots for this lane's placement and --pool, or cancel the jobs"},
	"closed lanes": {wrong, "mend the cause, then start the worker again; `worker probe` on that machine says more"},
	"leases":       {wrong, "the leader reaps them once it sees the database without a gap for one lease; see its log"},
	"publication":  {wrong, "the leader publishes them once it reaches NATS; see its /readyz and log"},
	"lease length": {wrong, "start the worker with the dispatcher's --lease"},
	"partitions":   {wrong, "the leader makes them every ten minutes; see what its log says of the janitor"},
	"versions":     {look, "finish the upgrade: see Upgrading in docs/operations.md"},
	"pauses":       {look, "`dispatcher resume SCOPE NAME` ends one"},
	"budgets":      {look, "wait for the window, or `dispatcher budget set` more"},
	"cost caps":    {look, "cost_cap_usd has no effect on its turns; budgets refuse them unless --prices has their model"},
	"delivery":     {look, "see that the worker reaches NATS and that its --transport is the dispatcher's; until then it looks for jobs in Postgres"},
	"orphans":      {look, "start a worker with the same state directory, or look at its machine and `dispatcher orphans gone`"},
	"retention":    {look, "cancel the jobs; close the orphans"},
}

// maxSkew is how far clocks may be apart before leases and run_at surprise.
const maxSkew = 2 * time.Second

func doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at a running installation: what is wrong, and what to do",
		Long: `Doctor looks at an installation as a dispatcher does, with the same settings: the
database, NATS, the workers, what waits and what is left over. It changes nothing.

It ends with exit code 1 when something is wrong, and 0 when all is well or there
is only something to look at.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := cli.LoadSettings(cmd, "database-url", "nats-url", "nats-password")
			if err != nil {
				return err
			}
			cfg, err := reachOf(s)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
			defer cancel()
			return tell(cmd, examine(ctx, cfg, buildinfo.String()))
		},
	}
	serveFlags(cmd)
	reachFlags(cmd)
	cli.OutputFlag(cmd)
	return cmd
}

// tell prints findings and fails when one is wrong.
func tell(cmd *cobra.Command, all []finding) error {
	err := cli.Print(cmd, all, func() cli.Table {
		t := cli.Table{Header: []string{"CHECK", "STATUS", "WHAT", "DO"}}
		for _, f := range all {
			t.Rows = append(t.Rows, []string{f.Check, string(f.Status), cli.Dash(f.What), cli.Dash(f.Do)})
		}
		return t
	}, nil)
	if err != nil {
		return err
	}
	for _, f := range all {
		if f.Status == wrong {
			return cli.ErrFailed
		}
	}
	return nil
}

// examine looks at everything; what cannot be reached is a finding, and ends what
// depends on it.
func examine(ctx context.Context, cfg settings, version string) []finding {
	all, db := examineDatabase(ctx, cfg, version)
	if db != nil {
		defer db.Close()
	}
	if cfg.transport == job.ByPostgres {
		return append(all, finding{Check: "transport", Status: fine, What: "postgres: there is no NATS"})
	}
	all = append(all, finding{Check: "transport", Status: fine, What: "nats"})
	return append(all, examineNATS(ctx, cfg, db)...)
}

func examineDatabase(ctx context.Context, cfg settings, version string) (all []finding, db *store.DB) {
	db, err := store.Open(ctx, store.Config{DSN: cfg.database, App: "doctor", MaxConns: 1, LeaseLength: cfg.lease})
	if err == nil {
		if err = db.Ping(ctx); err != nil {
			db.Close()
			db = nil
		}
	}
	if err != nil {
		return []finding{{"database", wrong, err.Error(), "see that Postgres runs, and TURNPIKE_DATABASE_URL"}}, nil
	}
	all = append(all, finding{Check: "database", Status: fine})
	have, want, err := store.Version(ctx, cfg.database)
	switch {
	case errors.Is(err, store.ErrSchema):
		// Nothing else can be asked.
		return append(all, finding{"schema", wrong, fmt.Sprintf("version %d, this program needs %d", have, want), "run `dispatcher migrate`"}), db
	case err != nil:
		return append(all, finding{"schema", wrong, err.Error(), "see the login's rights"}), db
	}
	all = append(all, finding{Check: "schema", Status: fine, What: fmt.Sprintf("version %d", have)})
	switch ahead, within, err := db.Skew(ctx); {
	case err != nil:
		all = append(all, finding{"clock", wrong, err.Error(), "ask again"})
	case ahead.Abs()-within > maxSkew:
		all = append(all, finding{"clock", wrong, fmt.Sprintf("this machine's clock is %s off the database's", ahead.Round(time.Millisecond)), "set both clocks by NTP"})
	default:
		all = append(all, finding{Check: "clock", Status: fine})
	}
	found, err := db.Complaints(ctx, store.Expected{Version: version, KeepHistory: cfg.history, Transport: cfg.transport})
	if err != nil {
		return append(all, finding{"queries", wrong, err.Error(), "use a dispatcher's login"}), db
	}
	for _, check := range store.Checks() {
		none := true
		for _, c := range found {
			if c.Check == check {
				none = false
				all = append(all, finding{check, judgements[check].status, c.What, judgements[check].do})
			}
		}
		if none {
			all = append(all, finding{Check: check, Status: fine})
		}
	}
	return all, db
}

func examineNATS(ctx context.Context, cfg settings, db *store.DB) []finding {
	cfg.nats.Name, cfg.nats.Role = "doctor", queue.Dispatcher
	nc, err := queue.Connect(cfg.nats)
	if err == nil {
		defer nc.Close()
		err = nc.Check(ctx)
	}
	if err != nil {
		return []finding{{"nats", wrong, err.Error(), "see that NATS runs, and TURNPIKE_NATS_URL with its user and password"}}
	}
	all := []finding{{Check: "nats", Status: fine}}
	if db == nil {
		return all // the lanes are not known
	}
	lanes, err := db.Lanes(ctx)
	if err != nil {
		return append(all, finding{"streams", wrong, err.Error(), "see the database"})
	}
	differs, unsettled, err := adminOf(cfg, nc).Inspect(ctx, lanes)
	switch {
	case err != nil:
		all = append(all, finding{"streams", wrong, err.Error(), "see the NATS user's permissions and that JetStream is on"})
	case len(differs) == 0:
		all = append(all, finding{Check: "streams", Status: fine})
	}
	for _, d := range differs {
		all = append(all, finding{"streams", wrong, d, "the leader makes and mends them; see its log, and that its settings are the doctor's"})
	}
	if unsettled > 0 {
		return append(all, finding{"results", look, fmt.Sprintf("%d reports wait in the results stream", unsettled), "a dispatcher settles them once the database answers"})
	}
	return append(all, finding{Check: "results", Status: fine})
}

// adminOf makes and mends the streams as configured.
func adminOf(cfg settings, nc *queue.Conn) *queue.Admin {
	return &queue.Admin{Conn: nc, Replicas: cfg.replicas, AckWait: cfg.ackWait,
		TranscriptAge: cfg.transcripts.age, TranscriptBytes: cfg.transcripts.bytes,
		BundleAge: cfg.conversations.age, BundleBytes: cfg.conversations.bytes,
		PatchAge: cfg.patches.age, PatchBytes: cfg.patches.bytes}
}
