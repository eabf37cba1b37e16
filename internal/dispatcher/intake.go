package dispatcher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"

	"turnpike/internal/job"
)

// MaxBatch is how many requests one call may enqueue.
const MaxBatch = 1000

// Enqueuer writes jobs in one transaction, all or none. It returns job.ErrQueueFull,
// job.ErrConflict or job.ErrUnavailable.
type Enqueuer interface {
	Enqueue(ctx context.Context, entries []job.Entry) ([]job.Accepted, error)
}

// Waker tells the leading dispatcher, wherever it runs, that there is something to
// select. It may fail: the leader polls too.
type Waker interface {
	Wake() error
}

// Intake accepts requests. Its answers are given after commit.
type Intake struct {
	Jobs    Enqueuer
	Waker   Waker   // nil: the leader polls
	Bell    Bell    // of this process's selection, should it lead
	Offers  *Offers // likewise; nil: every job goes by selection
	Metrics *Metrics
	Log     *slog.Logger

	groups grouping
}

// Accept enqueues one request, together with those that come while another is written.
// Problems with it are a job.Invalid or a *job.FieldError, a tenant that is not the
// producer's among them; then, and after any other error but job.ErrUnavailable, nothing
// was written. key makes a repetition return the same job.
func (i *Intake) Accept(ctx context.Context, by job.Producer, key string, request json.RawMessage) (job.Accepted, error) {
	// It may be written after a caller that waits no more has put its buffer to another use.
	request = bytes.Clone(request)
	entry, err := decode(by, key, request, 0)
	if err != nil {
		return job.Accepted{}, err
	}
	return i.groups.do(ctx, entry, i.enqueue)
}

// AcceptAll enqueues a batch, all or none. Problems are a job.Invalid whose fields
// begin with the request's index: "[3].grants".
func (i *Intake) AcceptAll(ctx context.Context, by job.Producer, key string, requests []json.RawMessage) ([]job.Accepted, error) {
	if n := len(requests); n == 0 || n > MaxBatch {
		return nil, &job.FieldError{Problem: fmt.Sprintf("a batch holds between 1 and %d requests, not %d", MaxBatch, n)}
	}
	entries := make([]job.Entry, 0, len(requests))
	var problems job.Invalid
	for n, request := range requests {
		each := key
		if key != "" {
			each = key + "#" + strconv.Itoa(n) // one key per job
		}
		entry, err := decode(by, each, request, n)
		if err != nil {
			problems = append(problems, at(n, err)...)
			continue
		}
		entries = append(entries, entry)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return i.enqueue(ctx, entries)
}

// decode reads the request at a place of its call.
func decode(by job.Producer, key string, body json.RawMessage, place int) (job.Entry, error) {
	r, err := job.Decode(body)
	if err != nil {
		return job.Entry{}, err
	}
	if err := by.May(r.Tenant); err != nil {
		return job.Entry{}, err
	}
	// Here, since requests of several calls may be written together.
	if err := r.At(place); err != nil {
		return job.Entry{}, err
	}
	return job.Entry{Request: r, Body: body, Producer: by.Name, IdempotencyKey: key}, nil
}

// at puts the index of a request before the fields of its problems.
func at(n int, err error) job.Invalid {
	var out job.Invalid
	for _, p := range problemsOf(err) {
		field := fmt.Sprintf("[%d]", n)
		if p.Field != "" {
			field += "." + p.Field
		}
		out = append(out, &job.FieldError{Field: field, Problem: p.Problem})
	}
	return out
}

// problemsOf lists what is wrong with a request.
func problemsOf(err error) job.Invalid {
	var all job.Invalid
	if errors.As(err, &all) {
		return all
	}
	var one *job.FieldError
	if errors.As(err, &one) {
		return job.Invalid{one}
	}
	return job.Invalid{{Problem: err.Error()}}
}

func (i *Intake) enqueue(ctx context.Context, entries []job.Entry) ([]job.Accepted, error) {
	for n := range entries {
		entries[n].Offer = i.Offers.take(entries[n].Request.Lane())
	}
	accepted, err := i.Jobs.Enqueue(ctx, entries)
	if err != nil {
		return nil, fmt.Errorf("enqueue: %w", err)
	}
	if len(accepted) != len(entries) { // the job of an idempotency key is not on record any more
		return nil, fmt.Errorf("enqueue: %w: the job it stands for is not kept any more; use another key", job.ErrConflict)
	}
	fresh := 0
	var offered []job.Selected
	for n, a := range accepted {
		if a.Existing {
			continue
		}
		fresh++
		if entries[n].Offer && a.State == job.Dispatched {
			offered = append(offered, job.Selected{
				Delivery: job.Delivery{Version: job.MessageVersion, Job: a.ID, Dispatch: 1, Lane: a.Lane},
				Tenant:   entries[n].Request.Tenant,
			})
		}
	}
	i.Metrics.enqueued(fresh)
	if len(offered) > 0 {
		i.Offers.publish(offered)
	}
	if fresh > len(offered) {
		wake(i.Waker, i.Bell, i.Log)
	}
	return accepted, nil
}

func wake(w Waker, b Bell, log *slog.Logger) {
	b.Ring()
	if w == nil {
		return
	}
	if err := w.Wake(); err != nil {
		log.Debug("the dispatcher will find it by polling", "err", err)
	}
}
