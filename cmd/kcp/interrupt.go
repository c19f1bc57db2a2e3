package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
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
// ends the context and gives the signals back.
func notifyContext(signals ...os.Signal) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, signals...)
	go func() {
		defer signal.Stop(caught)
		select {
		case s := <-caught:
			cancel(&caughtSignal{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// Signals that have no names on js/wasm.
const (
	hangup     = syscall.Signal(1)  // SIGHUP
	brokenPipe = syscall.Signal(13) // SIGPIPE
)

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
