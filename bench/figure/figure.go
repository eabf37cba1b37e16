// Package figure is what the programs of the comparison have in common: the payload, the
// figures that are the same for all but for the call that enqueues, how work is spread
// over clients, latencies, the CPU time that a figure cost, and the one line of JSON that
// each figure is. What a system does, and how, is its program's.
package figure

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Bytes is the size of one request, in every system.
const Bytes = 1024

// Pad fills a body that is used bytes long without it up to Bytes.
func Pad(used int) string { return strings.Repeat("x", max(Bytes-used, 0)) }

// Noop is the body of a job that does nothing, where it is JSON: At is when it was made.
type Noop struct {
	At  int64  `json:"at"`
	Pad string `json:"pad"`
}

var pad = Pad(len(`{"at":1800000000000000000,"pad":""}`))

// NewNoop makes one of Bytes bytes.
func NewNoop() Noop { return Noop{At: time.Now().UnixNano(), Pad: pad} }

// Age is how long ago it was made.
func (n Noop) Age() time.Duration { return time.Since(time.Unix(0, n.At)) }

// Each calls f(i) for every i below n, from so many clients at once, and returns the
// first error. After one no more calls are begun.
func Each(n, clients int, f func(i int) error) error {
	var (
		all   sync.WaitGroup
		mu    sync.Mutex // guards next and first
		next  int
		first error
	)
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		if first != nil || next >= n {
			return 0, false
		}
		next++
		return next - 1, true
	}
	for range clients {
		all.Go(func() {
			for i, more := take(); more; i, more = take() {
				if err := f(i); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return first
}

// Latencies collects durations from many goroutines.
type Latencies struct {
	mu  sync.Mutex
	all []time.Duration // guarded by mu
}

// Add adds one.
func (l *Latencies) Add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, d)
}

// Forget begins anew.
func (l *Latencies) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = nil
}

// Count is how many there are.
func (l *Latencies) Count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

// Percentile is the p-th of them in milliseconds, and NaN when there are none.
func (l *Latencies) Percentile(p float64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(l.all))
	return float64(sorted[int(p/100*float64(len(sorted)-1))].Microseconds()) / 1000
}

// Meter reads the CPU time that a figure costs: this program's and those it started, that
// of one server and its children, and that of everything else on the machine.
type Meter struct {
	Server   int   // the server's pid; 0 is none, or one inside this program
	Programs []int // pids of the system's programs that run beside this one
}

// Reading is what was used up to a moment.
type Reading struct {
	meter              Meter
	at                 time.Time
	busy, self, server int64 // in ticks
}

// ticksPerSecond is USER_HZ, which is 100 on every Linux that Go runs on.
const ticksPerSecond = 100

// Read reads the counters.
func (m Meter) Read() Reading {
	r := Reading{meter: m, at: time.Now(), busy: machineTicks()}
	for _, pid := range append([]int{os.Getpid()}, m.Programs...) {
		_, ticks := processTicks(pid)
		r.self += ticks
	}
	if m.Server == 0 {
		return r
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is good
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if parent, ticks := processTicks(pid); pid == m.Server || parent == m.Server {
			r.server += ticks
		}
	}
	return r
}

// cores is how many were busy on average between two readings, in hundredths.
type cores struct{ machine, self, server, foreign float64 }

func (r Reading) since() cores {
	now := r.meter.Read()
	ticks := now.at.Sub(r.at).Seconds() * ticksPerSecond
	per := func(a, b int64) float64 { return math.Round(float64(b-a)/ticks*100) / 100 }
	c := cores{machine: per(r.busy, now.busy), self: per(r.self, now.self), server: per(r.server, now.server)}
	c.foreign = math.Round(max(0, c.machine-c.self-c.server)*100) / 100
	return c
}

// machineTicks is what all processors spent on anything but waiting.
func machineTicks() (busy int64) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, field := range strings.Fields(line)[1:] {
		if i == 3 || i == 4 { // idle, waiting for a disk
			continue
		}
		n, _ := strconv.ParseInt(field, 10, 64) // the kernel's own
		busy += n
	}
	return busy
}

// processTicks is a process's parent, and the time of it and of the children it waited
// for; zeros for one that is gone. See proc_pid_stat(5).
func processTicks(pid int) (parent int, ticks int64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 15 {
		return 0, 0
	}
	parent, _ = strconv.Atoi(fields[1])
	for _, field := range fields[11:15] {
		n, _ := strconv.ParseInt(field, 10, 64)
		ticks += n
	}
	return parent, ticks
}

// Sheet is where one system's figures go.
type Sheet struct {
	System  string
	Meter   Meter
	To      io.Writer
	options *Options
}

// Line is one figure. Its form is that of the programs which measured the peers first.
type Line struct {
	Run     int     `json:"run,omitempty"`
	System  string  `json:"sys"`
	Figure  string  `json:"what"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"`
	Machine float64 `json:"cpu_machine"`
	Self    float64 `json:"cpu_self"`
	Server  float64 `json:"cpu_server"`
	Foreign float64 `json:"cpu_foreign"`
	// Note is anything else worth knowing.
	Note string `json:"note,omitempty"`
}

// Rate writes how many per second there were since a reading.
func (s *Sheet) Rate(figure string, n int, unit string, since Reading, note string) error {
	return s.write(figure, float64(n)/time.Since(since.at).Seconds(), unit, since, note)
}

// latency writes the median and the 99th percentile since a reading.
func (s *Sheet) latency(figure string, l *Latencies, since Reading) error {
	if err := s.write(figure+" p50", l.Percentile(50), "ms", since, ""); err != nil {
		return err
	}
	return s.write(figure+" p99", l.Percentile(99), "ms", since, "")
}

// Value writes a figure that is no rate.
func (s *Sheet) Value(figure string, v float64, unit string, since Reading, note string) error {
	return s.write(figure, v, unit, since, note)
}

func (s *Sheet) write(figure string, v float64, unit string, since Reading, note string) error {
	c := since.since()
	b, err := json.Marshal(Line{
		System: s.System, Figure: figure, Value: v, Unit: unit, Note: note,
		Machine: c.machine, Self: c.self, Server: c.server, Foreign: c.foreign,
	})
	if err != nil {
		return fmt.Errorf("%s: %s: %w", s.System, figure, err)
	}
	_, err = fmt.Fprintf(s.To, "%s\n", b)
	return err
}

// Numbered puts the number of a round into every line that a program printed.
func Numbered(printed []byte, round int) ([]byte, error) {
	var out []byte
	for line := range strings.Lines(string(printed)) {
		var l Line
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			return nil, fmt.Errorf("%q is no figure: %w", line, err)
		}
		l.Run = round
		b, err := json.Marshal(l)
		if err != nil {
			return nil, err
		}
		out = append(append(out, b...), '\n')
	}
	return out, nil
}

// Usage is what a process used so far.
type Usage struct {
	CPU time.Duration
	MiB float64 // resident
}

// UsageOf reads a process's counters; zero for one that is gone.
func UsageOf(pid int) (u Usage) {
	_, ticks := processTicks(pid)
	u.CPU = time.Duration(ticks) * time.Second / ticksPerSecond
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return Usage{}
	}
	if fields := strings.Fields(string(b)); len(fields) > 1 {
		pages, _ := strconv.ParseInt(fields[1], 10, 64)
		u.MiB = float64(pages*int64(os.Getpagesize())) / (1 << 20)
	}
	return u
}
