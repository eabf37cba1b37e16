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

// The names the turn's MCP configuration gives the servers: ServerName has the report
// tool, ReadServerName the tools that read the workspace.
const (
	ServerName     = "turnpike"
	ReadServerName = "turnpike-read"
)

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
	reportDir  = "mcp"
	readDir    = "mcp-read"
	socketName = "tools.sock"
)

// Host serves one server to one turn. Its methods may be called from many goroutines.
type Host struct {
	name   string
	dir    string
	bridge string
	token  string

	server   *mcp.Server
	reported *reported    // nil for a server without the report tool
	cleanUp  func() error // of what the tools use, once nothing is served any more
	listener *net.UnixListener
	served   sync.WaitGroup // the acceptor and every connection
	stop     context.CancelFunc

	mu    sync.Mutex // guards conns and ended
	conns map[net.Conn]struct{}
	ended bool
}

// Start serves the report tool to one turn until Close is called or ctx ends. The
// socket is made in a new directory inside dir, which holds nothing else and is the
// only part of dir the turn gets to see.
func Start(ctx context.Context, dir string, r Report) (*Host, error) {
	server := mcp.NewServer(&mcp.Implementation{Name: ServerName, Version: "1"}, nil)
	outcome, err := r.addTo(server)
	if err != nil {
		return nil, fmt.Errorf("serve the turn's tools: %w", err)
	}
	h := &Host{name: ServerName, server: server, reported: outcome, cleanUp: func() error { return nil }}
	if err := h.open(ctx, filepath.Join(dir, reportDir), r.Bridge); err != nil {
		return nil, err
	}
	return h, nil
}

// open makes the directory and its socket and serves until Close is called or ctx ends.
func (h *Host) open(ctx context.Context, dir, bridge string) error {
	bridge, err := bridgePath(bridge)
	if err != nil {
		return fmt.Errorf("find the tools' bridge: %w: %w", agent.ErrUnready, err)
	}
	parent, err := filepath.Abs(filepath.Dir(dir))
	if err == nil {
		parent, err = filepath.EvalSymlinks(parent)
	}
	if err != nil {
		return fmt.Errorf("serve the turn's tools: %w: %w", agent.ErrUnready, err)
	}
	dir = filepath.Join(parent, filepath.Base(dir))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("serve the turn's tools: %w: %w", agent.ErrUnready, err)
	}
	listener, err := listenIn(dir, socketName)
	if err != nil {
		return fmt.Errorf("serve the turn's tools: %w: %w", agent.ErrUnready, errors.Join(err, os.RemoveAll(dir)))
	}
	ctx, h.stop = context.WithCancel(ctx)
	h.dir, h.bridge, h.token = dir, bridge, rand.Text()
	h.listener, h.conns = listener, map[net.Conn]struct{}{}
	h.served.Go(func() { h.accept(ctx) })
	h.served.Go(func() {
		<-ctx.Done()
		h.hangUp()
	})
	return nil
}

// Name is the server's name in the turn's MCP configuration.
func (h *Host) Name() string { return h.name }

// Entry is how the turn's CLI reaches the server.
func (h *Host) Entry() agent.MCPEntry {
	return agent.MCPEntry{
		Type:    "stdio",
		Command: h.bridge,
		Args:    []string{bridgeArg, filepath.Join(h.dir, socketName)},
		Env:     map[string]string{TokenEnv: h.token},
	}
}

// Socket is the socket that Entry dials, on the host.
func (h *Host) Socket() string { return filepath.Join(h.dir, socketName) }

// Mounts is what the turn must be able to see for Entry to work. Connecting to a
// socket needs no writable mount.
func (h *Host) Mounts() []agent.Mount {
	return []agent.Mount{
		{Path: h.dir, Access: agent.ReadOnly},
		{Path: h.bridge, Access: agent.ReadOnly},
	}
}

// Outcome is what the agent reported, and whether it did.
func (h *Host) Outcome() (agent.Outcome, bool) {
	if h.reported == nil {
		return agent.Outcome{}, false
	}
	return h.reported.get()
}

// Close ends every connection, waits for what served them and removes the socket.
// The outcome can still be read.
func (h *Host) Close() error {
	h.stop()
	h.served.Wait()
	if err := errors.Join(h.cleanUp(), os.RemoveAll(h.dir)); err != nil {
		return fmt.Errorf("close the turn's tools: %w", err)
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
