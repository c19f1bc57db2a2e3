package session

import (
	"errors"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/wire"
)

// Why an application has closed a session (compare the CONNECTION_CLOSE of
// RFC 9000 §19.19): a number and a text that travel in the CLOSE signal
// (WIRE.md §5.2).

// CapReason in INFO announces that the sender takes CLOSE with a reason.
const CapReason = 4

// closeReasons is why the two ends have closed the session.
type closeReasons struct {
	ours   []byte          // as the payload of CLOSE; nil: none
	peer   *PeerCloseError // nil: none
	said   error           // peer as applications see it
	abrupt bool            // ours goes in front of ABORT
}

// read returns what the peer has said, and whether either end has said something. r may
// be nil.
func (r *closeReasons) read() (peer string, said bool) {
	if r != nil && r.peer != nil {
		peer = r.peer.Text
	}
	return peer, r != nil
}

// say records what the peer has said.
func (r *closeReasons) say(c *Session, e PeerCloseError) {
	r.peer, r.said = &e, c.host.PublicError(&e)
}

// closeReasons returns c.hs.reasons, which it makes if there is none.
func (c *Session) closeReasons() *closeReasons {
	if c.hs.reasons == nil {
		c.hs.reasons = new(closeReasons)
	}
	return c.hs.reasons
}

// encodeReason returns the payload of CLOSE, in a packet with so many bytes of headers.
func (c *Session) encodeReason(code uint64, text string, headers int) []byte {
	return closing.EncodeReason(code, text, c.leastPMTU()-c.shared.Overhead.Total-headers)
}

// SignalPayload is the state machine's hook for the payload of signals. The payload of
// CLOSE shows why the application has closed the session, if it has said so and
// the peer understands it.
func (c *Session) SignalPayload(code wire.Code) []byte {
	switch r := c.hs.reasons; {
	case code == wire.Close && r != nil && c.hs.capabilities&CapReason != 0:
		return r.ours
	case code == wire.ResetKey:
		return c.resetKeyPayload()
	}
	return nil
}

// noteReason takes the payload of the peer's CLOSE. The first that is not
// malformed counts.
func (c *Session) noteReason(payload []byte) {
	code, text, ok := closing.DecodeReason(payload)
	if ok && (c.hs.reasons == nil || c.hs.reasons.peer == nil) {
		c.closeReasons().say(c, PeerCloseError{Code: code, Text: text})
	}
}

// noteAbort records that ABORT has followed the peer's reason, if it has said one.
// Calls may have returned the error as it was.
func (c *Session) noteAbort() {
	if r := c.hs.reasons; r != nil && r.peer != nil {
		aborted := *r.peer
		aborted.Aborted = true
		r.say(c, aborted)
	}
}

// reason returns err, or in place of ErrPeerClosed why the peer has closed the
// session, and in place of ErrReset why it has aborted it, if it has said so.
func (c *Session) reason(err error) error {
	if r := c.hs.reasons; r != nil && r.peer != nil && (errors.Is(err, ErrPeerClosed) || r.peer.Aborted && err == ErrReset) {
		return r.said
	}
	return err
}
