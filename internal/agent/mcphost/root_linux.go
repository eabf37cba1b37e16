package mcphost

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openRoot opens the directory at a path that was resolved when it was verified. If
// any part of it has become a link since, it is not what was verified.
func openRoot(dir string) (*os.Root, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, dir, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH: nothing that could be lost
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
}
