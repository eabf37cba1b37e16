package store_test

import (
	"context"
	"net/url"
	"slices"
	"testing"
	"time"

	"turnpike/internal/job"
	"turnpike/internal/store"
	"turnpike/internal/testenv"
)

// moment is when a program, its session or the way to the server is lost.
type moment string

// The moments of a call's transaction.
const (
	beforeCommit moment = "before its commit"
	afterCommit  moment = "after its commit, before the answer"
	// The server does not notice: it commits when the caller has long turned to another.
	cutOff moment = "cut off, and committed later"
)

var moments = []moment{beforeCommit, afterCommit, cutOff}

// victim is a second program on a desk's database. Whatever it changes of the queue
// waits at a gate, just before the commit.
type victim struct {
	*store.DB
	d     *desk
	proxy *testenv.Proxy
	open  func() // the gate
}

const gate = `
	CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
	BEGIN
		IF current_setting('application_name') = 'victim' THEN
			PERFORM pg_advisory_xact_lock(1);
		END IF;
		RETURN NEW;
	END $$;
	CREATE CONSTRAINT TRIGGER gate AFTER INSERT OR UPDATE OR DELETE ON turnpike.queue
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION gate()`

func (d *desk) victim() *victim {
	d.t.Helper()
	d.sql(gate)
	holder, err := d.pool.Acquire(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	if _, err := holder.Exec(d.t.Context(), `SELECT pg_advisory_lock(1)`); err != nil {
		d.t.Fatal(err)
	}
	held := true
	v := &victim{d: d, open: func() {
		if held {
			held = false
			if _, err := holder.Exec(context.Background(), `SELECT pg_advisory_unlock(1)`); err != nil {
				d.t.Error(err)
			}
			holder.Release()
		}
	}}
	d.t.Cleanup(v.open)
	u, err := url.Parse(d.env.DSN())
	if err != nil {
		d.t.Fatal(err)
	}
	v.proxy = testenv.NewProxy(d.t, u.Host)
	v.DB, err = store.Open(d.t.Context(), store.Config{DSN: testenv.Via(d.env.DSN(), v.proxy.Addr()), App: "victim", MaxConns: 1, LeaseLength: time.Hour, CallTimeout: time.Minute})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(v.Close)
	return v
}

// awaits waits until a session of a program is as the condition says: it gives no signal
// of its own. Any goroutine may call it.
func (d *desk) awaits(app, condition string) {
	d.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		var n int
		err := d.pool.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = $1 AND `+condition, app).Scan(&n)
		if err == nil && n > 0 {
			return
		}
		if time.Now().After(deadline) {
			d.t.Errorf("no session of %s comes to %s (%v)", app, condition, err)
			return
		}
	}
}

const (
	atTheGate    = `wait_event = 'advisory'`
	waits        = `wait_event_type = 'Lock'`
	hasCommitted = `state = 'idle'`
)

func (d *desk) terminate(app string) {
	d.sql(`SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1`, app)
}

// crash makes a call and loses it at a moment. Then again, with whatever the successor
// does, is called.
func (v *victim) crash(m moment, call func(*store.DB) error, again func()) {
	t := v.d.t
	t.Helper()
	lost := make(chan error, 1)
	go func() { lost <- call(v.DB) }()
	v.d.awaits("victim", atTheGate)
	switch m {
	case beforeCommit:
		v.d.terminate("victim")
	case afterCommit:
		v.proxy.Hold()
		v.open()
		v.d.awaits("victim", hasCommitted)
		v.proxy.Cut()
	case cutOff:
		v.proxy.Cut()
	}
	wantIs(t, <-lost, job.ErrUnavailable)
	if m == cutOff {
		done := make(chan struct{})
		go func() {
			defer close(done)
			v.d.awaits("successor", waits)
			v.open()
		}()
		defer func() { <-done }()
	}
	again()
}

// patient outlasts a machine that tests other things meanwhile: here, no timeout is
// part of the story.
func patient(c *store.Config) { c.CallTimeout = time.Minute }

// TestCrash loses every kind of call at every moment of its transaction. Whoever comes
// after it asks once more: it finds all or nothing, and all of it once.
func TestCrash(t *testing.T) {
	t.Parallel()
	const cost = job.USD(1_500_000)
	// rows counts what a job has left.
	rows := func(d *desk, table string) int { return ask[int](d, `SELECT count(*) FROM turnpike.`+table) }
	for name, prepare := range map[string]func(d *desk) (call func(*store.DB) error, again func(t *testing.T, m moment)){
		"enqueue": func(d *desk) (func(*store.DB) error, func(*testing.T, moment)) {
			e := entry(d.t)
			e.IdempotencyKey = "k"
			return func(db *store.DB) error { _, err := db.Enqueue(context.Background(), []job.Entry{e}); return err },
				func(t *testing.T, m moment) {
					got, err := d.Enqueue(t.Context(), []job.Entry{e})
					if err != nil || got[0].Existing != (m != beforeCommit) {
						t.Errorf("again: %+v, %v", got, err)
					}
					if rows(d, "jobs") != 1 || rows(d, "queue") != 1 {
						t.Errorf("%d jobs, %d in the queue", rows(d, "jobs"), rows(d, "queue"))
					}
				}
		},
		"select": func(d *desk) (func(*store.DB) error, func(*testing.T, moment)) {
			id := d.enqueue()
			return func(db *store.DB) error { _, err := db.Select(context.Background(), d.epoch, lane, 10); return err },
				func(t *testing.T, m moment) {
					// As a new leader does: first what is selected and not published.
					epoch, err := d.Lead(t.Context(), "test", time.Hour)
					if err != nil {
						t.Fatal(err)
					}
					left, err := d.Unpublished(t.Context(), epoch, 10)
					if err != nil {
						t.Fatal(err)
					}
					fresh, err := d.Select(t.Context(), epoch, lane, 10)
					if err != nil {
						t.Fatal(err)
					}
					all := slices.Concat(left, fresh)
					if len(all) != 1 || all[0].Job != id || all[0].Dispatch != 1 || len(fresh) == 1 != (m == beforeCommit) {
						t.Errorf("left %+v, selected %+v", left, fresh)
					}
				}
		},
		"claim": func(d *desk) (func(*store.DB) error, func(*testing.T, moment)) {
			d.enqueue()
			s := d.dispatch(1)[0]
			claims := []job.Claim{{Job: s.Job, Dispatch: s.Dispatch, Token: job.NewToken()}}
			return func(db *store.DB) error { _, err := db.Claim(context.Background(), worker, lane, claims); return err },
				func(t *testing.T, _ moment) {
					got, err := d.Claim(t.Context(), worker, lane, claims)
					if err != nil || len(got) != 1 || got[0].Attempt != 1 || got[0].Number != 1 || got[0].Token != claims[0].Token {
						t.Errorf("again: %+v, %v", got, err)
					}
				}
		},
		"beat": func(d *desk) (func(*store.DB) error, func(*testing.T, moment)) {
			c := d.running()
			beats := []job.Beat{{Lease: c.Lease, StartedAt: time.Now(), ToolCalls: 2}}
			return func(db *store.DB) error { _, err := db.Beat(context.Background(), worker, beats); return err },
				func(t *testing.T, m moment) {
					if m == cutOff { // the row is held: a beat waits for nobody, a cancel does
						if got, err := d.Beat(t.Context(), worker, beats); err != nil || len(got) != 0 {
							t.Errorf("while the first has not ended: %+v, %v", got, err)
						}
						if _, err := d.Cancel(t.Context(), c.Job, "me", "why"); err != nil {
							t.Error(err)
						}
					}
					got, err := d.Beat(t.Context(), worker, beats)
					if err != nil || len(got) != 1 || !got[0].Ours {
						t.Errorf("again: %+v, %v", got, err)
					}
					if n := ask[int](d, `SELECT tool_calls FROM turnpike.queue WHERE started_at IS NOT NULL`); n != 2 {
						t.Errorf("%d tool calls", n)
					}
				}
		},
		"settle": func(d *desk) (func(*store.DB) error, func(*testing.T, moment)) {
			d.budget(budget(job.BudgetTenant, job.DefaultTenant, 10*cost))
			c := d.running(key("k"))
			behind := d.enqueue(key("k"))
			d.dispatch(10) // parks it
			r := ended(c, job.EndDone, touched, costs(cost))
			return func(db *store.DB) error { _, err := db.Settle(context.Background(), []job.Report{r}); return err },
				func(t *testing.T, m moment) {
					want := job.SettledBefore
					if m == beforeCommit {
						want = job.SettledNow
					}
					if got := d.settle(r); got.How != want || got.State != job.Succeeded {
						t.Errorf("again: %+v, want %s", got, want)
					}
					if v := d.get(c.Job); len(v.Attempts) != 1 || v.CostUSD == nil || *v.CostUSD != cost {
						t.Errorf("on record: %+v", v)
					}
					if b := d.stands(budget(job.BudgetTenant, job.DefaultTenant, 0).BudgetKey); b.SpentUSD != cost {
						t.Errorf("the budget has spent %s", b.SpentUSD)
					}
					if n := rows(d, "costs"); n > 1 {
						t.Errorf("%d rows of costs", n)
					}
					if got := d.dispatch(10); len(got) != 1 || got[0].Job != behind {
						t.Errorf("who waited for the key: %+v", got)
					}
				}
		},
		"reap": func(d *desk) (func(*store.DB) error, func(*testing.T, moment)) {
			c := d.running()
			d.lapse(c.Job)
			return func(db *store.DB) error { _, err := db.Reap(context.Background(), d.epoch, later, 10); return err },
				func(t *testing.T, m moment) {
					epoch, err := d.Lead(t.Context(), "test", time.Hour)
					if err != nil {
						t.Fatal(err)
					}
					got, err := d.Reap(t.Context(), epoch, later, 10)
					if err != nil || len(got) == 1 != (m == beforeCommit) {
						t.Errorf("again: %+v, %v", got, err)
					}
					if n := rows(d, "attempts"); n != 1 {
						t.Errorf("%d attempts", n)
					}
					if n := ask[int](d, `SELECT crashes FROM turnpike.queue`); n != 1 {
						t.Errorf("%d crashes", n)
					}
					if got := d.settle(ended(c, job.EndDone, touched)); got.How != job.SettledLate {
						t.Errorf("its report: %+v", got)
					}
				}
		},
		"cancel": func(d *desk) (func(*store.DB) error, func(*testing.T, moment)) {
			id := d.enqueue()
			return func(db *store.DB) error { _, err := db.Cancel(context.Background(), id, "me", "why"); return err },
				func(t *testing.T, m moment) {
					_, err := d.Cancel(t.Context(), id, "me", "why")
					if m == beforeCommit {
						wantIs(t, err, nil)
					} else {
						wantIs(t, err, job.ErrFinished)
					}
					if n := rows(d, "finished"); n != 1 || d.state(id) != job.Cancel {
						t.Errorf("%d ends, %s", n, d.state(id))
					}
				}
		},
	} {
		for _, m := range moments {
			t.Run(name+" "+string(m), func(t *testing.T) {
				t.Parallel()
				d := open(t, patient, func(c *store.Config) { c.App = "successor" })
				call, again := prepare(d)
				d.victim().crash(m, call, func() { again(t, m) })
			})
		}
	}

	t.Run("a claim nobody heard of leaves nothing behind", func(t *testing.T) {
		t.Parallel()
		d := open(t, patient)
		c := d.running()
		d.lapse(c.Job)
		d.reap()
		if n := rows(d, "orphans"); n != 0 || d.get(c.Job).Attempts[0].Ending != job.EndLost {
			t.Errorf("%d orphans of what was never started; %+v", n, d.get(c.Job).Attempts)
		}
	})

	t.Run("what the successor ended while it could not say so is gone", func(t *testing.T) {
		t.Parallel()
		d := open(t, patient)
		for state, left := range map[job.OrphanState]int{job.OrphanUnreachable: 1, job.OrphanGone: 0} {
			c := d.running()
			d.sql(`UPDATE turnpike.queue SET started_at = now() WHERE job_id = $1`, string(c.Job))
			d.lapse(c.Job)
			d.reap() // takes it for something that may still run
			got := d.settle(ended(c, job.EndLost, started, func(r *job.Report) {
				r.Left = []job.Orphan{{Job: c.Job, Attempt: 1, Kind: "process", State: state}}
			}))
			if n := ask[int](d, `SELECT count(*) FROM turnpike.orphans WHERE state <> 'gone' AND job_id = $1`, string(c.Job)); n != left || got.How != job.SettledLate {
				t.Errorf("%d are left after a report (%s) of one that is %s", n, got.How, state)
			}
		}
	})

	t.Run("settle after it locked its leases", func(t *testing.T) {
		t.Parallel()
		d := open(t, patient)
		v := d.victim()
		d.sql(`
			DROP TRIGGER gate ON turnpike.queue;
			CREATE TRIGGER gate BEFORE INSERT ON turnpike.attempts FOR EACH ROW EXECUTE FUNCTION gate()`)
		c := d.running()
		d.lapse(c.Job)
		r := ended(c, job.EndDone, touched, costs(cost))
		lost := make(chan error, 1)
		go func() { _, err := v.Settle(context.Background(), []job.Report{r}); lost <- err }()
		d.awaits("victim", atTheGate)
		if got := d.reap(); len(got) != 0 {
			t.Errorf("reaped what is being settled: %+v", got)
		}
		d.terminate("victim")
		wantIs(t, <-lost, job.ErrUnavailable)
		if n := rows(d, "attempts"); n != 0 || d.state(c.Job) != job.Running {
			t.Errorf("%d attempts, %s", n, d.state(c.Job))
		}
		if got := d.settle(r); got.How != job.SettledNow || got.State != job.Succeeded {
			t.Errorf("again: %+v", got)
		}
	})
}
