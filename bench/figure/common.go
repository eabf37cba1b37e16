package figure

import (
	"context"
	"fmt"
	"time"
)

// The figures every system has, by the same names.
const (
	One     = "enqueue x1"
	Sixteen = "enqueue x16"
	Batches = "enqueue in batches"
	Drain   = "drain"
	Start   = "enqueue to start"
	Call    = "enqueue call"
)

// Figure is one that a program measures.
type Figure struct {
	Name string
	Run  func(ctx context.Context, name string) error
	Dear bool // takes long, and is measured when it is named
}

// Measure measures the figures that are wanted, each after a reset.
func (s *Sheet) Measure(ctx context.Context, reset func(context.Context) error, figures ...Figure) error {
	for _, f := range figures {
		if f.Dear && !s.options.Named(f.Name) || !s.options.On(f.Name) {
			continue
		}
		if err := reset(ctx); err != nil {
			return err
		}
		if err := f.Run(ctx, f.Name); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// Single is the rate of one enqueue after the other, by so many clients at once: a tenth
// of the jobs when it is only one.
func (s *Sheet) Single(name string, clients int, note string, enqueue func() error) error {
	n := s.options.N
	if clients == 1 {
		n /= 10
	}
	since := s.Meter.Read()
	if err := Each(n, clients, func(int) error { return enqueue() }); err != nil {
		return err
	}
	return s.Rate(name, n, "jobs/s", since, note)
}

// Singles are One and Sixteen.
func (s *Sheet) Singles(note string, enqueue func(context.Context) error) []Figure {
	by := func(clients int) func(context.Context, string) error {
		return func(ctx context.Context, name string) error {
			return s.Single(name, clients, note, func() error { return enqueue(ctx) })
		}
	}
	return []Figure{{Name: One, Run: by(1)}, {Name: Sixteen, Run: by(16)}}
}

// Steady enqueues at a steady rate, waits until all were seen to start, and writes how
// long that took from before the call, and how long the call took.
func (s *Sheet) Steady(started *Latencies, enqueue func() error) error {
	since := s.Meter.Read()
	calls := &Latencies{}
	total := int(float64(s.options.Rate) * s.options.Duration.Seconds())
	tick := time.NewTicker(time.Second / time.Duration(s.options.Rate))
	defer tick.Stop()
	for range total {
		<-tick.C
		began := time.Now()
		if err := enqueue(); err != nil {
			return err
		}
		calls.Add(time.Since(began))
	}
	for end := time.Now().Add(10 * time.Second); started.Count() < total; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d jobs were not seen to start", total-started.Count(), total)
		}
	}
	if err := s.latency(Start, started, since); err != nil {
		return err
	}
	return s.latency(Call, calls, since)
}
