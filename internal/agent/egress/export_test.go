package egress

import (
	"context"
	"net"
	"sync/atomic"
)

// For the tests outside.
var (
	Canonical      = canonical
	Public         = public
	Greeting       = func(c net.Conn, name string) ([]byte, error) { return greeting(context.Background(), c, name) }
	Fits           = fits
	Allows         = Rules.allows
	MaxConnections = maxConnections
	MaxNames       = maxNames
)

// Answer answers a query.
func (p *Proxy) Answer(query []byte) []byte { return p.answer(query) }

// Serve serves a connection to port of the host called name, or with port 53 a resolver's.
func (p *Proxy) Serve(c net.Conn, name string, port uint16) {
	switch port {
	case portTLS:
		p.serveTLS(c, name)
	case portHTTP:
		p.serveHTTP(c, name)
	default:
		p.serveStream(c)
		_ = c.Close()
	}
}

// Join copies between a and b.
func Join(a, b net.Conn) {
	var sent, received atomic.Int64
	join(a, b, &sent, &received)
}

// Resolve has p ask another resolver than the machine's.
func (p *Proxy) Resolve(r *net.Resolver) { p.resolver = r }
