package sbx

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// The line's streams carry frames: a kind, the number of a connection, a length, and
// as many bytes.
const (
	frameNews  = 'n' // JSON: orders to the line, news from it
	frameOpen  = 'o' // somebody dialled the socket whose number is the only byte
	frameData  = 'd'
	frameEnd   = 'e' // nothing more comes this way
	frameClose = 'c' // the connection is over, both ways

	maxFrame = 64 << 10
	maxNews  = 8 << 20
	// maxQueue bounds what waits for one connection's slow reader.
	maxQueue = 32 << 20
)

// lines is one end of the line. Its methods are used from many goroutines.
type lines struct {
	in  io.Reader
	out io.Writer

	write sync.Mutex // guards out, a frame at a time

	mu    sync.Mutex // guards conns and over
	conns map[uint32]*tunnel
	over  bool
}

func newLines(in io.Reader, out io.Writer) *lines {
	return &lines{in: in, out: out, conns: map[uint32]*tunnel{}}
}

func (l *lines) send(kind byte, id uint32, payload []byte) error {
	head := make([]byte, 9, 9+len(payload))
	head[0] = kind
	binary.BigEndian.PutUint32(head[1:], id)
	binary.BigEndian.PutUint32(head[5:], uint32(len(payload))) // bounded by maxFrame and maxNews
	l.write.Lock()
	defer l.write.Unlock()
	_, err := l.out.Write(append(head, payload...))
	return err
}

// say sends news or an order.
func (l *lines) say(v any) error {
	text, err := json.Marshal(v)
	if err == nil && len(text) > maxNews {
		err = errors.New("the message is too long")
	}
	if err != nil {
		return err
	}
	return l.send(frameNews, 0, text)
}

// read takes frames until the other end is gone. news is given each message, and opened
// what to reach for each new connection; it is nil at the end that opens them.
func (l *lines) read(news func([]byte) error, opened func(socket byte) (io.ReadWriteCloser, error)) error {
	defer l.closeAll()
	head := make([]byte, 9)
	for {
		if _, err := io.ReadFull(l.in, head); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		kind, id, n := head[0], binary.BigEndian.Uint32(head[1:]), binary.BigEndian.Uint32(head[5:])
		if n > maxNews || kind != frameNews && n > maxFrame {
			return fmt.Errorf("a frame of %d bytes", n)
		}
		payload := make([]byte, n)
		if _, err := io.ReadFull(l.in, payload); err != nil {
			return err
		}
		switch kind {
		case frameNews:
			if err := news(payload); err != nil {
				return err
			}
		case frameOpen:
			if opened == nil || len(payload) != 1 {
				return errors.New("a connection nobody waits for")
			}
			l.answer(id, payload[0], opened)
		case frameData, frameEnd, frameClose:
			if t := l.conn(id); t != nil {
				t.take(kind, payload)
			}
		default:
			return fmt.Errorf("a frame of kind %q", kind)
		}
	}
}

func (l *lines) conn(id uint32) *tunnel {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns[id]
}

// answer reaches what a new connection wants, without keeping the others waiting.
func (l *lines) answer(id uint32, socket byte, opened func(byte) (io.ReadWriteCloser, error)) {
	t := newTunnel(l, id)
	if !l.add(t) {
		return
	}
	go func() {
		c, err := opened(socket)
		if err != nil {
			l.drop(t)
			_ = l.send(frameClose, id, nil) // or the line is gone
			return
		}
		t.join(c)
	}()
}

// open carries c, which dialled a socket, to the other end.
func (l *lines) open(id uint32, socket byte, c io.ReadWriteCloser) {
	t := newTunnel(l, id)
	if !l.add(t) || l.send(frameOpen, id, []byte{socket}) != nil {
		l.drop(t)
		_ = c.Close()
		return
	}
	t.join(c)
}

func (l *lines) add(t *tunnel) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || l.conns[t.id] != nil {
		return false
	}
	l.conns[t.id] = t
	return true
}

func (l *lines) drop(t *tunnel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns[t.id] == t {
		delete(l.conns, t.id)
	}
}

func (l *lines) closeAll() {
	l.mu.Lock()
	l.over = true
	all := l.conns
	l.conns = map[uint32]*tunnel{}
	l.mu.Unlock()
	for _, t := range all {
		t.take(frameClose, nil)
	}
}

// tunnel is one connection carried over the line. What comes from the other end waits
// in its queue, so that one slow reader keeps nobody else waiting.
type tunnel struct {
	line *lines
	id   uint32
	done context.Context //nolint:containedctx // it is the tunnel's own life, which no caller has
	stop context.CancelFunc

	mu    sync.Mutex // guards queue, size, ended
	some  *sync.Cond
	queue [][]byte
	size  int
	ended bool // nothing is added any more
}

func newTunnel(l *lines, id uint32) *tunnel {
	t := &tunnel{line: l, id: id}
	t.some = sync.NewCond(&t.mu)
	t.done, t.stop = context.WithCancel(context.Background())
	return t
}

func (t *tunnel) take(kind byte, payload []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case kind == frameData && !t.ended && t.size+len(payload) <= maxQueue:
		t.queue, t.size = append(t.queue, payload), t.size+len(payload)
	case kind == frameEnd:
		t.ended = true
	default:
		t.ended = true
		t.stop()
	}
	t.some.Broadcast()
}

// next gives what came, in order; false says that nothing comes any more.
func (t *tunnel) next() ([]byte, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.queue) == 0 && !t.ended {
		t.some.Wait()
	}
	if len(t.queue) == 0 || t.done.Err() != nil {
		return nil, false
	}
	p := t.queue[0]
	t.queue, t.size = t.queue[1:], t.size-len(p)
	return p, true
}

// join carries bytes between c and the other end until both have ended.
func (t *tunnel) join(c io.ReadWriteCloser) {
	context.AfterFunc(t.done, func() { _ = c.Close() })
	var both sync.WaitGroup
	both.Go(func() {
		buf := make([]byte, maxFrame)
		for {
			n, err := c.Read(buf)
			if n > 0 && t.line.send(frameData, t.id, buf[:n]) != nil {
				t.stop()
				return
			}
			if err != nil {
				_ = t.line.send(frameEnd, t.id, nil)
				return
			}
		}
	})
	both.Go(func() {
		for {
			p, ok := t.next()
			if !ok {
				break
			}
			if _, err := c.Write(p); err != nil {
				_ = t.line.send(frameClose, t.id, nil)
				t.stop()
				return
			}
		}
		if half, ok := c.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	})
	go func() {
		both.Wait()
		t.line.drop(t)
		t.stop()
	}()
}

// linePlan is what the line is told first.
type linePlan struct {
	// Places are what the sandbox is shown, and whether it may be written.
	Places []place
	// Sockets are listened on, in the order of their numbers.
	Sockets []string
}

type place struct {
	Path  string
	Write bool
}

// order is what the worker says to the line after that.
type order struct {
	Do string        `json:"do"`
	At time.Duration `json:"at,omitempty"` // of until: by the clock of news
}

// The orders there are.
const (
	doTerminate = "terminate"
	doFreeze    = "freeze"
	doThaw      = "thaw"
	doUntil     = "until"
)

// news is what the line says.
type news struct {
	Ready  bool    `json:"ready,omitempty"`  // places and sockets are as planned
	Failed *string `json:"failed,omitempty"` // they are not, or the agent could not be executed
	// Changed says that what is not as planned is what was verified, not sbx.
	Changed bool   `json:"changed,omitempty"`
	Running bool   `json:"running,omitempty"` // the agent was executed
	Did     string `json:"did,omitempty"`     // an order, with an error if it failed
	Error   string `json:"error,omitempty"`
	// Clock is when this was said, by the sandbox's own CLOCK_MONOTONIC, and heard when it
	// was heard, by this side's.
	Clock time.Duration `json:"clock"`
	heard time.Time
}

// agentPlan is what the agent's stage is told through its input.
type agentPlan struct {
	// Report is the socket on which the line waits for it.
	Report string
	Path   string
	Args   []string
	Env    []string // over the sandbox's own
	Dir    string
	Until  time.Duration // by the clock of news; zero is no end
	// Without are names, or prefixes ending in "*", that the sandbox's own environment
	// has and the agent must not.
	Without []string
}

// errOver says that an agent's time was over before it was executed.
var errOver = errors.New("the time it may run for is over")

// writePlan and readPlan pass a plan in front of what follows in the same stream.
func writePlan(w io.Writer, plan any) error {
	text, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)) // no plan has 4 GiB
	return err
}

func readPlan(r io.Reader, plan any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxNews {
		return fmt.Errorf("a plan of %d bytes", n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return err
	}
	return json.Unmarshal(text, plan)
}
