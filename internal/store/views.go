package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

// summaryColumns are what toSummary scans, of turnpike.v_jobs v.
const summaryColumns = `v.job_id::text, v.name, v.tenant, v.lane, v.agent, v.state, coalesce(v.reason, ''), v.attempt, (v.cost_usd * 1000000)::bigint,
	(v.estimated_usd * 1000000)::bigint, coalesce(v.outcome, ''), v.created_at, v.run_at, v.started_at, v.ended_at`

func summaryFields(s *job.Summary) []any {
	return []any{&s.ID, &s.Name, &s.Tenant, &s.Lane, &s.Agent, &s.State, &s.Reason, &s.Attempt, &s.CostUSD, &s.EstimatedUSD, &s.Outcome, &s.CreatedAt, &s.RunAt,
		&s.StartedAt, &s.EndedAt}
}

// Ids sort by time, so the newest come first by the primary key.
const list = `
	SELECT ` + summaryColumns + `
	FROM turnpike.v_jobs v
	WHERE (@before::text = '' OR v.job_id < @before::text::uuid)
		AND (@states::text[] IS NULL OR v.state = ANY (@states))
		AND (@tenant = '' OR v.tenant = @tenant)
		AND (@pool = '' OR v.pool = @pool)
		AND (@name = '' OR v.name = @name)
		AND (@work = '' OR v.work_key = @work)
	ORDER BY v.job_id DESC
	LIMIT @most`

// The jobs of states that only the queue has are few, whatever history there is.
const listUnfinished = `
	SELECT ` + summaryColumns + `
	FROM turnpike.queue u JOIN turnpike.v_jobs v ON v.job_id = u.job_id
	WHERE (@before::text = '' OR u.job_id < @before::text::uuid)
		AND u.state::text = ANY (@states)
		AND (@tenant = '' OR u.tenant = @tenant)
		AND (@pool = '' OR v.pool = @pool)
		AND (@name = '' OR v.name = @name)
		AND (@work = '' OR v.work_key = @work)
	ORDER BY u.job_id DESC
	LIMIT @most`

// List returns jobs, the newest first.
func (db *DB) List(ctx context.Context, f job.Filter) ([]job.Summary, error) {
	switch {
	case f.Limit <= 0:
		f.Limit = 50
	case f.Limit > 1000:
		f.Limit = 1000
	}
	var states []string
	for _, s := range f.States {
		states = append(states, string(s))
	}
	sql := list
	if len(states) > 0 && !slices.ContainsFunc(f.States, job.State.Final) {
		sql = listUnfinished
	}
	return many(ctx, db, "list jobs", stmt{sql, args{"before": string(f.Before), "states": states, "tenant": f.Tenant, "pool": f.Pool,
		"name": f.Name, "work": f.WorkKey, "most": f.Limit}},
		func(row pgx.CollectableRow) (s job.Summary, err error) {
			err = row.Scan(summaryFields(&s)...)
			return s, err
		})
}

const get = `
	SELECT ` + summaryColumns + `,
		v.work_key, v.work_tags, v.producer, coalesce(v.retry_of::text, ''), v.worker,
		coalesce(q.dispatch_no, 0), coalesce(q.tries_spent, 0), q.lease_until, q.cancel_at, coalesce(q.cancel_by, ''), coalesce(q.cancel_why, ''),
		j.request::text, f.state::text, f.finished_at, coalesce(f.by, ''), coalesce(f.note, '')
	FROM turnpike.v_jobs v
	JOIN turnpike.jobs j ON j.job_id = v.job_id
	LEFT JOIN turnpike.queue q ON q.job_id = v.job_id
	LEFT JOIN turnpike.finished f ON f.job_id = v.job_id
	WHERE v.job_id = @id`

const getAttempts = `
	SELECT a.attempt, a.profile, a.lane, a.ending, a.reason, a.worker, a.host, a.agent, a.agent_version, a.late, a.claimed_at, a.started_at, a.ended_at, a.duration_ms,
		a.exit_code, a.num_turns, (a.cost_usd * 1000000)::bigint, a.conversation, a.resumable, a.patch::text, a.result_text, a.result::text,
		o.status, coalesce(o.note, ''), coalesce(o.work_key, ''), o.work_tags,
		coalesce((
			SELECT json_agg(json_build_object('model', c.model, 'input_tokens', c.input_tokens, 'output_tokens', c.output_tokens,
				'cache_read_tokens', c.cache_read_tokens, 'cache_write_tokens', c.cache_write_tokens, 'cost_usd', c.cost_usd::text, 'estimated_usd', c.estimated_usd::text) ORDER BY c.model)
			FROM turnpike.costs c WHERE c.job_id = a.job_id AND c.attempt = a.attempt), '[]')::text
	FROM turnpike.attempts a
	LEFT JOIN turnpike.outcomes o ON o.job_id = a.job_id AND o.attempt = a.attempt
	WHERE a.job_id = @id
	ORDER BY a.attempt`

const getEvents = `SELECT at, what, note FROM turnpike.events WHERE job_id = @id ORDER BY at`

// The jobs that one waits for and those that wait for it.
const getWaits = `
	SELECT w.job_id = @id::uuid, j.job_id::text, j.name, q.state::text,
		CASE WHEN q.parked IS NOT NULL THEN 'parked: ' || q.parked WHEN NOT q.checked THEN 'unchecked' ELSE '' END
	FROM turnpike.v_waits w
	JOIN turnpike.queue q ON q.job_id = CASE w.job_id WHEN @id::uuid THEN w.awaits ELSE w.job_id END
	JOIN turnpike.jobs j ON j.job_id = q.job_id
	WHERE w.job_id = @id::uuid OR w.awaits = @id::uuid
	ORDER BY 1, 2
	LIMIT 1000`

// Get returns everything on record about a job, or job.ErrNotFound.
func (db *DB) Get(ctx context.Context, id job.ID) (job.View, error) {
	what := fmt.Sprintf("get job %s", id)
	named := args{"id": string(id)}
	got, err := many(ctx, db, what, stmt{get, named}, toView)
	if err != nil {
		return job.View{}, err
	}
	if len(got) == 0 {
		return job.View{}, fmt.Errorf("%s: %w", what, job.ErrNotFound)
	}
	v := got[0]
	if v.Attempts, err = many(ctx, db, what, stmt{getAttempts, named}, toAttemptView); err != nil {
		return job.View{}, err
	}
	events, err := many(ctx, db, what, stmt{getEvents, named}, func(row pgx.CollectableRow) (e job.EventView, err error) {
		err = row.Scan(&e.At, &e.What, &e.Note)
		return e, err
	})
	v.Events = append(events, v.Events...)
	if err != nil || v.State.Final() {
		return v, err
	}
	type wait struct {
		Awaited bool
		job.Waiting
	}
	waits, err := many(ctx, db, what, stmt{getWaits, named}, pgx.RowToStructByPos[wait])
	for _, w := range waits {
		if w.Awaited {
			v.After = append(v.After, w.Waiting)
		} else {
			v.Before = append(v.Before, w.Waiting)
		}
	}
	return v, err
}

func toView(row pgx.CollectableRow) (v job.View, err error) {
	var request, by, why, finishedBy, note string
	var cancelledAt, finishedAt *time.Time
	var ended *job.State
	err = row.Scan(append(summaryFields(&v.Summary), &v.Work.Key, &v.Work.Tags, &v.Producer, &v.RetryOf, &v.Worker, &v.DispatchNo, &v.TriesSpent,
		&v.LeaseUntil, &cancelledAt, &by, &why, &request, &ended, &finishedAt, &finishedBy, &note)...)
	if err != nil {
		return v, err
	}
	v.Request = json.RawMessage(request)
	if cancelledAt != nil {
		v.Cancel = &job.CancelView{By: by, Why: why, At: *cancelledAt}
	}
	if ended != nil && finishedAt != nil {
		v.Events = []job.EventView{{At: *finishedAt, What: string(*ended), Note: note}}
		if *ended == job.Cancel {
			v.Cancel = &job.CancelView{By: finishedBy, Why: note, At: *finishedAt}
		}
	}
	return v, nil
}

func toAttemptView(row pgx.CollectableRow) (a job.AttemptView, err error) {
	var result, status, patch *string
	var o job.Outcome
	var usage string
	err = row.Scan(&a.Attempt, &a.Profile, &a.Lane, &a.Ending, &a.Reason, &a.Worker, &a.Host, &a.Agent, &a.AgentVersion, &a.Late, &a.ClaimedAt, &a.StartedAt, &a.EndedAt,
		&a.DurationMS, &a.ExitCode, &a.NumTurns, &a.CostUSD, &a.Conversation, &a.Resumable, &patch, &a.ResultText, &result, &status, &o.Note, &o.Work.Key, &o.Work.Tags,
		&usage)
	if err != nil {
		return a, err
	}
	if result != nil {
		a.Result = json.RawMessage(*result)
	}
	if status != nil {
		o.Status = *status
		a.Outcome = &o
	}
	if patch != nil {
		if err := json.Unmarshal([]byte(*patch), &a.Patch); err != nil {
			return a, fmt.Errorf("patch of attempt %d: %w", a.Attempt, err)
		}
	}
	return a, json.Unmarshal([]byte(usage), &a.Usage)
}

// reportKey is what a report groups by: one of a fixed list of expressions. A job whose
// attempts differ in it counts for each.
type reportKey struct{ sql, jobs string }

const (
	eachJob     = `count(*) FILTER (WHERE coalesce(attempt, 1) = 1)` // its rows have one key
	distinctJob = `count(DISTINCT job_id)`                           // which is sorted for
)

var reportKeys = map[string]reportKey{
	"tenant": {"j.tenant", eachJob},
	"agent":  {"coalesce(a.agent, j.agent)", distinctJob}, // a fallback's costs are its own
	// The models that answered, and the one asked for where none did.
	"model": {`coalesce((SELECT string_agg(c.model, ', ' ORDER BY c.model) FROM turnpike.costs c WHERE c.job_id = a.job_id AND c.attempt = a.attempt),
		nullif(a.model, ''), '(none)')`, distinctJob},
	"pool": {"split_part(j.lane, '/', 2)", eachJob},
	"name": {"j.name", eachJob},
	"day":  {"to_char(j.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')", eachJob},
}

// Ids tell the time: only the partitions since then are read. How a job ended stands with
// its last attempt; only few ended while none ran.
const report = `
	WITH per_attempt AS (
		SELECT %s AS key, j.job_id, coalesce(f.state, a.next) AS next, a.attempt, a.started_at, a.cost_usd, a.num_turns, a.duration_ms,
			c.estimated_usd, q.job_id IS NULL AND CASE
				WHEN f.job_id IS NULL THEN a.final
				ELSE a.attempt IS NOT DISTINCT FROM (SELECT max(x.attempt) FROM turnpike.attempts x WHERE x.job_id = f.job_id) END AS ended
		FROM turnpike.jobs j
		LEFT JOIN turnpike.attempts a ON a.job_id = j.job_id AND a.job_id >= turnpike.uuid7_floor(@since)
		LEFT JOIN turnpike.finished f ON f.job_id = j.job_id AND f.job_id >= turnpike.uuid7_floor(@since)
		LEFT JOIN (
			SELECT job_id, attempt, sum(estimated_usd) AS estimated_usd FROM turnpike.costs
			WHERE job_id >= turnpike.uuid7_floor(@since) AND estimated_usd IS NOT NULL
			GROUP BY job_id, attempt) c ON c.job_id = a.job_id AND c.attempt = a.attempt
		LEFT JOIN turnpike.queue q ON q.job_id = j.job_id
		WHERE j.job_id >= turnpike.uuid7_floor(@since)
	)
	SELECT key, %s,
		count(*) FILTER (WHERE ended AND next = 'succeeded'), count(*) FILTER (WHERE ended AND next = 'failed'),
		count(*) FILTER (WHERE ended AND next = 'cancelled'), count(attempt), (sum(cost_usd) * 1000000)::bigint,
		(sum(estimated_usd) * 1000000)::bigint,
		count(*) FILTER (WHERE started_at IS NOT NULL AND cost_usd IS NULL),
		coalesce(sum(num_turns), 0)::bigint, coalesce(sum(duration_ms), 0)::bigint
	FROM per_attempt
	GROUP BY key
	ORDER BY key`

// Report sums cost and outcome of the jobs enqueued since a time, by tenant, agent,
// model, pool, name or day.
func (db *DB) Report(ctx context.Context, by string, since time.Time) ([]job.ReportRow, error) {
	key, ok := reportKeys[by]
	if !ok {
		return nil, fmt.Errorf("report: %w", &job.FieldError{Field: "by", Problem: fmt.Sprintf("%q: want tenant, agent, model, pool, name or day", by)})
	}
	if since.Before(time.Unix(0, 0)) { // before the first id there can be
		since = time.Unix(0, 0)
	}
	return many(ctx, db, "report", stmt{fmt.Sprintf(report, key.sql, key.jobs), args{"since": since}}, pgx.RowToStructByPos[job.ReportRow])
}
