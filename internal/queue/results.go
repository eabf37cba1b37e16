package queue

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"turnpike/internal/job"
)

// reportsRest is how long reports wait before they are offered again when they could
// not be settled.
const reportsRest = 2 * time.Second

// PublishReport hands over a report that cannot reach Postgres. It may be repeated.
// The worker keeps its spooled copy until Postgres itself has answered. Errors are
// [job.ErrUnavailable], [job.ErrLaneMissing], [ErrTooLarge] or the context's cause.
func (c *Conn) PublishReport(ctx context.Context, r job.Report) error {
	doing := "publish the report of job " + string(r.Lease.Job)
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := c.up(doing); err != nil {
		return err
	}
	call, cancel := c.call(ctx)
	defer cancel()
	m := &nats.Msg{Subject: attemptSubject(resultsRoot, r.Lease.Job, r.Lease.Attempt), Data: body}
	_, err = c.js.PublishMsg(call, m, jetstream.WithExpectStream(resultsStream))
	if alreadyThere(err) {
		return nil
	}
	return kind(ctx, doing, err)
}

// DrainReports waits a few seconds for reports, takes at most n, and removes them once
// settle returned nil; else they come again. It returns how many were settled.
func (c *Conn) DrainReports(ctx context.Context, n int, settle func(context.Context, []job.Report) error) (int, error) {
	const doing = "take reports"
	if err := c.up(doing); err != nil {
		return 0, err
	}
	call, cancel := c.call(ctx)
	defer cancel()
	consumer, err := c.js.Consumer(call, resultsStream, resultsConsumer)
	if err != nil {
		return 0, kind(ctx, doing, err)
	}
	msgs, reports, err := c.takeReports(consumer.FetchNoWait(n))
	if err == nil && len(msgs) == 0 {
		wait, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		msgs, reports, err = c.takeReports(consumer.Fetch(1, jetstream.FetchContext(wait), jetstream.FetchHeartbeat(heartbeat)))
		if errors.Is(err, context.DeadlineExceeded) {
			err = nil
		}
	}
	if len(reports) == 0 {
		return 0, kind(ctx, doing, err)
	}
	if err := settle(ctx, reports); err != nil {
		for _, m := range msgs {
			c.answered(m.NakWithDelay(reportsRest))
		}
		return 0, err
	}
	for _, m := range msgs {
		c.answered(m.Ack())
	}
	return len(reports), nil
}

func (c *Conn) takeReports(batch jetstream.MessageBatch, err error) ([]jetstream.Msg, []job.Report, error) {
	if err != nil {
		return nil, nil, err
	}
	var msgs []jetstream.Msg
	var reports []job.Report
	for m := range batch.Messages() {
		r, err := decodeReport(m.Subject(), m.Data())
		switch {
		case errors.Is(err, errNewer):
			c.log.Warn("leave a report to a newer dispatcher", "err", err)
			c.answered(m.NakWithDelay(newerDelay))
		case err != nil:
			c.log.Error("drop a report that is none", "err", err)
			c.answered(m.TermWithReason("not a report"))
		default:
			msgs, reports = append(msgs, m), append(reports, r)
		}
	}
	return msgs, reports, batch.Error()
}
