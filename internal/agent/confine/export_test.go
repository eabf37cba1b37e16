//go:build linux && (amd64 || arm64)

package confine

import "golang.org/x/sys/unix"

// For the tests outside.
var (
	ParseMounts   = func(b []byte) int { return len(parseMounts(b)) }
	ParseSockets  = parseSockets
	Unescape      = unescape
	StandIn       = standIn
	KeepsAbstract = keepsAbstract
	Refused       = append(append([]uint32{}, refused...), archRefused...)
	AuditArch     = uint32(auditArch)
	Foreign       = uint32(foreignNumbers)
	Trace         = func(path string) (string, int, error) { real, links, err := trace(path); return real, len(links), err }
)

// Filter is the program of a turn with or without internet and unix sockets.
func Filter(inet, local bool) ([]unix.SockFilter, error) { return filter(families{inet, local}) }

// Jump assembles a branch over n returns.
func Jump(n int, to string) error {
	var a assembler
	a.branch(bpfEqual, 1, to, next)
	for range n {
		a.op(bpfReturn, 0)
	}
	a.label("end")
	a.op(bpfReturn, 0)
	_, err := a.assemble()
	return err
}
