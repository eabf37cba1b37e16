//go:build !linux

package mcphost

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// maxSocketPath is what fits into a socket's address on every system but Linux.
const maxSocketPath = 103

// listenIn makes the socket called name in dir.
func listenIn(dir, name string) (*net.UnixListener, error) {
	path := filepath.Join(dir, name)
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("listen on %s: a socket's path has at most %d bytes here; "+
			"choose a shorter state directory", path, maxSocketPath)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	l.SetUnlinkOnClose(false) // Close removes the directory
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}
