package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

const (
	// maxGreeting bounds a TLS greeting; one with every post-quantum key share has a
	// few thousand bytes.
	maxGreeting = 64 << 10
	// extensionECH is the extension that hides another greeting (RFC 9849).
	extensionECH = 0xfe0d
)

// serveTLS passes a connection on whose greeting names the host it is for.
func (p *Proxy) serveTLS(c net.Conn, name string) {
	err := c.SetDeadline(time.Now().Add(greetingTime))
	var read []byte
	if err == nil {
		read, err = greeting(p.ctx, c, name)
	}
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil {
		if p.ctx.Err() == nil && len(read) > 0 { // who says nothing has only tried the door
			p.refuse(name, "port 443: %v", err)
		}
		reset(c)
		return
	}
	p.pass(c, name, portTLS, read)
}

// errHeard ends a handshake that was only to be listened to.
var errHeard = errors.New("heard")

// greeting reads the TLS greeting at the start of c and says what speaks against
// passing it on to the host called name. It gives all that was read.
func greeting(ctx context.Context, c net.Conn, name string) ([]byte, error) {
	heard := &recorder{Conn: c}
	var hello *tls.ClientHelloInfo
	err := tls.Server(heard, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		hello = h
		return nil, errHeard
	}}).HandshakeContext(ctx)
	if !errors.Is(err, errHeard) {
		return heard.read, fmt.Errorf("no TLS greeting: %w", err)
	}
	if slices.Contains(hello.Extensions, extensionECH) {
		return heard.read, errors.New("a greeting that hides another (ECH)")
	}
	if hello.ServerName == "" {
		return heard.read, errors.New("a greeting that names no host")
	}
	if said, ok := canonical(hello.ServerName); !ok || said != name {
		return heard.read, fmt.Errorf("a greeting for %q", hello.ServerName)
	}
	return heard.read, nil
}

// recorder keeps what is read of a connection, and writes nothing to it.
type recorder struct {
	net.Conn
	read []byte
}

func (r *recorder) Read(b []byte) (int, error) {
	room := maxGreeting - len(r.read)
	if room <= 0 {
		return 0, errors.New("too long")
	}
	n, err := r.Conn.Read(b[:min(len(b), room)])
	r.read = append(r.read, b[:n]...)
	return n, err
}

func (*recorder) Write(b []byte) (int, error) { return len(b), nil }
