// Command asynq measures Asynq: a queue on redis, here on one that answers a write once
// it is on the disk. It enqueues no batches.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"turnpike/bench/figure"
)

var options = figure.Define("asynq-always", "127.0.0.1:6379")

func main() { figure.Main(run) }

// quiet is a log that nobody reads.
type quiet struct{}

func (quiet) Debug(...any) {}
func (quiet) Info(...any)  {}
func (quiet) Warn(...any)  {}
func (quiet) Error(...any) {}
func (quiet) Fatal(...any) {}

type bench struct {
	redis  asynq.RedisClientOpt
	sheet  *figure.Sheet
	client *asynq.Client
}

func run(ctx context.Context) error {
	b := &bench{redis: asynq.RedisClientOpt{Addr: options.Address, PoolSize: 64}, sheet: options.Sheet()}
	return b.sheet.Measure(ctx, b.reset, append(b.sheet.Singles("", b.enqueue),
		figure.Figure{Name: figure.Drain, Run: b.drain},
		figure.Figure{Name: figure.Start, Run: b.steady},
	)...)
}

// reset empties the server. The client is new, too: it remembers which queues it made
// known.
func (b *bench) reset(ctx context.Context) error {
	c := redis.NewClient(&redis.Options{Addr: options.Address})
	b.client = asynq.NewClient(b.redis)
	return errors.Join(c.FlushAll(ctx).Err(), c.Close())
}

func (b *bench) enqueue(ctx context.Context) error {
	body, err := json.Marshal(figure.NewNoop())
	if err != nil {
		return err
	}
	_, err = b.client.EnqueueContext(ctx, asynq.NewTask("noop", body))
	return err
}

func (b *bench) serve(h asynq.HandlerFunc) (*asynq.Server, error) {
	s := asynq.NewServer(b.redis, asynq.Config{Concurrency: options.Slots, Logger: quiet{}, ShutdownTimeout: time.Second})
	err := s.Start(h)
	return s, err
}

func (b *bench) drain(ctx context.Context, name string) error {
	if err := figure.Each(options.N, 16, func(int) error { return b.enqueue(ctx) }); err != nil {
		return err
	}
	var done atomic.Int64
	since := b.sheet.Meter.Read()
	s, err := b.serve(func(context.Context, *asynq.Task) error { done.Add(1); return nil })
	if err != nil {
		return err
	}
	defer s.Shutdown()
	inspector := asynq.NewInspector(b.redis)
	defer inspector.Close()
	for left := true; left; time.Sleep(10 * time.Millisecond) {
		if done.Load() < int64(options.N) {
			continue
		}
		q, err := inspector.GetQueueInfo("default")
		if err != nil {
			return err
		}
		left = q.Pending+q.Active > 0
	}
	return b.sheet.Rate(name, options.N, "jobs/s", since, "")
}

func (b *bench) steady(ctx context.Context, _ string) error {
	started := &figure.Latencies{}
	s, err := b.serve(func(_ context.Context, t *asynq.Task) error {
		var j figure.Noop
		if err := json.Unmarshal(t.Payload(), &j); err != nil {
			return err
		}
		started.Add(j.Age())
		return nil
	})
	if err != nil {
		return err
	}
	defer s.Shutdown()
	time.Sleep(2 * time.Second) // it polls once a second
	return b.sheet.Steady(started, func() error { return b.enqueue(ctx) })
}
