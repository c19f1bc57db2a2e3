//go:build !linux && !darwin && !dragonfly && !freebsd && !netbsd && !openbsd

package udp

import (
	"errors"
)

// Whether a socket can be connected again, from another address, is not known of these
// systems.
const canReconnect = false

func (*Connected) state() (s SocketState, err error)        { return s, errors.ErrUnsupported }
func (*Connected) route() (r Route)                         { return r }
func (*Connected) Reconnect(string) (moved bool, err error) { return false, errors.ErrUnsupported }
