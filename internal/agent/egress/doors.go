package egress

import (
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
)

// Door is a socket that is opened in a turn's namespace and served from outside.
type Door struct {
	Network string         `json:"network"` // "tcp4", which listens, or "udp4"
	Address netip.AddrPort `json:"address"`
}

const (
	portHTTP = 80
	portTLS  = 443
)

// nameDoor is where the turn's resolver asks.
var nameDoor = netip.MustParseAddrPort("127.0.0.1:53")

// doors are those that the rules need.
func doors(r Rules, n *names) []Door {
	everywhere := netip.IPv4Unspecified()
	out := []Door{
		{"udp4", nameDoor}, {"tcp4", nameDoor},
		{"tcp4", netip.AddrPortFrom(everywhere, portTLS)}, {"tcp4", netip.AddrPortFrom(everywhere, portHTTP)},
	}
	for _, from := range slices.Sorted(maps.Keys(r.Hosts)) {
		name, port, err := splitHostPort(from)
		if err != nil || port == portTLS || port == portHTTP || !r.allows(name) {
			continue
		}
		at, ok := loopback(name)
		if !ok {
			at, _ = n.address(name) // newNames gave it one
		}
		out = append(out, Door{"tcp4", netip.AddrPortFrom(at, port)})
	}
	return out
}

// closeAll closes sockets that are passed on or given up.
func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // a socket has nothing to flush
	}
}

// listener and packetConn take over a file that is a socket.
func listener(f *os.File) (net.Listener, error) {
	defer closeAll([]*os.File{f})
	return net.FileListener(f)
}

func packetConn(f *os.File) (net.PacketConn, error) {
	defer closeAll([]*os.File{f})
	return net.FilePacketConn(f)
}
