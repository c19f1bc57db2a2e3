//go:build !linux

package tunnel

import (
	"errors"
	"net"
	"os"
)

// Servers hand over on Linux only.

func writeAnswer(*net.UnixConn, *os.File) error { return errors.ErrUnsupported }

func readAnswer(*net.UnixConn) (*os.File, error) { return nil, errors.ErrUnsupported }
