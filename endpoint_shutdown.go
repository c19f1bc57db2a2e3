package kcp

import (
	"context"
	"net"
	"slices"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wakeup"
)

// inHandler reports whether the calling goroutine is in a handler, and may be the one
// that reads the socket.
func inHandler() bool { return wakeup.Within((*Group).dispatch, (*Conn).handleDatagram) }

// Shutdown ends the endpoint in order: it stops accepting and dialling, closes all
// sessions as Conn.Close does, all at the same time, and waits until their peers have all
// that was written. Then it closes the endpoint. Calls of the sessions return
// net.ErrClosed, and peers that dial get ErrRefused.
//
// When ctx is done, the sessions that have not ended are aborted. A *ShutdownError says
// how many, and how many peers were gone, or accepted nothing for Config.Linger, or 5
// seconds if that is negative. The error is net.ErrClosed if the endpoint is closed, or
// being shut down. All come wrapped in a *net.OpError.
//
// It waits up to 6 seconds longer if the peer of an ended session may still need an
// answer; the end of ctx cuts that short without an error. In a handler of Group.Handle
// it does nothing, and fails with syscall.EDEADLK.
func (e *Endpoint) Shutdown(ctx context.Context) error {
	if inHandler() {
		return opError("shutdown", nil, e.LocalAddr(), errInHandler)
	}
	if e.takeUnused() {
		e.socket.readers.Wait()
		return nil
	}
	e.mu.Lock()
	if e.closed || e.draining {
		e.mu.Unlock()
		return opError("shutdown", nil, e.LocalAddr(), net.ErrClosed)
	}
	e.draining = true
	listener := e.acceptorLocked()
	e.mu.Unlock()
	unwound := true
	defer func() {
		if unwound { // by code of the application's
			_ = e.Close()
		}
	}()
	if listener != nil {
		_ = listener.Close() // the application may have closed it
	}
	conns := slices.Collect(e.Sessions())
	each(conns, func(c *Conn) { c.endFor(session.CauseShutdown, nil) })
	failed := ShutdownError{}
	for _, c := range conns {
		switch c.waitClosed(ctx) {
		case session.ShutCut:
			failed.Cut++
			failed.Cause = ctx.Err()
		case session.ShutUndelivered:
			failed.Undelivered++
		}
	}
	if e.holdForPeers(ctx) {
		_ = e.Close() // closed already, if the last session has closed it
		if e.socket.owned {
			e.socket.readers.Wait()
		}
	}
	unwound = false
	if failed != (ShutdownError{}) {
		return opError("shutdown", nil, e.LocalAddr(), &failed)
	}
	return nil
}

// holdForPeers waits while peers of ended sessions may need an answer. It
// reports false if the socket goes on to answer in the background.
func (e *Endpoint) holdForPeers(ctx context.Context) bool {
	e.mu.RLock()
	hold, background := e.socket.holdUntil-e.now(), e.socket.owned && e.socket.disposable && e.table.Len() == 0
	closed := e.closed
	e.mu.RUnlock()
	if hold <= 0 || closed {
		return true
	}
	if background {
		return false
	}
	timer := time.NewTimer(min(hold, closing.MaxHold))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-e.socket.done:
	case <-ctx.Done():
	}
	return true
}
