package mcphost

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnpike/internal/agent"
)

// ServerName is the name the turn's MCP configuration gives the server.
const ServerName = "turnpike"

// TokenEnv is the variable the bridge is given the turn's token in.
const TokenEnv = "TURNPIKE_TOOL_TOKEN"

const (
	// maxConns bounds the connections open at one time. A CLI needs one, and
	// one more while it reconnects.
	maxConns = 8
	// maxMessage bounds one message from the agent, several times what the
	// largest valid report takes when every character of it is escaped.
	maxMessage = 256 << 10
	// greetingTime is how long a connection may take to show its token.
	greetingTime = 10 * time.Second
)

const (
	dirName    = "mcp"
	socketName = "tools.sock"
)

// Host serves the tools of one turn. Its methods may be called from many goroutines.
type Host struct {
	dir    string
	bridge string
	token  string

	server   *mcp.Server
	reported *reported
	listener *net.UnixListener
	served   sync.WaitGroup // the acceptor and every connection
	stop     context.CancelFunc

	mu    sync.Mutex // guards conns and ended
	conns map[net.Conn]struct{}
	ended bool
}

// Start serves the tools of one turn until Close is called or ctx ends. The socket
// is made in a new directory inside dir, which holds nothing else and is the only
// part of dir the turn gets to see.
func Start(ctx context.Context, dir string, r Report) (*Host, error) {
	server := mcp.NewServer(&mcp.Implementation{Name: ServerName, Version: "1"}, nil)
	outcome, err := r.addTo(server)
	if err != nil {
		return nil, fmt.Errorf("serve the turn's tools: %w", err)
	}
	bridge, err := r.bridge()
	if err != nil {
		return nil, fmt.Errorf("find the tools' bridge: %w: %w", agent.ErrUnready, err)
	}
	dir, err = filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("serve the turn's tools: %w: %w", agent.ErrUnready, err)
	}
	dir = filepath.Join(dir, dirName)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("serve the turn's tools: %w: %w", agent.ErrUnready, err)
	}
	listener, err := listenIn(dir, socketName)
	if err != nil {
		return nil, fmt.Errorf("serve the turn's tools: %w: %w", agent.ErrUnready,
			errors.Join(err, os.RemoveAll(dir)))
	}
	ctx, stop := context.WithCancel(ctx)
	h := &Host{
		dir: dir, bridge: bridge, token: rand.Text(),
		server: server, reported: outcome, listener: listener, stop: stop,
		conns: map[net.Conn]struct{}{},
	}
	h.served.Go(func() { h.accept(ctx) })
	h.served.Go(func() {
		<-ctx.Done()
		h.hangUp()
	})
	return h, nil
}

// Entry is how the turn's CLI reaches the server.
func (h *Host) Entry() agent.MCPEntry {
	return agent.MCPEntry{
		Type:    "stdio",
		Command: h.bridge,
		Args:    []string{bridgeArg, filepath.Join(h.dir, socketName)},
		Env:     map[string]string{TokenEnv: h.token},
	}
}

// Mounts is what the turn must be able to see for Entry to work. Connecting to a
// socket needs no writable mount.
func (h *Host) Mounts() []agent.Mount {
	return []agent.Mount{
		{Path: h.dir, Access: agent.ReadOnly},
		{Path: h.bridge, Access: agent.ReadOnly},
	}
}

// Outcome is what the agent reported, and whether it did.
func (h *Host) Outcome() (agent.Outcome, bool) { return h.reported.get() }

// Close ends every connection, waits for what served them and removes the socket.
// The outcome can still be read.
func (h *Host) Close() error {
	h.stop()
	h.served.Wait()
	if err := os.RemoveAll(h.dir); err != nil {
		return fmt.Errorf("remove the tools' socket: %w", err)
	}
	return nil
}

func (h *Host) accept(ctx context.Context) {
	for {
		conn, err := h.listener.AcceptUnix()
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed):
			return
		default:
			// Out of descriptors, most likely: it passes, and accepting at once
			// again would spin.
			select {
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		if !h.admit(conn) {
			_ = conn.Close() // the bridge sees its input end, and that is all it needs
			continue
		}
		h.served.Go(func() {
			defer h.dismiss(conn)
			h.serve(ctx, conn)
		})
	}
}

// admit takes conn among the open ones unless they are too many or all is over.
func (h *Host) admit(conn net.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended || len(h.conns) >= maxConns {
		return false
	}
	h.conns[conn] = struct{}{}
	return true
}

func (h *Host) dismiss(conn net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, conn)
	_ = conn.Close() // closed already when the session ended by itself
}

func (h *Host) hangUp() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	_ = h.listener.Close()
	for conn := range h.conns {
		_ = conn.Close()
	}
}

// serve speaks MCP on one connection once it has shown the token.
func (h *Host) serve(ctx context.Context, conn *net.UnixConn) {
	if err := conn.SetDeadline(time.Now().Add(greetingTime)); err != nil {
		return
	}
	if !greeted(conn, h.token) {
		return
	}
	if _, err := conn.Write([]byte(welcome)); err != nil {
		return
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return
	}
	session, err := h.server.Connect(ctx, &mcp.IOTransport{Reader: conn, Writer: conn, MaxLineLength: maxMessage}, nil)
	if err != nil {
		return
	}
	// How a session ended is for the CLI to tell; it knows why it hung up.
	_ = session.Wait()
}
