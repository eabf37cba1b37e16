package procs

import (
	"os"

	"golang.org/x/sys/unix"
)

// FreezeOthers stops everything in the PID namespace of this process but its first process
// and this one, and returns when it stands still. It is for a process that has a namespace
// of its own, a container's, and was made to watch over it.
func FreezeOthers() error { return freeze(signalOthers, others) }

// ThawOthers lets everything there go on.
func ThawOthers() error { return signalOthers(unix.SIGCONT) }

// signalOthers signals everything in this PID namespace but its first process and this
// one, which is how the kernel understands -1.
func signalOthers(sig unix.Signal) error {
	if err := unix.Kill(-1, sig); err != nil && err != unix.ESRCH {
		return err
	}
	return nil
}

// others lists what signalOthers signals.
func others() ([]process, error) {
	all, err := table()
	out := all[:0]
	for _, p := range all {
		if p.pid != 1 && p.pid != os.Getpid() && !p.dead() {
			out = append(out, p)
		}
	}
	return out, err
}
