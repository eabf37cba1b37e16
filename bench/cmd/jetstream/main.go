// Command jetstream measures a bare JetStream work queue in a file, on a server inside
// this process, over loopback: what a broker alone can do, which neither selects nor
// records anything.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"turnpike/bench/figure"
)

var (
	options = figure.Define("jetstream-default", "")
	always  = flag.Bool("always", false, "answer a publish once it is on the disk, as a commit of Postgres is")
)

func main() { figure.Main(run) }

type bench struct {
	js       jetstream.JetStream
	stream   jetstream.Stream
	consumer jetstream.Consumer
	sheet    *figure.Sheet
}

func run(ctx context.Context) error {
	dir, err := os.MkdirTemp(options.Dir, "jetstream-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir, SyncAlways: *always, NoLog: true, NoSigs: true})
	if err != nil {
		return err
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(10 * time.Second) {
		return errors.New("the NATS server does not listen")
	}
	conn, err := nats.Connect(s.ClientURL())
	if err != nil {
		return err
	}
	defer conn.Close()
	b := &bench{sheet: options.Sheet()}
	if b.js, err = jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(1000)); err != nil {
		return err
	}
	return b.sheet.Measure(ctx, b.reset, append(b.sheet.Singles("", b.enqueue),
		figure.Figure{Name: figure.Batches, Run: b.batches},
		figure.Figure{Name: figure.Drain, Run: b.drain},
		figure.Figure{Name: figure.Start, Run: b.steady},
	)...)
}

const subject = "bench.noop"

// reset makes the stream and its consumer anew.
func (b *bench) reset(ctx context.Context) (err error) {
	if err := b.js.DeleteStream(ctx, "BENCH"); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	b.stream, err = b.js.CreateStream(ctx, jetstream.StreamConfig{Name: "BENCH", Subjects: []string{"bench.>"}, Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage})
	if err != nil {
		return err
	}
	b.consumer, err = b.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "bench", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Minute, MaxAckPending: 5000})
	return err
}

// message begins with the time at which it was made.
func message() []byte {
	b := make([]byte, figure.Bytes)
	binary.LittleEndian.PutUint64(b, uint64(time.Now().UnixNano()))
	return b
}

func (b *bench) enqueue(ctx context.Context) error {
	_, err := b.js.Publish(ctx, subject, message())
	return err
}

// fill publishes without waiting for each answer.
func (b *bench) fill() error {
	for range options.N {
		if _, err := b.js.PublishAsync(subject, message(), jetstream.WithStallWait(time.Minute)); err != nil {
			return err
		}
	}
	<-b.js.PublishAsyncComplete()
	return nil
}

func (b *bench) batches(_ context.Context, name string) error {
	since := b.sheet.Meter.Read()
	if err := b.fill(); err != nil {
		return err
	}
	return b.sheet.Rate(name, options.N, "jobs/s", since, "published without waiting")
}

func (b *bench) drain(ctx context.Context, name string) error {
	if err := b.fill(); err != nil {
		return err
	}
	var (
		slots  sync.WaitGroup
		done   atomic.Int64
		failed atomic.Pointer[error]
		in     = make(chan jetstream.Msg, options.Slots)
	)
	for range options.Slots {
		slots.Go(func() {
			for m := range in {
				if err := m.DoubleAck(ctx); err != nil {
					failed.Store(&err)
				}
				done.Add(1)
			}
		})
	}
	since := b.sheet.Meter.Read()
	pulling, err := b.consumer.Consume(func(m jetstream.Msg) { in <- m }, jetstream.PullMaxMessages(1000))
	if err != nil {
		return err
	}
	for left := true; left; time.Sleep(5 * time.Millisecond) {
		if done.Load() < int64(options.N) {
			continue
		}
		info, err := b.stream.Info(ctx)
		if err != nil {
			return err
		}
		left = info.State.Msgs > 0
	}
	if err := b.sheet.Rate(name, options.N, "jobs/s", since, "each with an acknowledged ack"); err != nil {
		return err
	}
	pulling.Stop()
	<-pulling.Closed()
	close(in)
	slots.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (b *bench) steady(ctx context.Context, _ string) error {
	started := &figure.Latencies{}
	pulling, err := b.consumer.Consume(func(m jetstream.Msg) {
		started.Add(time.Since(time.Unix(0, int64(binary.LittleEndian.Uint64(m.Data())))))
		_ = m.Ack() // what matters here is when it came
	})
	if err != nil {
		return err
	}
	defer pulling.Stop()
	time.Sleep(time.Second)
	return b.sheet.Steady(started, func() error { return b.enqueue(ctx) })
}
