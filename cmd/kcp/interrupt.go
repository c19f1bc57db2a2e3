package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// errInterrupted is the error of a command that a signal has ended before its
// work was done.
var errInterrupted = errors.New("interrupted")

// caughtSignal is the cause of the end of a context of notifyContext.
type caughtSignal struct{ os.Signal }

func (s *caughtSignal) Error() string { return s.String() }

// Is makes it match context.Canceled, as the cause of other contexts does.
func (s *caughtSignal) Is(target error) bool { return target == context.Canceled }

// notifyContext returns a context that the first of the signals ends, with a
// *caughtSignal for its cause. The second ends the process at once. The function
// ends the context and gives the signals back. A SIGHUP does not count after
// divertHangups.
func notifyContext(signals ...os.Signal) (context.Context, func()) {
	diverted := new(hangups)
	ctx, cancel := context.WithCancelCause(context.WithValue(context.Background(), hangupsKey{}, diverted))
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, signals...)
	go func() {
		defer signal.Stop(caught)
		for {
			select {
			case s := <-caught:
				if s == hangup && diverted.take() {
					continue
				}
				cancel(&caughtSignal{s})
			case <-ctx.Done():
			}
			return
		}
	}()
	return ctx, func() { cancel(nil) }
}

// Signals that have no names on js/wasm.
const (
	hangup     = syscall.Signal(1)  // SIGHUP
	brokenPipe = syscall.Signal(13) // SIGPIPE
)

// hangups is where SIGHUP goes instead of ending a context of notifyContext.
type hangups struct {
	to atomic.Pointer[chan struct{}] // capacity 1; nil: it ends the context
}

type hangupsKey struct{}

// divertHangups returns a channel that gets something at SIGHUP, which does not end
// the context any more. It is nil if ctx does not come from notifyContext.
func divertHangups(ctx context.Context) <-chan struct{} {
	h, ok := ctx.Value(hangupsKey{}).(*hangups)
	if !ok {
		return nil
	}
	to := make(chan struct{}, 1)
	h.to.Store(&to)
	return to
}

// take reports whether a SIGHUP is diverted. One that was not handled yet stands for
// both.
func (h *hangups) take() bool {
	to := h.to.Load()
	if to == nil {
		return false
	}
	select {
	case *to <- struct{}{}:
	default:
	}
	return true
}

// interruptCode returns the exit code of a command whose context has ended.
func interruptCode(ctx context.Context) int {
	var caught *caughtSignal
	if errors.As(context.Cause(ctx), &caught) {
		if s, ok := caught.Signal.(syscall.Signal); ok {
			return exitSignal + int(s)
		}
	}
	return exitInterrupted
}
