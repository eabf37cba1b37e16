package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"turnpike/bench/figure"
	"turnpike/internal/dispatcher"
)

// install starts the programs as they are installed: a dispatcher, and a worker of one
// lane that may do what the ceiling says. They run until stop is called, which waits for
// them.
func (b *bench) install(ceiling, slots string) (programs []*exec.Cmd, stop func(), err error) {
	for _, name := range []string{"dispatcher", "worker", "launcher", cli} {
		if _, err := os.Stat(filepath.Join(*bin, name)); err != nil {
			return nil, nil, fmt.Errorf("%w: build the programs and name their directory with -bin", err)
		}
	}
	dir, err := os.MkdirTemp(b.dir, "installed-")
	if err != nil {
		return nil, nil, err
	}
	limits := filepath.Join(dir, "ceiling.yaml")
	if err := os.WriteFile(limits, []byte(ceiling), 0o600); err != nil {
		return nil, nil, err
	}
	stop = func() {
		for _, c := range programs {
			_ = c.Process.Signal(syscall.SIGTERM)
			_ = c.Wait() // as it was asked to
		}
	}
	env := append(os.Environ(), "TURNPIKE_DATABASE_URL="+options.Address, "TURNPIKE_NATS_URL="+b.broker.ClientURL())
	for _, args := range [][]string{
		{"dispatcher", "serve", "--listen", "127.0.0.1:0"},
		{"worker", "serve", "--slots", slots, "--ceiling", limits, "--state-dir", filepath.Join(dir, "state"),
			"--bin", "claude=" + filepath.Join(*bin, cli), "--listen", "", "--drain", "1s"},
	} {
		c := exec.Command(filepath.Join(*bin, args[0]), args[1:]...)
		c.Env = env
		if *verbose {
			c.Stderr = os.Stderr
		}
		if err := c.Start(); err != nil {
			stop()
			return nil, nil, err
		}
		programs = append(programs, c)
	}
	return programs, stop, nil
}

// cli is the stand-in for an agent's CLI, below the directory of the programs. It has a
// directory of its own: a turn may read what its agent lies in.
const cli = "agent/agent"

// idle runs the programs with nothing to do.
func (b *bench) idle(ctx context.Context, name string) error {
	programs, stop, err := b.install("placements: [none]\nagents: [claude]\nworkspaces: {scratch: true}\n", "none=4")
	if err != nil {
		return err
	}
	defer stop()
	if err := b.until(ctx, "SELECT EXISTS (SELECT FROM turnpike.workers)", time.Minute); err != nil {
		return err
	}
	time.Sleep(10 * time.Second) // what a start costs is another matter
	since := b.sheet.Meter.Read()
	var before [2]figure.Usage
	for i, c := range programs {
		before[i] = figure.UsageOf(c.Process.Pid)
	}
	time.Sleep(*idleFor)
	for i, c := range programs {
		role := filepath.Base(c.Path)
		now := figure.UsageOf(c.Process.Pid)
		if now.MiB == 0 {
			return fmt.Errorf("the %s ended", role)
		}
		percent := (now.CPU - before[i].CPU).Seconds() / idleFor.Seconds() * 100
		if err := b.sheet.Value(name+" "+role+", CPU", percent, "% of a core", since, ""); err != nil {
			return err
		}
		if err := b.sheet.Value(name+" "+role+", memory", now.MiB, "MiB", since, ""); err != nil {
			return err
		}
	}
	return nil
}

// confined has the programs run turns each of which is a process that the kernel
// confines, and then starts the same process bare, as many at once.
func (b *bench) confined(ctx context.Context, _ string) error {
	for _, slots := range []int{4, 16} {
		if err := b.reset(ctx); err != nil {
			return err
		}
		name := fmt.Sprintf("drain, a confined process per job x%d", slots)
		if err := b.turns(ctx, name, options.N/40, slots); err != nil {
			return err
		}
		if err := b.bare(name, options.N/40, slots); err != nil {
			return err
		}
	}
	return nil
}

// turns drains n jobs of confined turns, from when the first of them ended: the programs
// are up by then.
func (b *bench) turns(ctx context.Context, name string, n, slots int) error {
	const request = `{"api_version":"turnpike/v1","name":"noop","profile":{"name":"bench","agent":"claude","confine":true},
		"grants":{"tools":["Read"],"env":["ANTHROPIC_API_KEY"],"mounts":[{"path":"workspace:","access":"rw"}]},"workspace":{"scratch":true},"prompt":"Do nothing."}`
	for left := n; left > 0; left -= dispatcher.MaxBatch {
		batch := make([]json.RawMessage, min(left, dispatcher.MaxBatch))
		for i := range batch {
			batch[i] = json.RawMessage(request)
		}
		if _, err := b.intake.AcceptAll(ctx, producer, "", batch); err != nil {
			return err
		}
	}
	programs, stop, err := b.install("placements: [none-confined]\nagents: [claude]\ntools: [Read]\nworkspaces: {scratch: true}\n"+
		"accounts: {default: {agents: [claude], values: {ANTHROPIC_API_KEY: none}}}\n",
		fmt.Sprintf("none-confined=%d", slots))
	if err != nil {
		return err
	}
	defer stop()
	if err := b.until(ctx, "SELECT EXISTS (SELECT FROM turnpike.attempts)", time.Minute); err != nil {
		return err
	}
	meter := b.sheet.Meter
	for _, c := range programs {
		meter.Programs = append(meter.Programs, c.Process.Pid)
	}
	since := meter.Read()
	var already int
	if err := b.admin.QueryRow(ctx, "SELECT count(*) FROM turnpike.attempts").Scan(&already); err != nil {
		return err
	}
	if err := b.until(ctx, "SELECT NOT EXISTS (SELECT FROM turnpike.queue)", 5*time.Minute); err != nil {
		return err
	}
	if err := b.sheet.Rate(name, n-already, "jobs/s", since, "claude's stream from a stand-in, none-confined, scratch workspaces, no network"); err != nil {
		return err
	}
	return b.exactlyOnce(ctx, n)
}

// bare starts what a turn starts, and nothing around it.
func (b *bench) bare(name string, n, clients int) error {
	since := b.sheet.Meter.Read()
	err := figure.Each(n, clients, func(int) error {
		c := exec.Command(filepath.Join(*bin, cli))
		c.Stdin = strings.NewReader("Do nothing.")
		said, err := c.Output()
		if err == nil && !strings.Contains(string(said), `"result"`) {
			err = errors.New("the stand-in printed no result")
		}
		return err
	})
	if err != nil {
		return err
	}
	plain := *b.sheet
	plain.System = "the process bare"
	return plain.Rate(name, n, "jobs/s", since, "fork, exec and wait")
}
