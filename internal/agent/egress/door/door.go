// Package door opens the doors of a turn's network namespace, which package egress
// serves from outside, and passes them out. It is what runs inside, before the agent,
// and knows nothing of rules: it opens what it is told to. It is apart from package
// egress so that the programs that start turns stay small.
package door

import (
	"net/netip"
	"os"
)

// Door is a socket that is opened in a turn's namespace and served from outside.
type Door struct {
	Network string         `json:"network"` // "tcp4", which listens, or "udp4"
	Address netip.AddrPort `json:"address"`
}

// The networks of doors.
const (
	Stream   = "tcp4"
	Datagram = "udp4"
)

// Max is how many doors can be passed at once; the kernel takes 253.
const Max = 128

// Close closes sockets that were passed on or are given up.
func Close(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // a socket has nothing to flush
	}
}
