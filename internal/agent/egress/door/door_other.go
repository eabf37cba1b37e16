//go:build !linux

package door

import (
	"errors"
	"net"
	"os"
)

// errSystem is what everything answers where there are no network namespaces.
var errSystem = errors.New("this system has no network namespaces to hold a turn in")

// Take takes no doors here.
func Take(*net.UnixConn, []Door, func([]*os.File) error) error { return errSystem }

// Give gives no doors here.
func Give(*net.UnixConn) error { return errSystem }

// Check knows no doors here.
func (Door) Check(*os.File) error { return errSystem }
