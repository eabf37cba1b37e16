package egress

import (
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"

	"turnpike/internal/agent/egress/door"
)

const (
	portHTTP = 80
	portTLS  = 443
)

// nameDoor is where the turn's resolver asks.
var nameDoor = netip.MustParseAddrPort("127.0.0.1:53")

// doors are those that the rules need.
func doors(r Rules, n *names) []door.Door {
	everywhere := netip.IPv4Unspecified()
	out := []door.Door{{Network: door.Datagram, Address: nameDoor}}
	for _, at := range []netip.AddrPort{
		nameDoor, netip.AddrPortFrom(everywhere, portTLS), netip.AddrPortFrom(everywhere, portHTTP),
	} {
		out = append(out, door.Door{Network: door.Stream, Address: at})
	}
	for _, from := range slices.Sorted(maps.Keys(r.Hosts)) {
		name, port, err := splitHostPort(from)
		if err != nil || port == portTLS || port == portHTTP || !r.allows(name) {
			continue
		}
		at, literal := loopback(name)
		if !literal {
			at, _ = n.address(name) // newNames gave it one
		}
		out = append(out, door.Door{Network: door.Stream, Address: netip.AddrPortFrom(at, port)})
	}
	return out
}

// listener and packetConn take over a file that is a socket.
func listener(f *os.File) (net.Listener, error) {
	defer door.Close([]*os.File{f})
	return net.FileListener(f)
}

func packetConn(f *os.File) (net.PacketConn, error) {
	defer door.Close([]*os.File{f})
	return net.FilePacketConn(f)
}
