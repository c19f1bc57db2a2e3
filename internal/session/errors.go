package session

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/streams"
)

// Errors of sessions, which package kcp describes.
var (
	ErrDatagramTooLarge       = errors.New("kcp: datagram does not fit into a packet")
	ErrLegacyPeer       error = &DetailedError{"kcp: not supported by the peer (kcp-go or C KCP)", errors.ErrUnsupported}
	ErrMemoryPressure         = errors.New("kcp: session ended under memory pressure")
	ErrNotDelivered           = errors.New("kcp: closed before all data was acknowledged")
	ErrPeerClosed       error = &neterr.Error{Text: "kcp: session closed by the peer", Errno: syscall.EPIPE}
	ErrRefused          error = &neterr.Error{Text: "kcp: connection refused by the peer", Errno: syscall.ECONNREFUSED}
	ErrReset            error = &neterr.Error{Text: "kcp: session reset by the peer", Errno: syscall.ECONNRESET}
	ErrStreamClosed     error = &neterr.Error{Text: "kcp: stream closed by the peer", Errno: syscall.EPIPE}
	ErrTLSRequired      error = &neterr.Error{Text: "kcp: the peer requires TLS", Errno: syscall.ECONNREFUSED}
	ErrWouldBlock             = errors.New("kcp: no room in the write buffer")
	ErrBothDial               = errors.New("kcp: the peer dials this session too (both ends need DialOptions.SimultaneousOpen)")
	ErrKindUnknown      error = &DetailedError{"kcp: not known yet whether the peer takes streams", ErrWouldBlock}
	ErrNoStreamYet      error = &DetailedError{"kcp: the peer takes no more streams now: Limits.MaxStreams", ErrWouldBlock}
	ErrNoStreamsHere    error = &DetailedError{"kcp: this end takes no streams: Limits.MaxStreams is negative", errors.ErrUnsupported}
	ErrNoStreamsThere   error = &DetailedError{"kcp: the peer takes no streams, as with a negative Limits.MaxStreams", errors.ErrUnsupported}
	ErrNotMessageMode   error = &DetailedError{"kcp: session is not in message mode (Config.MessageMode)", errors.ErrUnsupported}
	ErrOwnAddress       error = &net.AddrError{Err: "the endpoint's own address, or one that echoes what is sent there"}
	ErrUnwound                = errors.New("kcp: session ended: a callback of the application did not return")
)

// Errors that a session makes. Its host turns them into the types that applications know,
// which have the same fields.

// PeerLostError means that the peer is gone; see kcp.PeerLostError.
type PeerLostError struct {
	Silence time.Duration
	Idle    bool
	Stalled time.Duration
	Socket  error
}

func (e *PeerLostError) Error() string {
	if e.Idle {
		return fmt.Sprintf("kcp: peer lost: no data exchanged for %v", Rounded(e.Silence))
	}
	if e.Stalled > 0 {
		return fmt.Sprintf("kcp: peer lost: no data accepted for %v", Rounded(e.Stalled))
	}
	text := fmt.Sprintf("kcp: peer lost: nothing received for %v", Rounded(e.Silence))
	if e.Socket != nil {
		text += ": " + e.Socket.Error()
	}
	return text
}

// PeerCloseError is why the peer has ended the session; see kcp.PeerCloseError.
type PeerCloseError struct {
	Code    uint64
	Text    string
	Aborted bool
}

// Error returns code and text, which is quoted if it does not print on one line.
func (e *PeerCloseError) Error() string {
	what := "closed"
	if e.Aborted {
		what = "aborted"
	}
	text := fmt.Sprintf("kcp: session %s by the peer with code %d", what, e.Code)
	if e.Text != "" {
		text += ": " + printable(e.Text)
	}
	return text
}

// HandshakeError means that a TLS handshake has failed; see kcp.HandshakeError.
type HandshakeError struct {
	Remote bool
	Err    error
}

// Error returns the text of the cause, which may have names of the peer in it, and is
// quoted if it does not print on one line.
func (e *HandshakeError) Error() string {
	if e.Remote {
		return "kcp: TLS handshake refused by the peer: " + printable(e.Err.Error())
	}
	return "kcp: TLS handshake: " + printable(e.Err.Error())
}

// SizeError means that a message or a datagram is too large; see kcp.SizeError.
type SizeError struct {
	Size, Limit int
	Err         error
	Means       string // what Limit is
}

func (e *SizeError) Error() string {
	what := "message"
	if e.Err == ErrDatagramTooLarge {
		what = "datagram"
	}
	text := fmt.Sprintf("kcp: %s of %d bytes is larger than %d", what, e.Size, e.Limit)
	if e.Means != "" {
		text += ", " + e.Means
	}
	return text
}

// StreamError means that a stream was reset, or closed by the peer; see kcp.StreamError.
type StreamError struct {
	Code   uint64
	Remote bool
	Closed bool
}

func (e *StreamError) Error() string {
	if e.Closed {
		return ErrStreamClosed.Error()
	}
	who := "locally"
	if e.Remote {
		who = "by the peer"
	}
	switch e.Code {
	case streams.Refused:
		return "kcp: stream refused " + who + ": as many are open as MaxStreams allows"
	case streams.Violation:
		return "kcp: stream reset " + who + ": protocol violation"
	case streams.TooLarge:
		return "kcp: stream reset " + who + ": message larger than the receive buffer"
	}
	return fmt.Sprintf("kcp: stream reset %s with code %d", who, e.Code)
}

// MaxPrinted is how many bytes of what a peer has said an error prints.
const MaxPrinted = 1024

// printable returns what a peer has said, in quotes if it contains what does not
// print: a line break would make a record of its own in a log. It cuts what is long, such
// as the names in a certificate.
func printable(text string) string {
	if len(text) > MaxPrinted {
		text = text[:MaxPrinted] + "..."
	}
	if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) < 0 {
		return text
	}
	return strconv.Quote(text)
}

// DetailedError is an error that counts as is, with a text that says more.
type DetailedError struct {
	Text string
	Err  error
}

func (e *DetailedError) Error() string { return e.Text }
func (e *DetailedError) Unwrap() error { return e.Err }

// Rounded returns d as people want to read it: to three digits or so.
func Rounded(d time.Duration) time.Duration {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond)
	}
	return d
}

func (e *PeerLostError) Unwrap() error  { return e.Socket }
func (e *HandshakeError) Unwrap() error { return e.Err }
func (e *SizeError) Unwrap() error      { return e.Err }

func (e *StreamError) Unwrap() error {
	if e.Closed {
		return ErrStreamClosed
	}
	return nil
}

func (e *PeerCloseError) Unwrap() error {
	if e.Aborted {
		return ErrReset
	}
	return ErrPeerClosed
}
