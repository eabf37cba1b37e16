package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/agent"
	"turnpike/internal/buildinfo"
	"turnpike/internal/job"
	"turnpike/internal/queue"
	"turnpike/internal/store"
	"turnpike/internal/worker"
)

// defaultListen is where health and metrics are told.
const defaultListen = "127.0.0.1:8421"

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a pool: pull jobs, run turns, record what they did and cost",
		Long: `Serve pulls jobs from the lanes that --slots names, as many at a time as each has
slots, and runs them. SIGTERM drains: nothing new is pulled, turns may go on for
--drain, then they are stopped and given back or failed by their policy.

Settings that are secrets come from the environment or the settings file:
TURNPIKE_DATABASE_URL (or --database-url-file) and TURNPIKE_NATS_URL, with
TURNPIKE_NATS_USER and TURNPIKE_NATS_PASSWORD where the URL has none.

While NATS is away jobs are looked for in Postgres. With --transport postgres they
always are, and no NATS is needed: then conversations are not kept, and what turns say
and change stays in their session directories.`,
		Example: `  worker serve --slots none-confined=2 --ceiling /etc/turnpike/ceiling.yaml`,
		Args:    cli.Args(cobra.NoArgs),
		RunE:    serve,
	}
	turnFlags(cmd, defaultStateDir(), "info")
	f := cmd.Flags()
	f.String("pool", job.DefaultPool, "the pool served")
	f.StringSlice("slots", nil, "turns at a time, as PLACEMENT=N; repeat it for more lanes (required)")
	f.String("database-url-file", "", "file with the database's URL")
	transportFlag(cmd)
	f.String("nats-user", "", "NATS user")
	f.String("nats-password-file", "", "file with the NATS password")
	f.String("nats-creds-file", "", "NATS credentials file, instead of user and password")
	f.String("nats-ca-file", "", "PEM file that vouches for the NATS server")
	f.String("listen", defaultListen, "where /healthz, /readyz and /metrics answer; empty is nowhere")
	f.Duration("lease", time.Minute, "length of a lease; the dispatcher's must be the same")
	f.Duration("beat", 10*time.Second, "time between beats")
	f.Duration("drain", time.Minute, "how long turns may go on after SIGTERM")
	f.Duration("grace", 10*time.Second, "time between asking an agent to end and ending it")
	f.Duration("keep-sessions", 7*24*time.Hour, "how long session directories are kept")
	f.Int64("keep-sessions-mib", 5<<10, "how much session directories may take before the oldest go, in MiB")
	f.Int64("keep-mirrors-mib", 10<<10, "how much mirrors of git repositories may take before the longest unused go, in MiB")
	return cmd
}

// transportFlag adds how jobs are found.
func transportFlag(cmd *cobra.Command) {
	cmd.Flags().String("transport", string(job.ByNATS), "how to learn of jobs: nats, or postgres, which needs no NATS; the dispatcher's must be the same")
	_ = cmd.RegisterFlagCompletionFunc("transport", cobra.FixedCompletions([]string{string(job.ByNATS), string(job.ByPostgres)}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

func serve(cmd *cobra.Command, _ []string) error {
	s, err := cli.LoadSettings(cmd, "database-url", "nats-url", "nats-password")
	if err != nil {
		return err
	}
	slots, err := parseSlots(cmd.Context(), s.Strings("slots"), s.String("pool"))
	if err != nil {
		return err
	}
	if err := enginesWork(cmd.Context(), s, slots); err != nil {
		return err
	}
	b, err := setUp(cmd, s)
	if err != nil {
		return err
	}
	defer b.state.Close()
	b.turns.Grace = s.Duration("grace")
	b.mirrors.KeepBytes = s.Int64("keep-mirrors-mib") << 20

	db, err := openStore(cmd.Context(), s, b.turns.Worker)
	if err != nil {
		return err
	}
	defer db.Close()
	transport, err := job.ParseTransport(s.String("transport"))
	if err != nil {
		return cli.Usagef("%w", err)
	}
	pool := &worker.Pool{
		Turns:     b.turns,
		Store:     db,
		Retention: worker.Retention{SessionAge: s.Duration("keep-sessions"), SessionBytes: s.Int64("keep-sessions-mib") << 20, Workspaces: b.mirrors},
		Version:   buildinfo.String(),
		BeatEvery: s.Duration("beat"),
		Drain:     s.Duration("drain"),
		Log:       b.log,
	}
	var nc *queue.Conn // nil without NATS
	if transport == job.ByNATS {
		if nc, err = openQueue(s, b); err != nil {
			return err
		}
		defer nc.Close()
		b.turns.Archive, pool.Cancels, pool.Results = nc, nc, nc
		pool.OpenTranscript = func(id job.ID, attempt int) worker.Transcript { return nc.OpenTranscript(id, attempt) }
	}
	for lane, n := range slots {
		pool.Lanes = append(pool.Lanes, laneOf(nc, &worker.Polled{Offers: db, Lane: lane, Worker: b.turns.Worker}, n, b.log))
	}
	stop, err := answer(cmd.Context(), s.String("listen"), pool, db)
	if err != nil {
		return err
	}
	defer stop()
	b.log.Info("settings", "worker", b.turns.Worker, "transport", transport, "version", buildinfo.String(), "pool", s.String("pool"), "slots", s.Strings("slots"),
		"ceiling", b.ceiling.Hash(), "state", b.state.Path(), "lease", s.Duration("lease").String(), "beat", s.Duration("beat").String(), "versions", b.turns.Versions)
	return pool.Run(cmd.Context())
}

func parseSlots(ctx context.Context, set []string, pool string) (map[job.Lane]int, error) {
	if len(set) == 0 {
		return nil, cli.Usagef("give the lanes: --slots PLACEMENT=N, such as --slots none-confined=2; `worker probe` says what this machine can enforce")
	}
	slots := map[job.Lane]int{}
	for _, one := range set {
		placement, count, ok := strings.Cut(one, "=")
		n, err := strconv.Atoi(count)
		if !ok || err != nil || n < 1 || n > 1000 {
			return nil, cli.Usagef("slots %q: want PLACEMENT=N with N from 1 to 1000", one)
		}
		lane, err := job.ParseLane(placement + "/" + pool)
		if err != nil {
			return nil, err
		}
		p, err := agent.ParsePlacement(placement)
		if err != nil {
			return nil, err
		}
		switch p {
		case agent.Placement{Sandbox: agent.SandboxNone}, agent.Placement{Sandbox: agent.SandboxNone, Confine: true}:
		case agent.Placement{Sandbox: agent.SandboxClaude}:
			if err := ownSandbox(ctx); err != nil {
				return nil, fmt.Errorf("slots %q: %w", one, err)
			}
		case agent.Placement{Sandbox: agent.SandboxContainer}, agent.Placement{Sandbox: agent.SandboxSbx}: // see enginesWork
		default:
			return nil, fmt.Errorf("slots %q: this release runs turns of placements none, none-confined, claude, container and sbx only: %w", one, agent.ErrUnsupported)
		}
		slots[lane] = n
	}
	return slots, nil
}

func openStore(ctx context.Context, s *cli.Settings, name string) (*store.DB, error) {
	dsn, err := s.Secret("database-url")
	if err != nil {
		return nil, err
	}
	if dsn == "" {
		return nil, cli.Usagef("no database: set TURNPIKE_DATABASE_URL, or --database-url-file")
	}
	if _, _, err := store.Version(ctx, dsn); errors.Is(err, store.ErrSchema) {
		return nil, err // an outage is waited for, an old schema is not
	}
	return store.Open(ctx, store.Config{DSN: dsn, App: name, LeaseLength: s.Duration("lease")})
}

func openQueue(s *cli.Settings, b *bench) (*queue.Conn, error) {
	password, err := s.Secret("nats-password")
	if err != nil {
		return nil, err
	}
	if s.String("nats-url") == "" {
		return nil, cli.Usagef("no NATS: set TURNPIKE_NATS_URL, such as nats://127.0.0.1:4222, or run without: --transport postgres")
	}
	return queue.Connect(queue.Config{
		URL: s.String("nats-url"), User: s.String("nats-user"), Password: password,
		Credentials: s.String("nats-creds-file"), RootCA: s.String("nats-ca-file"),
		Name: b.turns.Worker, Role: queue.Worker, Log: b.log,
	})
}

// laneOf is a lane whose jobs come by the stream or, while that is away or where there is
// none, are looked for in Postgres.
func laneOf(nc *queue.Conn, polled *worker.Polled, slots int, log *slog.Logger) worker.LaneConfig {
	c := worker.LaneConfig{Lane: polled.Lane, Slots: slots, Deliveries: polled, Via: func() (job.Transport, error) { return job.ByPostgres, nil }}
	if nc != nil {
		either := &worker.Either{Stream: deliveries{nc.Puller(polled.Lane, 20*time.Second)}, Polled: polled, Log: log}
		c.Deliveries, c.Via = either, either.Via
	}
	return c
}

// deliveries shows the worker a puller's messages as its own.
type deliveries struct{ *queue.Puller }

func (d deliveries) Fetch(ctx context.Context, n int) ([]worker.Message, error) {
	msgs, err := d.Puller.Fetch(ctx, n)
	out := make([]worker.Message, len(msgs))
	for i, m := range msgs {
		out[i] = worker.Message{Delivery: m.Delivery, Answer: m}
	}
	return out, err
}

// answer tells health and metrics until stop is called.
func answer(ctx context.Context, addr string, pool *worker.Pool, db *store.DB) (stop func(), err error) {
	if addr == "" {
		return func() {}, nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, cli.Usagef("listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { ready(w, r, pool, db) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics(pool), promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l) // ends with ErrServerClosed
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if srv.Shutdown(ctx) != nil {
			srv.Close()
		}
		<-done
	}, nil
}

// ready says whether jobs are being taken: the database answers, and a lane is open.
func ready(w http.ResponseWriter, r *http.Request, pool *worker.Pool, db *store.DB) {
	ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
	defer cancel()
	status := pool.Status()
	var problems []error
	down := status.Draining
	if err := db.Ping(ctx); err != nil {
		down = true
		problems = append(problems, errors.New("the database does not answer"))
	}
	if status.Draining {
		problems = append(problems, errors.New("draining"))
	}
	for _, l := range pool.Lanes {
		if via, err := l.Via(); err != nil {
			problems = append(problems, fmt.Errorf("lane %s: jobs are looked for by %s: %w", l.Lane, via, err))
		}
	}
	open := 0
	found := map[string]job.Transport{}
	for _, l := range status.Lanes {
		found[l.Lane.String()] = l.Via
		if l.Closed == "" {
			open++
		} else {
			problems = append(problems, fmt.Errorf("lane %s: %s", l.Lane, l.Closed))
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if open == 0 || down {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	text := []string{}
	for _, p := range problems {
		text = append(text, p.Error())
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"worker": status.ID, "lanes_open": open, "transport": found, "problems": text}) // the client may be gone
}

// metrics are the process' own and how its lanes stand.
func metrics(pool *worker.Pool) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), lanes{pool})
	return reg
}

// lanes collects how the pool stands when it is asked.
type lanes struct{ pool *worker.Pool }

var (
	laneSlots = prometheus.NewDesc("turnpike_worker_slots", "Turns a lane may run at a time.", []string{"lane"}, nil)
	laneFree  = prometheus.NewDesc("turnpike_worker_slots_free", "Slots of a lane that wait for a turn.", []string{"lane"}, nil)
	unsettled = prometheus.NewDesc("turnpike_worker_reports_unsettled", "Reports in the spool that Postgres does not have yet.", nil, nil)
	frozen    = prometheus.NewDesc("turnpike_worker_turns_frozen", "Turns that stand still because their lease is in doubt.", nil, nil)
	lanePoll  = prometheus.NewDesc("turnpike_worker_lane_polled", "1 while a lane's jobs are looked for in Postgres.", []string{"lane"}, nil)
	laneShut  = prometheus.NewDesc("turnpike_worker_lane_closed", "1 while a lane takes no jobs.", []string{"lane"}, nil)
)

// Describe implements prometheus.Collector.
func (lanes) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{laneSlots, laneFree, laneShut, lanePoll, unsettled, frozen} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (l lanes) Collect(ch chan<- prometheus.Metric) {
	waiting, still := l.pool.Keeping()
	ch <- prometheus.MustNewConstMetric(unsettled, prometheus.GaugeValue, float64(waiting))
	ch <- prometheus.MustNewConstMetric(frozen, prometheus.GaugeValue, float64(still))
	for _, s := range l.pool.Status().Lanes {
		shut := 0.0
		if s.Closed != "" {
			shut = 1
		}
		polled := 0.0
		if s.Via == job.ByPostgres {
			polled = 1
		}
		ch <- prometheus.MustNewConstMetric(lanePoll, prometheus.GaugeValue, polled, s.Lane.String())
		ch <- prometheus.MustNewConstMetric(laneSlots, prometheus.GaugeValue, float64(s.Slots), s.Lane.String())
		ch <- prometheus.MustNewConstMetric(laneFree, prometheus.GaugeValue, float64(s.Free), s.Lane.String())
		ch <- prometheus.MustNewConstMetric(laneShut, prometheus.GaugeValue, shut, s.Lane.String())
	}
}
