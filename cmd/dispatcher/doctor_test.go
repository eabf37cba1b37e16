package main

import (
	"bytes"
	"context"
	goflag "flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"turnpike/internal/job"
	"turnpike/internal/queue"
	"turnpike/internal/store"
	"turnpike/internal/testenv"
)

var update = goflag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { testenv.Main(m) }

var migrated = testenv.Migrated(func(ctx context.Context, dsn string) error {
	_, err := store.Migrate(ctx, dsn, nil)
	return err
})

// patient is an installation that nothing is wrong with.
type patient struct {
	t     *testing.T
	cfg   settings
	env   *testenv.DB
	pool  *pgxpool.Pool // as the superuser
	db    *store.DB     // as the superuser: what dispatchers and workers do
	epoch int64
	nc    *queue.Conn
}

const release = "v1.2.3"

var served = job.Lane{Placement: "none-confined", Pool: "default"}

func newPatient(t *testing.T) *patient {
	t.Helper()
	p := &patient{t: t, env: testenv.Postgres(t, migrated)}
	p.pool = p.env.Pool(t)
	broker := testenv.NATS(t)
	p.cfg = settings{transport: job.ByNATS, database: p.env.Login(t, "turnpike_dispatcher"), lease: time.Minute, history: 90 * 24 * time.Hour, replicas: 1,
		nats: queue.Config{URL: broker.URL(), Log: slog.New(slog.DiscardHandler)}}
	var err error
	if p.db, err = store.Open(t.Context(), store.Config{DSN: p.env.DSN(), LeaseLength: p.cfg.lease}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.db.Close)
	if p.epoch, err = p.db.Lead(t.Context(), "leader", time.Hour); err != nil {
		t.Fatal(err)
	}
	p.register("w1", func(*job.WorkerInfo) {})
	cfg := p.cfg.nats
	cfg.Role = queue.Dispatcher
	if p.nc, err = queue.Connect(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.nc.Close)
	if _, _, err := adminOf(p.cfg, p.nc).Ensure(t.Context(), []job.Lane{served}); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *patient) register(id string, edit func(*job.WorkerInfo)) {
	p.t.Helper()
	w := job.WorkerInfo{ID: id, Host: "h", Version: release, Ceiling: "c", Lanes: []job.LaneSlots{{Lane: served, Slots: 2, Free: 2}}}
	edit(&w)
	if err := p.db.Register(p.t.Context(), w); err != nil {
		p.t.Fatal(err)
	}
}

func (p *patient) sql(sql string, args ...any) {
	p.t.Helper()
	if _, err := p.pool.Exec(p.t.Context(), sql, args...); err != nil {
		p.t.Fatalf("%s: %v", sql, err)
	}
}

func (p *patient) enqueue() job.ID {
	p.t.Helper()
	body := []byte(`{"api_version":"turnpike/v1","prompt":"x","grants":{},"workspace":{"scratch":true},"profile":{"confine":true}}`)
	r, err := job.Decode(body)
	if err != nil {
		p.t.Fatal(err)
	}
	got, err := p.db.Enqueue(p.t.Context(), []job.Entry{{Request: r, Body: body, Producer: "test"}})
	if err != nil {
		p.t.Fatal(err)
	}
	return got[0].ID
}

// run brings a job to a running attempt of w1.
func (p *patient) run() job.Claimed {
	p.t.Helper()
	p.enqueue()
	sel, err := p.db.Select(p.t.Context(), p.epoch, served, 1)
	if err != nil || len(sel) != 1 {
		p.t.Fatalf("selected %v: %v", sel, err)
	}
	got, err := p.db.Claim(p.t.Context(), "w1", served, []job.Claim{{Job: sel[0].Job, Dispatch: sel[0].Dispatch, Token: job.NewToken()}})
	if err != nil || len(got) != 1 {
		p.t.Fatalf("claimed %v: %v", got, err)
	}
	return got[0]
}

func (p *patient) findings() []finding { return examine(p.t.Context(), p.cfg, release) }

// Each check finds what it is for, on a real installation that has it.
func TestDoctor(t *testing.T) {
	t.Parallel()
	t.Run("finds nothing where all is well", func(t *testing.T) {
		p := newPatient(t)
		p.run()
		var checks []string
		for _, f := range p.findings() {
			checks = append(checks, f.Check)
			if f.Status != fine {
				t.Errorf("%+v", f)
			}
		}
		for check, j := range judgements {
			if !slices.Contains(checks, check) || j.do == "" {
				t.Errorf("nobody looked at the %s", check)
			}
		}
		if got := len(store.Checks()); got != len(judgements) {
			t.Errorf("%d checks and %d judgements", got, len(judgements))
		}
	})
	for _, c := range []struct {
		check  string
		status status
		what   string
		make   func(p *patient)
	}{
		{"database", wrong, "connect", func(p *patient) {
			p.cfg.database = "postgres://nobody@127.0.0.1:1/none"
		}},
		{"schema", wrong, "this program needs", func(p *patient) {
			p.sql(`DELETE FROM turnpike.goose_db_version WHERE version_id = (SELECT max(version_id) FROM turnpike.goose_db_version)`)
		}},
		{"clock", wrong, "off the database's", func(p *patient) {
			p.sql(`CREATE SCHEMA skewed`)
			p.sql(`CREATE FUNCTION skewed.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT pg_catalog.clock_timestamp() + interval '1 hour' $$`)
			p.sql(`GRANT USAGE ON SCHEMA skewed TO PUBLIC`)
			p.cfg.database += "&search_path=skewed,pg_catalog"
		}},
		{"queries", wrong, "permission denied", func(p *patient) {
			p.cfg.database = p.env.Login(p.t, "turnpike_worker")
		}},
		{"rights", wrong, "turnpike_producer lacks EXECUTE on turnpike.enqueue(jsonb)", func(p *patient) {
			p.sql(`REVOKE EXECUTE ON FUNCTION turnpike.enqueue(jsonb) FROM turnpike_producer`)
		}},
		{"rights", wrong, "turnpike_worker may INSERT on turnpike.jobs", func(p *patient) {
			p.sql(`GRANT INSERT ON turnpike.jobs TO turnpike_worker`)
		}},
		{"leader", wrong, "leader led last", func(p *patient) { p.sql(`UPDATE turnpike.leader SET until = now() - interval '1 minute'`) }},
		{"leader", wrong, "no dispatcher leads", func(p *patient) {
			if err := p.db.Resign(p.t.Context(), p.epoch); err != nil {
				p.t.Fatal(err)
			}
		}},
		{"workers", wrong, "no worker", func(p *patient) { p.sql(`UPDATE turnpike.workers SET seen_at = now() - interval '1 minute'`) }},
		{"lanes", wrong, "1 jobs wait on lane none-confined/default", func(p *patient) {
			p.register("w1", func(w *job.WorkerInfo) { w.Draining = true })
			p.enqueue()
		}},
		{"closed lanes", wrong, "disk full", func(p *patient) {
			p.register("w1", func(w *job.WorkerInfo) { w.Lanes[0].Closed = "disk full" })
		}},
		{"leases", wrong, "1 leases are over", func(p *patient) {
			p.run()
			p.sql(`UPDATE turnpike.queue SET lease_until = now() - interval '5 minutes'`)
		}},
		{"publication", wrong, "1 jobs are dispatched and not published", func(p *patient) {
			p.enqueue()
			if _, err := p.db.Select(p.t.Context(), p.epoch, served, 1); err != nil {
				p.t.Fatal(err)
			}
			p.sql(`UPDATE turnpike.queue SET dispatched_at = now() - interval '2 minutes'`)
		}},
		{"lease length", wrong, "worker w1 has leases of 00:01:00, the dispatcher of 00:00:30", func(p *patient) {
			other, err := store.Open(p.t.Context(), store.Config{DSN: p.cfg.database, LeaseLength: 30 * time.Second})
			if err != nil {
				p.t.Fatal(err)
			}
			defer other.Close()
			if _, err := other.Lead(p.t.Context(), "leader", time.Hour); err != nil {
				p.t.Fatal(err)
			}
		}},
		{"partitions", wrong, "jobs has no partition", func(p *patient) {
			p.sql(`DO $$ BEGIN EXECUTE format('DROP TABLE turnpike.%I', to_char(date_trunc('week', now() + interval '7 days'), '"jobs_"YYYYMMDD')); END $$`)
		}},
		{"versions", look, "worker w1 is v1.0.0, this program v1.2.3", func(p *patient) {
			p.register("w1", func(w *job.WorkerInfo) { w.Version = "v1.0.0" })
		}},
		{"pauses", look, "tenant acme is paused until it is resumed by anna: audit", func(p *patient) {
			if _, err := p.db.Pause(p.t.Context(), job.ScopeTenant, "acme", time.Time{}, "anna", "audit"); err != nil {
				p.t.Fatal(err)
			}
		}},
		{"budgets", look, "tenant acme per 24:00:00: spent; 0", func(p *patient) {
			b := job.Budget{BudgetKey: job.BudgetKey{Scope: job.BudgetTenant, Name: "acme", Per: job.Duration(24 * time.Hour)}}
			if err := p.db.SetBudget(p.t.Context(), b, "anna", ""); err != nil {
				p.t.Fatal(err)
			}
		}},
		{"cost caps", look, "worker w1: codex never tells", func(p *patient) {
			p.register("w1", func(w *job.WorkerInfo) { w.Inert = []string{"codex"} })
		}},
		{"delivery", look, "worker w1 finds the jobs of lane none-confined/default by postgres", func(p *patient) {
			p.register("w1", func(w *job.WorkerInfo) { w.Lanes[0].Via = job.ByPostgres })
		}},
		{"orphans", look, "left a process that is creating, of worker w1", func(p *patient) {
			p.run()
			p.sql(`UPDATE turnpike.queue SET started_at = now(), lease_until = now() - interval '5 minutes'`)
			if _, err := p.db.Reap(p.t.Context(), p.epoch, time.Now(), 1); err != nil {
				p.t.Fatal(err)
			}
		}},
		{"orphans", look, "1 orphans are unreachable: host h1 was not seen since", func(p *patient) {
			p.run()
			p.sql(`UPDATE turnpike.queue SET started_at = now(), lease_until = now() - interval '5 minutes'`)
			if _, err := p.db.Reap(p.t.Context(), p.epoch, time.Now(), 1); err != nil {
				p.t.Fatal(err)
			}
			p.sql(`UPDATE turnpike.orphans SET host = 'h1', created_at = now() - interval '2 days'`)
			p.sql(`DELETE FROM turnpike.workers`)
			if n, err := p.db.Abandon(p.t.Context(), p.epoch, 24*time.Hour, 1); err != nil || n != 1 {
				p.t.Fatal(n, err)
			}
		}},
		{"retention", look, "1 orphans keep weeks of history", func(p *patient) {
			p.sql(`INSERT INTO turnpike.orphans (job_id, attempt, kind, worker, state)
				VALUES (turnpike.uuid7(-200 * 86400 * 1000000::bigint), 1, 'process', 'w0', 'live')`)
		}},
		{"nats", wrong, "NATS", func(p *patient) {
			p.cfg.nats.User, p.cfg.nats.Password, p.cfg.nats.URL = "x", "y", strings.Split(p.cfg.nats.URL, "@")[0]+"x@127.0.0.1:1"
		}},
		{"streams", wrong, "is not as configured", func(p *patient) { p.cfg.transcripts.bytes = 5 << 20 }},
		{"streams", wrong, "consumer pool-other of stream", func(p *patient) {
			p.register("w2", func(w *job.WorkerInfo) { w.Lanes[0].Lane.Pool = "other" })
		}},
		{"results", look, "1 reports wait", func(p *patient) {
			if err := p.nc.PublishReport(p.t.Context(), job.Report{Version: 1, Lease: job.Lease{Job: job.ID(job.NewToken()), Attempt: 1}}); err != nil {
				p.t.Fatal(err)
			}
		}},
	} {
		t.Run(c.check+" "+c.what, func(t *testing.T) { // one at a time: each has a database and a broker of its own
			p := newPatient(t)
			c.make(p)
			found := p.findings()
			if !slices.ContainsFunc(found, func(f finding) bool {
				return f.Check == c.check && f.Status == c.status && strings.Contains(f.What, c.what) && f.Do != ""
			}) {
				t.Errorf("found %+v", found)
			}
		})
	}
	t.Run("an installation without NATS", func(t *testing.T) {
		p := newPatient(t)
		p.cfg.transport, p.cfg.nats.URL = job.ByPostgres, "nats://127.0.0.1:1"
		p.register("w1", func(w *job.WorkerInfo) { w.Lanes[0].Via = job.ByPostgres })
		found := p.findings()
		if !slices.Contains(found, finding{Check: "transport", Status: fine, What: "postgres: there is no NATS"}) {
			t.Errorf("found %+v", found)
		}
		for _, f := range found {
			if f.Status != fine || f.Check == "nats" || f.Check == "streams" {
				t.Errorf("%+v", f)
			}
		}
	})
	t.Run("a worker's login that may do more", func(t *testing.T) {
		p := newPatient(t)
		u, err := pgx.ParseConfig(p.env.Login(t, "turnpike_worker"))
		if err != nil {
			t.Fatal(err)
		}
		login := pgx.Identifier{u.User}.Sanitize()
		p.sql(fmt.Sprintf(`GRANT turnpike_dispatcher TO %s`, login))
		defer p.sql(fmt.Sprintf(`REVOKE turnpike_dispatcher FROM %s`, login)) // logins are every database's
		want := "login " + u.User + " is a worker and also turnpike_dispatcher"
		if found := p.findings(); !slices.ContainsFunc(found, func(f finding) bool { return f.Check == "rights" && f.What == want }) {
			t.Errorf("found %+v", found)
		}
	})
}

func TestDoctorTells(t *testing.T) {
	t.Parallel()
	all := []finding{
		{Check: "database", Status: fine},
		{"leader", wrong, "no dispatcher leads", judgements["leader"].do},
		{"pauses", look, "account ~claude is paused until 2026-11-30T12:00:00Z by job 7: limited", judgements["pauses"].do},
	}
	for _, format := range []string{"table", "json", "yaml"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			cmd := doctorCommand()
			var out bytes.Buffer
			cmd.SetOut(&out)
			if err := cmd.Flags().Set("output", format); err != nil {
				t.Fatal(err)
			}
			if err := tell(cmd, all); err == nil {
				t.Error("something is wrong, and it says nothing is")
			}
			if err := tell(cmd, append(all[:1:1], all[2])); err != nil {
				t.Errorf("nothing is wrong: %v", err)
			}
			golden := filepath.Join("testdata", "doctor."+format)
			if *update {
				if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), out.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
