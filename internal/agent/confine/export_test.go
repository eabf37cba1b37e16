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

// Places are the directories this process can make control groups in, by controller.
func Places() map[string]string {
	out := make(map[string]string)
	for c, p := range places() {
		out[c] = p.dir
	}
	return out
}

// FindPlaces finds them in texts; usable confirms a directory, controller and version.
func FindPlaces(own, table string, usable func(dir, controller string, unified bool) bool) map[string]string {
	out := make(map[string]string)
	for c, p := range findPlaces([]byte(own), []byte(table), func(p place, c string) bool { return usable(p.dir, c, p.unified) }) {
		out[c] = p.dir
	}
	return out
}
