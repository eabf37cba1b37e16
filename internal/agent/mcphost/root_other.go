//go:build !linux

package mcphost

import "os"

// openRoot opens the directory at a path that was resolved when it was verified.
func openRoot(dir string) (*os.Root, error) { return os.OpenRoot(dir) }
