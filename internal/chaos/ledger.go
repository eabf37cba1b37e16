package chaos

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"turnpike/internal/job"
)

// Run is one tree of processes as the ledger heard it. Its times are since the ledger
// began, by the ledger's clock.
type Run struct {
	Job          job.ID
	Attempt      int
	Plan         int
	Conversation string
	Resumed      bool

	Begun time.Duration // it was about to be let begin
	Last  time.Duration // it was heard last
	Open  bool          // something of it is still there
	Tools int
	// Will is what the results cost that were about to be printed, Did what those cost
	// that were printed whole.
	Will, Did job.USD
	Good      bool // the last result is a good one, printed whole
	// Written is what the results cost that are in the transcript, where a worker serves
	// the state directory it is in. The ledger does not hear of it.
	Written job.USD
}

// Ledger is what turns report to while they run.
type Ledger struct {
	script  func(n, attempt int) Script
	began   time.Time
	listen  net.Listener
	running sync.WaitGroup

	mu    sync.Mutex // guards what follows
	runs  []*Run
	conns map[net.Conn]struct{}
	ended bool
}

// NewLedger begins to listen. script says what a job of the plan does in an attempt.
func NewLedger(script func(n, attempt int) Script) (*Ledger, error) {
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &Ledger{script: script, began: time.Now(), listen: listen, conns: make(map[net.Conn]struct{})}
	l.running.Go(l.accept)
	return l, nil
}

// Addr is where turns report.
func (l *Ledger) Addr() string { return l.listen.Addr().String() }

// Close ends the ledger. Turns that still report cannot any more.
func (l *Ledger) Close() {
	l.mu.Lock()
	l.ended = true
	for c := range l.conns {
		c.Close()
	}
	l.mu.Unlock()
	l.listen.Close()
	l.running.Wait()
}

// Open counts the trees of which something is there.
func (l *Ledger) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

// Runs is everything heard so far, by job and in the order of begin.
func (l *Ledger) Runs() []Run {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Run, len(l.runs))
	for i, r := range l.runs {
		out[i] = *r
	}
	slices.SortFunc(out, func(a, b Run) int { return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Begun, b.Begun)) })
	return out
}

func (l *Ledger) accept() {
	for {
		c, err := l.listen.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && l.admit(c) {
			l.running.Go(func() { l.serve(c) })
		}
	}
}

func (l *Ledger) admit(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		c.Close()
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

// serve hears one tree to its end.
func (l *Ledger) serve(c net.Conn) {
	var r *Run
	defer func() {
		c.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.conns, c)
		if r != nil && !l.ended {
			r.Open = false
		}
	}()
	lines := bufio.NewScanner(c)
	if !lines.Scan() {
		return
	}
	var h Hello
	if json.Unmarshal(lines.Bytes(), &h) != nil {
		return
	}
	id, n, _ := strings.Cut(h.Turn, ".")
	attempt, err := strconv.Atoi(n)
	if err != nil {
		return
	}
	// On record before it may do anything.
	r = l.begin(h, job.ID(id), attempt)
	if _, err := c.Write(Line(l.script(h.Plan, attempt))); err != nil {
		return
	}
	for lines.Scan() {
		var w Word
		if json.Unmarshal(lines.Bytes(), &w) == nil {
			l.hear(r, w)
		}
	}
}

func (l *Ledger) begin(h Hello, id job.ID, attempt int) *Run {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Since(l.began)
	r := &Run{
		Job: id, Attempt: attempt, Plan: h.Plan, Conversation: h.Conversation, Resumed: h.Resumed,
		Begun: now, Last: now, Open: true,
	}
	l.runs = append(l.runs, r)
	return r
}

func (l *Ledger) hear(r *Run, w Word) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Last = time.Since(l.began)
	if w.Will != "" {
		r.Good = false
		r.Will += w.Cost
	}
	switch w.Heard {
	case Tool:
		r.Tools++
	case Result, Wrong, Overloaded, Limited:
		r.Did += w.Cost
		r.Good = w.Heard == Result
	}
}
