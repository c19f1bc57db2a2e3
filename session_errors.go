package kcp

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/arqnet/kcp/internal/streams"
)

// Errors that a session makes. Its host turns them into the types that applications know,
// which have the same fields.

// lostError means that the peer is gone; see kcp.PeerLostError.
type lostError struct {
	Silence time.Duration
	Idle    bool
	Stalled time.Duration
	Socket  error
}

func (e *lostError) Error() string {
	if e.Idle {
		return fmt.Sprintf("kcp: peer lost: no data exchanged for %v", rounded(e.Silence))
	}
	if e.Stalled > 0 {
		return fmt.Sprintf("kcp: peer lost: no data accepted for %v", rounded(e.Stalled))
	}
	text := fmt.Sprintf("kcp: peer lost: nothing received for %v", rounded(e.Silence))
	if e.Socket != nil {
		text += ": " + e.Socket.Error()
	}
	return text
}

// reasonError is why the peer has ended the session; see kcp.PeerCloseError.
type reasonError struct {
	Code    uint64
	Text    string
	Aborted bool
}

// Error returns code and text, which is quoted if it does not print on one line.
func (e *reasonError) Error() string {
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

// tlsError means that a TLS handshake has failed; see kcp.HandshakeError.
type tlsError struct {
	Remote bool
	Err    error
}

// Error returns the text of the cause, which may have names of the peer in it, and is
// quoted if it does not print on one line.
func (e *tlsError) Error() string {
	if e.Remote {
		return "kcp: TLS handshake refused by the peer: " + printable(e.Err.Error())
	}
	return "kcp: TLS handshake: " + printable(e.Err.Error())
}

// tooLargeError means that a message or a datagram is too large; see kcp.SizeError.
type tooLargeError struct {
	Size, Limit int
	Err         error
	Means       string // what Limit is
}

func (e *tooLargeError) Error() string {
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

// streamError means that a stream was reset, or closed by the peer; see kcp.StreamError.
type streamError struct {
	Code   uint64
	Remote bool
	Closed bool
}

func (e *streamError) Error() string {
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

// maxPrinted is how many bytes of what a peer has said an error prints.
const maxPrinted = 1024

// printable returns what a peer has said, in quotes if it contains what does not
// print: a line break would make a record of its own in a log. It cuts what is long, such
// as the names in a certificate.
func printable(text string) string {
	if len(text) > maxPrinted {
		text = text[:maxPrinted] + "..."
	}
	if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) < 0 {
		return text
	}
	return strconv.Quote(text)
}

// detailedError is an error that counts as is, with a text that says more.
type detailedError struct {
	text string
	is   error
}

func (e *detailedError) Error() string { return e.text }
func (e *detailedError) Unwrap() error { return e.is }

// rounded returns d as people want to read it: to three digits or so.
func rounded(d time.Duration) time.Duration {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond)
	}
	return d
}

func (e *lostError) Unwrap() error     { return e.Socket }
func (e *tlsError) Unwrap() error      { return e.Err }
func (e *tooLargeError) Unwrap() error { return e.Err }

func (e *streamError) Unwrap() error {
	if e.Closed {
		return ErrStreamClosed
	}
	return nil
}

func (e *reasonError) Unwrap() error {
	if e.Aborted {
		return ErrReset
	}
	return ErrPeerClosed
}
