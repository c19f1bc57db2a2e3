package kcp

import (
	"crypto/sha256"
	"encoding/binary"
	"sync/atomic"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/replay"
)

// Packet numbers. kcp-go's format has none, but it has nonces, and a receiver
// takes any. Between two ends of this package a nonce is that of TLS 1.3 (RFC
// 8446 §5.3): a value that the session and the direction have to themselves,
// with the number of the packet in its end. So what belongs to another session,
// or comes back to its sender, is recognised, and so is what has come before,
// whenever that was (RFC 4303 §3.4.3). WIRE.md §4.1 specifies it.

const (
	// minNonce is the least nonce that has room for a number: there must be
	// enough of it left to tell sessions apart.
	minNonce = 12
	// longNonce is the least nonce with a number of 8 bytes; shorter ones have
	// 4, which are more packets than a key is good for.
	longNonce = 24
)

// nonceLabel is what nonces are derived with.
const nonceLabel = "kcp packet number"

// numbersPackets returns the cipher as one that takes numbers; nil where it does
// not.
func numbersPackets(c crypt.Cipher) crypt.NonceCipher {
	n, ok := c.(crypt.NonceCipher)
	if !ok || n.NonceSize() < minNonce || n.NonceSize() > sha256.Size || !crypt.Authenticated(c) {
		return nil
	}
	return n
}

// nonceBase is the nonce of packet 0 of a session in one direction.
type nonceBase [sha256.Size]byte

// newNonceBase derives it from what both ends have drawn at random.
func newNonceBase(conv, sender, receiver uint32) nonceBase {
	b := binary.LittleEndian.AppendUint32([]byte(nonceLabel), conv)
	b = binary.LittleEndian.AppendUint32(b, sender)
	return sha256.Sum256(binary.LittleEndian.AppendUint32(b, receiver))
}

// put makes nonce that of packet n.
func (b *nonceBase) put(nonce []byte, n uint64) {
	if len(nonce) >= longNonce {
		at := copy(nonce, b[:len(nonce)-8])
		binary.LittleEndian.PutUint64(nonce[at:], binary.LittleEndian.Uint64(b[at:])^n)
		return
	}
	at := copy(nonce, b[:len(nonce)-4])
	binary.LittleEndian.PutUint32(nonce[at:], binary.LittleEndian.Uint32(b[at:])^uint32(n))
}

// number returns the number in nonce; ok is false where it is not of b.
func (b *nonceBase) number(nonce []byte) (n uint64, ok bool) {
	at := len(nonce) - 4
	if len(nonce) >= longNonce {
		at = len(nonce) - 8
	}
	if at < minNonce-4 || string(nonce[:at]) != string(b[:at]) {
		return 0, false
	}
	if len(nonce) >= longNonce {
		return binary.LittleEndian.Uint64(nonce[at:]) ^ binary.LittleEndian.Uint64(b[at:]), true
	}
	return uint64(binary.LittleEndian.Uint32(nonce[at:]) ^ binary.LittleEndian.Uint32(b[at:])), true
}

// packetNumbers numbers the packets of a session. Conn.mu guards it, and after
// the session's end, in a grave, Endpoint.mu.
type packetNumbers struct {
	// These never change.
	token, peerToken uint32
	ours, theirs     nonceBase

	next   atomic.Uint64 // number of the next packet that is sent, which needs no lock
	sends  bool          // ours are numbered: the peer is known to have both tokens
	heard  bool          // the peer's are
	window replay.Window // of the peer's
}

// exhaustedAt is the number that is not used any more in a nonce of n bytes.
func exhaustedAt(n int) uint64 {
	if n >= longNonce {
		return 1<<64 - 1<<20 // those who come after count on
	}
	return 1<<32 - 1
}

// number makes packets numbered from and to a peer, once both tokens are known.
// sends is true where the peer is known to have them too.
func (c *Conn) number(sends bool) {
	l := &c.hs
	// With equal tokens both directions would have the same nonces.
	if c.ep.protection.nonces == nil || l.token == l.peerToken || l.token == 0 || l.peerToken == 0 {
		return
	}
	if n := c.in.numbers; n == nil || n.token != l.token || n.peerToken != l.peerToken {
		c.in.numbers = &packetNumbers{
			token:     l.token,
			peerToken: l.peerToken,
			ours:      newNonceBase(c.path.key.conv, l.token, l.peerToken),
			theirs:    newNonceBase(c.path.key.conv, l.peerToken, l.token),
		}
	}
	c.in.numbers.sends = c.in.numbers.sends || sends
}

// sender returns what numbers the packets that leave; nil where they have no
// numbers.
func (n *packetNumbers) sender() *packetNumbers {
	if n == nil || !n.sends {
		return nil
	}
	return n
}

// fresh reports whether a packet may be taken: it has not come before, and is of
// this session and the peer's. take is false for a packet that is only looked
// at. Once the peer numbers its packets, all do.
func (c *Conn) fresh(p *inPacket, take bool) bool {
	if n := c.in.numbers; n != nil {
		number, ok := n.theirs.number(p.nonce)
		switch {
		case ok && !take:
			return n.window.IsNew(number)
		case ok && !n.window.Take(number):
			return false
		case ok:
			n.heard, n.sends = true, true
			return true
		}
		if _, back := n.ours.number(p.nonce); back || n.heard {
			return false
		}
	}
	replays, mark := &c.ep.protection.replays, c.ep.protection.mark(p)
	if !take {
		return replays.IsNew(mark)
	}
	return replays.Take(mark)
}

// numbered reports whether a packet has a number of the peer's.
func (n *packetNumbers) numbered(p *inPacket) bool {
	if n == nil {
		return false
	}
	_, ok := n.theirs.number(p.nonce)
	return ok
}

// of reports whether a packet may be the peer's after the session's end: it has
// a number that is new, or the peer has never shown that it has any.
func (n *packetNumbers) of(p *inPacket) bool {
	if n == nil {
		return true
	}
	number, ok := n.theirs.number(p.nonce)
	return ok && n.window.Take(number) || !ok && !n.heard
}

// takeResets takes those signals of a packet without number that an endpoint
// sends which does not know the session, and so has no number for it: they echo
// a question of ours that is out. It is true where there was one.
func (c *Conn) takeResets(p *inPacket) bool {
	if c.in.numbers == nil {
		return false
	}
	found := false
	c.eachSignal(p, func(s signal) {
		if s.code == sigReset {
			c.takeReset(s)
			found = true
		}
	})
	return found
}

// eachSignal calls f for the signals of a packet of this conversation. It is false
// where the packet is not well-formed.
func (c *Conn) eachSignal(p *inPacket, f func(signal)) bool {
	data, ok := p.segments()
	for ok && len(data) >= headerSize {
		h := decodeHeader(data)
		payload, fits := h.payload(data[headerSize:])
		if !fits || h.conv != c.path.key.conv {
			return false
		}
		if s, is := h.signal(); is {
			f(s)
		}
		data = data[headerSize+len(payload):]
	}
	return ok
}

// seal encrypts the packet in buf, which has room for the cipher, with the next
// number of n, where that is not nil.
func (e *Endpoint) seal(buf []byte, n *packetNumbers) error {
	if e.config.Cipher == nil {
		return nil
	}
	if n == nil {
		err := e.config.Cipher.Seal(buf)
		e.protection.replays.Sent(buf)
		return err
	}
	nonce := buf[:min(e.protection.nonces.NonceSize(), len(buf))]
	number := n.next.Add(1) - 1
	if number >= exhaustedAt(len(nonce)) {
		return crypt.ErrKeyExhausted
	}
	n.ours.put(nonce, number)
	return e.protection.nonces.SealNonce(buf)
}
