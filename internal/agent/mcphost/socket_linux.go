package mcphost

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// listenIn makes the socket called name in dir. A socket's address holds 107 bytes
// and session directories lie deep, so it is bound through the directory's
// descriptor, whose path is always short.
func listenIn(dir, name string) (*net.UnixListener, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH: nothing that could be lost
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", fd, name)})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	// The name it was bound by means something else as soon as fd is closed.
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(filepath.Join(dir, name), 0o600); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}
