package kcp

import (
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/packetkeys"
)

// Stateless reset of sessions with TLS (RFC 9000 §10.3, WIRE.md §8.6): each end
// tells the other, under the application keys, how it will know a reset. How an
// endpoint without the session makes one is in endpoint_tls_reset.go.

// resetKeyWithin is how soon after the begin of a dialled session the peer has to
// tell its key, or the key does not count. TIME-WAIT is longer. So an attacker
// that holds back HELLO cannot have had a session of its own in its place, from
// the same address and with the same conversation id, to learn the key.
const resetKeyWithin = timeWaitTime / 2

// resetKeys are the keys of the stateless resets of a session's ends.
type resetKeys struct {
	ours   *resetKey                // as told to the peer; nil: not told, or not for its present address
	theirs atomic.Pointer[resetKey] // of the peer; nil: not known
}

// resetKey is a key of stateless resets.
type resetKey struct {
	packetkeys.ResetKey
	since uint32 // resets made up to then do not count; seconds on the clock of the end that makes them
}

// tellResetKey queues RESETKEY, the key by which the peer knows a stateless reset
// of this endpoint. It goes with CONFIRM and the answer to it, one of which is
// repeated until it arrives.
func (c *Conn) tellResetKey() {
	if c.tls == nil {
		return
	}
	if c.tls.reset.ours == nil {
		c.tls.reset.ours = c.ep.resetKeyOf(c)
	}
	if k := c.tls.reset.ours; k != nil {
		c.queueAnswer(signal{sigResetKey, k.since, k.Mask})
	}
}

// resetKeyPayload returns the payload of RESETKEY.
func (c *Conn) resetKeyPayload() []byte {
	if c.tls == nil || c.tls.reset.ours == nil {
		return nil
	}
	return c.tls.reset.ours.Key[:]
}

// renewResetKey tells the peer another key, as keys depend on its address.
func (c *Conn) renewResetKey() {
	if c.tls != nil {
		c.tls.reset.ours = nil
		c.tellResetKey()
	}
}

// noteResetKey takes the peer's RESETKEY.
func (c *Conn) noteResetKey(s signal, payload []byte) {
	if c.tls == nil || len(payload) != packetkeys.ResetKeySize {
		return
	}
	reset := &c.tls.reset
	if c.hs.dialled && reset.theirs.Load() == nil && c.live.lastInput-c.hs.born > resetKeyWithin {
		return
	}
	k := &resetKey{ResetKey: packetkeys.ResetKey{Key: [packetkeys.ResetKeySize]byte(payload), Mask: s.ts}, since: s.sn}
	if old := reset.theirs.Load(); old == nil || *old != *k {
		reset.theirs.Store(k)
	}
}

// by reports whether a packet that did not open is a stateless reset of the peer.
// It needs no lock.
func (r *resetKeys) by(packet []byte) bool {
	k := r.theirs.Load()
	return k != nil && k.Opens(packet, k.since)
}

// statelessReset locks c.mu and ends the session, of which the peer's endpoint
// knows nothing any more.
func (c *Conn) statelessReset(now time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.state == stateEnded {
		return
	}
	shows := &c.hs.ping
	if r := &c.hs.finish; r.active && r.tries > 0 {
		shows = r
	}
	c.forgotten(shows)
	c.finishStep(now)
	c.writePackets()
}
