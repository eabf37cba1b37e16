package runner

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/session"
)

const (
	// maxLine is how much of one line a driver is given.
	maxLine = 8 << 20
	// lingerTime is how long the output may stay silent, and open, once the tree
	// is gone: somebody outside the tree holds it.
	lingerTime = 2 * time.Second
	// lineBuffer is how far the reading runs ahead of the driver.
	lineBuffer = 4
)

// output reads what an agent prints and passes it on: to the transcript, to the
// observer and to the driver, in this order.
type output struct {
	turn  *turn
	watch *observer
	lines chan agent.Line
	// deaf closes when nobody listens to lines any more.
	deaf <-chan struct{}
	// heard has room for one: something was printed since it was last emptied.
	heard chan struct{}
	// broken has room for one: a bound was passed.
	broken chan struct{}

	bytes atomic.Int64
	count atomic.Int64 // lines
}

// read reads to the end of the output or to a bound.
func (o *output) read() {
	defer close(o.lines)
	lines := session.NewLines(io.TeeReader(o, o.turn.transcript), maxLine)
	for {
		line, err := lines.Next()
		if err != nil {
			return // what ended the reading is for the tree's end to tell
		}
		if o.count.Add(1) > int64(o.turn.r.maxEvents()) {
			o.tell(o.broken)
			return
		}
		o.watch.line(line.Text)
		select {
		case o.lines <- line:
		case <-o.deaf:
		}
	}
}

// Read reads from the agent and counts.
func (o *output) Read(p []byte) (int, error) {
	left := o.turn.r.maxOutput() - o.bytes.Load()
	if left <= 0 {
		o.tell(o.broken)
		return 0, io.EOF
	}
	n, err := o.turn.out.ours.Read(p[:min(int64(len(p)), left)])
	if n > 0 {
		o.bytes.Add(int64(n))
		o.tell(o.heard)
	}
	return n, err
}

func (o *output) tell(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it was told already
	}
}

// drain waits until the reading is done. It must be called once the tree is gone:
// then only a process that escaped it can hold the output open, and for that one
// the reading does not wait. It says whether the output had to be given up.
func (o *output) drain(done <-chan struct{}) (gaveUp bool) {
	patience := time.NewTimer(lingerTime)
	defer patience.Stop()
	for {
		select {
		case <-done:
			return gaveUp
		case <-o.heard:
			patience.Reset(lingerTime)
		case <-patience.C:
			if len(o.lines) == cap(o.lines) {
				// The driver is behind, not the agent.
				patience.Reset(lingerTime)
				continue
			}
			gaveUp = true
			// Only a closed file fails here, and that one is not read either.
			_ = o.turn.out.ours.SetReadDeadline(time.Now())
		}
	}
}

// observer calls the observer's methods one at a time.
type observer struct {
	mu     sync.Mutex // held while calling, which is what it is for
	to     agent.Observer
	stream io.Writer
}

func (o *observer) line(text []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.to.Line != nil {
		o.to.Line(text)
	}
	if o.stream != nil {
		// Debug output; a turn does not end because nobody reads it.
		_, _ = o.stream.Write(append(text[:len(text):len(text)], '\n'))
	}
}

func (o *observer) progress(p agent.Progress) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.to.Progress != nil {
		o.to.Progress(p)
	}
}

func (o *observer) started(c agent.Control) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.to.Started != nil {
		o.to.Started(c)
	}
}

// converse holds the conversation. Its context ends only when the driver does not
// notice the end of the output by itself.
func (t *turn) converse(ctx context.Context, out *output, seen func(agent.Progress)) agent.Conversation {
	pipes := agent.Pipes{Lines: out.lines}
	if t.command.Stdin == nil {
		pipes.In = t.in.ours
	}
	return t.driver.Converse(ctx, t.launch, pipes, seen)
}
