package worker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"turnpike/internal/job"
)

// Either takes a lane's deliveries from the stream, and looks for them in the database
// while the stream does not give them. A job may be found both ways; its claim is
// granted once.
type Either struct {
	Stream Deliveries
	Polled *Polled
	// Again is how long the database is asked before the stream is tried again; default
	// 5 s. A stream that hangs costs one of its timeouts in so much time.
	Again time.Duration
	Log   *slog.Logger

	mu    sync.Mutex // guards the fields below
	away  error      // why the stream gives nothing; nil while it does
	since time.Time
	retry time.Time
}

// Fetch returns between none and n messages, from wherever they are.
func (e *Either) Fetch(ctx context.Context, n int) ([]Message, error) {
	if e.try() {
		msgs, err := e.Stream.Fetch(ctx, n)
		if ctx.Err() != nil {
			return msgs, err
		}
		e.note(err)
		if len(msgs) > 0 {
			return msgs, nil
		}
		if err == nil {
			// The stream is idle. It may also be that only the dispatcher does not reach it.
			return e.Polled.Look(ctx, n)
		}
	}
	return e.Polled.Fetch(ctx, n)
}

// Via is where jobs are found now, and why not in the stream.
func (e *Either) Via() (job.Transport, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.away != nil {
		return job.ByPostgres, e.away
	}
	return job.ByNATS, nil
}

func (e *Either) try() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.away == nil || !time.Now().Before(e.retry)
}

// note tells when the stream goes and when it is back: an outage is two lines.
func (e *Either) note(err error) {
	e.mu.Lock()
	was, since := e.away, e.since
	e.away = err
	if err != nil {
		e.retry = time.Now().Add(cmp.Or(e.Again, 5*time.Second))
	}
	if (was == nil) != (err == nil) {
		e.since = time.Now()
	}
	e.mu.Unlock()
	log := e.Log.With("lane", e.Polled.Lane)
	switch {
	case was == nil && errors.Is(err, job.ErrLaneMissing):
		log.Info("the dispatcher is yet to set the lane up; its jobs are looked for in Postgres until then")
	case was == nil && err != nil:
		log.Warn("the stream gives nothing; jobs are looked for in Postgres until it does", "error", err)
	case was != nil && err == nil:
		log.Info("the stream gives jobs again", "after", time.Since(since).Round(time.Millisecond).String())
	}
}
