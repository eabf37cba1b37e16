package queue

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"turnpike/internal/job"
)

// Publish hands a lane's deliveries to its stream, pipelined. The result has one
// element per delivery; nil is stored, or stored before by an earlier try. An error
// is [job.ErrLaneMissing], [job.ErrUnavailable] or the context's cause, and leaves
// open whether the delivery was stored: publish the same number again.
func (c *Conn) Publish(ctx context.Context, lane job.Lane, ds []job.Delivery) []error {
	results := make([]error, len(ds))
	if err := c.up("publish to " + lane.String()); err != nil {
		for i := range results {
			results[i] = err
		}
		return results
	}
	call, cancel := c.call(ctx)
	defer cancel()
	stream := jobsStream(lane.Placement)
	futures := make([]jetstream.PubAckFuture, len(ds))
	for i, d := range ds {
		futures[i], results[i] = c.publishAsync(stream, lane, d)
	}
	for i, f := range futures {
		if f == nil {
			continue
		}
		select {
		case <-f.Ok():
		case err := <-f.Err():
			if !alreadyThere(err) {
				results[i] = err
			}
		case <-call.Done():
			results[i] = call.Err()
		}
	}
	for i, d := range ds {
		results[i] = kind(ctx, fmt.Sprintf("publish job %s to %s", d.Job, lane), results[i])
	}
	return results
}

func (c *Conn) publishAsync(stream string, lane job.Lane, d job.Delivery) (jetstream.PubAckFuture, error) {
	d.Lane = lane
	body, err := encodeDelivery(d)
	if err != nil {
		return nil, err
	}
	return c.js.PublishMsgAsync(&nats.Msg{Subject: jobSubject(d), Data: body}, jetstream.WithExpectStream(stream))
}
