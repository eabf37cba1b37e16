package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/job"
)

// EndFunc ends what id names, with everything it started, and returns once its
// absence is verified. found says whether it was still there. An error means that
// it may be there yet.
type EndFunc func(ctx context.Context, id agent.Identity) (found bool, err error)

// Orphans keeps the record of what outlived its worker.
type Orphans interface {
	RecordOrphan(ctx context.Context, o job.Orphan) error
}

// Sessions are the session directories of this worker.
type Sessions interface {
	// New makes the directory of a turn.
	New(name string) (dir string, err error)
	// Read tells what is in the directory of a turn whose worker died.
	Read(dir string) (Past, error)
	List() ([]SessionEntry, error)
	Remove(dir string) error
}

// Past is what a session directory still tells of a turn.
type Past struct {
	Interrupted agent.Interrupted
	// Progress and Models are what the transcript proves, however it ends.
	Progress  agent.Progress
	Models    map[string]agent.Usage
	StartedAt time.Time // zero: nothing was started
	// Result is set when the turn had ended: nothing of it is lost.
	Result *agent.Result
}

// SessionEntry describes one session directory.
type SessionEntry struct {
	Dir       string
	Bytes     int64
	StartedAt time.Time
	EndedAt   time.Time // zero: it has no end on record
}

// endTimeout bounds ending one thing.
const endTimeout = 30 * time.Second

// Recovery ends and reports what an earlier worker with the same state directory
// left. It runs before anything else is started there.
type Recovery struct {
	State    *StateDir
	Worker   string
	Host     string
	End      EndFunc
	Sessions Sessions
	Orphans  Orphans // nil: a worker without a database
	// Put takes the reports over; nil without a database.
	Put func(job.Report) error
	// Reported says whether the spool has the attempt's report; nil: it has none.
	Reported func(job.ID, int) bool
	// Clean removes the workspaces of earlier attempts. It is called once nothing
	// is left that could still write to one; nil removes nothing.
	Clean  func() error
	Prices *Prices
	Log    *slog.Logger
}

// Run handles every mark. What could not be ended keeps its mark and is told in
// the error; the worker may serve nevertheless.
func (r *Recovery) Run(ctx context.Context) error {
	all, err := r.State.marks().list()
	errs := []error{err}
	for _, m := range all {
		if err := r.one(ctx, m); err != nil {
			errs = append(errs, fmt.Errorf("recover attempt %s: %w", m.key(), err))
		}
	}
	if err := errors.Join(errs...); err != nil || r.Clean == nil {
		return err
	}
	return r.Clean()
}

func (r *Recovery) one(ctx context.Context, m *mark) error {
	var past Past
	if m.Session != "" {
		var err error
		if past, err = r.Sessions.Read(m.Session); err != nil {
			r.Log.Warn("a leftover session tells nothing", "job", m.Lease.Job, "attempt", m.Lease.Attempt, "error", err)
		}
	}
	var left []thing
	var orphans, alive []job.Orphan
	for _, t := range m.Things {
		o, ended := r.end(ctx, m, t, past)
		if !ended {
			left, alive = append(left, t), append(alive, o)
		}
		if t.Kind != agent.KindServer || !ended {
			orphans = append(orphans, o)
		}
	}
	m.Things = left
	clone := r.keepClone(m)
	if !m.Local {
		unrecorded := r.record(ctx, orphans)
		if r.Reported != nil && r.Reported(m.Lease.Job, m.Lease.Attempt) {
			m.Reported = true
		}
		if !m.Reported {
			rep := r.report(m, past)
			// A report that does not list what still runs says that it is gone.
			rep.Left, rep.Patch = union(unrecorded, alive), clone
			if err := r.Put(rep); err != nil {
				return err
			}
			m.Reported = true
		}
	}
	if len(left) == 0 {
		return r.State.marks().remove(m.key())
	}
	if err := r.State.marks().write(m); err != nil {
		return err
	}
	return fmt.Errorf("%d of its processes or containers could not be shown to be gone", len(left))
}

// keepClone keeps the clone an interrupted turn worked in, once nothing can write to it:
// the base it was made from is known no more, so that nobody can make a patch of it.
func (r *Recovery) keepClone(m *mark) *job.Patch {
	if m.Clone == "" || m.Session == "" || len(m.Things) > 0 {
		return nil
	}
	if _, err := os.Lstat(m.Clone); err != nil {
		return nil // it was released
	}
	if err := saveWorkspace(m.Clone, m.Session); err != nil {
		r.Log.Error("the workspace of an interrupted turn could not be kept", "job", m.Lease.Job, "attempt", m.Lease.Attempt, "error", err)
		return nil
	}
	return &job.Patch{Problem: "its worker ended during the attempt; the workspace is in the session directory"}
}

// end ends one thing and describes it as an orphan.
func (r *Recovery) end(ctx context.Context, m *mark, t thing, past Past) (job.Orphan, bool) {
	o := orphanOf(m, t)
	o.StoppedBy, o.Transcript, o.Turns = r.Worker, past.Interrupted.Transcript, past.Interrupted.Turns
	if t.Kind == agent.KindProcess && !t.Live {
		// Nobody knows its identity: it was about to be started. If it was, it ended with its
		// worker, whose socket its root holds.
		o.State, o.Note = job.OrphanGone, "its worker ended before it was known to run"
		return o, true
	}
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	found, err := r.End(ctx, t.Identity)
	log := r.Log.With("job", m.Lease.Job, "attempt", m.Lease.Attempt, "kind", t.Kind, "pid", t.PID, "id", t.ID)
	switch {
	case err != nil:
		o.State, o.Note = job.OrphanUnreachable, text(err)
		log.Error("what an earlier worker left cannot be ended", "error", err)
	case found:
		o.State, o.Note = job.OrphanGone, "killed by the next worker of this state directory"
		log.Warn("what an earlier worker left was ended")
	default:
		o.State, o.Note = job.OrphanGone, "had ended with its worker"
	}
	return o, err == nil
}

func orphanOf(m *mark, t thing) job.Orphan {
	identity, err := json.Marshal(t.Identity)
	if err != nil {
		identity = nil // it is plain data
	}
	return job.Orphan{Job: m.Lease.Job, Attempt: m.Lease.Attempt, Kind: t.Kind, Identity: identity, Worker: m.Worker, State: job.OrphanUnreachable}
}

// record writes the orphans and gives back those it could not: they go with the
// report.
func (r *Recovery) record(ctx context.Context, orphans []job.Orphan) (unrecorded []job.Orphan) {
	for _, o := range orphans {
		if err := r.Orphans.RecordOrphan(ctx, o); err != nil {
			r.Log.Warn("an orphan is recorded with its attempt's report", "job", o.Job, "attempt", o.Attempt, "error", err)
			unrecorded = append(unrecorded, o)
		}
	}
	return unrecorded
}

// union is a, and what of b it does not have.
func union(a, b []job.Orphan) []job.Orphan {
	for _, o := range b {
		if !slices.ContainsFunc(a, func(have job.Orphan) bool { return have.Kind == o.Kind }) {
			a = append(a, o)
		}
	}
	return a
}

// report is what can still be said of the attempt.
func (r *Recovery) report(m *mark, past Past) job.Report {
	rep := job.Report{
		Version: job.ReportVersion, Lease: m.Lease, Worker: m.Worker, Host: r.Host,
		Agent: m.Agent, Model: m.Model, SessionDir: m.Session, EndedAt: time.Now().UTC(),
	}
	if past.Result != nil {
		ending, reason := Ended(past.Result, nil, nil)
		rep.Ending, rep.Reason = ending, reason
		fillResult(&rep, past.Result, r.Prices)
		return rep
	}
	rep.Ending, rep.Reason = job.EndLost, "its worker ended during the attempt"
	rep.StartedAt = past.StartedAt
	if rep.StartedAt.IsZero() {
		rep.StartedAt = m.StartedAt
	}
	if rep.Started = !rep.StartedAt.IsZero(); rep.Started {
		rep.DurationMS = time.Since(rep.StartedAt).Milliseconds()
	}
	fillProgress(&rep, past.Progress, past.Models, r.Prices)
	rep.IsError, rep.ErrorSubtype, rep.ExitCode = rep.Started, agent.SubtypeNoResult, -1
	rep.NumTurns = max(rep.NumTurns, past.Interrupted.Turns)
	return rep
}
