package egress

import (
	"context"
	"net"
	"net/http"
)

// For the tests outside.
var (
	Canonical      = canonical
	Public         = public
	Greeting       = func(c net.Conn, name string) ([]byte, error) { return greeting(context.Background(), c, name) }
	Fits           = func(r *http.Request, name string) error { return fits(r, name) }
	Allows         = Rules.allows
	MaxConnections = maxConnections
	MaxNames       = maxNames
)

// Answer answers a query.
func (p *Proxy) Answer(query []byte) []byte { return p.answer(query) }

// Resolve has p ask another resolver than the machine's.
func (p *Proxy) Resolve(r *net.Resolver) { p.resolver = r }
