package udp

import (
	"fmt"
	"syscall"

	"github.com/arqnet/kcp/internal/neterr"
)

// CallError says that the system refuses a system call or an option of a socket, as a
// sandbox does, and what follows. Packets pass nevertheless.
type CallError struct {
	Call string // such as "recvmmsg" or "setsockopt UDP_GRO"
	Err  error  // why
	Then string // what follows
}

func (e *CallError) Error() string { return fmt.Sprintf("%s: %v (%s)", e.Call, e.Err, e.Then) }

// Unwrap returns e.Err.
func (e *CallError) Unwrap() error { return e.Err }

// refusals are what the system refuses to a socket.
type refusals struct {
	notify func(error) // nil: tell was not called yet
	early  []error     // until then
}

// add records a refusal. Once tell was called it is safe for concurrent use.
func (r *refusals) add(err error) {
	if r.notify != nil {
		r.notify(err)
		return
	}
	r.early = append(r.early, err)
}

// option records an error of an option. A system that does not know the option refuses
// nothing.
func (r *refusals) option(call string, err error, then string) {
	if err == nil || neterr.Is(err, syscall.ENOPROTOOPT) || neterr.Is(err, syscall.EOPNOTSUPP) {
		return
	}
	r.add(&CallError{call, err, then})
}

// tell sets notify, and calls it for what was refused before.
func (r *refusals) tell(notify func(error)) {
	r.notify = notify
	for _, err := range r.early {
		notify(err)
	}
	r.early = nil
}
