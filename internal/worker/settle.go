package worker

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"turnpike/internal/job"
)

// Reports records what attempts left, idempotently, by the lease's token. An error
// means that nothing is known and the same reports are settled again, but for
// job.ErrInvalid: one of them can never be recorded.
type Reports interface {
	Settle(ctx context.Context, reports []job.Report) ([]job.Settled, error)
}

// Results is the second way for reports, through the stream, while Postgres
// cannot be reached. Publishing is no settling: the report is kept until Postgres
// answers.
type Results interface {
	PublishReport(ctx context.Context, r job.Report) error
}

// disposal is what becomes of a spooled report.
type disposal int

const (
	keep      disposal = iota // settle it again
	forget                    // it is recorded
	setAside                  // nobody can ever record it
	gathering = 2 * time.Millisecond
)

// disposals is the one table of what each answer means.
var disposals = map[job.SettleCase]disposal{
	job.SettledNow:    forget,
	job.SettledBefore: forget,
	job.SettledLate:   forget,
	job.SettledNever:  setAside,
}

// Settler makes each report durable here, then in Postgres, then forgets it.
type Settler struct {
	Reports Reports
	Results Results // nil is no second way
	State   *StateDir
	// Settled, when set, is called for each attempt whose report is in Postgres, or never
	// will be.
	Settled func(job.Settled)
	// Most is how many unsettled reports are kept before Room refuses; default 1000.
	Most int
	// CallTimeout bounds each call; default 15 s. Away is how long Postgres is tried
	// before the stream is; default 30 s.
	CallTimeout, Away time.Duration
	Hooks             Hooks
	Log               *slog.Logger

	once    sync.Once
	wake    chan struct{}
	spool   spool
	journal *journal

	mu      sync.Mutex // guards waiting
	waiting map[attemptKey]*unsettled
}

// unsettled is a report on its way.
type unsettled struct {
	key       attemptKey
	report    *job.Report // nil: it is read from the spool
	since     time.Time
	due       time.Time
	tries     int
	refused   int // times it was tried alone and Postgres would not take it
	published bool
	where     whereabouts
	volume    int // of the journal, when it is there
}

// whereabouts is where a report survives a crash.
type whereabouts int

const (
	inSpool whereabouts = iota
	inJournal
	nowhere // the disk would not take it: the copy in memory is the only one
)

func (s *Settler) init() {
	s.once.Do(func() {
		s.wake = make(chan struct{}, 1)
		s.spool = s.State.newSpool()
		s.journal = s.State.newJournal()
		s.waiting = make(map[attemptKey]*unsettled)
		s.Most = cmp.Or(s.Most, 1000)
		s.CallTimeout = cmp.Or(s.CallTimeout, 15*time.Second)
		s.Away = cmp.Or(s.Away, 30*time.Second)
	})
}

// Put takes a report over. Once it returns nil the report survives a crash. On an
// error it is kept in memory only and settled nevertheless. Of one that cannot be
// written the least is taken.
func (s *Settler) Put(r job.Report) error {
	s.init()
	s.Hooks.at(BeforeSpool)
	line, err := encodeReport(r)
	if err != nil {
		s.Log.Error("a report cannot be written; what its job needs of it is kept", "job", r.Lease.Job, "attempt", r.Lease.Attempt, "error", err)
		r = least(r, "the full report could not be written; the session directory has what the agent said")
		line, err = encodeReport(r)
	}
	u := &unsettled{key: keyOf(r.Lease), report: &r, where: nowhere}
	if err == nil {
		if u.volume, err = s.journal.put(line); err == nil {
			u.where = inJournal
		}
	}
	s.Hooks.at(AfterSpool)
	s.add(u)
	return err
}

// Replay takes over what an earlier worker spooled. What cannot be read is set
// aside and holds up nothing.
func (s *Settler) Replay() error {
	s.init()
	errs := []error{s.journal.recover(s.spool.keepFromJournal)}
	keys, strangers, err := s.spool.list()
	errs = append(errs, err)
	for _, name := range strangers {
		s.Log.Error("a file in the spool is no report; it is set aside", "file", name)
		errs = append(errs, s.spool.reject(name))
	}
	for _, k := range keys {
		s.add(&unsettled{key: k})
	}
	return errors.Join(errs...)
}

// Pending says whether the attempt's report is not settled yet.
func (s *Settler) Pending(id job.ID, attempt int) bool {
	s.init()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting[attemptKey{id, attempt}] != nil
}

// Count is how many reports are not settled yet.
func (s *Settler) Count() int {
	s.init()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}

func (s *Settler) add(u *unsettled) {
	u.since = time.Now()
	u.due = u.since
	s.mu.Lock()
	s.waiting[u.key] = u
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// maxBatch bounds one statement.
const maxBatch = 200

// Run settles until ctx ends; what is left then stays in the spool.
func (s *Settler) Run(ctx context.Context) error {
	s.init()
	for {
		next := s.round(ctx)
		var timer <-chan time.Time
		if !next.IsZero() {
			timer = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-timer:
		case <-s.wake:
			// Reports that end together are settled together.
			select {
			case <-time.After(gathering):
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// Flush settles until nothing is left or ctx ends; what is left then is in the spool.
// Run must not be running.
func (s *Settler) Flush(ctx context.Context) {
	s.init()
	for ctx.Err() == nil {
		next := s.round(ctx)
		if next.IsZero() {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(next)):
		}
	}
	s.mu.Lock()
	left := slices.Collect(maps.Values(s.waiting))
	s.mu.Unlock()
	for _, u := range left {
		s.toSpool(u)
	}
	if err := s.journal.close(); err != nil {
		s.Log.Error("the journal", "error", err)
	}
}

// toSpool gives a report that is in the journal, or was nowhere, a file of its own.
func (s *Settler) toSpool(u *unsettled) {
	if u.where == inSpool {
		return
	}
	if err := s.spool.put(*u.report); err != nil {
		s.Log.Error("the spool", "error", err)
		return
	}
	if u.where == inJournal {
		s.journal.forget(u.volume)
	}
	u.where = inSpool
}

// remove forgets a report that is settled.
func (s *Settler) remove(u *unsettled) error {
	switch u.where {
	case inJournal:
		s.journal.forget(u.volume)
	case inSpool:
		return s.spool.remove(u.key)
	case nowhere:
	}
	return nil
}

// reject sets a report aside for a person to look at.
func (s *Settler) reject(u *unsettled) error {
	if u.where == inSpool {
		return s.spool.reject(u.key.file())
	}
	return errors.Join(s.spool.setAside(*u.report), s.remove(u))
}

// round settles what is due and says when something is next; zero is never.
func (s *Settler) round(ctx context.Context) time.Time {
	for ctx.Err() == nil {
		due := s.due(time.Now())
		if len(due) == 0 {
			break
		}
		s.settle(ctx, due)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var next time.Time
	for _, u := range s.waiting {
		if next.IsZero() || u.due.Before(next) {
			next = u.due
		}
	}
	return next
}

func (s *Settler) due(now time.Time) []*unsettled {
	s.mu.Lock()
	defer s.mu.Unlock()
	var due []*unsettled
	for _, u := range s.waiting {
		if !u.due.After(now) {
			due = append(due, u)
		}
	}
	slices.SortFunc(due, func(a, b *unsettled) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.key.Job, b.key.Job)) })
	return due[:min(len(due), maxBatch)]
}

// settle tries one batch. A batch that fails is tried again one by one, so that
// a report Postgres will not take holds up no other.
func (s *Settler) settle(ctx context.Context, batch []*unsettled) {
	var reports []job.Report
	var sent []*unsettled
	for _, u := range batch {
		r, err := s.load(u)
		if err != nil {
			s.unreadable(u, err)
			continue
		}
		reports, sent = append(reports, r), append(sent, u)
	}
	if len(sent) == 0 {
		return
	}
	answers, err := s.call(ctx, reports)
	if err != nil && len(sent) > 1 && !away(err) && ctx.Err() == nil {
		s.Log.Warn("settling several reports failed; trying one by one", "reports", len(sent), "error", err)
		for _, u := range sent {
			s.settle(ctx, []*unsettled{u})
		}
		return
	}
	if errors.Is(err, job.ErrInvalid) && len(sent) == 1 {
		u := sent[0]
		s.Log.Error("Postgres refuses a report for what it says; it is set aside", "job", u.key.Job, "attempt", u.key.Attempt, "file", u.key.file(), "error", err)
		s.done(u, job.Settled{Job: u.key.Job, Attempt: u.key.Attempt, How: job.SettledNever}, s.reject(u))
		return
	}
	if err != nil && len(sent) == 1 && !away(err) && ctx.Err() == nil {
		u := sent[0]
		if u.refused++; u.refused >= lonelyTries && s.lessen(ctx, u, reports[0], err) {
			return
		}
	}
	answered := make(map[attemptKey]job.Settled, len(answers))
	for _, a := range answers {
		answered[attemptKey{a.Job, a.Attempt}] = a
	}
	if err == nil {
		s.Hooks.at(AfterSettle)
	}
	for i, u := range sent {
		a, ok := answered[u.key]
		switch what := disposals[a.How]; {
		case err != nil || !ok || what == keep:
			s.again(ctx, u, reports[i], err)
		case what == setAside:
			s.Log.Error("Postgres knows no such attempt; its report is set aside", "job", u.key.Job, "attempt", u.key.Attempt, "file", u.key.file())
			s.done(u, a, s.reject(u))
		default:
			if a.How == job.SettledLate {
				s.Log.Warn("the attempt had been closed; its result and cost were added", "job", u.key.Job, "attempt", u.key.Attempt, "state", a.State)
			}
			s.done(u, a, s.remove(u))
		}
	}
}

// lonelyTries is how often a report is tried alone before the least of it is.
const lonelyTries = 4

// lessen settles the least of a report that Postgres will not take and sets the whole
// aside: a job must not run for ever for what one report says. When the least is not
// taken either, the fault is no report's, and the whole is kept.
func (s *Settler) lessen(ctx context.Context, u *unsettled, whole job.Report, refused error) bool {
	small := least(whole, "Postgres would not take the full report; its worker has set it aside as "+u.key.file())
	answers, err := s.call(ctx, []job.Report{small})
	if err != nil || len(answers) != 1 || disposals[answers[0].How] == keep {
		return false
	}
	s.Log.Error("Postgres does not take a report; what its job needs of it is settled, and the whole is set aside",
		"job", u.key.Job, "attempt", u.key.Attempt, "file", u.key.file(), "error", refused)
	s.done(u, answers[0], s.reject(u))
	return true
}

func (s *Settler) call(ctx context.Context, reports []job.Report) ([]job.Settled, error) {
	ctx, cancel := context.WithTimeout(ctx, s.CallTimeout)
	defer cancel()
	return s.Reports.Settle(ctx, reports)
}

// away says whether an error is about reaching Postgres and not about a report.
func away(err error) bool {
	return errors.Is(err, job.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

func (s *Settler) load(u *unsettled) (job.Report, error) {
	if u.report != nil {
		return *u.report, nil
	}
	return s.spool.get(u.key)
}

func (s *Settler) unreadable(u *unsettled, err error) {
	if !errors.Is(err, errUnreadable) && !errors.Is(err, fs.ErrNotExist) {
		s.postpone(u)
		s.Log.Error("a spooled report cannot be read now", "job", u.key.Job, "attempt", u.key.Attempt, "error", err)
		return
	}
	s.Log.Error("a spooled report cannot be read; it is set aside", "job", u.key.Job, "attempt", u.key.Attempt, "error", err)
	// Nothing will be settled: whoever keeps its lease must let it lapse.
	s.done(u, job.Settled{Job: u.key.Job, Attempt: u.key.Attempt, How: job.SettledNever}, s.spool.reject(u.key.file()))
}

// again keeps a report for later, and brings it to the stream when Postgres has
// been away for a while.
func (s *Settler) again(ctx context.Context, u *unsettled, r job.Report, err error) {
	if ctx.Err() == nil {
		s.Log.Warn("a report is not settled yet", "job", u.key.Job, "attempt", u.key.Attempt, "tries", u.tries+1, "error", err)
	}
	if s.Results != nil && !u.published && time.Since(u.since) >= s.Away && ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(ctx, s.CallTimeout)
		defer cancel()
		if err := s.Results.PublishReport(ctx, r); err != nil {
			s.Log.Warn("a report could not be published either", "job", u.key.Job, "attempt", u.key.Attempt, "error", err)
		} else {
			u.published = true
		}
	}
	if s.toSpool(u); u.where == inSpool {
		u.report = nil // an outage must not fill the memory
	}
	s.postpone(u)
}

// postpone backs off from a quarter of a second to ten, with jitter.
func (s *Settler) postpone(u *unsettled) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u.tries++
	wait := min(250*time.Millisecond<<min(u.tries-1, 10), 10*time.Second)
	u.due = time.Now().Add(wait/2 + rand.N(wait/2))
}

func (s *Settler) done(u *unsettled, a job.Settled, err error) {
	if err != nil {
		// It is settled; a file that stays is settled again at the next start.
		s.Log.Error("the spool", "error", err)
	}
	s.drop(u)
	if s.Settled != nil {
		s.Settled(a)
	}
}

func (s *Settler) drop(u *unsettled) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[u.key] == u { // the same attempt may have been put again meanwhile
		delete(s.waiting, u.key)
	}
}
