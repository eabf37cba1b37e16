package codex

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"turnpike/internal/agent"
)

// penTime is how long the CLI may take to read what it was told last.
const penTime = time.Second

// Converse leads the conversation: to its end, or until the CLI lingers after it.
func (d Driver) Converse(ctx context.Context, l agent.Launch, pipes agent.Pipes, seen func(agent.Progress)) agent.Conversation {
	s := newTalk(l)
	pen := hold(pipes.In)
	defer func() { pen.stop(s.say) }()

	waiting, starting, lingering := newAlarm(), newAlarm(), newAlarm()
	for {
		waiting.keep(s.throttled, d.patience())
		starting.keep(s.awaited, serverStart+serverStart/2)
		lingering.keep(s.over, d.linger())
		var next []byte
		var notes chan<- []byte
		switch {
		case pen.finished:
		case len(s.say) > 0:
			next, notes = s.say[0], pen.notes
		case s.ended:
			pen.finish() // with its input the server ends
		}
		select {
		case <-ctx.Done():
			s.interrupt(stopCancelled)
			return s.conclude()
		case <-lingering.C:
			return s.conclude()
		case <-waiting.C:
			s.interrupt(stopWaited)
		case <-starting.C:
			s.startTurn()
		case notes <- next:
			s.say = s.say[1:]
		case line, open := <-pipes.Lines:
			if !open {
				return s.conclude()
			}
			if s.take(line) && s.progress.Conversation != "" {
				seen(s.progress)
			}
		}
	}
}

// alarm goes off some time after the last occasion to wait began.
type alarm struct {
	*time.Timer
	since int
}

func newAlarm() *alarm {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &alarm{Timer: t}
}

// keep sets the alarm when there is an occasion that it was not set for. Occasions
// are numbered; 0 is none.
func (a *alarm) keep(occasion int, d time.Duration) {
	if occasion == a.since {
		return
	}
	if a.since = occasion; occasion == 0 {
		a.Stop()
		return
	}
	a.Reset(d)
}

// pen writes to the CLI, which may not read for as long as it writes itself. It
// belongs to one goroutine.
type pen struct {
	in       io.WriteCloser
	notes    chan []byte
	done     chan struct{}
	finished bool
}

func hold(in io.WriteCloser) *pen {
	p := &pen{in: in, notes: make(chan []byte), done: make(chan struct{})}
	go p.write()
	return p
}

func (p *pen) write() {
	defer close(p.done)
	broken := false
	for note := range p.notes {
		if !broken {
			// A CLI that does not listen any more says so by its own end.
			_, err := p.in.Write(note)
			broken = err != nil
		}
	}
	_ = p.in.Close()
}

// finish lets the CLI see the end of its input.
func (p *pen) finish() {
	if !p.finished {
		p.finished = true
		close(p.notes)
	}
}

// stop writes what is left, as far as that is read in time, and waits for the writer.
func (p *pen) stop(left [][]byte) {
	late := time.AfterFunc(penTime, func() { _ = p.in.Close() }) // ends a write that nobody reads
	defer late.Stop()
	for _, note := range left {
		if p.finished {
			break
		}
		p.notes <- note
	}
	p.finish()
	<-p.done
}

// encode is one line for the server.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil { // a mistake in this package: only its own values are encoded
		panic(err)
	}
	return append(data, '\n')
}
