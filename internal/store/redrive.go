package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

// Whoever repeats jobs waits here for the others, until the transaction ends: what they
// repeated is seen, and nothing is repeated twice.
const lockRetries = `SELECT pg_advisory_xact_lock(7380214561)`

// One look at so many jobs that ended, in the order of their making, bounds a call
// whatever history there is and however little of it matches.
const redriveScan = 20000

const redrivable = `
	WITH scanned AS MATERIALIZED (
		SELECT * FROM (
			SELECT a.job_id, a.next AS state, a.verdict AS reason, a.closed_at AS ended_at, a.lane FROM turnpike.attempts a
			WHERE a.final AND a.job_id > @after::text::uuid AND a.job_id < turnpike.uuid7_floor(@until)
			UNION ALL
			SELECT f.job_id, f.state, f.reason, f.finished_at, NULL FROM turnpike.finished f
			WHERE f.job_id > @after::text::uuid AND f.job_id < turnpike.uuid7_floor(@until)) e
		ORDER BY job_id
		LIMIT @scan
	),
	found AS MATERIALIZED (
		SELECT s.job_id, s.state, s.reason, j.name, j.tenant, j.request,
			EXISTS (SELECT FROM turnpike.jobs r WHERE r.retry_of = s.job_id) AS repeated
		FROM scanned s JOIN turnpike.jobs j ON j.job_id = s.job_id
		WHERE s.state::text = ANY (@states) AND s.ended_at >= @since AND s.ended_at < @until
			AND (@reasons::text[] IS NULL OR s.reason = ANY (@reasons))
			AND (@tenants::text[] IS NULL OR j.tenant = ANY (@tenants))
			AND (@producer = '' OR j.producer = @producer)
			AND (@lane = '' OR coalesce(s.lane, j.lane) = @lane)
			AND (@name = '' OR j.name = @name)
			AND (@tag = '' OR @tag = ANY (j.work_tags))
		ORDER BY s.job_id
		LIMIT @most
	),
	ready AS (
		SELECT f.job_id, f.request, f.facts, row_number() OVER (ORDER BY f.job_id) AS n
		FROM (SELECT job_id, request, turnpike.facts_again(request) AS facts FROM found WHERE NOT repeated) f
		WHERE f.facts IS NOT NULL
	),
	cut AS (
		SELECT CASE
			WHEN (SELECT count(*) FROM found) >= @most THEN (SELECT job_id FROM found ORDER BY job_id DESC LIMIT 1)
			WHEN (SELECT count(*) FROM scanned) >= @scan THEN (SELECT job_id FROM scanned ORDER BY job_id DESC LIMIT 1) END AS next
	)`

const redriven = `
	SELECT coalesce(cut.next::text, ''), coalesce(f.job_id::text, ''), coalesce(f.name, ''), coalesce(f.tenant, ''), coalesce(f.state::text, ''),
		coalesce(f.reason, ''), coalesce(f.repeated, false), f.job_id IS NOT NULL AND NOT f.repeated AND r.job_id IS NULL,
		coalesce(m.job_id::text, ''), coalesce(m.existing, false)
	FROM cut
	LEFT JOIN found f ON true
	LEFT JOIN ready r ON r.job_id = f.job_id
	LEFT JOIN made m ON m.n = r.n
	ORDER BY f.job_id`

// What a look alone would make: nothing.
const wouldRedrive = redrivable + `,
	made AS (
		SELECT NULL::bigint AS n, NULL::uuid AS job_id, false AS existing WHERE false
	)` + redriven

const redrive = redrivable + `,
	made AS MATERIALIZED (
		SELECT a.n, a.job_id, a.existing
		FROM (
			SELECT jsonb_agg(facts || jsonb_build_object('producer', @by::text, 'retry_of', job_id, 'checked', false) ORDER BY n) AS facts,
				array_agg(request ORDER BY n) AS bodies
			FROM ready HAVING count(*) > 0) b
		CROSS JOIN LATERAL turnpike.accept(b.facts, b.bodies) a
	),
	audited AS (
		INSERT INTO turnpike.audit (who, what, subject, note)
		SELECT @by, 'redrive', @subject, format('%s jobs', count(*)) FROM made WHERE NOT existing HAVING count(*) > 0
	)` + redriven

// Redrive enqueues again, as new jobs, what finished as r says, the oldest first: each at
// most once ever, whoever asks and however often. One call looks at a part; it is
// repeated with the answer's Next. It returns job.ErrQueueFull, with nothing of this part
// enqueued, at a tenant's limit.
func (db *DB) Redrive(ctx context.Context, r job.Redrive, by string) (job.RedriveAnswer, error) {
	answer := job.RedriveAnswer{Jobs: []job.Redriven{}}
	if err := r.Check(); err != nil {
		return answer, fmt.Errorf("redrive: %w", err)
	}
	if r.After == "" {
		r.After = "00000000-0000-0000-0000-000000000000"
	}
	if r.Limit == 0 {
		r.Limit = job.MaxRedrive
	}
	if r.Until.IsZero() {
		r.Until = time.Now().Add(24 * time.Hour) // whatever the clocks
	}
	if r.Since.Before(time.Unix(0, 0)) {
		r.Since = time.Unix(0, 0)
	}
	if len(r.States) == 0 {
		r.States = []job.State{job.Failed}
	}
	states := make([]string, len(r.States))
	for i, s := range r.States {
		states[i] = string(s)
	}
	with := args{"states": states, "reasons": r.Reasons, "tenants": r.Tenants, "producer": r.Producer, "lane": r.Lane, "name": r.Name, "tag": r.Tag,
		"since": r.Since, "until": r.Until, "after": string(r.After), "most": r.Limit, "scan": redriveScan}
	do := []stmt{{wouldRedrive, with}}
	if !r.DryRun {
		with["by"], with["subject"] = by, subjectOf(r)
		do = []stmt{{lockRetries, nil}, {redrive, with}}
	}
	type line struct {
		job.Redriven
		repeated bool
	}
	slow := *db
	slow.timeout = max(db.timeout, 25*time.Second) // it reads history
	lines, err := together(ctx, &slow, "redrive", func(row pgx.CollectableRow) (l line, err error) {
		err = row.Scan(&answer.Next, &l.RetryOf, &l.Name, &l.Tenant, &l.Ended, &l.Reason, &l.repeated, &l.Refused, &l.ID, &l.Existing)
		return l, err
	}, do...)
	if err != nil {
		return job.RedriveAnswer{Jobs: []job.Redriven{}}, err
	}
	for _, l := range lines {
		switch {
		case l.RetryOf == "":
			continue // nothing matched
		case l.repeated:
			answer.PassedOver++
			continue
		case !l.Refused && !l.Existing:
			answer.Redriven++
		}
		answer.Jobs = append(answer.Jobs, l.Redriven)
	}
	return answer, nil
}

// subjectOf is what was redriven, for the record.
func subjectOf(r job.Redrive) string {
	var words []string
	for _, s := range r.States {
		words = append(words, string(s))
	}
	add := func(what string, values ...string) {
		if of := strings.Join(values, ","); of != "" {
			words = append(words, what+" "+of)
		}
	}
	add("reason", r.Reasons...)
	add("tenant", r.Tenants...)
	add("lane", r.Lane)
	add("name", r.Name)
	add("tag", r.Tag)
	if r.Since.Unix() > 0 {
		add("since", r.Since.UTC().Format(time.RFC3339))
	}
	return strings.Join(words, " ")
}
