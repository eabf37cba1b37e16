//go:build !linux

package egress

import (
	"context"
	"errors"
	"net"
	"os"
)

// errSystem is what everything answers where there are no network namespaces.
var errSystem = errors.New("this system has no network namespaces to hold a turn in")

func (Door) check(*os.File) error { return errSystem }

// Open opens no doors here.
func Open([]Door) ([]*os.File, error) { return nil, errSystem }

// Send sends no doors here.
func Send(int, []*os.File) error { return errSystem }

// Receive receives no doors here.
func Receive(*net.UnixConn) ([]*os.File, error) { return nil, errSystem }

// Admit admits nobody here.
func (*Proxy) Admit(context.Context, *net.UnixListener) error { return errSystem }

// Enter enters nothing here.
func Enter(string, []string, []string) error { return errSystem }
