// Command ours measures Turnpike: the code that the programs run, with one dispatcher,
// one worker and NATS in this process, and turns that end at once.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"

	"turnpike/bench/figure"
	"turnpike/internal/dispatcher"
)

var (
	options = figure.Define("turnpike", "")
	profile = flag.String("cpuprofile", "", "write the CPU profile of the drain here")
	verbose = flag.Bool("v", false, "log what the loops say")
	backlog = flag.Int("backlog", 1_000_000, "jobs of the long backlog")
	bin     = flag.String("bin", "", "directory of the programs, for figures of what is installed; default programs/ beside this one")
	idleFor = flag.Duration("idle", time.Minute, "how long they are idle")
)

func main() { figure.Main(run) }

type bench struct {
	*system
	sheet *figure.Sheet
}

func run(ctx context.Context) (err error) {
	log := slog.New(slog.DiscardHandler)
	if *verbose {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if *bin == "" {
		beside, err := os.Executable()
		if err != nil {
			return err
		}
		*bin = filepath.Join(filepath.Dir(beside), "programs")
	}
	dir, err := os.MkdirTemp(options.Dir, "ours-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := open(ctx, options.Address, dir, log)
	if err != nil {
		return err
	}
	defer s.close()
	b := &bench{system: s, sheet: options.Sheet()}
	return b.sheet.Measure(ctx, b.reset, append(b.sheet.Singles("", b.enqueue),
		figure.Figure{Name: figure.Batches, Run: b.batches},
		figure.Figure{Name: figure.Drain, Run: b.drain},
		figure.Figure{Name: figure.Start, Run: b.steady},
		figure.Figure{Name: "enqueue over HTTP", Run: b.overHTTP},
		figure.Figure{Name: "backlog", Run: b.backlog, Dear: true},
		figure.Figure{Name: "idle", Run: b.idle, Dear: true},
		figure.Figure{Name: "confined", Run: b.confined, Dear: true},
	)...)
}

// batches enqueues as many at a time as a call may bring.
func (b *bench) batches(ctx context.Context, name string) error {
	since := b.sheet.Meter.Read()
	if err := b.fill(ctx, options.N, ""); err != nil {
		return err
	}
	return b.sheet.Rate(name, options.N, "jobs/s", since, fmt.Sprintf("%d at a time", dispatcher.MaxBatch))
}

// drain runs all jobs there are to their ends.
func (b *bench) drain(ctx context.Context, name string) (err error) {
	if err := b.fill(ctx, options.N, ""); err != nil {
		return err
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	since := b.sheet.Meter.Read()
	stop, err := b.serve(ctx, options.Slots, noop(nil))
	if err != nil {
		return err
	}
	if err := b.until(ctx, "SELECT NOT EXISTS (SELECT FROM turnpike.queue)", 5*time.Minute); err != nil {
		return errors.Join(err, stop())
	}
	if err := b.sheet.Rate(name, options.N, "jobs/s", since, ""); err != nil {
		return errors.Join(err, stop())
	}
	if err := stop(); err != nil {
		return err
	}
	return b.exactlyOnce(ctx, options.N)
}

// until waits until a question is answered with yes.
func (b *bench) until(ctx context.Context, question string, limit time.Duration) error {
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		var yes bool
		if err := b.admin.QueryRow(ctx, question).Scan(&yes); err != nil || yes {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("not so within %s: %s", limit, question)
		}
	}
}

// exactlyOnce refuses a figure that was not honestly come by.
func (b *bench) exactlyOnce(ctx context.Context, n int) error {
	var attempts, jobs int
	err := b.admin.QueryRow(ctx, "SELECT count(*), count(DISTINCT job_id) FROM turnpike.attempts WHERE next = 'succeeded'").Scan(&attempts, &jobs)
	if err == nil && (attempts != n || jobs != n) {
		err = fmt.Errorf("%d attempts of %d jobs succeeded, want %d", attempts, jobs, n)
	}
	return err
}

// steady measures from before the enqueue call to the first line of the turn.
func (b *bench) steady(ctx context.Context, _ string) error {
	started := &figure.Latencies{}
	stop, err := b.serve(ctx, options.Slots, noop(started))
	if err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // it takes the lead and sets up the streams
	// The lane's consumer is made with its first job, or within some seconds.
	if err := b.enqueue(ctx); err != nil {
		return errors.Join(err, stop())
	}
	if err := b.until(ctx, "SELECT NOT EXISTS (SELECT FROM turnpike.queue)", time.Minute); err != nil {
		return errors.Join(err, stop())
	}
	started.Forget()
	return errors.Join(b.sheet.Steady(started, func() error { return b.enqueue(ctx) }), stop())
}
