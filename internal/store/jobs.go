package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

// facts are what the queue must know of a request; turnpike.facts reads the same
// from the request of a SQL producer.
type facts struct {
	Name           string    `json:"name"`
	Tenant         string    `json:"tenant"`
	Producer       string    `json:"producer"`
	Lane           string    `json:"lane"`
	Agent          string    `json:"agent"`
	Account        string    `json:"account"`
	WorkKey        string    `json:"work_key"`
	WorkTags       []string  `json:"work_tags"`
	RetryOf        job.ID    `json:"retry_of,omitempty"`
	Priority       int       `json:"priority"`
	RunAt          time.Time `json:"run_at,omitzero"`
	Deadline       time.Time `json:"deadline,omitzero"`
	DedupKey       string    `json:"dedup_key,omitempty"`
	ConcurrencyKey string    `json:"concurrency_key,omitempty"`
	Policy         string    `json:"policy"`
	MaxTries       int       `json:"max_tries"`
	BackoffMS      int64     `json:"backoff_ms"`
	IdempotencyKey string    `json:"idempotency_key,omitempty"`
	Checked        bool      `json:"checked"`
	Chain          []place   `json:"chain,omitempty"`
	After          []string  `json:"after,omitempty"`
	ResumeFrom     string    `json:"resume_from,omitempty"`
	Anyway         bool      `json:"anyway,omitempty"` // it runs whatever becomes of those
	Offer          bool      `json:"offer,omitempty"`
}

// place is a job.Place as turnpike.place reads it.
type place struct {
	Profile int    `json:"profile"`
	Name    string `json:"name,omitempty"`
	Lane    string `json:"lane"`
	Agent   string `json:"agent"`
	Account string `json:"account"`
}

// chainOf is where a request may run; nil where that is one place.
func chainOf(r job.Request) []place {
	all := r.Places()
	if len(all) == 1 {
		return nil
	}
	out := make([]place, len(all))
	for i, p := range all {
		out[i] = place{p.Profile, p.Name, p.Lane.String(), p.Agent, p.Account}
	}
	return out
}

func factsOf(e job.Entry) facts {
	r := e.Request
	tags := r.Work.Tags
	if tags == nil {
		tags = []string{}
	}
	f := facts{
		Name: r.Name, Tenant: r.Tenant, Producer: e.Producer, Lane: r.Lane().String(), Agent: r.Profile.Agent, Account: r.AccountOf(&r.Profile),
		WorkKey: r.Work.Key, WorkTags: tags, RetryOf: e.RetryOf, Priority: r.Priority, RunAt: r.RunAt, Deadline: r.Deadline,
		DedupKey: r.DedupKey, ConcurrencyKey: r.ConcurrencyKey, Policy: string(r.Retry.Policy), MaxTries: r.Retry.MaxTries,
		BackoffMS:      (r.Retry.Backoff.Std() + time.Millisecond - 1).Milliseconds(), // rounded up: only zero is none
		IdempotencyKey: e.IdempotencyKey, Checked: true, Chain: chainOf(r), ResumeFrom: r.ResumeFrom, Offer: e.Offer,
	}
	if r.After != nil {
		f.After, f.Anyway = r.After.Jobs, r.After.OnFailure == job.AfterRun
	}
	return f
}

const enqueue = `
	SELECT job_id::text, lane, state, existing
	FROM turnpike.accept(@facts, @bodies::text[]::json[])
	ORDER BY n`

func toAccepted(row pgx.CollectableRow) (a job.Accepted, err error) {
	var id, lane, state string // pgx scans what is no string of its own by reflection
	if err := row.Scan(&id, &lane, &state, &a.Existing); err != nil {
		return a, err
	}
	a.ID, a.State = job.ID(id), job.State(state)
	a.Lane, err = job.ParseLane(lane)
	return a, err
}

// Enqueue writes jobs and their queue rows in one transaction, all or none, and
// answers in the order of the entries, after the commit. The requests are decoded
// and validated. An entry may get an earlier job: one enqueued under the same
// idempotency key, or the unfinished one with its dedup key.
//
// Errors: job.ErrConflict for an idempotency key that came with another request,
// job.ErrQueueFull at a tenant's limit, job.ErrInvalid for a job to come after that the
// tenant does not have, job.ErrUnavailable. After the last the commit may have happened:
// only an idempotency key makes asking again safe.
func (db *DB) Enqueue(ctx context.Context, entries []job.Entry) ([]job.Accepted, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	s, err := enqueueing(entries)
	if err != nil {
		return nil, fmt.Errorf("enqueue: %w", err)
	}
	return hot(ctx, db, "enqueue", toAccepted, s)
}

// enqueueing is the statement that writes jobs.
func enqueueing(entries []job.Entry) (stmt, error) {
	about := make([]facts, len(entries))
	bodies := make([]string, len(entries))
	for i, e := range entries {
		about[i], bodies[i] = factsOf(e), string(e.Body)
	}
	encoded, err := encode(about)
	return stmt{enqueue, args{"facts": encoded, "bodies": bodies}}, err
}

const retry = `
	SELECT a.job_id::text, a.lane, a.state, a.existing
	FROM turnpike.jobs j
	CROSS JOIN LATERAL turnpike.accept(
		-- Its time came already; the dispatcher checks the request anew.
		jsonb_build_array(turnpike.facts(j.request::jsonb) - 'run_at' - 'deadline'
			|| jsonb_build_object('producer', @by::text, 'retry_of', j.job_id, 'checked', false)),
		ARRAY[j.request]) a
	WHERE j.job_id = @id AND NOT EXISTS (SELECT FROM turnpike.queue q WHERE q.job_id = j.job_id)`

// Retry enqueues a finished job's request again as a new job. It returns
// job.ErrNotFound or job.ErrUnfinished.
func (db *DB) Retry(ctx context.Context, id job.ID, by string) (job.Accepted, error) {
	what := fmt.Sprintf("retry job %s", id)
	got, err := together(ctx, db, what, toAccepted, stmt{lockRetries, nil}, stmt{retry, args{"id": string(id), "by": by}})
	if err != nil {
		return job.Accepted{}, err
	}
	if len(got) == 0 {
		known, err := one(ctx, db, what, stmt{known, args{"id": string(id)}}, pgx.RowTo[bool])
		if err != nil {
			return job.Accepted{}, err
		}
		if !known {
			return job.Accepted{}, fmt.Errorf("%s: %w", what, job.ErrNotFound)
		}
		return job.Accepted{}, fmt.Errorf("%s: %w", what, job.ErrUnfinished)
	}
	return got[0], nil
}

const known = `SELECT EXISTS (SELECT FROM turnpike.jobs WHERE job_id = @id)`

const lockJob = `SELECT FROM turnpike.queue WHERE job_id = @id FOR UPDATE`

// A parked job holds nothing that another waits for; any other that leaves the
// queue may have been the one that goes next.
const cancel = `
	WITH c AS MATERIALIZED (
		SELECT job_id, state, parked, tenant, concurrency_key, lane, worker, cancel_at
		FROM turnpike.queue WHERE job_id = @id
	),
	asked AS (
		UPDATE turnpike.queue q SET cancel_at = now(), cancel_by = @by, cancel_why = @why
		FROM c WHERE q.job_id = c.job_id AND c.state = 'running' AND c.cancel_at IS NULL
		RETURNING q.job_id
	),
	gone AS (
		DELETE FROM turnpike.queue q USING c WHERE q.job_id = c.job_id AND c.state <> 'running'
		RETURNING q.job_id
	),
	ended AS (
		INSERT INTO turnpike.finished (job_id, state, reason, note, by)
		SELECT job_id, 'cancelled', 'cancelled', @why, @by FROM gone
	),
	told AS (
		INSERT INTO turnpike.events (job_id, what, note)
		SELECT job_id, 'cancel', concat_ws(': ', nullif(@by, ''), nullif(@why, '')) FROM asked
	),
	next AS (
		UPDATE turnpike.queue q SET parked = NULL
		WHERE q.job_id = (
			SELECT p.job_id FROM turnpike.queue p JOIN c ON c.state <> 'running' AND c.parked IS DISTINCT FROM 'key'
				AND p.tenant = c.tenant AND p.concurrency_key = c.concurrency_key
			WHERE p.parked = 'key' ORDER BY p.rank LIMIT 1 FOR UPDATE OF p SKIP LOCKED)
	)
	SELECT CASE WHEN c.state IS NOT NULL THEN CASE c.state WHEN 'running' THEN 'running' ELSE 'cancelled' END ELSE '' END,
		coalesce(c.worker, ''), coalesce(c.lane, ''), EXISTS (SELECT FROM turnpike.jobs WHERE job_id = @id)
	FROM (SELECT) u LEFT JOIN c ON true`

// cancelled is a row of cancel. State is empty when there was nothing to cancel, Known
// says that there was a job.
type cancelled struct {
	State  job.State
	Worker string
	Lane   string
	Known  bool
}

func (c cancelled) answer(id job.ID) (job.CancelAnswer, error) {
	lane, err := job.ParseLane(c.Lane)
	return job.CancelAnswer{ID: id, State: c.State, Worker: c.Worker, Lane: lane}, err
}

// Cancel ends a job that does not run, or asks the worker to stop it: the answer
// comes back with every beat. Asking again changes nothing. It returns
// job.ErrNotFound, or job.ErrFinished when the job ended before.
func (db *DB) Cancel(ctx context.Context, id job.ID, by, why string) (job.CancelAnswer, error) {
	what := fmt.Sprintf("cancel job %s", id)
	got, err := together(ctx, db, what, pgx.RowToStructByPos[cancelled],
		stmt{lockJob, args{"id": string(id)}},
		stmt{cancel, args{"id": string(id), "by": by, "why": why}})
	if err != nil {
		return job.CancelAnswer{}, err
	}
	switch a := got[0]; {
	case a.State != "":
		return a.answer(id)
	case a.Known:
		return job.CancelAnswer{}, fmt.Errorf("%s: %w", what, job.ErrFinished)
	}
	return job.CancelAnswer{}, fmt.Errorf("%s: %w", what, job.ErrNotFound)
}

// encode writes what a statement takes as JSON, without what Postgres cannot keep
// in a text: NUL and halves of surrogate pairs, which agents do print.
func encode(v any) (string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	if !bytes.Contains(b, []byte(`\u0000`)) && !bytes.Contains(b, []byte(`\ud`)) && !bytes.Contains(b, []byte(`\uD`)) {
		return string(b), nil
	}
	return string(clean(b)), nil
}

// clean replaces the escapes that Postgres refuses in JSON, byte by byte, so that
// the rest stays as it was.
func clean(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); {
		if b[i] != '\\' {
			out = append(out, b[i])
			i++
			continue
		}
		if b[i+1] != 'u' {
			out = append(out, b[i], b[i+1])
			i += 2
			continue
		}
		r := hex4(b[i+2:])
		n := 6
		switch {
		case r >= 0xd800 && r < 0xdc00 && i+12 <= len(b) && b[i+6] == '\\' && b[i+7] == 'u' && hex4(b[i+8:])&^0x3ff == 0xdc00:
			n = 12
		case r == 0, r >= 0xd800 && r < 0xe000:
			out = append(out, `\ufffd`...)
			i += n
			continue
		}
		out = append(out, b[i:i+n]...)
		i += n
	}
	return out
}

// hex4 reads the four digits of an escape; b is valid JSON.
func hex4(b []byte) (r rune) {
	for _, c := range b[:4] {
		switch {
		case c >= 'a':
			c = c - 'a' + 10
		case c >= 'A':
			c = c - 'A' + 10
		default:
			c -= '0'
		}
		r = r<<4 | rune(c)
	}
	return r
}
