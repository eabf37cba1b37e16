package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

func budgetKey(scope, name string, seconds int64) job.BudgetKey {
	return job.BudgetKey{Scope: job.BudgetScope(scope), Name: name, Per: job.Duration(time.Duration(seconds) * time.Second)}
}

func keyArgs(k job.BudgetKey) args {
	return args{"scope": string(k.Scope), "name": k.Name, "per": int64(k.Per.Std() / time.Second)}
}

// The leader's row first, as selection does: no job is dispatched between this and the
// marking of those that are live.
const lockSelection = `SELECT FROM turnpike.leader FOR NO KEY UPDATE`

const setBudget = `
	INSERT INTO turnpike.budgets (scope, name, period_s, limit_usd, warn_usd, reason, by)
	VALUES (@scope, @name, @per, @limit::text::numeric, @warn::text::numeric, @reason, @by)
	ON CONFLICT (scope, name, period_s) DO UPDATE SET limit_usd = excluded.limit_usd, warn_usd = excluded.warn_usd,
		reason = excluded.reason, by = excluded.by, at = now()`

// In the order of the ids, as beats lock them.
const markLive = `
	WITH l AS MATERIALIZED (
		SELECT q.job_id FROM turnpike.queue q
		WHERE q.dispatched_at IS NOT NULL
		ORDER BY q.job_id
		FOR NO KEY UPDATE OF q
	)
	UPDATE turnpike.queue q SET budgets = turnpike.budgets_of(q.job_id, q.profile)
	FROM l WHERE q.job_id = l.job_id`

const seedBudget = `
	SELECT turnpike.seed_budget(id) FROM turnpike.budgets
	WHERE scope = @scope AND name = @name AND period_s = @per AND NOT seeded`

// A person's act, and rare: it may read the whole queue. What is still under a spent
// budget is parked again at the next selection.
const releaseBudget = `UPDATE turnpike.queue SET parked = NULL, wake_at = NULL WHERE parked = 'budget'`

// SetBudget bounds what jobs may cost together, those that run already too, and lets
// out what was parked. A new budget counts what was spent before it. When it fails
// after it has set the budget, it may be called again.
func (db *DB) SetBudget(ctx context.Context, b job.Budget, by, why string) error {
	what := "set the budget of " + b.String()
	if err := b.Check(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if b.LimitUSD < 0 {
		return fmt.Errorf("%s: %w", what, &job.FieldError{Field: "limit_usd", Problem: "is negative"})
	}
	var warn *string
	if b.WarnUSD != nil {
		if *b.WarnUSD < 0 || *b.WarnUSD > b.LimitUSD {
			return fmt.Errorf("%s: %w", what, &job.FieldError{Field: "warn_usd", Problem: fmt.Sprintf("is %s; want 0 to the limit, %s", b.WarnUSD, b.LimitUSD)})
		}
		s := b.WarnUSD.String()
		warn = &s
	}
	note := b.LimitUSD.String() + " USD"
	if why != "" {
		note += ": " + why
	}
	set := keyArgs(b.BudgetKey)
	set["limit"], set["warn"], set["reason"], set["by"] = b.LimitUSD.String(), warn, why, by
	if _, err := together(ctx, db, what, pgx.RowTo[int],
		stmt{lockSelection, nil}, stmt{setBudget, set},
		stmt{audited, args{"who": by, "what": "budget", "subject": b.String(), "note": note}},
		stmt{markLive, nil}, stmt{releaseBudget, nil}); err != nil {
		return err
	}
	slow := *db
	slow.timeout = max(db.timeout, time.Minute) // it reads history
	return slow.exec(ctx, what, seedBudget, keyArgs(b.BudgetKey))
}

const dropBudget = `
	WITH gone AS (
		DELETE FROM turnpike.budgets WHERE scope = @scope AND name = @name AND period_s = @per RETURNING id
	),
	spent AS (
		DELETE FROM turnpike.spend WHERE budget IN (SELECT id FROM gone)
	),
	audited AS (
		INSERT INTO turnpike.audit (who, what, subject, note) SELECT @by, 'budget', @subject, concat_ws(': ', 'removed', nullif(@why, '')) FROM gone
	)
	SELECT count(*) FROM gone`

// RemoveBudget lifts a budget and lets out what was parked. It returns job.ErrNoBudget.
func (db *DB) RemoveBudget(ctx context.Context, k job.BudgetKey, by, why string) error {
	what := "remove the budget of " + k.String()
	drop := keyArgs(k)
	drop["by"], drop["why"], drop["subject"] = by, why, k.String()
	n, err := one(ctx, db, what, stmt{dropBudget, drop}, pgx.RowTo[int])
	switch {
	case err != nil:
		return err
	case n == 0:
		return fmt.Errorf("%s: %w", what, job.ErrNoBudget)
	}
	return db.exec(ctx, what, releaseBudget, nil)
}

// budgetColumns are what toBudget scans, of turnpike.v_budgets v.
const budgetColumns = `v.scope, v.name, v.period_s, (v.limit_usd * 1000000)::bigint, (v.warn_usd * 1000000)::bigint, (v.spent_usd * 1000000)::bigint,
	(v.running_usd * 1000000)::bigint, (v.left_usd * 1000000)::bigint, v.state, CASE WHEN isfinite(v.until) THEN v.until END, v.reason, v.by, v.at`

func toBudget(row pgx.CollectableRow, more ...any) (b job.Budget, err error) {
	var scope, name string
	var per int64
	err = row.Scan(append([]any{&scope, &name, &per, &b.LimitUSD, &b.WarnUSD, &b.SpentUSD, &b.RunningUSD, &b.LeftUSD, &b.State, &b.Until,
		&b.Reason, &b.By, &b.At}, more...)...)
	b.BudgetKey = budgetKey(scope, name, per)
	return b, err
}

const budgets = `SELECT ` + budgetColumns + ` FROM turnpike.v_budgets v ORDER BY v.scope, v.name, v.period_s`

// Budgets lists every budget as it stands.
func (db *DB) Budgets(ctx context.Context) ([]job.Budget, error) {
	return many(ctx, db, "list budgets", stmt{budgets, nil}, func(row pgx.CollectableRow) (job.Budget, error) { return toBudget(row) })
}

// What crosses a level is found by comparing with the level that was noted, and noted.
// A claim is refused once a budget is spent, so what was dispatched goes back: locked in
// the order of the ids, as claims lock it.
const crossings = `
	WITH v AS MATERIALIZED (
		SELECT v.*, b.level FROM turnpike.v_budgets v JOIN turnpike.budgets b ON b.id = v.id WHERE b.seeded AND b.level <> v.state
	),
	noted AS (
		UPDATE turnpike.budgets b SET level = v.state FROM v WHERE b.id = v.id
	),
	audited AS (
		INSERT INTO turnpike.audit (who, what, subject, note)
		SELECT 'dispatcher', 'budget ' || state, format('%s %s per %s', scope, name, period),
			format('%s of %s USD are spent', spent_usd + running_usd, limit_usd) FROM v
	),
	l AS MATERIALIZED (
		SELECT q.job_id, q.tenant, q.concurrency_key, q.budgets FROM turnpike.queue q
		WHERE EXISTS (SELECT FROM v WHERE state = 'spent') -- mostly none, and then nothing is read
			AND q.dispatched_at IS NOT NULL AND q.budgets IS NOT NULL AND q.state = 'dispatched'
			AND q.budgets && ARRAY(SELECT id FROM v WHERE state = 'spent')
		ORDER BY q.job_id
		FOR UPDATE
	),
	back AS (
		UPDATE turnpike.queue q SET state = 'queued', dispatched_at = NULL, published_at = NULL
		FROM l WHERE q.job_id = l.job_id AND q.state = 'dispatched'
	),
	freed AS (
		SELECT tenant, concurrency_key FROM l
	),
	` + letOut + `
	SELECT ` + budgetColumns + `, v.level, (SELECT count(*) FROM l WHERE v.id = ANY (l.budgets))::integer
	FROM v ORDER BY v.scope, v.name, v.period_s`

const forgetSpend = `
	DELETE FROM turnpike.spend s USING turnpike.budgets b
	WHERE b.id = s.budget AND s.bucket <= now() - make_interval(secs => b.period_s + b.bucket_s)`

// Crossings lists the budgets whose state has changed since it was asked last, once for
// each change, and takes back what was dispatched under those that are spent now. It
// forgets what is out of every window. It returns job.ErrNotLeader.
func (db *DB) Crossings(ctx context.Context, epoch int64) ([]job.Crossing, error) {
	return together(ctx, db, "look at the budgets", func(row pgx.CollectableRow) (c job.Crossing, err error) {
		c.Budget, err = toBudget(row, &c.From, &c.Returned)
		return c, err
	}, holding(epoch), stmt{forgetSpend, nil}, stmt{crossings, nil})
}

const overBudget = `
	SELECT DISTINCT ON (q.job_id) q.job_id::text, b.scope, b.name, b.period_s, ((b.spent_usd + b.running_usd) * 1000000)::bigint,
		(b.limit_usd * 1000000)::bigint
	FROM turnpike.queue q JOIN turnpike.v_budgets b ON b.id = ANY (q.budgets)
	WHERE q.job_id = ANY (@jobs::text[]::uuid[]) AND q.state = 'running' AND b.state = 'spent'
	ORDER BY q.job_id, b.id`

// overBudget names for running jobs a budget of theirs that is spent.
func (db *DB) overBudget(ctx context.Context, jobs []string) (map[job.ID]*job.OverBudget, error) {
	type over struct {
		job.OverBudget
		id job.ID
	}
	got, err := many(ctx, db, "look at the budgets", stmt{overBudget, args{"jobs": jobs}}, func(row pgx.CollectableRow) (o over, err error) {
		var scope, name string
		var per int64
		err = row.Scan(&o.id, &scope, &name, &per, &o.Spent, &o.LimitUSD)
		o.Budget = budgetKey(scope, name, per)
		return o, err
	})
	out := make(map[job.ID]*job.OverBudget, len(got))
	for _, o := range got {
		out[o.id] = &o.OverBudget
	}
	return out, err
}
