package kcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// Errors of sessions. They come wrapped in a *net.OpError; use errors.Is and
// errors.As. Besides them there are os.ErrDeadlineExceeded for a deadline that
// has passed, net.ErrClosed for a Conn, Listener or Endpoint that was closed,
// and *PeerLostError.
var (
	// ErrNotDelivered is returned by Close when the peer had not acknowledged
	// all that was written within the times of Config.Linger and MaxLinger, or
	// has closed the session without it.
	ErrNotDelivered = errors.New("kcp: closed before all data was acknowledged")
	// ErrNotMessageMode is returned by ReadMessage and WriteMessage on a
	// session without Config.MessageMode.
	ErrNotMessageMode = errors.New("kcp: session is not in message mode")
	// ErrDatagramTooLarge is returned by SendDatagram for more bytes than
	// MaxDatagramSize says.
	ErrDatagramTooLarge = errors.New("kcp: datagram does not fit into a packet")
	// ErrTooManySessions is returned when an endpoint has Config.MaxSessions.
	ErrTooManySessions = errors.New("kcp: too many sessions")
	// ErrRefused is returned by Dial when the peer's system, or the peer, says
	// that nobody accepts sessions there. It wraps syscall.ECONNREFUSED.
	ErrRefused = fmt.Errorf("kcp: refused by the peer: %w", syscall.ECONNREFUSED)
	// ErrReset means that the peer has broken the session off, or does not know
	// of it any more, having been restarted. It wraps syscall.ECONNRESET.
	ErrReset = fmt.Errorf("kcp: session reset by the peer: %w", syscall.ECONNRESET)
	// ErrPeerClosed is returned by Write when the peer has closed the session,
	// so that nobody would read it. It wraps syscall.EPIPE.
	ErrPeerClosed = fmt.Errorf("kcp: session closed by the peer: %w", syscall.EPIPE)
	// ErrLegacyPeer is returned by CloseWrite for a peer that cannot be told.
	ErrLegacyPeer = errors.New("kcp: the peer knows no signals")
	// ErrMemoryPressure means that the session was ended because the sessions of
	// the endpoint held more than Config.MaxBuffered, and this one the most. What
	// it held is dropped; the peer gets ErrReset.
	ErrMemoryPressure = errors.New("kcp: session ended for want of memory")
	// ErrListening is returned by Listen on an Endpoint that has a Listener.
	ErrListening = errors.New("kcp: endpoint has a listener already")
)

// PeerLostError means that the peer is gone, or unreachable.
type PeerLostError struct {
	// Silence is for how long nothing had come from the peer.
	Silence time.Duration
	// Idle is true where Config.IdleTimeout has passed, false where data was
	// left unacknowledged.
	Idle bool
	// Stalled is for how long the peer had taken nothing of what waited for it,
	// if Config.StallTimeout has passed, and else 0.
	Stalled time.Duration
}

func (e *PeerLostError) Error() string {
	if e.Idle {
		return fmt.Sprintf("kcp: peer lost: nothing heard for %v", e.Silence)
	}
	if e.Stalled > 0 {
		return fmt.Sprintf("kcp: peer lost: no data taken for %v", e.Stalled)
	}
	return fmt.Sprintf("kcp: peer lost: data unacknowledged and nothing heard for %v", e.Silence)
}

// NoAnswerError means that a peer did not answer Dial.
type NoAnswerError struct {
	Waited time.Duration
}

func (e *NoAnswerError) Error() string {
	return fmt.Sprintf("kcp: no answer from the peer in %v", e.Waited)
}

// Timeout is true, as for other errors of this kind in package net.
func (e *NoAnswerError) Timeout() bool { return true }

// Is makes the error match os.ErrDeadlineExceeded and context.DeadlineExceeded.
func (e *NoAnswerError) Is(target error) bool {
	return target == os.ErrDeadlineExceeded || target == context.DeadlineExceeded
}

// Temporary is true, as for other errors of this kind in package net.
func (e *NoAnswerError) Temporary() bool { return true }

// opError wraps err as the net package does.
func opError(op string, local, remote net.Addr, err error) error {
	return &net.OpError{Op: op, Net: "kcp", Source: local, Addr: remote, Err: err}
}
