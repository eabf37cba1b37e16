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

// noop is a job that does nothing. It brings as many bytes as everybody's.
type noop struct {
	At  int64  `json:"at"`
	Pad string `json:"pad"`
}

var pad = figure.Pad(len(`{"at":1800000000000000000,"pad":""}`))

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

func run() error {
	ctx := context.Background()
	b := &bench{redis: asynq.RedisClientOpt{Addr: options.Address, PoolSize: 64}, sheet: options.Sheet()}
	for _, f := range []struct {
		name string
		run  func(string) error
	}{
		{figure.One, func(name string) error { return b.single(name, options.N/10, 1) }},
		{figure.Sixteen, func(name string) error { return b.single(name, options.N, 16) }},
		{figure.Drain, b.drain},
		{figure.Start, b.steady},
	} {
		if !options.On(f.name) {
			continue
		}
		if err := b.reset(ctx); err != nil {
			return err
		}
		if err := f.run(f.name); err != nil {
			return err
		}
	}
	return nil
}

// reset empties the server. The client is new, too: it remembers which queues it made
// known.
func (b *bench) reset(ctx context.Context) error {
	c := redis.NewClient(&redis.Options{Addr: options.Address})
	b.client = asynq.NewClient(b.redis)
	return errors.Join(c.FlushAll(ctx).Err(), c.Close())
}

func (b *bench) enqueue() error {
	body, err := json.Marshal(noop{time.Now().UnixNano(), pad})
	if err != nil {
		return err
	}
	_, err = b.client.Enqueue(asynq.NewTask("noop", body))
	return err
}

func (b *bench) single(name string, n, clients int) error {
	since := b.sheet.Meter.Read()
	if err := figure.Each(n, clients, func(int) error { return b.enqueue() }); err != nil {
		return err
	}
	return b.sheet.Rate(name, n, "jobs/s", since, "")
}

func (b *bench) serve(h asynq.HandlerFunc) (*asynq.Server, error) {
	s := asynq.NewServer(b.redis, asynq.Config{Concurrency: options.Slots, Logger: quiet{}, ShutdownTimeout: time.Second})
	err := s.Start(h)
	return s, err
}

func (b *bench) drain(name string) error {
	if err := figure.Each(options.N, 16, func(int) error { return b.enqueue() }); err != nil {
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

func (b *bench) steady(name string) error {
	started := &figure.Latencies{}
	s, err := b.serve(func(_ context.Context, t *asynq.Task) error {
		now := time.Now()
		var j noop
		if err := json.Unmarshal(t.Payload(), &j); err != nil {
			return err
		}
		started.Add(now.Sub(time.Unix(0, j.At)))
		return nil
	})
	if err != nil {
		return err
	}
	defer s.Shutdown()
	time.Sleep(2 * time.Second) // it polls once a second
	since := b.sheet.Meter.Read()
	calls, err := figure.Steady(options.Rate, options.Duration, started, b.enqueue)
	if err != nil {
		return err
	}
	return errors.Join(b.sheet.Latency(name, started, since), b.sheet.Latency(figure.Call, calls, since))
}
