package egress

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// synthetic are the addresses that stand for names. All of 127.0.0.0/8 is local on a
// loopback interface; programs put servers of their own on its first addresses.
var synthetic = netip.MustParsePrefix("127.64.0.0/10")

// maxNames bounds the names one turn may ask for.
const maxNames = 4096

// names gives each name an address, for as long as the turn lives.
type names struct {
	mu     sync.Mutex // guards both
	byName map[string]netip.Addr
	inTurn []string // the name of the first address, the second, …
}

// newNames begins with the names of the owner's hosts, so that their addresses are
// known before any query.
func newNames(r Rules) *names {
	n := &names{byName: make(map[string]netip.Addr)}
	for _, from := range slices.Sorted(maps.Keys(r.Hosts)) {
		if name, _, err := splitHostPort(from); err == nil && !isLoopback(name) {
			n.address(name)
		}
	}
	return n
}

// address gives the address of name, a new one if it has none; not once there are
// too many.
func (n *names) address(name string) (netip.Addr, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if at, ok := n.byName[name]; ok {
		return at, true
	}
	if len(n.inTurn) == maxNames {
		return netip.Addr{}, false
	}
	n.inTurn = append(n.inTurn, name)
	first := synthetic.Addr().As4()
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(first[:])+uint32(len(n.inTurn)))
	at := netip.AddrFrom4(b)
	n.byName[name] = at
	return at, true
}

// name gives the name that at stands for.
func (n *names) name(at netip.Addr) (string, bool) {
	if !synthetic.Contains(at) {
		return "", false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	first, b := synthetic.Addr().As4(), at.As4()
	i := binary.BigEndian.Uint32(b[:]) - binary.BigEndian.Uint32(first[:])
	if i == 0 || int(i) > len(n.inTurn) {
		return "", false
	}
	return n.inTurn[i-1], true
}
