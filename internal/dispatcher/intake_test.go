package dispatcher_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"turnpike/internal/dispatcher"
	"turnpike/internal/job"
)

const request = `{
	"api_version": "turnpike/v1",
	"prompt": "say hello",
	"profile": {"name": "coder", "agent": "claude", "sandbox": "none", "confine": true},
	"grants": {},
	"workspace": {"scratch": true}
}`

// desk is Postgres and NATS for intake and control.
type desk struct {
	entries  []job.Entry
	existing bool
	fail     error
	answer   job.CancelAnswer
	woken    int
	pushed   []job.ID
}

func (d *desk) Enqueue(_ context.Context, entries []job.Entry) ([]job.Accepted, error) {
	if d.fail != nil {
		return nil, d.fail
	}
	if d.woken > 0 {
		return nil, errors.New("woken before the commit")
	}
	d.entries = append(d.entries, entries...)
	out := make([]job.Accepted, len(entries))
	for i := range out {
		out[i] = job.Accepted{ID: id(i + 1), State: job.Queued, Existing: d.existing}
	}
	return out, nil
}

func (d *desk) Cancel(context.Context, job.ID, string, string) (job.CancelAnswer, error) {
	return d.answer, d.fail
}

func (d *desk) Retry(context.Context, job.ID, string) (job.Accepted, error) {
	return job.Accepted{ID: id(9)}, d.fail
}

func (d *desk) Pause(context.Context, job.Scope, string, time.Time, string, string) (int, error) {
	return 2, d.fail
}

func (d *desk) Redrive(context.Context, job.Redrive, string) (job.RedriveAnswer, error) {
	return job.RedriveAnswer{Redriven: 3}, d.fail
}

func (d *desk) SetWeight(context.Context, string, int, string) error          { return d.fail }
func (d *desk) Weights(context.Context) ([]job.Weight, error)                 { return nil, d.fail }
func (d *desk) Lift(context.Context, job.Scope, string, string, string) error { return d.fail }
func (d *desk) Pauses(context.Context) ([]job.Pause, error)                   { return nil, d.fail }
func (d *desk) SetLimit(context.Context, string, int, string) error           { return d.fail }

func (d *desk) SetBudget(context.Context, job.Budget, string, string) error       { return d.fail }
func (d *desk) RemoveBudget(context.Context, job.BudgetKey, string, string) error { return d.fail }
func (d *desk) Budgets(context.Context) ([]job.Budget, error)                     { return nil, d.fail }
func (d *desk) OrphansLeft(context.Context) ([]job.Orphan, error)                 { return nil, d.fail }
func (d *desk) CloseOrphan(context.Context, job.Orphan, string, string) error     { return d.fail }

func (d *desk) Wake() error {
	d.woken++
	return job.ErrUnavailable // it may fail: the answer stands
}

func (d *desk) PushCancel(id job.ID) error {
	d.pushed = append(d.pushed, id)
	return job.ErrUnavailable
}

// ci enqueues for one tenant.
var ci = job.Producer{Name: "ci", Tenants: []string{job.DefaultTenant}}

func TestIntake(t *testing.T) {
	t.Parallel()
	intake := func(d *desk) *dispatcher.Intake {
		return &dispatcher.Intake{Jobs: d, Waker: d, Bell: dispatcher.NewBell(), Log: quiet}
	}

	t.Run("requests refer to those before them in their own call", func(t *testing.T) {
		naming := func(ref string) json.RawMessage {
			return json.RawMessage(strings.Replace(request, "{\n", fmt.Sprintf("{\n\"after\": {\"jobs\": [%q]},\n", ref), 1))
		}
		d := &desk{}
		_, alone := intake(d).Accept(t.Context(), ci, "", naming("#0"))
		_, ahead := intake(d).AcceptAll(t.Context(), ci, "", []json.RawMessage{naming("#1"), naming("#0"), naming("#2")})
		for field, err := range map[string]error{"after.jobs[0]": alone, "[0].after.jobs[0]": ahead} {
			if p, ok := errors.AsType[*job.FieldError](err); !ok || p.Field != field {
				t.Errorf("%v, want %s refused", err, field)
			}
		}
		if all, ok := errors.AsType[job.Invalid](ahead); !ok || len(all) != 2 || all[1].Field != "[2].after.jobs[0]" || len(d.entries) > 0 {
			t.Errorf("%v, and %d are written", ahead, len(d.entries))
		}
		if _, err := intake(d).AcceptAll(t.Context(), ci, "", []json.RawMessage{[]byte(request), naming("#0")}); err != nil {
			t.Error(err)
		}
	})
	t.Run("keeps the body as it came and wakes after the commit", func(t *testing.T) {
		t.Parallel()
		d := &desk{}
		i := intake(d)
		got, err := i.Accept(t.Context(), ci, "k", json.RawMessage(request))
		if err != nil || got.ID != id(1) {
			t.Fatalf("%+v, %v", got, err)
		}
		e := d.entries[0]
		if string(e.Body) != request || e.Producer != "ci" || e.IdempotencyKey != "k" || e.Request.Prompt != "say hello" {
			t.Errorf("entry %+v", e)
		}
		if d.woken != 1 || len(i.Bell) != 1 {
			t.Errorf("woken %d times, bell %d", d.woken, len(i.Bell))
		}
	})

	t.Run("wakes nobody for a job that was there", func(t *testing.T) {
		t.Parallel()
		d := &desk{existing: true}
		if _, err := intake(d).Accept(t.Context(), ci, "k", json.RawMessage(request)); err != nil || d.woken != 0 {
			t.Errorf("woken %d times, error %v", d.woken, err)
		}
	})

	t.Run("a batch with a bad request writes nothing and names each problem", func(t *testing.T) {
		t.Parallel()
		d := &desk{}
		_, err := intake(d).AcceptAll(t.Context(), ci, "", []json.RawMessage{
			[]byte(request),
			[]byte(strings.Replace(request, `"grants": {},`, ``, 1)),
			[]byte(`{"prompt":`),
		})
		var problems job.Invalid
		if !errors.As(err, &problems) || len(problems) < 2 {
			t.Fatalf("error %v", err)
		}
		var fields []string
		for _, p := range problems {
			fields = append(fields, p.Field)
		}
		if all := strings.Join(fields, " "); !strings.Contains(all, "[1].grants") || !strings.Contains(all, "[2]") {
			t.Errorf("fields %s", all)
		}
		if len(d.entries) != 0 || d.woken != 0 {
			t.Errorf("%d entries written", len(d.entries))
		}
	})

	t.Run("each job of a batch has its own key", func(t *testing.T) {
		t.Parallel()
		d := &desk{}
		if _, err := intake(d).AcceptAll(t.Context(), ci, "k", []json.RawMessage{[]byte(request), []byte(request)}); err != nil {
			t.Fatal(err)
		}
		if d.entries[0].IdempotencyKey == d.entries[1].IdempotencyKey {
			t.Errorf("both have %s", d.entries[0].IdempotencyKey)
		}
	})

	t.Run("refuses another tenant", func(t *testing.T) {
		t.Parallel()
		other := json.RawMessage(strings.Replace(request, `{`, `{"tenant": "other", `, 1))
		for _, enqueue := range []func(i *dispatcher.Intake, by job.Producer) error{
			func(i *dispatcher.Intake, by job.Producer) error {
				_, err := i.Accept(t.Context(), by, "", other)
				return err
			},
			func(i *dispatcher.Intake, by job.Producer) error {
				_, err := i.AcceptAll(t.Context(), by, "", []json.RawMessage{json.RawMessage(request), other})
				return err
			},
		} {
			d := &desk{}
			if err := enqueue(intake(d), ci); !errors.Is(err, job.ErrInvalid) || !strings.Contains(err.Error(), "tenant") || len(d.entries) > 0 {
				t.Errorf("error %v, wrote %d", err, len(d.entries))
			}
			if err := enqueue(intake(d), job.Producer{Name: "ci", Tenants: []string{job.AnyTenant}}); err != nil {
				t.Errorf("for any tenant: %v", err)
			}
		}
	})

	t.Run("refuses an empty batch and a huge one", func(t *testing.T) {
		t.Parallel()
		for _, n := range []int{0, dispatcher.MaxBatch + 1} {
			if _, err := intake(&desk{}).AcceptAll(t.Context(), ci, "", make([]json.RawMessage, n)); !errors.Is(err, job.ErrInvalid) {
				t.Errorf("%d requests: %v", n, err)
			}
		}
	})

	t.Run("passes on the kind of a failure", func(t *testing.T) {
		t.Parallel()
		for _, kind := range []error{job.ErrQueueFull, job.ErrConflict, job.ErrUnavailable} {
			if _, err := intake(&desk{fail: kind}).Accept(t.Context(), ci, "", json.RawMessage(request)); !errors.Is(err, kind) {
				t.Errorf("error %v, want %v", err, kind)
			}
		}
	})
}

func TestControl(t *testing.T) {
	t.Parallel()
	control := func(d *desk) *dispatcher.Control {
		return &dispatcher.Control{Jobs: d, Pusher: d, Waker: d, Bell: dispatcher.NewBell(), Log: quiet}
	}
	t.Run("a running job's worker is told", func(t *testing.T) {
		t.Parallel()
		d := &desk{answer: job.CancelAnswer{ID: id(1), State: job.Running}}
		if _, err := control(d).Cancel(t.Context(), id(1), "me", ""); err != nil || len(d.pushed) != 1 {
			t.Errorf("pushed %v, error %v", d.pushed, err)
		}
	})
	t.Run("nobody is told of another's", func(t *testing.T) {
		t.Parallel()
		d := &desk{answer: job.CancelAnswer{ID: id(1), State: job.Cancel}}
		if _, err := control(d).Cancel(t.Context(), id(1), "me", ""); err != nil || len(d.pushed) != 0 {
			t.Errorf("pushed %v, error %v", d.pushed, err)
		}
	})
	t.Run("a finished job stays finished", func(t *testing.T) {
		t.Parallel()
		if _, err := control(&desk{fail: job.ErrFinished}).Cancel(t.Context(), id(1), "me", ""); !errors.Is(err, job.ErrFinished) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("redriving wakes the selection, and only looking does not", func(t *testing.T) {
		t.Parallel()
		d := &desk{}
		for _, dry := range []bool{true, false} {
			if got, err := control(d).Redrive(t.Context(), job.Redrive{DryRun: dry}, "me"); err != nil || got.Redriven != 3 || (d.woken == 1) == dry {
				t.Errorf("got %+v, %v, woken %d times", got, err, d.woken)
			}
		}
	})
	t.Run("a retry wakes the selection", func(t *testing.T) {
		t.Parallel()
		d := &desk{}
		if got, err := control(d).Retry(t.Context(), id(1), "me"); err != nil || got.ID != id(9) || d.woken != 1 {
			t.Errorf("%+v, woken %d times, error %v", got, d.woken, err)
		}
	})
}

// mailbox is a results stream with one batch.
type mailbox struct {
	reports []job.Report
	acked   chan int
}

func (m *mailbox) DrainReports(ctx context.Context, _ int, settle func(context.Context, []job.Report) error) (int, error) {
	if m.reports == nil {
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}
	if err := settle(ctx, m.reports); err != nil {
		return 0, err
	}
	m.acked <- len(m.reports)
	m.reports = nil
	return 1, nil
}

func TestResults(t *testing.T) {
	t.Parallel()
	s := newStore(0)
	s.down = job.ErrUnavailable
	m := &mailbox{reports: []job.Report{{Lease: job.Lease{Job: id(1), Attempt: 1}}}, acked: make(chan int, 1)}
	h := &dispatcher.Health{}
	r := &dispatcher.Results{Stream: m, Attempts: s, Bell: dispatcher.NewBell(), Health: h, Log: quiet}
	running(t, r.Run)
	select {
	case <-m.acked:
		t.Error("removed before Postgres had it")
	default:
	}
	s.set(func() { s.down = nil })
	if n := <-m.acked; n != 1 || len(s.settled) != 1 {
		t.Errorf("%d removed, %d settled", n, len(s.settled))
	}
}

// A report leaves the stream unsettled only for what it says itself.
func TestResultsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err   error
		taken bool
	}{
		"for what it says":     {fmt.Errorf("settle: %w", job.ErrUnstorable), true},
		"as no report":         {fmt.Errorf("settle: %w", job.ErrInvalid), true},
		"for a missing right":  {errors.New("permission denied"), false},
		"while nobody answers": {job.ErrUnavailable, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(0)
			s.down = c.err
			var got error
			stream := settling(func(settle func(context.Context, []job.Report) error) {
				got = settle(t.Context(), []job.Report{{Lease: job.Lease{Job: id(1), Attempt: 1}}})
			})
			ctx, cancel := context.WithCancel(t.Context())
			r := &dispatcher.Results{Stream: drained{stream, cancel}, Attempts: s, Bell: dispatcher.NewBell(), Health: &dispatcher.Health{}, Log: quiet}
			r.Run(ctx)
			if (got == nil) != c.taken {
				t.Errorf("answered %v", got)
			}
		})
	}
}

type settling func(settle func(context.Context, []job.Report) error)

// drained is a stream that is drained once.
type drained struct {
	once settling
	end  context.CancelFunc
}

func (d drained) DrainReports(_ context.Context, _ int, settle func(context.Context, []job.Report) error) (int, error) {
	d.once(settle)
	d.end()
	return 0, nil
}
