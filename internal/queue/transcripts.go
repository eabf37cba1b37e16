package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"turnpike/internal/job"
)

// Bounds of one attempt's transcript on its way. The session directory has all.
const (
	chunkBytes    = 256 << 10 // in one message; a longer line is dropped
	bufferBytes   = 4 << 20   // waiting to be sent
	attemptBytes  = 64 << 20  // of one attempt: an endless turn must not evict the others
	chunkEvery    = 100 * time.Millisecond
	publishPause  = time.Second // after a failure
	followAnyway  = time.Second // a follower looks without being told
	headerDropped = "Turnpike-Dropped"
	headerEnd     = "Turnpike-End"
)

// Transcript sends one attempt's lines as they come. A line is never waited for:
// what does not fit while the server is away is dropped and counted.
type Transcript struct {
	conn    *Conn
	subject string

	mu      sync.Mutex // guards the fields below
	buffer  []byte
	sent    int // bytes taken in all
	dropped int // lines since the last chunk
	lost    int // lines dropped in all
	closed  bool

	more    chan struct{} // there is something to send, or it was closed
	closing chan struct{}
	stop    context.CancelFunc // gives up on what is still to be sent
	done    chan struct{}      // the sender returned
}

// OpenTranscript starts the sender of an attempt. Close waits for it.
func (c *Conn) OpenTranscript(id job.ID, attempt int) *Transcript {
	ctx, stop := context.WithCancel(context.Background())
	t := &Transcript{
		conn:    c,
		subject: attemptSubject(transcriptRoot, id, attempt),
		more:    make(chan struct{}, 1),
		closing: make(chan struct{}),
		stop:    stop,
		done:    make(chan struct{}),
	}
	go t.run(ctx)
	return t
}

// Line takes one line, with or without its newline. It never blocks and may be called
// at once.
func (t *Transcript) Line(line []byte) {
	line = bytes.TrimSuffix(line, []byte("\n"))
	size := len(line) + 1
	t.mu.Lock()
	if t.closed || size > chunkBytes || len(t.buffer)+size > bufferBytes || t.sent+size > attemptBytes ||
		bytes.IndexByte(line, '\n') >= 0 {
		t.dropped++
		t.lost++
	} else {
		t.buffer = append(append(t.buffer, line...), '\n')
		t.sent += size
	}
	t.mu.Unlock()
	t.poke()
}

func (t *Transcript) poke() {
	select {
	case t.more <- struct{}{}:
	default:
	}
}

// Close sends what is left, for as long as ctx lasts, and says how many lines were
// dropped in all.
func (t *Transcript) Close(ctx context.Context) (dropped int) {
	t.mu.Lock()
	first := !t.closed
	t.closed = true
	t.mu.Unlock()
	if first {
		close(t.closing)
	}
	select {
	case <-t.done:
	case <-ctx.Done():
	}
	t.stop()
	<-t.done
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost
}

// run sends chunk after chunk, in order, until all is sent after Close or ctx ends.
func (t *Transcript) run(ctx context.Context) {
	defer close(t.done)
	seq := 0
	for {
		select {
		case <-t.more:
			// Let a few lines gather: a chunk costs the same as a line.
			pause(ctx, chunkEvery, t.closing)
		case <-t.closing:
		}
		for {
			chunk, dropped, last := t.next()
			if len(chunk) == 0 && dropped == 0 && !last {
				break
			}
			seq++
			if !t.send(ctx, seq, chunk, dropped, last) {
				t.mu.Lock()
				t.lost += bytes.Count(chunk, []byte("\n")) + bytes.Count(t.buffer, []byte("\n"))
				t.buffer = nil
				t.mu.Unlock()
				return
			}
			if last {
				return
			}
		}
	}
}

// next cuts whole lines off the buffer. last says that nothing will follow.
func (t *Transcript) next() (chunk []byte, dropped int, last bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	cut := len(t.buffer)
	if cut > chunkBytes {
		cut = bytes.LastIndexByte(t.buffer[:chunkBytes], '\n') + 1
	}
	chunk = bytes.Clone(t.buffer[:cut])
	t.buffer = append(t.buffer[:0], t.buffer[cut:]...)
	dropped, t.dropped = t.dropped, 0
	return chunk, dropped, t.closed && len(t.buffer) == 0
}

// send publishes one chunk, again and again until ctx ends. The message id makes the
// repetition harmless: unlike a job, a chunk never comes back.
func (t *Transcript) send(ctx context.Context, seq int, chunk []byte, dropped int, last bool) bool {
	m := nats.NewMsg(t.subject)
	m.Data = chunk
	if dropped > 0 {
		m.Header.Set(headerDropped, strconv.Itoa(dropped))
	}
	if last {
		m.Header.Set(headerEnd, "1")
	}
	id := t.subject + "/" + strconv.Itoa(seq)
	for {
		err := t.conn.up("send a transcript")
		if err == nil {
			call, cancel := t.conn.call(ctx)
			_, err = t.conn.js.PublishMsg(call, m, jetstream.WithMsgID(id), jetstream.WithExpectStream(transcriptsStream))
			cancel()
		}
		if err == nil {
			return true
		}
		t.conn.log.Debug("send a transcript", "subject", t.subject, "err", err)
		if !pause(ctx, publishPause, nil) {
			return false
		}
	}
}

// pause waits for d or early, and says whether ctx lasted.
func pause(ctx context.Context, d time.Duration, early <-chan struct{}) bool {
	wait := time.NewTimer(d)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-early:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// Tail calls emit for each chunk of a job's transcript after seq, oldest first: of one
// attempt, or of all when attempt is 0. It returns at the end of what there is, or,
// when following, when ctx or the one attempt's transcript ends, or emit fails. It
// keeps no consumer on the server. Its errors are emit's, [job.ErrUnavailable] or the
// context's cause.
func (c *Conn) Tail(ctx context.Context, id job.ID, attempt int, after uint64, follow bool, emit func(job.TranscriptChunk) error) error {
	doing := "read the transcript of job " + string(id)
	filter := transcriptRoot + string(id) + ".*"
	if attempt > 0 {
		filter = attemptSubject(transcriptRoot, id, attempt)
	}
	news := make(chan *nats.Msg, 1) // only that something came counts
	if follow {
		sub, err := c.nc.ChanSubscribe(filter, news)
		if err != nil {
			return kind(ctx, doing, err)
		}
		defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is closed
	}
	stream, err := c.transcripts(ctx, doing)
	if err != nil {
		return err
	}
	for {
		chunk, err := c.nextChunk(ctx, stream, filter, after+1)
		switch {
		case err == nil:
			after = chunk.Seq
			if err := emit(chunk); err != nil {
				return err
			}
			if chunk.End && attempt > 0 {
				return nil
			}
			continue
		case !errors.Is(err, jetstream.ErrMsgNotFound):
			return kind(ctx, doing, err)
		case !follow:
			return nil
		}
		look := time.NewTimer(followAnyway)
		select {
		case <-news:
		case <-look.C:
		case <-ctx.Done():
		}
		look.Stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (c *Conn) transcripts(ctx context.Context, doing string) (jetstream.Stream, error) {
	if err := c.up(doing); err != nil {
		return nil, err
	}
	call, cancel := c.call(ctx)
	defer cancel()
	stream, err := c.js.Stream(call, transcriptsStream)
	return stream, kind(ctx, doing, err)
}

func (c *Conn) nextChunk(ctx context.Context, stream jetstream.Stream, filter string, from uint64) (job.TranscriptChunk, error) {
	call, cancel := c.call(ctx)
	defer cancel()
	m, err := stream.GetMsg(call, from, jetstream.WithGetMsgSubject(filter))
	if err != nil {
		return job.TranscriptChunk{}, err
	}
	_, attempt, err := parseAttemptSubject(transcriptRoot, m.Subject)
	if err != nil {
		return job.TranscriptChunk{}, fmt.Errorf("chunk %d: %w", m.Sequence, err)
	}
	dropped, _ := strconv.Atoi(m.Header.Get(headerDropped)) // absent is none
	return job.TranscriptChunk{
		Attempt: attempt,
		Seq:     m.Sequence,
		Lines:   m.Data,
		Dropped: max(dropped, 0),
		End:     m.Header.Get(headerEnd) != "",
	}, nil
}
