package chaos_test

import (
	"testing"
	"time"

	"turnpike/internal/chaos"
	"turnpike/internal/job"
)

// gate holds a transaction that changes a queue row so, just before its commit, while
// the test holds the lock.
func gate(change string) string {
	return `
		CREATE FUNCTION chaos.gate() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN
			PERFORM pg_advisory_xact_lock_shared(1);
			RETURN NEW;
		END $$;
		CREATE CONSTRAINT TRIGGER gate AFTER UPDATE ON turnpike.queue DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
			WHEN (` + change + `) EXECUTE FUNCTION chaos.gate()`
}

// TestDispatcherCrashes kills a dispatcher between selecting, publishing and noting that
// it published. The next one publishes the same number, and the job runs once.
func TestDispatcherCrashes(t *testing.T) {
	for name, c := range map[string]struct {
		change string // what is about to be committed
		alone  bool   // no worker claims meanwhile: what is claimed is not noted any more
		crash  func(s *site, open func())
	}{
		"after the selection's commit, before publishing": {"OLD.state = 'queued' AND NEW.state = 'dispatched'", false, func(s *site, open func()) {
			s.wire.Hold() // it does not hear of its commit
			open()
			s.await("the job is dispatched", func() bool { return s.count(t, `SELECT count(*) FROM turnpike.queue WHERE state = 'dispatched'`) == 1 })
			s.kill("dispatcher 0")
			s.wire.Cut()
			s.wire.Resume()
			if n := s.count(t, `SELECT count(*) FROM turnpike.queue WHERE published_at IS NOT NULL`); n != 0 {
				t.Error("it is noted as published")
			}
		}},
		"after publishing, before noting it": {"OLD.published_at IS NULL AND NEW.published_at IS NOT NULL", true, func(s *site, open func()) {
			s.kill("dispatcher 0")
			// The server would notice at its next word to it.
			s.count(t, `SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE wait_event = 'advisory'`)
			open()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			// With a key it goes by selection.
			one := chaos.Job{Tenant: "t0", ConcurrencyKey: "k", Policy: job.RetryNever, Tries: 1, Backoff: time.Second, Timeout: time.Minute}
			plan := &chaos.Plan{Size: chaos.Size{Turns: 1, Workers: 1, Dispatchers: 1, Lease: 4 * time.Second, Rate: 1}, Jobs: []chaos.Job{one}}
			s := newSite(t, plan, func(int, int) chaos.Script {
				return chaos.Script{Steps: []chaos.Step{{Do: chaos.Tool}, {Do: chaos.Result, Cost: 1}}}
			})
			t.Cleanup(s.end)
			if _, err := s.db.Exec(t.Context(), gate(c.change)); err != nil {
				t.Fatal(err)
			}
			s.everything(chaos.Start)
			s.ready(t)
			holder, err := s.db.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer holder.Release()
			lock := func(sql string) {
				t.Helper()
				if _, err := holder.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			lock(`SELECT pg_advisory_lock(1)`)
			if c.alone {
				s.order(chaos.Stop, "worker 0")
			}
			p := newProducers(s)
			p.run(t.Context(), time.Now())
			s.await("the dispatcher is about to commit", func() bool {
				return s.count(t, `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'`) == 1
			})
			c.crash(s, func() { lock(`SELECT pg_advisory_unlock(1)`) })
			if c.alone {
				s.order(chaos.GoOn, "worker 0")
			}
			s.everything(chaos.Start)
			messages := s.rest(t.Context(), p)
			s.end()
			s.judge(t, p, messages)
			if n := s.count(t, `SELECT count(*) FROM turnpike.attempts WHERE dispatch_no = 1 AND next = 'succeeded'`); n != 1 {
				t.Error("it was not the first number that succeeded")
			}
		})
	}
}

func (s *site) count(t *testing.T, sql string) (n int) {
	t.Helper()
	if err := s.db.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// kill kills a program and returns when it is gone.
func (s *site) kill(name string) { s.order(chaos.Kill, name) }

// order has something done to a program and returns when it is.
func (s *site) order(what, name string) {
	done := make(chan struct{})
	s.things[name].do <- order{what, done}
	<-done
}
