package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"turnpike/internal/agent/egress/door"
)

const (
	// maxConnections is how many connections of a turn are served at a time; more wait.
	maxConnections = 256
	// greetingTime is how long a connection may take to say what it is for, dialTime how
	// long finding and reaching a host may take.
	greetingTime = 10 * time.Second
	dialTime     = 15 * time.Second
	// idleTime is how long a connection may be silent: a model may think for minutes.
	idleTime = 30 * time.Minute
	// acceptPause is waited when a connection could not be taken, for want of
	// descriptors mostly.
	acceptPause = 50 * time.Millisecond
	// maxRefusals bounds what is remembered of refusals.
	maxRefusals = 64
)

// Proxy is what serves the doors of one turn, outside it. It lives from New to Close.
type Proxy struct {
	rules    Rules
	log      *slog.Logger
	names    *names
	doors    []door.Door
	resolver *net.Resolver   // nil is the machine's
	upstream *http.Transport // to port 80

	ctx    context.Context //nolint:containedctx // the proxy's life, which ends with Close
	cancel context.CancelFunc
	slots  chan struct{} // one in it for each connection
	work   sync.WaitGroup

	sent, received atomic.Int64

	mu       sync.Mutex // guards what follows
	attached bool
	closed   bool
	open     map[io.Closer]struct{} // what Close ends
	refused  []string
	known    map[string]bool // what refused has, by host
	more     int             // refusals beyond maxRefusals
}

// Traffic is what went through a turn's doors.
type Traffic struct{ Sent, Received int64 }

// New gives the proxy of a turn under r. Nothing is served until Attach or Admit.
func New(r Rules, log *slog.Logger) (*Proxy, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &Proxy{
		rules: r, log: log, names: newNames(r), slots: make(chan struct{}, maxConnections),
		open: make(map[io.Closer]struct{}), known: make(map[string]bool),
	}
	p.doors = doors(r, p.names)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.upstream = p.transport()
	return p, nil
}

// Attach takes over the turn's doors from the process at the other end of c, which is
// inside and calls door.Give, and serves them until Close. It is called once.
func (p *Proxy) Attach(c *net.UnixConn) error {
	return door.Take(c, p.doors, func(opened []*os.File) error {
		if err := p.attach(opened); err != nil {
			door.Close(opened)
			return err
		}
		return nil
	})
}

func (p *Proxy) attach(opened []*os.File) error {
	if len(opened) != len(p.doors) {
		return fmt.Errorf("%d doors were opened instead of %d", len(opened), len(p.doors))
	}
	for i, f := range opened {
		if err := p.doors[i].Check(f); err != nil {
			return fmt.Errorf("the door %s: %w", p.doors[i].Address, err)
		}
	}
	p.mu.Lock()
	again := p.attached
	p.attached = true
	p.mu.Unlock()
	if again {
		return errors.New("the doors are served already")
	}
	for i, f := range opened {
		d := p.doors[i]
		if d.Network == door.Datagram {
			c, err := packetConn(f)
			if err != nil {
				return fmt.Errorf("the door %s: %w", d.Address, err)
			}
			p.serve(c, func() { p.serveQueries(c) })
			continue
		}
		l, err := listener(f)
		if err != nil {
			return fmt.Errorf("the door %s: %w", d.Address, err)
		}
		p.serve(l, func() { p.accept(l) })
	}
	return nil
}

// serve runs do until it returns, which it does soon after c is closed; Close closes
// c and waits.
func (p *Proxy) serve(c io.Closer, do func()) {
	if !p.keep(c, 1) {
		return
	}
	go func() {
		defer p.work.Done()
		defer p.drop(c)
		do()
	}()
}

// keep has Close end c, and wait for so much work; after Close, it closes c at once
// and says no.
func (p *Proxy) keep(c io.Closer, work int) bool {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.open[c] = struct{}{}
		p.work.Add(work)
	}
	p.mu.Unlock()
	if closed {
		_ = c.Close() // nobody is told anything any more
	}
	return !closed
}

func (p *Proxy) drop(c io.Closer) {
	p.mu.Lock()
	delete(p.open, c)
	p.mu.Unlock()
	_ = c.Close() // what could be lost was lost by the turn's own choice
}

// Close ends every connection and returns when nothing is served any more.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	open := make([]io.Closer, 0, len(p.open))
	for c := range p.open {
		open = append(open, c)
	}
	p.mu.Unlock()
	p.cancel()
	var err error
	for _, c := range open {
		if cause := c.Close(); cause != nil && !errors.Is(cause, net.ErrClosed) {
			err = errors.Join(err, cause)
		}
	}
	p.work.Wait()
	p.upstream.CloseIdleConnections()
	p.log.Debug("turn's network closed", "sent", p.sent.Load(), "received", p.received.Load())
	if err != nil {
		return fmt.Errorf("close the turn's network: %w", err)
	}
	return nil
}

// Traffic is what went through so far.
func (p *Proxy) Traffic() Traffic {
	return Traffic{Sent: p.sent.Load(), Received: p.received.Load()}
}

// Refusals say which hosts the turn was refused, or did not reach, and why; one line
// for each host.
func (p *Proxy) Refusals() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := slices.Clone(p.refused)
	if p.more > 0 {
		out = append(out, fmt.Sprintf("network: %d more refusals", p.more))
	}
	return out
}

// refuse notes why the turn does not get to a host, once for each. Host may be
// whatever the agent wrote.
func (p *Proxy) refuse(host, format string, args ...any) {
	why := fmt.Sprintf(format, args...)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.known[host]:
	case len(p.refused) == maxRefusals:
		p.more++ // and not remembered: what it counts are tries
	default:
		p.known[host] = true
		p.refused = append(p.refused, fmt.Sprintf("network: %q: %s", host, why))
	}
}

// accept takes the connections of one door, as many at a time as there are slots.
func (p *Proxy) accept(l net.Listener) {
	for {
		select {
		case p.slots <- struct{}{}:
		case <-p.ctx.Done():
			return
		}
		accepted, err := l.Accept()
		if err != nil {
			<-p.slots
			if errors.Is(err, net.ErrClosed) {
				return
			}
			select {
			case <-time.After(acceptPause):
				continue
			case <-p.ctx.Done():
				return
			}
		}
		p.serve(accepted, func() {
			defer func() { <-p.slots }()
			p.judge(accepted)
		})
	}
}

// judge decides by the address a connection came to which host is meant, and serves it.
func (p *Proxy) judge(c net.Conn) {
	at := c.LocalAddr().(*net.TCPAddr).AddrPort()
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	if at == nameDoor {
		p.serveStream(c)
		return
	}
	if literal := at.Addr().String(); p.rules.allows(literal) {
		if _, ok := p.rules.to(literal, at.Port()); ok {
			p.pass(c, literal, at.Port(), nil)
			return
		}
	}
	name, ok := p.names.name(at.Addr())
	if !ok || !p.rules.allows(name) {
		if synthetic.Contains(at.Addr()) {
			p.refuse(at.String(), "stands for no host")
		}
		reset(c)
		return
	}
	switch at.Port() {
	case portTLS:
		p.serveTLS(c, name)
	case portHTTP:
		p.serveHTTP(c, name)
	default:
		p.pass(c, name, at.Port(), nil)
	}
}

// pass dials name and copies both ways, beginning with what was already read.
func (p *Proxy) pass(c net.Conn, name string, port uint16, read []byte) {
	far, err := p.dial(p.ctx, name, port)
	if err != nil {
		reset(c)
		return
	}
	defer p.drop(far)
	if _, err := far.Write(read); err != nil {
		reset(c)
		return
	}
	p.sent.Add(int64(len(read)))
	join(c, far, &p.sent, &p.received)
}

// errNotPublic is the refusal to dial an address.
var errNotPublic = errors.New("its address is not public")

// dial reaches the host of this name, which was judged, and has Close end the
// connection. The address is judged where it is about to be dialled, so that a name
// that resolves anew meets the same.
func (p *Proxy) dial(ctx context.Context, name string, port uint16) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTime, Resolver: p.resolver}
	to, chosen := p.rules.to(name, port)
	if !chosen {
		// With its dot a name is whole: no search domain of the machine's is tried.
		to = net.JoinHostPort(name+".", strconv.Itoa(int(port)))
		d.Control = func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil || !public(at.Addr()) || ours(at.Addr()) {
				return fmt.Errorf("%w: %s", errNotPublic, address)
			}
			return nil
		}
	}
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		if p.ctx.Err() == nil {
			p.log.Debug("turn did not reach a host", "host", name, "port", port, "error", err)
			p.refuse(name, "%v", cause(err))
		}
		return nil, cause(err)
	}
	if !p.keep(c, 0) {
		return nil, net.ErrClosed
	}
	return c, nil
}

// cause says why a host was not reached without telling of the machine's own network.
func cause(err error) error {
	var lookup *net.DNSError
	var slow net.Error
	switch {
	case errors.Is(err, errNotPublic):
		return errNotPublic
	case errors.As(err, &lookup) && lookup.IsNotFound:
		return errors.New("there is no such host")
	case errors.As(err, &lookup):
		return errors.New("its name was not resolved")
	case errors.As(err, &slow) && slow.Timeout():
		return errors.New("it did not answer in time")
	}
	return errors.New("it did not take the connection")
}

// reset ends c in the way that tells its other end that nobody answers.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // else it is closed like any other
	}
	_ = c.Close() // an error changes nothing for either side
}

// join copies between a and b until both have said all, one fails or neither says
// anything for long.
func join(a, b net.Conn, sent, received *atomic.Int64) {
	end := func() {
		_ = a.Close() // to end the copies is all that is wanted
		_ = b.Close()
	}
	idle := time.AfterFunc(idleTime, end)
	defer idle.Stop()
	var both sync.WaitGroup
	one := func(to, from net.Conn, n *atomic.Int64) {
		buf := make([]byte, 32<<10)
		_, err := io.CopyBuffer(meter{to, n, idle}, onlyReader{from}, buf)
		if err == nil {
			// The other way may have more to say.
			if half, ok := to.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
				return
			}
		}
		end()
	}
	both.Go(func() { one(b, a, sent) })
	both.Go(func() { one(a, b, received) })
	both.Wait()
}

// meter counts what is written, and knows that the connection lives.
type meter struct {
	io.Writer
	n    *atomic.Int64
	idle *time.Timer
}

func (m meter) Write(b []byte) (int, error) {
	m.idle.Reset(idleTime)
	n, err := m.Writer.Write(b)
	m.n.Add(int64(n))
	return n, err
}

// onlyReader hides a connection's own way of copying itself, which nobody could count.
type onlyReader struct{ io.Reader }
