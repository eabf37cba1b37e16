package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/api"
	"turnpike/internal/buildinfo"
	"turnpike/internal/dispatcher"
	"turnpike/internal/job"
	"turnpike/internal/queue"
	"turnpike/internal/store"
)

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a dispatcher: HTTP API, selection, publishing, reaping",
		Long: `Serve runs one dispatcher. Several may run against one database: one of them leads
and the others answer HTTP and stand by.

Settings that are secrets come from the environment or the settings file:
TURNPIKE_DATABASE_URL (or --database-url-file) and TURNPIKE_NATS_URL, with
TURNPIKE_NATS_USER and TURNPIKE_NATS_PASSWORD where the URL has none.

With --transport postgres there is no NATS: workers, given the same, look for their
jobs in Postgres. What turns say and change then stays in their session directories.

Without --tokens-file everyone who can reach the address is an operator, so only a
loopback address is taken.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := cli.LoadSettings(cmd, "database-url", "nats-url", "nats-password")
			if err != nil {
				return err
			}
			log, err := cli.Logger(cmd.ErrOrStderr(), s.String("log-format"), s.String("log-level"))
			if err != nil {
				return err
			}
			cfg, err := settingsOf(s)
			if err != nil {
				return err
			}
			return serve(cmd.Context(), cfg, log)
		},
	}
	serveFlags(cmd)
	reachFlags(cmd)
	return cmd
}

// reachFlags adds how an installation is reached that dev does not run itself.
func reachFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.String("database-url-file", "", "file with the database's URL")
	f.String("transport", string(job.ByNATS), "how workers learn of jobs: nats, or postgres, which needs no NATS")
	f.String("nats-user", "", "NATS user")
	f.String("nats-password-file", "", "file with the NATS password")
	f.String("nats-creds-file", "", "NATS credentials file, instead of user and password")
	f.String("nats-ca-file", "", "PEM file that vouches for the NATS server")
	f.Int("nats-replicas", 1, "replicas of every stream")
}

// serveFlags adds what serve and dev have in common.
func serveFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.String("config", "", "settings file (YAML); a setting is named as its flag")
	f.String("listen", defaultServer, "address of the HTTP API")
	f.String("tokens-file", "", "file with the bearer tokens' hashes, names and roles (see docs/operations.md)")
	f.Duration("lease", time.Minute, "length of a lease; the workers' must be the same")
	f.Duration("poll", 250*time.Millisecond, "how often to look for jobs when no wake-up comes")
	f.Duration("ack-wait", queue.DefaultAckWait, "how long a message may be in a worker's hand unanswered")
	f.Duration("slow-start", 30*time.Second, "how an account gets going again whose limit is over: one job, and twice as many each such step, ten times; 0 is all at once")
	f.Duration("unready-for", 24*time.Hour, "how long a job may find only workers that cannot make it ready before it fails")
	f.Duration("unreachable-after", 24*time.Hour, "how long a host must not be seen until what its worker left is unreachable; 0 is never")
	f.Duration("keep-history", 90*24*time.Hour, "how long finished jobs are kept; 0 is for ever")
	f.Duration("keep-transcripts", 7*24*time.Hour, "how long streamed transcripts are kept")
	f.Int64("keep-transcripts-mib", 1<<10, "how much streamed transcripts may take, in MiB")
	f.Duration("keep-conversations", 7*24*time.Hour, "how long a conversation can be continued")
	f.Int64("keep-conversations-mib", 1<<10, "how much conversations may take before no more are kept, in MiB")
	f.Duration("keep-patches", 30*24*time.Hour, "how long the changes of git workspaces are kept")
	f.Int64("keep-patches-mib", 1<<10, "how much patches may take before no more are kept, in MiB")
	f.String("log-level", "info", "debug, info, warn or error")
	f.String("log-format", "", "text or json; by default text on a terminal, json elsewhere")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml") // fails only for a flag that is not there
	_ = cmd.MarkFlagFilename("tokens-file", "yaml", "yml")
}

// settings is a dispatcher's configuration.
type settings struct {
	listen      string
	tokens      []api.Token
	database    string
	transport   job.Transport
	nats        queue.Config
	lease       time.Duration
	unready     time.Duration
	slowStart   time.Duration
	poll        time.Duration
	ackWait     time.Duration
	history     time.Duration
	unreachable time.Duration
	transcripts kept
	// conversations are those that can be continued.
	conversations kept
	patches       kept
	replicas      int
}

// kept is how long something is kept on the broker, and how much of it.
type kept struct {
	age   time.Duration
	bytes int64
}

// settingsOf reads what serveFlags and serve's own flags say, and checks it.
func settingsOf(s *cli.Settings) (cfg settings, err error) {
	tokens, err := readTokens(s.String("tokens-file"))
	if err != nil {
		return cfg, err
	}
	if err := api.CheckListen(s.String("listen"), tokens); err != nil {
		return cfg, cli.Usagef("%w", err)
	}
	cfg, err = reachOf(s)
	cfg.tokens = tokens
	return cfg, err
}

// reachOf reads how the database and NATS are reached, and what they should be like.
func reachOf(s *cli.Settings) (cfg settings, err error) {
	cfg = commonSettings(s)
	if cfg.database, err = s.Secret("database-url"); err != nil {
		return cfg, err
	}
	if cfg.database == "" {
		return cfg, cli.Usagef("no database: set TURNPIKE_DATABASE_URL, or --database-url-file; `dispatcher dev` needs none")
	}
	if cfg.transport, err = job.ParseTransport(s.String("transport")); err != nil {
		return cfg, cli.Usagef("%w", err)
	}
	if cfg.transport == job.ByPostgres {
		return cfg, nil // whatever is set for NATS is not looked at
	}
	cfg.nats.URL, cfg.nats.User = s.String("nats-url"), s.String("nats-user")
	cfg.nats.Credentials, cfg.nats.RootCA = s.String("nats-creds-file"), s.String("nats-ca-file")
	if cfg.nats.Password, err = s.Secret("nats-password"); err != nil {
		return cfg, err
	}
	if cfg.nats.URL == "" {
		return cfg, cli.Usagef("no NATS: set TURNPIKE_NATS_URL, such as nats://127.0.0.1:4222, or run without: --transport postgres; `dispatcher dev` needs none")
	}
	cfg.replicas = s.Int("nats-replicas")
	return cfg, nil
}

func commonSettings(s *cli.Settings) settings {
	cfg := settings{
		transport: job.ByNATS, listen: s.String("listen"), lease: s.Duration("lease"), unready: s.Duration("unready-for"), slowStart: s.Duration("slow-start"), poll: s.Duration("poll"),
		ackWait: s.Duration("ack-wait"), history: s.Duration("keep-history"), unreachable: s.Duration("unreachable-after"), replicas: 1,
	}
	of := func(what string) kept {
		return kept{s.Duration("keep-" + what), s.Int64("keep-"+what+"-mib") << 20}
	}
	cfg.transcripts, cfg.conversations, cfg.patches = of("transcripts"), of("conversations"), of("patches")
	return cfg
}

// readTokens reads the tokens file: a list of {name, role, sha256, tenants}.
func readTokens(path string) ([]api.Token, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, cli.Usagef("tokens-file: %w", err)
	}
	defer f.Close()
	var entries []struct {
		Name    string   `yaml:"name"`
		Role    string   `yaml:"role"`
		SHA256  string   `yaml:"sha256"`
		Tenants []string `yaml:"tenants"`
	}
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	if err := d.Decode(&entries); err != nil {
		return nil, cli.Usagef("tokens-file %s: want a list of {name, role, sha256, tenants}: %w", path, err)
	}
	if len(entries) == 0 {
		return nil, cli.Usagef("tokens-file %s holds no token", path)
	}
	tokens := make([]api.Token, len(entries))
	for i, e := range entries {
		tokens[i] = api.Token{Name: e.Name, Role: api.Role(e.Role), SHA256: strings.ToLower(e.SHA256), Tenants: e.Tenants}
	}
	return tokens, nil
}

// serve runs a dispatcher until ctx ends.
func serve(ctx context.Context, cfg settings, log *slog.Logger) error {
	if cfg.slowStart < 0 {
		return cli.Usagef("slow-start %s: want the length of a step, or 0 for none", cfg.slowStart)
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("this machine's name: %w", err)
	}
	holder := fmt.Sprintf("%s-%d-%s", host, os.Getpid(), strings.ToLower(rand.Text()[:6]))
	db, err := store.Open(ctx, store.Config{DSN: cfg.database, App: "dispatcher " + holder, LeaseLength: cfg.lease, Unready: cfg.unready, SlowStart: cfg.slowStart})
	if err != nil {
		return err
	}
	defer db.Close()
	if _, _, err := store.Version(ctx, cfg.database); errors.Is(err, store.ErrSchema) {
		return err // an outage is waited for, an old schema is not
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics := dispatcher.NewMetrics(reg)
	bell, offers := dispatcher.NewBell(), &dispatcher.Offers{}
	health := &dispatcher.Health{Log: log}
	d := &dispatcher.Dispatcher{
		Store: db,
		Sweep: func(ctx context.Context, epoch int64) error {
			swept, err := db.Sweep(ctx, epoch, retention(cfg.history, cfg.unreachable))
			metrics.Abandoned(swept.Unreachable)
			if swept != (store.Swept{}) {
				log.Info("swept", "what", swept)
			}
			return err
		},
		Holder: holder, Bell: bell, Offers: offers, Lease: cfg.lease, AckWait: cfg.ackWait, Poll: cfg.poll,
		Health: health, Metrics: metrics, Log: log,
	}
	intake := &dispatcher.Intake{Jobs: db, Bell: bell, Offers: offers, Metrics: metrics, Log: log}
	control := &dispatcher.Control{Jobs: db, Bell: bell, Log: log}
	front := api.Config{
		Intake:      intake,
		Jobs:        db,
		Control:     control,
		Schedules:   db,
		Transcripts: elsewhere{},
		Patches:     elsewhere{},
		Tokens:      cfg.tokens,
		Checks: []api.Check{
			{Name: "postgres", Ask: db.Ping},
			{Name: "loops", Advisory: true, Ask: func(context.Context) error { return partsOf(health) }},
		},
		Version: buildinfo.String(), Metrics: reg, Log: log,
	}
	if cfg.transport == job.ByNATS {
		cfg.nats.Name, cfg.nats.Role, cfg.nats.Log = "dispatcher "+holder, queue.Dispatcher, log
		nc, err := queue.Connect(cfg.nats)
		if err != nil {
			return err
		}
		defer nc.Close()
		d.Publisher, d.Streams, d.Reports, d.Wakes, d.Pusher = nc, adminOf(cfg, nc), nc, nc, nc
		intake.Waker, control.Waker, control.Pusher = nc, nc, nc
		front.Transcripts, front.Patches = nc, nc
		front.Checks = append(front.Checks, api.Check{Name: "nats", Advisory: true, Ask: nc.Check})
	}
	server, err := api.New(front)
	if err != nil {
		return cli.Usagef("%w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.listen)
	if err != nil {
		return cli.Usagef("listen: %w", err)
	}
	log.Info("settings", "version", buildinfo.String(), "transport", cfg.transport, "listen", l.Addr().String(), "tokens", len(cfg.tokens),
		"lease", cfg.lease.String(), "unready_for", cfg.unready.String(), "slow_start", cfg.slowStart.String(), "poll", cfg.poll.String(), "ack_wait", cfg.ackWait.String(), "keep_history", cfg.history.String())

	// The API stops first: what it accepted meanwhile is in Postgres already.
	var all sync.WaitGroup
	loops, stop := context.WithCancel(context.WithoutCancel(ctx))
	all.Go(func() { d.Run(loops) })
	err = server.Serve(ctx, l)
	stop()
	all.Wait()
	return err
}

// elsewhere stands for the broker's stores where there is no broker: what turns said and
// changed is in the session directories of their workers only.
type elsewhere struct{}

// Tail has nothing to tell, however long one follows.
func (elsewhere) Tail(ctx context.Context, id job.ID, _ int, _ uint64, follow bool, _ func(job.TranscriptChunk) error) error {
	if follow {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return fmt.Errorf("transcript of job %s: there is no NATS; it is in the session directory of its worker: %w", id, job.ErrNotKept)
}

func (elsewhere) GetPatch(_ context.Context, id job.ID, _ int, _ io.Writer) error {
	return fmt.Errorf("patch of job %s: there is no NATS; it is in the session directory of its worker: %w", id, job.ErrNotKept)
}

// retention is how long the small records are kept beside the history. Workers are for
// at least as long as the sight of one matters.
func retention(history, unreachable time.Duration) store.Retention {
	const day, month = 24 * time.Hour, 30 * 24 * time.Hour
	keys := 7 * day
	if history > 0 { // a key without its job has no answer
		keys = min(keys, history)
	}
	return store.Retention{History: history, Idempotency: keys, Orphans: month, Unreachable: unreachable, Workers: max(day, unreachable), Audit: 12 * month}
}

// partsOf is what is wrong with the loops, if anything.
func partsOf(h *dispatcher.Health) error {
	var errs []error
	for _, p := range h.Parts() {
		if p.Err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.Name, p.Err))
		}
	}
	return errors.Join(errs...)
}

func migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the database's schema up to date",
		Long: `Migrate brings the schema to this release and makes the roles turnpike_producer,
turnpike_dispatcher, turnpike_worker and turnpike_reporter. It needs a login that
may create roles; the programs themselves each need only one of these. It may be
run again, and while programs of the release before run.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := cli.LoadSettings(cmd, "database-url")
			if err != nil {
				return err
			}
			log, err := cli.Logger(cmd.ErrOrStderr(), s.String("log-format"), s.String("log-level"))
			if err != nil {
				return err
			}
			dsn, err := s.Secret("database-url")
			if err != nil {
				return err
			}
			if dsn == "" {
				return cli.Usagef("no database: set TURNPIKE_DATABASE_URL, or --database-url-file")
			}
			if on(cmd, "status") {
				return migrationStatus(cmd, dsn)
			}
			n, err := store.Migrate(cmd.Context(), dsn, log)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d migrations applied\n", n)
			return nil
		},
	}
	f := cmd.Flags()
	f.String("config", "", "settings file (YAML)")
	f.String("database-url-file", "", "file with the database's URL")
	f.Bool("status", false, "only list the migrations")
	f.String("log-level", "info", "debug, info, warn or error")
	f.String("log-format", "", "text or json")
	cli.OutputFlag(cmd)
	return cmd
}

func migrationStatus(cmd *cobra.Command, dsn string) error {
	steps, err := store.MigrationStatus(cmd.Context(), dsn)
	if err != nil {
		return err
	}
	return cli.Print(cmd, steps, func() cli.Table {
		t := cli.Table{Header: []string{"VERSION", "MIGRATION", "APPLIED"}}
		for _, m := range steps {
			t.Rows = append(t.Rows, []string{n(m.Version), m.Name, cli.Dash(stamp(&m.Applied))})
		}
		return t
	}, nil)
}
