package job

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// Missed says what becomes of the times of a schedule that came while nobody could act
// on them: during an outage, mostly.
type Missed string

// The policies for missed times.
const (
	MissedSkip Missed = "skip" // nothing is made up for
	MissedOnce Missed = "once" // the default: one job for all of them
	MissedAll  Missed = "all"  // a job for each, of the newest MaxMadeUp
)

// Overlap says what becomes of a time at which the last job of the schedule is not
// finished.
type Overlap string

// The policies for overlapping jobs.
const (
	OverlapSkip   Overlap = "skip" // the default, but with MissedAll
	OverlapQueue  Overlap = "queue"
	OverlapCancel Overlap = "cancel" // the last job, and enqueue the next
)

// MissedPolicies lists every policy for missed times.
func MissedPolicies() []Missed { return []Missed{MissedSkip, MissedOnce, MissedAll} }

// OverlapPolicies lists every policy for overlapping jobs.
func OverlapPolicies() []Overlap { return []Overlap{OverlapSkip, OverlapQueue, OverlapCancel} }

const (
	// MissedAfter is how late a time can still be acted on without being missed: a
	// dispatcher that takes over from another needs seconds.
	MissedAfter = time.Minute
	// MaxMadeUp is how many jobs may come of one schedule at once.
	MaxMadeUp = 100
)

// Schedule enqueues a request at the times of a cron expression. A tenant's schedules
// have different names.
type Schedule struct {
	Tenant  string  `json:"tenant"` // its request's
	Name    string  `json:"name"`
	Cron    string  `json:"cron"`
	Zone    string  `json:"tz"` // default UTC
	Missed  Missed  `json:"missed"`
	Overlap Overlap `json:"overlap"`
	// From and Until are the first and the last moment it may act; zero is no bound.
	From  time.Time `json:"from,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Request is what is enqueued, the exact bytes that were validated.
	Request stdjson.RawMessage `json:"request,omitempty"`
}

// ScheduleView is a schedule as one looks at it.
type ScheduleView struct {
	Schedule
	Producer  string         `json:"producer"` // who set it last, and whose its jobs are
	SetAt     time.Time      `json:"set_at"`
	NextAt    *time.Time     `json:"next_at"`           // nil: paused, or over
	LastAt    *time.Time     `json:"last_at,omitempty"` // the time its last job was made for
	LastJob   ID             `json:"last_job,omitempty"`
	LastState State          `json:"last_state,omitempty"`
	Fired     int64          `json:"fired"`   // jobs made
	Skipped   int64          `json:"skipped"` // times without a job of their own
	Note      string         `json:"note,omitempty"`
	NoteAt    *time.Time     `json:"note_at,omitempty"`
	Paused    *SchedulePause `json:"paused,omitempty"`
}

// SchedulePause is who paused a schedule, and why.
type SchedulePause struct {
	By  string    `json:"by"`
	Why string    `json:"why,omitempty"`
	At  time.Time `json:"at"`
}

// scheduleForm fits one element of a path.
var scheduleForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// DecodeSchedule reads a schedule of a name as strictly as Decode reads requests, its
// request included, and fills in what it leaves to defaults. Its error is a *FieldError
// or an Invalid.
func DecodeSchedule(name string, b []byte) (Schedule, error) {
	if err := scan(b); err != nil {
		return Schedule{}, err
	}
	var s Schedule
	if err := json.Unmarshal(b, &s, json.RejectUnknownMembers(true)); err != nil {
		return Schedule{}, fieldError(err)
	}
	err := s.complete(name)
	return s, err
}

// complete fills in defaults and gathers every problem.
func (s *Schedule) complete(name string) error {
	var p problems
	if s.Name != "" && s.Name != name {
		p.add("name", "is %q, and the schedule to be set is %q", clip(s.Name), clip(name))
	}
	s.Name = name
	if !scheduleForm.MatchString(name) {
		p.add("name", `%q: want letters, digits, dots, dashes and underscores`, clip(name))
	}
	if s.Zone == "" {
		s.Zone = "UTC"
	}
	if s.Missed == "" {
		s.Missed = MissedOnce
	}
	if s.Overlap == "" {
		s.Overlap = OverlapSkip
		if s.Missed == MissedAll {
			s.Overlap = OverlapQueue
		}
	}
	switch _, err := ParseCron(s.Cron, s.Zone); {
	case s.Cron == "":
		p.add("cron", "is required")
	case len(s.Cron) > maxText:
		p.add("cron", "is %d bytes; at most %d", len(s.Cron), maxText)
	case err != nil:
		p = append(p, fieldsOf("", err)...)
	}
	p.oneOf("missed", string(s.Missed), toStrings(MissedPolicies()))
	p.oneOf("overlap", string(s.Overlap), toStrings(OverlapPolicies()))
	if s.Missed == MissedAll && s.Overlap != OverlapQueue && slices.Contains(OverlapPolicies(), s.Overlap) {
		p.add("overlap", "all but one of the missed jobs would be lost to %s; with missed all, want queue: a concurrency_key in the request makes them run one after another", s.Overlap)
	}
	p.year("from", s.From)
	p.year("until", s.Until)
	if !s.Until.IsZero() && !s.Until.After(s.From) {
		p.add("until", "is not after from")
	}
	s.checkRequest(&p)
	if len(p) > 0 {
		return Invalid(p)
	}
	return nil
}

func (s *Schedule) checkRequest(p *problems) {
	if len(s.Request) == 0 {
		p.add("request", "is required: it is what is enqueued each time")
		return
	}
	r, err := Decode(s.Request)
	if err != nil {
		*p = append(*p, fieldsOf("request", err)...)
		return
	}
	if s.Tenant != "" && s.Tenant != r.Tenant {
		p.add("tenant", "is %q, and the request's is %q", clip(s.Tenant), r.Tenant)
	}
	s.Tenant = r.Tenant
	if !r.RunAt.IsZero() {
		p.add("request.run_at", "is the schedule's to say: leave it out")
	}
	if !r.Deadline.IsZero() {
		p.add("request.deadline", "would be over for all jobs but the first: leave it out")
	}
	if r.After != nil {
		p.add("request.after", "would name the same jobs each time: leave it out")
	}
	if r.ResumeFrom != "" {
		p.add("request.resume_from", "would name the same job each time: leave it out")
	}
	if s.Overlap == OverlapCancel && r.DedupKey != "" {
		p.add("request.dedup_key", "would give the next job's place to the one that is being cancelled: leave it out, or do not cancel")
	}
}

// fieldsOf lists the problems of a part of what was sent.
func fieldsOf(part string, err error) Invalid {
	all, ok := errors.AsType[Invalid](err)
	if !ok {
		one, ok := errors.AsType[*FieldError](err)
		if !ok {
			one = &FieldError{Problem: err.Error()}
		}
		all = Invalid{one}
	}
	out := make(Invalid, len(all))
	for i, f := range all {
		out[i] = &FieldError{Field: strings.Trim(part+"."+f.Field, "."), Problem: f.Problem}
	}
	return out
}

// Timetable is when a schedule acts.
type Timetable struct {
	cron        Cron
	from, until time.Time
}

// Timetable reads the schedule's expression, zone and bounds.
func (s *Schedule) Timetable() (Timetable, error) {
	c, err := ParseCron(s.Cron, s.Zone)
	return Timetable{c, s.From, s.Until}, err
}

// Next is the first time after another; zero when there is none.
func (t Timetable) Next(after time.Time) time.Time {
	if after.Before(t.from) {
		after = t.from.Add(-1)
	}
	next := t.cron.Next(after)
	if !t.until.IsZero() && next.After(t.until) {
		return time.Time{}
	}
	return next
}

// Due is a schedule whose time has come.
type Due struct {
	Schedule
	ID       int64
	Version  int // grows with each change that a person makes
	Producer string
	At       time.Time // the first time that has come
	Now      time.Time // by the database's clock
}

// String names the schedule for people.
func (d Due) String() string { return d.Tenant + "/" + d.Name }

// Firing is what is to be done about a schedule that is due.
type Firing struct {
	Due
	// Entries are the jobs to be made, the oldest first. The time each is made for is
	// its request's RunAt.
	Entries []Entry
	Next    time.Time // zero: there is none
	// Late is how many times were missed, Left how many times get no job of their own.
	Late, Left int
	Note       string // what to tell about them
}

// Fired is what came of it.
type Fired struct {
	Jobs []Accepted
	// Unfinished is the last job where that was not finished, and Cancelled what
	// cancelling it answered, under that policy.
	Unfinished ID
	Cancelled  *CancelAnswer
}

// Firing decides by the schedule's policy about every time that has come.
func (d Due) Firing() (Firing, error) {
	f := Firing{Due: d}
	table, err := d.Timetable()
	if err != nil {
		return f, err
	}
	request, err := Decode(d.Request)
	if err != nil {
		return f, err
	}
	var times []time.Time // the newest that may get a job
	came := 0
	for f.Next = d.At; !f.Next.IsZero() && !f.Next.After(d.Now); f.Next = table.Next(f.Next) {
		came++
		late := d.Now.Sub(f.Next) >= MissedAfter
		if late {
			f.Late++
		}
		switch {
		case d.Missed == MissedAll && len(times) == MaxMadeUp:
			times = append(times[1:], f.Next)
		case d.Missed == MissedAll:
			times = append(times, f.Next)
		case d.Missed == MissedOnce || !late:
			times = append(times[:0], f.Next)
		}
	}
	f.Left = came - len(times)
	f.Note = d.tell(f.Late, f.Left)
	for _, at := range times {
		r := request
		r.RunAt = at
		f.Entries = append(f.Entries, Entry{Request: r, Body: d.Request, Producer: d.Producer,
			// With a space in it, it is none that a producer can send.
			IdempotencyKey: fmt.Sprintf("schedule %d %s", d.ID, at.UTC().Format(time.RFC3339))})
	}
	return f, nil
}

// Oldest is f for its oldest job alone; the times of the others are still to be acted on.
func (f Firing) Oldest() Firing {
	if len(f.Entries) > 1 {
		f.Next = f.Entries[1].Request.RunAt
		f.Entries = f.Entries[:1]
	}
	return f
}

// tell says what became of the times that were missed.
func (d Due) tell(late, left int) string {
	if late == 0 {
		return ""
	}
	since := d.At.UTC().Format(time.RFC3339)
	switch {
	case d.Missed == MissedSkip:
		return fmt.Sprintf("%d missed since %s, skipped", late, since)
	case d.Missed == MissedAll && left > 0:
		return fmt.Sprintf("%d missed since %s; the %d oldest are not made up for", late, since, left)
	default:
		return fmt.Sprintf("%d missed since %s, made up for", late, since)
	}
}
