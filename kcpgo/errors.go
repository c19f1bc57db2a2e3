package kcp

import (
	"errors"
	"io"
	"net"
	"os"
)

// Errors with the texts of kcp-go's.
var (
	errInvalidOperation = errors.New("invalid operation")
	errNotOwner         = errors.New("not the owner of this connection")
	errNoFEC            = errors.New("OOB requires FEC to be enabled")
	errLargeOOB         = errors.New("OOB payload too large")

	errTimeout net.Error = timeoutError{}
	errClosed  error     = closedError{}
)

// timeoutError means that a deadline has passed. It is a net.Error, and matches
// os.ErrDeadlineExceeded.
type timeoutError struct{}

func (timeoutError) Error() string        { return "timeout" }
func (timeoutError) Timeout() bool        { return true }
func (timeoutError) Temporary() bool      { return true }
func (timeoutError) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// closedError means that the session or listener was closed. It matches
// io.ErrClosedPipe, as kcp-go's does, and net.ErrClosed.
type closedError struct{}

func (closedError) Error() string { return io.ErrClosedPipe.Error() }
func (closedError) Unwrap() error { return io.ErrClosedPipe }

// Cause returns io.ErrClosedPipe. Function Cause of github.com/pkg/errors, whose
// errors kcp-go returns, calls it.
func (closedError) Cause() error { return io.ErrClosedPipe }

// Is makes the error match net.ErrClosed.
func (closedError) Is(target error) bool { return target == net.ErrClosed }

// sessionError returns what a program that knows kcp-go expects in place of an
// error of the engine.
func sessionError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errTimeout
	case errors.Is(err, net.ErrClosed):
		return errClosed
	}
	return err
}
