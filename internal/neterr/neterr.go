// Package neterr recognises errors of the system by what they mean. On Windows the
// names of package syscall, such as syscall.ECONNREFUSED, are numbers that Go has
// made up, and sockets return others, such as 10061 (WSAECONNREFUSED). Compare errors
// of sockets with Is, not with errors.Is.
package neterr

import (
	"errors"
	"net"
	"runtime"
	"strings"
	"syscall"
)

// Is reports whether err wraps errno, or on Windows a number that means errno there.
// It is safe for concurrent use.
func Is(err error, errno syscall.Errno) bool { return isOn(runtime.GOOS, err, errno) }

// isOn is Is on the system goos.
func isOn(goos string, err error, errno syscall.Errno) bool {
	if errors.Is(err, errno) {
		return true
	}
	if goos != "windows" {
		return false
	}
	for _, n := range windowsNumbers() {
		if n.means == errno && errors.Is(err, n.number) {
			return true
		}
	}
	return false
}

// PortUnreachable reports whether err, of a UDP socket, says that nobody listens at the
// other end (ICMP port unreachable). Windows reports it as a connection that was reset.
// It is safe for concurrent use.
func PortUnreachable(err error) bool { return portUnreachableOn(runtime.GOOS, err) }

func portUnreachableOn(goos string, err error) bool {
	return isOn(goos, err, syscall.ECONNREFUSED) ||
		goos == "windows" && (isOn(goos, err, syscall.ECONNRESET) || errors.Is(err, errorPortUnreachable))
}

// OutOfDescriptors reports whether err says that the process or the system has no file
// descriptor left. A look-up of a name has it in its text only. It is safe for concurrent
// use.
func OutOfDescriptors(err error) bool {
	var lookup *net.DNSError
	if errors.As(err, &lookup) {
		return strings.Contains(lookup.Err, syscall.EMFILE.Error()) || strings.Contains(lookup.Err, syscall.ENFILE.Error())
	}
	return Is(err, syscall.EMFILE) || Is(err, syscall.ENFILE)
}

// Refused reports whether err may say that the system refuses a call or an option, as a
// sandbox does, and not what it was asked for. It is safe for concurrent use.
func Refused(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EPERM, syscall.EACCES, syscall.EINVAL, syscall.ENOSYS, syscall.EOPNOTSUPP, syscall.ENOPROTOOPT} {
		if Is(err, errno) {
			return true
		}
	}
	return false
}

// Error is an error of this module that counts as one of the system, whose text would
// say the same again.
type Error struct {
	Text  string
	Errno syscall.Errno
}

func (e *Error) Error() string { return e.Text }

// Unwrap returns Errno.
func (e *Error) Unwrap() error { return e.Errno }

// Is reports whether target is a number that means Errno on Windows.
func (e *Error) Is(target error) bool { return e.isOn(runtime.GOOS, target) }

func (e *Error) isOn(goos string, target error) bool {
	number, ok := target.(syscall.Errno)
	return ok && isOn(goos, number, e.Errno)
}
