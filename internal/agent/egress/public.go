package egress

import (
	"net"
	"net/netip"
	"slices"
)

// internet is what is public at all of IPv6; unlike IPv4, most of it is not given out.
var internet = netip.MustParsePrefix("2000::/3")

// translated holds IPv4 addresses as translators between the families spell them: a
// network without IPv4 of its own reaches every such host through it.
var translated = netip.MustParsePrefix("64:ff9b::/96")

// special are the addresses that lead to nobody, to oneself, or to a network of
// somebody's own (IANA's registries of special purpose addresses). Where a cloud
// keeps its metadata, 169.254.169.254 and fd00:ec2::254, is among them.
var special = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
	"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	// Within internet: tunnels that hold IPv4 addresses, and documentation.
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
)

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		out[i] = netip.MustParsePrefix(t)
	}
	return out
}

// public says whether a is an address of a host that anybody may reach. An IPv4
// address written as one of IPv6 is not: nobody's name has one for an honest reason.
func public(a netip.Addr) bool {
	if a.Zone() != "" || a.Is4In6() {
		return false
	}
	if translated.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	if a.Is6() && !internet.Contains(a) {
		return false
	}
	for _, p := range special {
		if p.Contains(a) {
			return false
		}
	}
	return a.IsValid()
}

// ours says whether a is an address of this machine's own, public or not: what listens
// here trusts its neighbours. It is looked up each time, for addresses come and go.
func ours(a netip.Addr) bool {
	own, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(own, func(n net.Addr) bool {
		p, ok := n.(*net.IPNet)
		return !ok || p.IP.Equal(a.AsSlice())
	})
}
