// Command bench measures Turnpike beside its peers: it starts the servers, runs each
// system's program in turn, round after round, and prints the table. It is started in
// the directory that has the programs, which `make bench` builds.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"turnpike/bench/figure"
	"turnpike/bench/servers"
)

var (
	systems = flag.String("systems", "", "systems to measure, by names or beginnings of them, separated by commas; default all")
	figures = flag.String("figures", "", "figures to measure, likewise; some are measured only when they are named")
	rounds  = flag.Int("rounds", 3, "how often each system is measured, in turn with the others")
	quick   = flag.Bool("quick", false, "a tenth of the jobs, and one round: a look, no measurement")
	dir     = flag.String("dir", "", "directory for the servers' data; default a temporary one")
	out     = flag.String("out", "", "file that keeps every figure, a line of JSON each; default none")
	doc     = flag.String("doc", "", "Markdown file whose table is written anew, beside printing it")
	from    = flag.String("from", "", "print the table of the figures in these files, separated by commas, and measure nothing")
	hold    = flag.Bool("hold", false, "only start Postgres, print its address and pid, and wait")
	settled = flag.String("postgres", "", "more settings of Postgres, as NAME=VALUE separated by commas; for looking closer")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// system is one row of the comparison.
type system struct {
	name    string
	program string
	args    []string
	on      string // "postgres", "redis" or nothing: it brings its own server
}

var all = []system{
	{"turnpike", "ours", nil, "postgres"},
	{"river-tuned", "river", []string{"-cooldown", "2ms"}, "postgres"},
	{"river-default", "river", nil, "postgres"},
	{"asynq-always", "asynq", nil, "redis"},
	{"jetstream-always", "jetstream", []string{"-always"}, ""},
	{"jetstream-default", "jetstream", nil, ""},
	{"postgres-floor", "pgfloor", nil, "postgres"},
}

func run(ctx context.Context) (err error) {
	if *from != "" {
		var lines []byte
		for file := range strings.SplitSeq(*from, ",") {
			b, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			lines = append(lines, b...)
		}
		return report(os.Stdout, lines, *doc, machine(ctx, nil))
	}
	work, err := workDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	more := map[string]string{}
	for setting := range strings.SplitSeq(*settled, ",") {
		if name, value, ok := strings.Cut(setting, "="); ok {
			more[name] = value
		}
	}
	pg, err := servers.StartPostgres(ctx, filepath.Join(work, "postgres"), more)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.Stop()) }()
	if *hold {
		return holding(ctx, pg)
	}
	if *quick {
		*rounds = 1
	}
	kept := io.Discard
	if *out != "" {
		f, err := os.OpenFile(*out, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
		if err != nil {
			return err
		}
		defer f.Close()
		kept = f
	}
	var lines bytes.Buffer
	for round := range *rounds {
		for _, s := range all {
			if !chosen(*systems, s.name) {
				continue
			}
			fmt.Fprintf(os.Stderr, "round %d: %s\n", round+1, s.name)
			got, err := s.measure(ctx, pg, work, round+1)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			lines.Write(got)
			if _, err := kept.Write(got); err != nil {
				return err
			}
		}
	}
	return report(os.Stdout, lines.Bytes(), *doc, machine(ctx, pg))
}

// workDir is where the servers keep what they store. Postgres may run as another user
// and must be able to get there.
func workDir() (string, error) {
	work, err := os.MkdirTemp(*dir, "turnpike-bench-")
	if err != nil {
		return "", err
	}
	return work, os.Chmod(work, 0o755)
}

// chosen says whether one of the beginnings in list, or an empty list, means name.
func chosen(list, name string) bool {
	return list == "" || slices.ContainsFunc(strings.Split(list, ","), func(p string) bool {
		return p != "" && strings.HasPrefix(name, strings.TrimSpace(p))
	})
}

// measure runs the system's program on a server with nothing in it, and passes on what
// it prints, with the number of the round.
func (s system) measure(ctx context.Context, pg *servers.Postgres, work string, round int) (lines []byte, err error) {
	beside, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := append([]string{"-label", s.name, "-dir", work}, s.args...)
	switch s.on {
	case "postgres":
		dsn, err := pg.Fresh(ctx, "bench")
		if err != nil {
			return nil, err
		}
		pid, err := pg.PID()
		if err != nil {
			return nil, err
		}
		args = append(args, "-address", dsn, "-pid", strconv.Itoa(pid))
	case "redis":
		r, err := servers.StartRedis(ctx, filepath.Join(work, "redis"))
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, r.Stop()) }()
		args = append(args, "-address", r.Address(), "-pid", strconv.Itoa(r.PID()))
	}
	if *figures != "" {
		args = append(args, "-figures", *figures)
	}
	if *quick {
		args = append(args, "-n", "2000", "-duration", "3s")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(beside), s.program), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stderr = os.Stderr
	printed, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	return figure.Numbered(printed, round)
}

func holding(ctx context.Context, pg *servers.Postgres) error {
	dsn, err := pg.Fresh(ctx, "bench")
	if err != nil {
		return err
	}
	pid, err := pg.PID()
	if err != nil {
		return err
	}
	fmt.Printf("-address '%s' -pid %d\n", dsn, pid)
	<-ctx.Done()
	return nil
}
