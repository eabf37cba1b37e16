package chaos_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"turnpike/internal/chaos"
	"turnpike/internal/job"
)

const allJobs = `
	SELECT v.job_id::text, v.tenant, j.request #>> '{retry,policy}', (j.request #>> '{retry,max_tries}')::integer,
		coalesce(j.request ->> 'concurrency_key', ''),
		(SELECT count(*) FROM turnpike.attempts a WHERE a.job_id = v.job_id AND a.final)
			+ (SELECT count(*) FROM turnpike.finished d WHERE d.job_id = v.job_id),
		v.state, (v.cost_usd * 1000000)::bigint
	FROM turnpike.v_jobs v JOIN turnpike.jobs j ON j.job_id = v.job_id
	ORDER BY v.job_id`

const allAttempts = `
	SELECT job_id::text, attempt, lease_no, claimed_at, closed_at, started_at IS NOT NULL, ending, reason, next::text, resumable, coalesce(late_ending, ''),
		(cost_usd * 1000000)::bigint, cost_partial,
		(SELECT (sum(c.cost_usd) * 1000000)::bigint FROM turnpike.costs c WHERE c.job_id = a.job_id AND c.attempt = a.attempt)
	FROM turnpike.attempts a
	ORDER BY job_id, attempt`

const allMoves = `
	SELECT seq, job_id::text, coalesce(state, ''), attempt, lease_no, tenant, coalesce(dedup_key, ''), coalesce(concurrency_key, '')
	FROM chaos.moves ORDER BY seq`

const queueLeft = `
	SELECT concat_ws(' ', job_id, state, 'parked: ' || parked, 'checked: ' || checked, 'attempt ' || attempt, worker, 'lease until ' || lease_until, 'wakes ' || wake_at)
	FROM turnpike.queue`

// What a worker left that nobody succeeded is nobody's to verify.
const orphansLeft = `
	SELECT concat_ws(' ', job_id, 'attempt ' || attempt, kind, state, worker, note) FROM turnpike.orphans
	WHERE state <> 'gone' AND state_dir <> ALL ($1)`

const spent = `
	SELECT b.name, (b.spent_usd * 1000000)::bigint,
		coalesce((SELECT (sum(cost_usd) * 1000000)::bigint FROM turnpike.attempts a WHERE a.tenant = b.name), 0)
	FROM turnpike.v_budgets b WHERE b.scope = 'tenant'`

// history reads what Postgres and the ledger have.
func (s *site) history(t *testing.T) *chaos.History {
	t.Helper()
	h := &chaos.History{Runs: s.ledger.Runs(), Spent: map[string]chaos.Spent{}}
	written := s.written(t)
	for i := range h.Runs {
		r := &h.Runs[i]
		r.Written = written[fmt.Sprintf("%s.%d", r.Job, r.Attempt)]
	}
	h.Jobs = rows(t, s, allJobs, func(r pgx.CollectableRow) (j chaos.Recorded, err error) {
		err = r.Scan(&j.ID, &j.Tenant, &j.Policy, &j.MaxTries, &j.ConcurrencyKey, &j.Finals, &j.State, &j.Cost)
		return j, err
	})
	h.Attempts = rows(t, s, allAttempts, func(r pgx.CollectableRow) (a chaos.Attempt, err error) {
		err = r.Scan(&a.Job, &a.Number, &a.Lease, &a.Claimed, &a.Closed, &a.Started, &a.Ending, &a.Reason, &a.Next, &a.Resumable, &a.Late,
			&a.Cost, &a.Partial, &a.Models)
		return a, err
	})
	h.Moves = rows(t, s, allMoves, func(r pgx.CollectableRow) (m chaos.Move, err error) {
		err = r.Scan(&m.Seq, &m.Job, &m.State, &m.Attempt, &m.Lease, &m.Tenant, &m.DedupKey, &m.ConcurrencyKey)
		return m, err
	})
	h.Queue = rows(t, s, queueLeft, pgx.RowTo[string])
	lost := []string{}
	for dir := range s.lost {
		if id, err := os.ReadFile(filepath.Join(dir, "id")); err == nil { // it may have been lost before it had one
			lost = append(lost, strings.TrimSpace(string(id)))
		}
	}
	h.Orphans = rows(t, s, orphansLeft, pgx.RowTo[string], lost)
	rows(t, s, spent, func(r pgx.CollectableRow) (name string, err error) {
		var one chaos.Spent
		err = r.Scan(&name, &one.Budget, &one.Attempts)
		h.Spent[name] = one
		return name, err
	})
	return h
}

func rows[T any](t *testing.T, s *site, sql string, to pgx.RowToFunc[T], args ...any) []T {
	t.Helper()
	found, err := s.db.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	all, err := pgx.CollectRows(found, to)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return all
}

// served lists the state directories in which a worker looks for what an earlier one
// left.
func (s *site) served() []string {
	dirs, err := filepath.Glob(s.path("state", "*"))
	if err != nil {
		panic(err) // the pattern is good
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(dirs, func(dir string) bool { return s.lost[dir] })
}

// written sums, by attempt, the costs of the results that workers wrote down as they
// read them.
func (s *site) written(t *testing.T) map[string]job.USD {
	t.Helper()
	sum := map[string]job.USD{}
	for _, dir := range s.served() {
		sessions, err := os.ReadDir(filepath.Join(dir, "sessions"))
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range sessions {
			b, err := os.ReadFile(filepath.Join(dir, "sessions", one.Name(), "transcript.jsonl"))
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // it may not have come that far
				t.Fatal(err)
			}
			attempt := one.Name()[:strings.LastIndexByte(one.Name(), '-')] // behind it is what makes the name its own
			for line := range bytes.Lines(b) {
				var e struct {
					Type string      `json:"type"`
					Cost json.Number `json:"total_cost_usd"`
				}
				if json.Unmarshal(line, &e) != nil || e.Type != "result" { // the last line may be cut
					continue
				}
				cost, err := job.ParseUSD(e.Cost.String())
				if err != nil {
					t.Fatalf("%s: %s: %v", one.Name(), line, err)
				}
				sum[attempt] += cost
			}
		}
	}
	return sum
}

// spooled lists what state directories that are served hold of attempts.
func (s *site) spooled() (left []string) {
	for _, dir := range s.served() {
		for _, part := range []string{"spool", "marks", "rejected"} {
			files, err := os.ReadDir(filepath.Join(dir, part))
			if err != nil {
				left = append(left, err.Error())
			}
			for _, f := range files {
				left = append(left, filepath.Join(filepath.Base(dir), part, f.Name()))
			}
		}
	}
	return left
}

// messages lists the streams of jobs and reports that hold any.
func (s *site) messages(ctx context.Context) ([]string, error) {
	nc, err := nats.Connect(s.broker.URL())
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	var left []string
	list := js.ListStreams(ctx)
	for info := range list.Info() {
		name := info.Config.Name
		if info.State.Msgs > 0 && (strings.HasPrefix(name, "TURNPIKE_JOBS") || name == "TURNPIKE_RESULTS") {
			left = append(left, fmt.Sprintf("%d messages in %s", info.State.Msgs, name))
		}
	}
	return left, list.Err()
}

// alive lists the processes that bear the site's mark.
func (s *site) alive() (left []string) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		panic(err) // the pattern is good
	}
	for _, p := range all {
		env, err := os.ReadFile(filepath.Join(p, "environ")) // it may go while we look
		if err == nil && bytes.Contains(env, []byte("MARK="+s.mark)) {
			arg, _ := os.ReadFile(filepath.Join(p, "cmdline")) // as above
			left = append(left, fmt.Sprintf("process %s: %s", filepath.Base(p), bytes.ReplaceAll(arg, []byte{0}, []byte(" "))))
		}
	}
	return left
}
