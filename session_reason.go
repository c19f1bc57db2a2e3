package kcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Why an application has closed a session (compare the CONNECTION_CLOSE of
// RFC 9000 §19.19): a number and a text that travel in the CLOSE signal
// (WIRE.md §5.2).

// capReason in INFO announces that the sender takes CLOSE with a reason.
const capReason = 4

const (
	// reasonCode is the size of the code in front of the text, in bytes.
	reasonCode = 8
	// maxReasonText is the most bytes of text that are sent.
	maxReasonText = 256
)

// PeerCloseError means that the peer has closed the session with CloseWithError.
// Read returns it after the last byte, in place of io.EOF, and Write in place of
// ErrPeerClosed, which it wraps.
type PeerCloseError struct {
	Code uint64 // the peer's; its meaning is that of the application
	Text string // valid UTF-8, which may have control characters; may be empty or cut
}

// Error returns code and text, which is quoted if it does not print on one line.
func (e *PeerCloseError) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("kcp: session closed by the peer with code %d", e.Code)
	}
	return fmt.Sprintf("kcp: session closed by the peer with code %d: %s", e.Code, printable(e.Text))
}

// Unwrap returns ErrPeerClosed.
func (e *PeerCloseError) Unwrap() error { return ErrPeerClosed }

// closeReasons is why the two ends have closed the session.
type closeReasons struct {
	ours []byte          // as the payload of CLOSE; nil: none
	peer *PeerCloseError // nil: none
}

// closeReasons returns c.hs.reasons, which it makes if there is none.
func (c *Conn) closeReasons() *closeReasons {
	if c.hs.reasons == nil {
		c.hs.reasons = new(closeReasons)
	}
	return c.hs.reasons
}

// CloseWithError is Close with a reason. After the last byte the peer's Read returns a
// *PeerCloseError with code and text in place of io.EOF, as do its other calls in place
// of ErrPeerClosed. Code 0 with an empty text is a reason too. The text should be UTF-8,
// and is cut to 256 bytes, or to what fits into a packet. The reason is lost if the
// session is aborted. Legacy peers do not learn it.
func (c *Conn) CloseWithError(code uint64, text string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closing.closed {
		c.closeReasons().ours = c.encodeReason(code, text)
	}
	return c.closeInOrder()
}

// encodeReason returns the payload of CLOSE.
func (c *Conn) encodeReason(code uint64, text string) []byte {
	text = strings.ToValidUTF8(text, "\uFFFD")
	room := c.leastPMTU() - c.ep.overhead.total - headerSize - reasonCode
	if room = min(room, maxReasonText); len(text) > room {
		for room > 0 && !utf8.RuneStart(text[room]) {
			room--
		}
		text = text[:room]
	}
	return append(binary.LittleEndian.AppendUint64(nil, code), text...)
}

// signalPayload is the state machine's hook for the payload of signals. That of
// CLOSE shows why the application has closed the session, if it has said so and
// the peer understands it.
func (c *Conn) signalPayload(code signalCode) []byte {
	switch r := c.hs.reasons; {
	case code == sigClose && r != nil && c.hs.capabilities&capReason != 0:
		return r.ours
	case code == sigResetKey:
		return c.resetKeyPayload()
	}
	return nil
}

// noteReason takes the payload of the peer's CLOSE. The first that is not
// malformed counts.
func (c *Conn) noteReason(payload []byte) {
	if len(payload) < reasonCode || len(payload) > reasonCode+maxReasonText || c.hs.reasons != nil && c.hs.reasons.peer != nil {
		return
	}
	c.closeReasons().peer = &PeerCloseError{
		Code: binary.LittleEndian.Uint64(payload),
		Text: strings.ToValidUTF8(string(payload[reasonCode:]), "\uFFFD"),
	}
}

// reason returns err, or in place of ErrPeerClosed why the peer has closed the
// session, if it has said so.
func (c *Conn) reason(err error) error {
	if r := c.hs.reasons; r != nil && r.peer != nil && errors.Is(err, ErrPeerClosed) {
		return r.peer
	}
	return err
}
