package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

// scheduleColumns are what scheduleFields scans, of turnpike.schedules s.
const scheduleColumns = `s.tenant, s.name, s.cron, s.tz, s.missed, s.overlap, coalesce(s.not_before, @never), coalesce(s.not_after, @never),
	s.request::text, s.producer`

func scheduleFields(s *job.Schedule, request, producer *string) []any {
	return []any{&s.Tenant, &s.Name, &s.Cron, &s.Zone, &s.Missed, &s.Overlap, &s.From, &s.Until, request, producer}
}

// optional is NULL for the zero time.
func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// The time of the last job, too: whatever becomes of clocks, no time is acted on twice.
const lastActed = `
	SELECT greatest(now(), (SELECT last_at FROM turnpike.schedules WHERE tenant = @tenant AND name = @name))`

// Where its times stay the same, so does the next: one that has come just now is not
// lost by setting the schedule again.
const setSchedule = `
	INSERT INTO turnpike.schedules AS s (tenant, name, cron, tz, missed, overlap, not_before, not_after, request, producer, next_at)
	VALUES (@tenant, @name, @cron, @tz, @missed, @overlap, @from, @until, @request::text::json, @by, @next)
	ON CONFLICT (tenant, name) DO UPDATE SET cron = excluded.cron, tz = excluded.tz, missed = excluded.missed, overlap = excluded.overlap,
		not_before = excluded.not_before, not_after = excluded.not_after, request = excluded.request, producer = excluded.producer,
		set_at = now(), version = s.version + 1, retry_at = NULL,
		next_at = CASE WHEN (s.cron, s.tz) = (excluded.cron, excluded.tz)
			AND (s.not_before, s.not_after) IS NOT DISTINCT FROM (excluded.not_before, excluded.not_after) THEN s.next_at ELSE excluded.next_at END`

// SetSchedule sets a schedule, or changes the one of its name. by is whose its jobs are.
func (db *DB) SetSchedule(ctx context.Context, s job.Schedule, by string) (job.ScheduleView, error) {
	what := "set schedule " + s.Name
	table, err := s.Timetable()
	if err != nil {
		return job.ScheduleView{}, fmt.Errorf("%s: %w", what, err)
	}
	err = db.within(ctx, what, func(ctx context.Context, tx pgx.Tx) error {
		var now time.Time
		if err := tx.QueryRow(ctx, lastActed, args{"tenant": s.Tenant, "name": s.Name}).Scan(&now); err != nil {
			return err
		}
		next := table.Next(now)
		if next.IsZero() {
			return &job.FieldError{Field: "until", Problem: "no time of the schedule is left before it"}
		}
		_, err := tx.Exec(ctx, setSchedule, args{"tenant": s.Tenant, "name": s.Name, "cron": s.Cron, "tz": s.Zone, "missed": string(s.Missed),
			"overlap": string(s.Overlap), "from": optional(s.From), "until": optional(s.Until), "request": string(s.Request), "by": by, "next": next})
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, audited, args{"who": by, "what": "schedule", "subject": s.Tenant + "/" + s.Name, "note": s.Cron + " " + s.Zone})
		return err
	})
	if err != nil {
		return job.ScheduleView{}, err
	}
	return db.Schedule(ctx, s.Tenant, s.Name)
}

const schedules = `
	SELECT ` + scheduleColumns + `, s.set_at, v.next_at, s.last_at, coalesce(s.last_job::text, ''), coalesce(v.last_state, ''), s.fired, s.skipped,
		s.note, s.note_at, s.paused_at, coalesce(s.paused_by, ''), coalesce(s.paused_why, '')
	FROM turnpike.schedules s JOIN turnpike.v_schedules v ON v.tenant = s.tenant AND v.name = s.name
	WHERE (@tenants::text[] IS NULL OR s.tenant = ANY (@tenants)) AND (@name = '' OR s.name = @name)
	ORDER BY s.tenant, s.name`

func (db *DB) schedules(ctx context.Context, what string, tenants []string, name string) ([]job.ScheduleView, error) {
	return many(ctx, db, what, stmt{schedules, args{"never": time.Time{}, "tenants": tenants, "name": name}},
		func(row pgx.CollectableRow) (v job.ScheduleView, err error) {
			var request string
			var paused job.SchedulePause
			var pausedAt *time.Time
			err = row.Scan(append(scheduleFields(&v.Schedule, &request, &v.Producer), &v.SetAt, &v.NextAt, &v.LastAt, &v.LastJob, &v.LastState,
				&v.Fired, &v.Skipped, &v.Note, &v.NoteAt, &pausedAt, &paused.By, &paused.Why)...)
			v.Request = json.RawMessage(request)
			if pausedAt != nil {
				paused.At = *pausedAt
				v.Paused = &paused
			}
			return v, err
		})
}

// Schedules lists the schedules of some tenants, or of all when tenants is nil.
func (db *DB) Schedules(ctx context.Context, tenants []string) ([]job.ScheduleView, error) {
	return db.schedules(ctx, "list schedules", tenants, "")
}

// Schedule returns one schedule, or job.ErrNoSchedule.
func (db *DB) Schedule(ctx context.Context, tenant, name string) (job.ScheduleView, error) {
	what := "get schedule " + name
	got, err := db.schedules(ctx, what, []string{tenant}, name)
	if err == nil && len(got) == 0 {
		err = fmt.Errorf("%s: %w", what, job.ErrNoSchedule)
	}
	if err != nil {
		return job.ScheduleView{}, err
	}
	return got[0], nil
}

const dropSchedule = `DELETE FROM turnpike.schedules WHERE tenant = @tenant AND name = @name`

// RemoveSchedule removes a schedule; its jobs stay. It returns job.ErrNoSchedule.
func (db *DB) RemoveSchedule(ctx context.Context, tenant, name, by, why string) error {
	return db.onSchedule(ctx, tenant, name, by, "remove", why, func(ctx context.Context, tx pgx.Tx) (int64, error) {
		tag, err := tx.Exec(ctx, dropSchedule, args{"tenant": tenant, "name": name})
		return tag.RowsAffected(), err
	})
}

const pauseSchedule = `
	UPDATE turnpike.schedules SET paused_at = now(), paused_by = @by, paused_why = @why, version = version + 1
	WHERE tenant = @tenant AND name = @name`

// PauseSchedule keeps a schedule from acting until it is resumed. It returns
// job.ErrNoSchedule.
func (db *DB) PauseSchedule(ctx context.Context, tenant, name, by, why string) error {
	return db.onSchedule(ctx, tenant, name, by, "pause", why, func(ctx context.Context, tx pgx.Tx) (int64, error) {
		tag, err := tx.Exec(ctx, pauseSchedule, args{"tenant": tenant, "name": name, "by": by, "why": why})
		return tag.RowsAffected(), err
	})
}

const lockSchedule = `
	SELECT ` + scheduleColumns + `, greatest(now(), s.last_at), s.paused_at IS NOT NULL
	FROM turnpike.schedules s
	WHERE s.tenant = @tenant AND s.name = @name
	FOR UPDATE`

const resumeSchedule = `
	UPDATE turnpike.schedules SET paused_at = NULL, paused_by = NULL, paused_why = NULL, next_at = @next, retry_at = NULL, version = version + 1
	WHERE tenant = @tenant AND name = @name`

// ResumeSchedule ends a pause; the times that came meanwhile were not missed. Resuming
// what is not paused changes nothing. It returns job.ErrNoSchedule.
func (db *DB) ResumeSchedule(ctx context.Context, tenant, name, by, why string) error {
	return db.onSchedule(ctx, tenant, name, by, "resume", why, func(ctx context.Context, tx pgx.Tx) (int64, error) {
		var s job.Schedule
		var request, producer string
		var now time.Time
		var paused bool
		err := tx.QueryRow(ctx, lockSchedule, args{"never": time.Time{}, "tenant": tenant, "name": name}).
			Scan(append(scheduleFields(&s, &request, &producer), &now, &paused)...)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return 0, nil
		case err != nil || !paused:
			return 1, err
		}
		table, err := s.Timetable()
		if err != nil {
			return 1, err
		}
		tag, err := tx.Exec(ctx, resumeSchedule, args{"tenant": tenant, "name": name, "next": optional(table.Next(now))})
		return tag.RowsAffected(), err
	})
}

// onSchedule does something to one schedule, for the record too.
func (db *DB) onSchedule(ctx context.Context, tenant, name, by, does, why string, do func(context.Context, pgx.Tx) (int64, error)) error {
	what := does + " schedule " + name
	return db.within(ctx, what, func(ctx context.Context, tx pgx.Tx) error {
		switch n, err := do(ctx, tx); {
		case err != nil:
			return err
		case n == 0:
			return job.ErrNoSchedule
		}
		_, err := tx.Exec(ctx, audited, args{"who": by, "what": does + " schedule", "subject": tenant + "/" + name, "note": why})
		return err
	})
}

const dueSchedules = `
	SELECT ` + scheduleColumns + `, s.id, s.version, s.next_at, now()
	FROM turnpike.schedules s
	WHERE s.next_at <= now() AND s.paused_at IS NULL AND (s.retry_at IS NULL OR s.retry_at <= now())
	ORDER BY s.next_at
	LIMIT @most`

// Due lists schedules whose time has come, by the database's clock.
func (db *DB) Due(ctx context.Context, limit int) ([]job.Due, error) {
	return many(ctx, db, "look for schedules that are due", stmt{dueSchedules, args{"never": time.Time{}, "most": limit}},
		func(row pgx.CollectableRow) (d job.Due, err error) {
			var request string
			err = row.Scan(append(scheduleFields(&d.Schedule, &request, &d.Producer), &d.ID, &d.Version, &d.At, &d.Now)...)
			d.Request = json.RawMessage(request)
			return d, err
		})
}

// What was decided is void when anything about the schedule has changed since, another's
// firing among it.
const asDecided = `
	SELECT coalesce(s.last_job::text, ''), EXISTS (SELECT FROM turnpike.queue q WHERE q.job_id = s.last_job)
	FROM turnpike.schedules s
	WHERE s.id = @id AND s.version = @version AND s.next_at = @at AND s.paused_at IS NULL
	FOR UPDATE`

const tellJobs = `
	INSERT INTO turnpike.events (job_id, what, note)
	SELECT job, 'schedule', note FROM unnest(@jobs::text[]::uuid[], @notes::text[]) u(job, note)`

const advance = `
	UPDATE turnpike.schedules SET next_at = @next, retry_at = NULL, fired = fired + @fired, skipped = skipped + @skipped,
		last_at = coalesce(@last, last_at), last_job = coalesce(nullif(@job, '')::uuid, last_job),
		note = coalesce(nullif(@note, ''), note), note_at = CASE @note WHEN '' THEN note_at ELSE now() END
	WHERE id = @id`

// Fire carries out what was decided about a schedule that is due: its jobs, what becomes
// of its last one, and its next time, in one transaction. It may be repeated: a time is
// acted on once, since the row remembers the next. It returns job.ErrConflict when the
// schedule is no longer as it was, job.ErrQueueFull and job.ErrNotLeader; then nothing
// was done.
func (db *DB) Fire(ctx context.Context, epoch int64, f job.Firing) (fired job.Fired, err error) {
	what := "fire schedule " + f.String()
	err = db.within(ctx, what, func(ctx context.Context, tx pgx.Tx) error {
		fired = job.Fired{}
		if _, err := tx.Exec(ctx, asLeader, args{"epoch": epoch}); err != nil {
			return err
		}
		var last job.ID
		var unfinished bool
		err := tx.QueryRow(ctx, asDecided, args{"id": f.ID, "version": f.Version, "at": f.At}).Scan(&last, &unfinished)
		if errors.Is(err, pgx.ErrNoRows) {
			return job.ErrConflict
		}
		if err != nil {
			return err
		}
		if unfinished && len(f.Entries) > 0 {
			fired.Unfinished = last
		}
		entries, note := f.Entries, f.Note
		switch {
		case fired.Unfinished == "":
		case f.Overlap == job.OverlapSkip:
			note = join(note, fmt.Sprintf("no job for %s: %s is not finished", madeFor(entries[len(entries)-1]), last))
			entries = nil
		case f.Overlap == job.OverlapCancel:
			if fired.Cancelled, err = cancelIn(ctx, tx, last, "schedule "+f.String(), "the next one is due"); err != nil {
				return err
			}
		}
		if fired.Jobs, err = enqueueIn(ctx, tx, entries); err != nil {
			return err
		}
		done := args{"id": f.ID, "next": optional(f.Next), "fired": len(entries), "skipped": f.Left + len(f.Entries) - len(entries), "note": note,
			"last": (*time.Time)(nil), "job": ""}
		if n := len(entries); n > 0 {
			done["last"], done["job"] = &entries[n-1].Request.RunAt, string(fired.Jobs[n-1].ID)
			if err := tellIn(ctx, tx, f, fired.Jobs); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, advance, done)
		return err
	})
	return fired, err
}

// madeFor is the time of a schedule that a job is made for.
func madeFor(e job.Entry) string { return e.Request.RunAt.UTC().Format(time.RFC3339) }

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// tellIn writes into the record of each job which schedule made it, and into the last
// what was missed.
func tellIn(ctx context.Context, tx pgx.Tx, f job.Firing, jobs []job.Accepted) error {
	ids, notes := make([]string, len(jobs)), make([]string, len(jobs))
	for i, a := range jobs {
		ids[i], notes[i] = string(a.ID), f.String()+" for "+madeFor(f.Entries[i])
	}
	notes[len(notes)-1] = join(notes[len(notes)-1], f.Note)
	_, err := tx.Exec(ctx, tellJobs, args{"jobs": ids, "notes": notes})
	return err
}

// cancelIn cancels a job that may have finished by now.
func cancelIn(ctx context.Context, tx pgx.Tx, id job.ID, by, why string) (*job.CancelAnswer, error) {
	if _, err := tx.Exec(ctx, lockJob, args{"id": string(id)}); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, cancel, args{"id": string(id), "by": by, "why": why})
	if err != nil {
		return nil, err
	}
	got, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[cancelled])
	if err != nil || got.State == "" {
		return nil, err
	}
	answer, err := got.answer(id)
	return &answer, err
}

// enqueueIn writes jobs as Enqueue does, within a transaction.
func enqueueIn(ctx context.Context, tx pgx.Tx, entries []job.Entry) ([]job.Accepted, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	s, err := enqueueing(entries)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, s.sql, s.args)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, toAccepted)
}

const deferSchedule = `
	UPDATE turnpike.schedules SET retry_at = now() + @wait::interval, note = @note, note_at = now()
	WHERE id = @id AND version = @version AND next_at = @at`

// Defer notes why a schedule that is due cannot fire, and lets the others go first for a
// while. It returns job.ErrNotLeader.
func (db *DB) Defer(ctx context.Context, epoch int64, d job.Due, wait time.Duration, why string) error {
	_, err := together(ctx, db, "defer schedule "+d.String(), pgx.RowTo[int], holding(epoch),
		stmt{deferSchedule, args{"id": d.ID, "version": d.Version, "at": d.At, "wait": wait, "note": why}})
	return err
}
