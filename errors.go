package kcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/streams"
)

// Errors of sessions. They are wrapped in a *net.OpError; use errors.Is and errors.As.
// Besides them sessions return os.ErrDeadlineExceeded after a deadline has passed,
// net.ErrClosed for a Conn, Listener or Endpoint that was closed, and *PeerLostError.
var (
	// ErrNotDelivered is returned by Close if the peer did not acknowledge all written
	// data in time, or closed the session without taking it.
	ErrNotDelivered = session.ErrNotDelivered
	// ErrTooManySessions is returned by Dial at Limits.MaxSessions.
	ErrTooManySessions = errors.New("kcp: too many sessions")
	// ErrInUse means that something else uses what the call needs: a Group the session,
	// another call the events of the Group, a session the id that Dial was to use, a
	// Listener the endpoint, a ReadFrom the net.PacketConn. It wraps syscall.EADDRINUSE.
	ErrInUse error = &neterr.Error{Text: "kcp: in use", Errno: syscall.EADDRINUSE}
	// These are ErrInUse, with details.
	errConvInUse error = &session.DetailedError{Text: "kcp: conversation id is in use", Err: ErrInUse}
	errGrouped   error = &session.DetailedError{Text: "kcp: session is in a Group; take its events instead of reading", Err: ErrInUse}
	// errGroupedBefore refuses a session or listener that is to be put into a second
	// Group, or twice into one.
	errGroupedBefore error = &session.DetailedError{Text: "kcp: already in a Group", Err: ErrInUse}
	errNotGrouped    error = &session.DetailedError{Text: "kcp: session is not in the Group", Err: ErrInUse}
	errGroupInUse    error = &session.DetailedError{Text: "kcp: events of the Group are being taken by another call", Err: ErrInUse}
	errReadPending   error = &session.DetailedError{Text: "kcp: net.PacketConn.ReadFrom did not return after its deadline", Err: ErrInUse}
	errListening     error = &session.DetailedError{Text: "kcp: endpoint already has a listener", Err: ErrInUse}
	// ErrRefused is returned by Dial if the peer, or its system, reports that no one
	// accepts sessions there, or the peer that it has as many as its Limits allow. It
	// wraps syscall.ECONNREFUSED.
	ErrRefused = session.ErrRefused
	// ErrReset means that the peer has aborted the session, or ended it by one of its
	// time-outs, or was restarted and no longer knows it. It wraps syscall.ECONNRESET.
	ErrReset = session.ErrReset
	// ErrPeerClosed is returned by Write if the peer has closed the session. It wraps
	// syscall.EPIPE.
	ErrPeerClosed = session.ErrPeerClosed
	// ErrLegacyPeer is returned by CloseWrite, Ping and OpenStream for a legacy peer. It
	// wraps errors.ErrUnsupported.
	ErrLegacyPeer = session.ErrLegacyPeer
	// ErrMemoryPressure means that the endpoint's sessions held more than
	// Limits.MaxBuffered, and this one was ended to free memory. The peer gets ErrReset.
	ErrMemoryPressure = session.ErrMemoryPressure
	// ErrWouldBlock is returned, unwrapped, by TryWrite, Group.Send and WriteMessage with
	// NoWait if the write buffer has no room. Errors of TryOpenStream wrap it.
	ErrWouldBlock = session.ErrWouldBlock
	// errNoTarget is the error of an Outgoing without Conn and Stream.
	errNoTarget error = &neterr.Error{Text: "kcp: Outgoing has no Conn and no Stream", Errno: syscall.EINVAL}
	// errOwnAddress is the error of a Dial whose packets come back.
	errOwnAddress = session.ErrOwnAddress
	// errOpening refuses a second simultaneous open with an address.
	errOpening error = &session.DetailedError{Text: "kcp: a simultaneous open with this address is in progress", Err: ErrInUse}
	// errNoHandler is the error of Group.Handle without a handler.
	errNoHandler error = &neterr.Error{Text: "kcp: the handler is nil", Errno: syscall.EINVAL}
	// errInHandler is the error of Endpoint.Shutdown in a handler.
	errInHandler error = &neterr.Error{Text: "kcp: in a handler, which keeps the socket from being read; call it on another goroutine", Errno: syscall.EDEADLK}
	// errNoSocket is the error of NewEndpoint without a socket.
	errNoSocket error = &neterr.Error{Text: "kcp: the socket is nil", Errno: syscall.EINVAL}
	// errUnwound ends a session of which a callback has panicked.
	errUnwound = session.ErrUnwound
	// errSocketClosed is what calls return once the socket was closed under the endpoint.
	errSocketClosed = fmt.Errorf("kcp: the socket of the endpoint: %w", net.ErrClosed)
)

// Errors of TLS, besides *HandshakeError.
var (
	// ErrNoTLS means that the peer does not speak TLS, or that something on the way has
	// made it look so. Nothing falls back to a session without TLS. Of a legacy peer a
	// *HandshakeError wraps it.
	ErrNoTLS = handshake.ErrNoTLS
	// errKeyUpdate ends a session whose peer changes its TLS keys again before this end
	// has followed (KEY_UPDATE_ERROR, RFC 9001 §6.2).
	errKeyUpdate = errors.New("kcp: the peer changes its TLS keys too fast")
	// ErrTLSRequired is returned by Dial without Config.TLS if the peer accepts only
	// sessions with TLS. It wraps syscall.ECONNREFUSED.
	ErrTLSRequired = session.ErrTLSRequired
)

// HandshakeError means that a TLS handshake has failed. It wraps what crypto/tls returns,
// together with a tls.AlertError; or the tls.AlertError that the peer has sent; or that
// what the ends have said in the clear was changed on the way; or ErrNoTLS.
type HandshakeError struct {
	Remote bool  // the peer has refused the handshake
	Err    error // the cause; see above
}

// Error returns the text of the cause, quoted if it is not plain text.
func (e *HandshakeError) Error() string { return (*session.HandshakeError)(e).Error() }

func (e *HandshakeError) Unwrap() error { return e.Err }

// SizeError means that a message is larger than MaxMessageSize, or a datagram than
// MaxDatagramSize.
type SizeError struct {
	Size  int // bytes of the message
	Limit int // the most that are taken now
	err   error
	means string // what Limit is
}

func (e *SizeError) Error() string {
	return (&session.SizeError{Size: e.Size, Limit: e.Limit, Err: e.err, Means: e.means}).Error()
}

// Unwrap returns ErrMessageTooLarge.
func (e *SizeError) Unwrap() error { return ErrMessageTooLarge }

// PeerLostError means that the peer is gone, or idle or stalled for too long. If it
// lives, its calls return ErrReset.
type PeerLostError struct {
	// Silence is how long nothing had arrived from the peer or, if Idle is true, how long
	// no data had been exchanged.
	Silence time.Duration
	// Idle reports whether Config.IdleTimeout has passed.
	Idle bool
	// Stalled is how long the peer had accepted none of the data waiting for it, if
	// Config.StallTimeout has passed, and otherwise 0.
	Stalled time.Duration
	// Socket is the last error of the socket during Silence; nil if there was none, or if
	// Idle or Stalled say why.
	Socket error
}

// Unwrap returns Socket.
func (e *PeerLostError) Unwrap() error { return e.Socket }

func (e *PeerLostError) Error() string { return (*session.PeerLostError)(e).Error() }

// SocketError means that the endpoint has ended, as its net.PacketConn returned
// nothing but errors; see NewEndpoint. Read, Write and Accept return it. Later
// calls of Dial and Listen return net.ErrClosed.
type SocketError struct {
	Err error // the last error of ReadFrom
}

func (e *SocketError) Error() string { return fmt.Sprintf("kcp: socket cannot be read: %v", e.Err) }

// Unwrap returns the last error of ReadFrom.
func (e *SocketError) Unwrap() error { return e.Err }

// NoAnswerError means that a peer did not answer Dial within Waited: it is absent, not to
// be reached, has another key, or is full: Limits.Backlog sessions wait for Accept. With
// DialOptions.SimultaneousOpen, the peer did not dial too, or a NAT lets nothing pass.
type NoAnswerError struct {
	Waited time.Duration // since Dial was called
	// Socket is the last error of the endpoint's socket meanwhile; nil if there was none.
	Socket error
	Tried  []net.Addr // all addresses, with DialOptions.SimultaneousOpen
}

func (e *NoAnswerError) Error() string {
	return neterr.Unanswered(session.Rounded(e.Waited), e.Tried, e.Socket)
}

// Unwrap returns Socket.
func (e *NoAnswerError) Unwrap() error { return e.Socket }

func (e *NoAnswerError) Timeout() bool { return true }

// Is matches os.ErrDeadlineExceeded and context.DeadlineExceeded.
func (e *NoAnswerError) Is(target error) bool {
	return target == os.ErrDeadlineExceeded || target == context.DeadlineExceeded
}

func (e *NoAnswerError) Temporary() bool { return true }

// ShutdownError is what Endpoint.Shutdown returns if not all was delivered.
type ShutdownError struct {
	Cut         int   // sessions that were aborted when the context ended
	Undelivered int   // further sessions that have ended before their peers had all
	Cause       error // why sessions were cut: the context's error; nil if none was
}

func (e *ShutdownError) Error() string {
	if e.Cut == 0 {
		return fmt.Sprintf("kcp: %s ended before all was delivered", sessions(e.Undelivered))
	}
	return fmt.Sprintf("kcp: %s cut short, %d ended before all was delivered: %v", sessions(e.Cut), e.Undelivered, e.Cause)
}

// sessions returns how many n are, in words.
func sessions(n int) string {
	if n == 1 {
		return "1 session"
	}
	return strconv.Itoa(n) + " sessions"
}

// Unwrap returns Cause, or ErrNotDelivered.
func (e *ShutdownError) Unwrap() error {
	if e.Cause == nil {
		return ErrNotDelivered
	}
	return e.Cause
}

// opError wraps err in a *net.OpError, as package net does. Without addresses the text of
// err follows the network's name, which is left out if err begins with it.
func opError(op string, local, remote net.Addr, err error) error {
	network := "kcp"
	if local == nil && remote == nil && strings.HasPrefix(err.Error(), network+": ") {
		network = ""
	}
	return &net.OpError{Op: op, Net: network, Source: local, Addr: remote, Err: err}
}

// Codes of a StreamError that this package gives: 1<<62 and above.
const (
	// StreamRefused means that the peer closes, or has Limits.MaxStreams streams and
	// tells no limit. Its application has seen nothing of this one.
	StreamRefused = streams.Refused
	// StreamViolation means that what arrived breaks the rules of WIRE.md §5.9.
	StreamViolation = streams.Violation
	// StreamTooLarge means that a message does not fit into the receiver's
	// Config.StreamReceiveBuffer.
	StreamTooLarge = streams.TooLarge

	maxStreamCode = 1<<62 - 1
)

// Errors of streams, besides *StreamError, *OptionError, errors of the session and
// errors of package net.
var (
	// ErrStreamClosed means that the peer has closed the stream, or reads no more, with
	// code 0. A *StreamError wraps it. It wraps syscall.EPIPE.
	ErrStreamClosed = session.ErrStreamClosed
	// ErrMessageAbandoned means that the lifetime or the retransmissions of a message
	// were used up before the peer had all of it.
	ErrMessageAbandoned = streams.ErrAbandoned
)

// StreamError means that a stream was reset, in one direction at least, or that the peer
// has closed it and reads no more: that is code 0, and wraps ErrStreamClosed, which a
// Reset with code 0 does not. The session goes on.
type StreamError struct {
	Code   uint64 // of the application that has reset it, or StreamRefused ff.
	Remote bool   // it was the peer's end
	closed bool   // the peer reads no more, and has not reset it
}

// Unwrap returns ErrStreamClosed if the peer has closed the stream.
func (e *StreamError) Unwrap() error {
	if e.closed {
		return ErrStreamClosed
	}
	return nil
}

func (e *StreamError) Error() string {
	return (&session.StreamError{Code: e.Code, Remote: e.Remote, Closed: e.closed}).Error()
}

// PeerCloseError means that the peer has closed the session with CloseWithError, or has
// ended it with Abort. Read returns it after the last byte, in place of io.EOF. It wraps
// ErrPeerClosed, or ErrReset if Aborted is set.
type PeerCloseError struct {
	Code uint64 // the peer's; the application gives it its meaning
	Text string // valid UTF-8, which may have control characters; may be empty or cut
	// Aborted reports that the peer has ended the session before it had delivered all: by
	// Abort, or as its CloseWithError has given up. The error then takes the
	// place of ErrReset, and wraps that.
	Aborted bool
}

// Error returns code and text, quoted if it is not plain.
func (e *PeerCloseError) Error() string { return (*session.PeerCloseError)(e).Error() }

// Unwrap returns ErrPeerClosed, or ErrReset if Aborted is set.
func (e *PeerCloseError) Unwrap() error {
	if e.Aborted {
		return ErrReset
	}
	return ErrPeerClosed
}

// publicError returns an error of a session, or of one of its streams, as the type that
// applications know.
func publicError(err error) error {
	switch e := err.(type) {
	case *session.PeerLostError:
		return (*PeerLostError)(e)
	case *session.PeerCloseError:
		return (*PeerCloseError)(e)
	case *session.HandshakeError:
		return (*HandshakeError)(e)
	case *session.StreamError:
		return &StreamError{e.Code, e.Remote, e.Closed}
	case *session.SizeError:
		return &SizeError{e.Size, e.Limit, e.Err, e.Means}
	}
	return err
}
