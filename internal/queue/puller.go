package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"turnpike/internal/job"
)

// heartbeat is how often an idle server must show that it still knows of a pull.
const heartbeat = time.Second

// newerDelay is how long a message of a later release rests before it is offered
// again, perhaps to a worker that understands it.
const newerDelay = 5 * time.Second

// Puller takes deliveries of one lane. Its methods may be called at once.
type Puller struct {
	conn *Conn
	lane job.Lane
	wait time.Duration

	mu       sync.Mutex // guards consumer
	consumer jetstream.Consumer
}

// Puller returns a puller for a lane. A fetch from an idle lane lasts at most wait;
// zero is 5 s.
func (c *Conn) Puller(lane job.Lane, wait time.Duration) *Puller {
	if wait <= 0 {
		wait = 5 * time.Second
	}
	return &Puller{conn: c, lane: lane, wait: wait}
}

// Lane is the lane it pulls from.
func (p *Puller) Lane() job.Lane { return p.lane }

// Fetch returns between none and n messages: what is there, or, on an idle lane, the
// first to come within the puller's wait. Every message returned is to be answered.
// Errors are [job.ErrLaneMissing], [job.ErrUnavailable] or the context's cause.
func (p *Puller) Fetch(ctx context.Context, n int) ([]*Message, error) {
	doing := "fetch from " + p.lane.String()
	if n < 1 {
		return nil, nil
	}
	if err := p.conn.up(doing); err != nil {
		return nil, err
	}
	consumer, err := p.open(ctx)
	if err != nil {
		return nil, kind(ctx, doing, err)
	}
	// What lies there is taken at once. Waiting for n would hold back the first
	// until the last came.
	msgs, err := p.receive(consumer.FetchNoWait(n))
	if err == nil && len(msgs) == 0 && ctx.Err() == nil {
		msgs, err = p.await(ctx, consumer)
	}
	switch {
	case ctx.Err() != nil:
		// The caller is leaving: what came in the meantime is for others, soon.
		for _, m := range msgs {
			m.Nak(0)
		}
		return nil, context.Cause(ctx)
	case len(msgs) > 0:
		return msgs, nil // an error after these will be met again
	case err == nil:
		return nil, nil
	}
	p.forget()
	if errors.Is(err, nats.ErrNoResponders) {
		// Nobody listens for pulls of this consumer. The server knows why.
		if _, asked := p.open(ctx); asked != nil {
			err = asked
		}
	}
	return nil, kind(ctx, doing, err)
}

// await waits for the first message. When ctx ends it returns at once with what came;
// a message that was just on its way comes again after AckWait.
func (p *Puller) await(ctx context.Context, consumer jetstream.Consumer) ([]*Message, error) {
	pull, cancel := context.WithTimeout(ctx, p.wait)
	defer cancel()
	options := []jetstream.FetchOpt{jetstream.FetchContext(pull)}
	if end, _ := pull.Deadline(); time.Until(end) > 3*heartbeat {
		options = append(options, jetstream.FetchHeartbeat(heartbeat))
	}
	msgs, err := p.receive(consumer.Fetch(1, options...))
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil // idle, or ctx ended
	}
	return msgs, err
}

// open finds the lane's consumer and checks that it is the one Admin makes. It is
// asked for once, and again after any error.
func (p *Puller) open(ctx context.Context) (jetstream.Consumer, error) {
	p.mu.Lock()
	known := p.consumer
	p.mu.Unlock()
	if known != nil {
		return known, nil
	}
	call, cancel := p.conn.call(ctx)
	defer cancel()
	consumer, err := p.conn.js.Consumer(call, jobsStream(p.lane.Placement), laneConsumer(p.lane))
	if err != nil {
		return nil, err
	}
	got := consumer.CachedInfo().Config
	if got.FilterSubject != laneSubjects(p.lane) || got.AckPolicy != jetstream.AckExplicitPolicy || got.MaxDeliver != -1 {
		return nil, fmt.Errorf("%w: consumer %s is not the dispatcher's (filter %q)", jetstream.ErrConsumerNotFound, got.Durable, got.FilterSubject)
	}
	p.mu.Lock()
	p.consumer = consumer
	p.mu.Unlock()
	return consumer, nil
}

func (p *Puller) forget() {
	p.mu.Lock()
	p.consumer = nil
	p.mu.Unlock()
}

// receive takes what one pull brings, to its end.
func (p *Puller) receive(batch jetstream.MessageBatch, err error) ([]*Message, error) {
	if err != nil {
		return nil, err
	}
	var msgs []*Message
	for m := range batch.Messages() {
		if got := p.decode(m); got != nil {
			msgs = append(msgs, got)
		}
	}
	return msgs, batch.Error()
}

// decode reads a message. One that cannot be a delivery is ended here, so that it
// does not come for ever.
func (p *Puller) decode(m jetstream.Msg) *Message {
	d, err := decodeDelivery(m.Subject(), m.Data())
	if err == nil && d.Lane != p.lane {
		err = fmt.Errorf("message on %s came to lane %s", m.Subject(), p.lane)
	}
	switch {
	case errors.Is(err, errNewer):
		p.conn.log.Warn("leave a message to a newer worker", "err", err)
		p.conn.answered(m.NakWithDelay(newerDelay))
		return nil
	case err != nil:
		p.conn.log.Error("drop a message that is no delivery", "err", err)
		p.conn.answered(m.TermWithReason("not a delivery"))
		return nil
	}
	return &Message{Delivery: d, msg: m, conn: p.conn}
}

// answered notes an answer that could not be sent. It is not needed for anything but
// tidiness: the message comes again, and the claim refuses it.
func (c *Conn) answered(err error) {
	if err != nil {
		c.log.Debug("answer a message", "err", err)
	}
}

// Message is a delivery in hand, to be answered once. Answers are sent without
// waiting and may be lost: they prove nothing, and the message then comes again.
type Message struct {
	job.Delivery
	msg  jetstream.Msg
	conn *Conn
}

// Ack removes the message: the claim was granted or refused.
func (m *Message) Ack() { m.conn.answered(m.msg.Ack()) }

// Nak gives the message back after a delay, which is at least 100 ms: without one it
// would come back at once, for as long as the cause lasts.
func (m *Message) Nak(delay time.Duration) {
	m.conn.answered(m.msg.NakWithDelay(max(delay, 100*time.Millisecond)))
}

// Term removes the message for good, with a reason for the server's advisory.
func (m *Message) Term(reason string) { m.conn.answered(m.msg.TermWithReason(reason)) }
