package testenv

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// Proxy forwards TCP connections to one address until told to misbehave.
type Proxy struct {
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu    sync.Mutex // guards what follows
	mode  mode
	flow  chan struct{} // closed while bytes may pass
	conns map[net.Conn]struct{}
}

type mode int

const (
	passing mode = iota
	holding
	cutting
	closed
)

// NewProxy starts a proxy to target, a TCP address or the path of a unix socket; clients
// dial Addr. It goes when the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("proxy: %v", err)
	}
	p := &Proxy{target: target, listener: l, flow: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	close(p.flow)
	p.running.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr is where clients connect.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut resets every connection, and every new one, until Resume.
func (p *Proxy) Cut() { p.enter(cutting) }

// Hold keeps connections open and takes new ones, but lets no byte pass, until
// Resume: what a client sees of a partition. Nothing held back is lost but by Cut.
func (p *Proxy) Hold() { p.enter(holding) }

// Resume forwards again.
func (p *Proxy) Resume() { p.enter(passing) }

func (p *Proxy) close() {
	p.enter(closed)
	_ = p.listener.Close() // the accept loop sees it
	p.running.Wait()
}

func (p *Proxy) enter(m mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.mode
	p.mode = m
	if m == cutting || m == closed {
		// Before anything flows again: what was held back is lost.
		for c := range p.conns {
			reset(c)
		}
	}
	switch {
	case was == holding && m != holding:
		close(p.flow)
	case was != holding && m == holding:
		p.flow = make(chan struct{})
	}
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // a client that left before it was accepted
		}
		p.running.Go(func() { p.serve(c) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	if !p.admit(client) {
		return
	}
	defer p.leave(client)
	network := "tcp"
	if strings.HasPrefix(p.target, "/") {
		network = "unix"
	}
	server, err := net.DialTimeout(network, p.target, 10*time.Second)
	if err != nil {
		return
	}
	if !p.admit(server) {
		return
	}
	defer p.leave(server)
	var both sync.WaitGroup
	both.Go(func() { p.pump(server, client) })
	both.Go(func() { p.pump(client, server) })
	both.Wait()
}

// pump copies until either side ends, and ends the other with it.
func (p *Proxy) pump(to, from net.Conn) {
	defer func() { _ = to.Close() }()
	defer func() { _ = from.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			<-p.passing()
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			<-p.passing() // a held connection does not end either
			return
		}
	}
}

func (p *Proxy) passing() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flow
}

func (p *Proxy) admit(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode == cutting || p.mode == closed {
		reset(c)
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) leave(c net.Conn) {
	_ = c.Close() // perhaps for the second time
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// reset closes c without the courtesies.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
