package procs

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Group is a control group of a tree. Whoever made it holds a lock on Dir, which the
// root inherits: a group without one is nobody's.
type Group struct {
	Name   string
	Parent *os.File // the directory it lies in
	Dir    *os.File // the group itself
}

// removeBound is how long a group may be busy with processes that are gone.
const removeBound = time.Second

// remove removes a group that nothing is left in. One that stays is for whoever makes
// the next to remove.
func (g Group) remove() {
	// A process that was reaped leaves its group a moment later.
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for bound := time.Now().Add(removeBound); time.Now().Before(bound); <-again.C {
		if unix.Unlinkat(int(g.Parent.Fd()), g.Name, unix.AT_REMOVEDIR) != unix.EBUSY {
			return
		}
	}
}

// KillGroup kills all that is in the control group dir, at once, where the kernel has
// it: in version 2, from 5.14 on. Others count on who calls it to kill one by one.
func KillGroup(dir *os.File) {
	fd, err := unix.Openat(int(dir.Fd()), "cgroup.kill", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	_, _ = unix.Write(fd, []byte("1"))
}
