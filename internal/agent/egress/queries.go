package egress

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// nameTTL is how long a turn may remember the address of a name, in seconds. It never
// changes.
const nameTTL = 300

// serveQueries answers the datagrams of a turn's resolvers.
func (p *Proxy) serveQueries(c net.PacketConn) {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			if p.ctx.Err() != nil {
				return
			}
			continue // an answer that nobody waits for any more comes back as an error
		}
		if a := p.answer(buf[:n]); a != nil {
			_, _ = c.WriteTo(a, from) // who misses it asks again
		}
	}
}

// serveStream answers queries over one connection.
func (p *Proxy) serveStream(c net.Conn) {
	var size [2]byte
	for {
		if c.SetDeadline(time.Now().Add(greetingTime)) != nil {
			return
		}
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, query); err != nil {
			return
		}
		a := p.answer(query)
		if a == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...)); err != nil {
			return
		}
	}
}

// answer answers a query; nil is for what is none.
func (p *Proxy) answer(query []byte) []byte {
	var in dnsmessage.Parser
	h, err := in.Start(query)
	if err != nil || h.Response {
		return nil
	}
	out := dnsmessage.Header{ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired, RecursionAvailable: true}
	if h.OpCode != 0 {
		return pack(out, dnsmessage.RCodeNotImplemented, nil, netip.Addr{})
	}
	asked, err := in.AllQuestions()
	if err != nil || len(asked) != 1 || asked[0].Class != dnsmessage.ClassINET {
		return pack(out, dnsmessage.RCodeFormatError, nil, netip.Addr{})
	}
	q := asked[0]
	at, code := p.resolve(q)
	return pack(out, code, &q, at)
}

// resolve gives the address that stands for the name of a question. A name has one
// of IPv4 and nothing else.
func (p *Proxy) resolve(q dnsmessage.Question) (netip.Addr, dnsmessage.RCode) {
	asked := q.Name.String()
	name, ok := canonical(asked)
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), dnsmessage.RCodeSuccess // RFC 6761
	}
	if !ok || !p.rules.allows(name) {
		if q.Type == dnsmessage.TypeA || q.Type == dnsmessage.TypeAAAA {
			p.refuse(strings.TrimSuffix(asked, "."), "is none of this turn's hosts")
		}
		return netip.Addr{}, dnsmessage.RCodeNameError
	}
	at, ok := p.names.address(name)
	if !ok {
		p.refuse(name, "is one host too many: a turn has %d", maxNames)
		return netip.Addr{}, dnsmessage.RCodeServerFailure
	}
	return at, dnsmessage.RCodeSuccess
}

func pack(h dnsmessage.Header, code dnsmessage.RCode, q *dnsmessage.Question, at netip.Addr) []byte {
	h.RCode = code
	m := dnsmessage.Message{Header: h}
	if q != nil {
		m.Questions = []dnsmessage.Question{*q}
		if q.Type == dnsmessage.TypeA && at.IsValid() {
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: nameTTL},
				Body:   &dnsmessage.AResource{A: at.As4()},
			}}
		}
	}
	a, err := m.Pack()
	if err != nil {
		return nil // only what came in unpacked goes out, so there is no such error
	}
	return a
}
