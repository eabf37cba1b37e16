package figure

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Options are the flags of every program.
type Options struct {
	Label    string        // the system's name in the table
	Address  string        // of the server, if it has one
	Dir      string        // for what it stores itself
	PID      int           // of the server
	N        int           // jobs of a drain, and of the enqueues by many
	Slots    int           // jobs that run at a time
	Rate     int           // jobs per second of the steady load
	Duration time.Duration // of the steady load
	figures  string
}

// Define defines the flags; they are read after flag.Parse.
func Define(label, address string) *Options {
	o := &Options{}
	flag.StringVar(&o.Label, "label", label, "name of the system in the table")
	flag.StringVar(&o.Address, "address", address, "of its server")
	flag.StringVar(&o.Dir, "dir", "", "directory for what it stores itself; default a temporary one")
	flag.IntVar(&o.PID, "pid", 0, "of its server, for the CPU time that one takes")
	flag.IntVar(&o.N, "n", 20000, "jobs")
	flag.IntVar(&o.Slots, "slots", 100, "jobs that run at a time")
	flag.IntVar(&o.Rate, "rate", 50, "jobs per second of the steady load")
	flag.DurationVar(&o.Duration, "duration", 12*time.Second, "of the steady load")
	flag.StringVar(&o.figures, "figures", "", "figures to measure, by names or beginnings of them, separated by commas; default all")
	return o
}

// On says whether a figure is wanted: one that is named, or one of those that run when
// none is.
func (o *Options) On(figure string) bool {
	if o.figures == "" {
		return true
	}
	return o.Named(figure)
}

// Named says whether a figure was asked for.
func (o *Options) Named(figure string) bool {
	return slices.ContainsFunc(strings.Split(o.figures, ","), func(f string) bool {
		return f != "" && strings.HasPrefix(figure, strings.TrimSpace(f))
	})
}

// Sheet is where the program's figures go.
func (o *Options) Sheet() *Sheet {
	return &Sheet{System: o.Label, Meter: Meter{Server: o.PID}, To: os.Stdout, options: o}
}

// Main is what a program's main does.
func Main(run func(context.Context) error) {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
