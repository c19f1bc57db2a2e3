package kcp

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"sync/atomic"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/packetmac"
	"github.com/arqnet/kcp/internal/replay"
)

// Packet numbers. kcp-go's format has none, but it has nonces, and a receiver
// takes any. Between two ends of this package a nonce is made as in TLS 1.3
// (RFC 8446 §5.3): a value unique to the session and direction, XORed at its
// end with the packet number. It shows whether a packet belongs to another
// session, or was reflected to its sender. An anti-replay window recognises
// replays, however late (RFC 4303 §3.4.3). WIRE.md §4.1 specifies the format.
// Nonces of ciphers that do not authenticate are made in session_packetmac.go.

const (
	// minNonce is the size of the shortest nonce that has room for a number, in
	// bytes: the rest of it must suffice to tell sessions apart.
	minNonce = 12
	// longNonce is the size of the shortest nonce with a number of 8 bytes.
	// Shorter nonces have 4 bytes, for more packets than one key may encrypt.
	longNonce = 24
)

// nonceLabel separates this use of SHA-256 from others.
const nonceLabel = "kcp packet number"

// numbersPackets returns c as a cipher whose nonces carry packet numbers, or
// nil if its nonce has no suitable size.
func numbersPackets(c crypt.Cipher) crypt.NonceCipher {
	n, ok := c.(crypt.NonceCipher)
	switch {
	case !ok:
		return nil
	case !crypt.Authenticated(c) && !marksPackets(n):
		return nil
	case n.NonceSize() < minNonce || n.NonceSize() > sha256.Size:
		return nil
	}
	return n
}

// nonceBase is the nonce of packet 0 of a session in one direction, or more bytes
// that begin with it.
type nonceBase []byte

// newNonceBase derives a nonceBase from the conversation id and the tokens,
// which the ends have drawn at random.
func newNonceBase(conv, sender, receiver uint32) nonceBase {
	b := derive(nonceLabel, conv, sender, receiver)
	return b[:]
}

// derive returns what is unique to a session, a direction and a use.
func derive(label string, conv, sender, receiver uint32) [sha256.Size]byte {
	b := binary.LittleEndian.AppendUint32([]byte(label), conv)
	b = binary.LittleEndian.AppendUint32(b, sender)
	return sha256.Sum256(binary.LittleEndian.AppendUint32(b, receiver))
}

// put sets nonce to that of packet n.
func (b nonceBase) put(nonce []byte, n uint64) {
	if len(nonce) >= longNonce {
		at := copy(nonce, b[:len(nonce)-8])
		binary.LittleEndian.PutUint64(nonce[at:], binary.LittleEndian.Uint64(b[at:])^n)
		return
	}
	at := copy(nonce, b[:len(nonce)-4])
	binary.LittleEndian.PutUint32(nonce[at:], binary.LittleEndian.Uint32(b[at:])^uint32(n))
}

// number returns the packet number in nonce. ok reports whether nonce is of b.
func (b nonceBase) number(nonce []byte) (n uint64, ok bool) {
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

// packetNumbers numbers the packets of a session, and checks those of the peer.
// Conn.mu guards it; once the session is in TIME-WAIT, Endpoint.mu does.
type packetNumbers struct {
	// Immutable.
	tls   *tlsState   // of a session with TLS, whose keys number the packets; otherwise nil
	macs  *packetMACs // of a session whose cipher does not authenticate; otherwise nil
	bases []byte      // without TLS: of our nonces and of theirs, each as long as a nonce

	next   atomic.Uint64 // number of the next packet sent; needs no lock
	sends  bool          // our packets are numbered: the peer is known to have both tokens
	heard  bool          // the peer's packets are numbered: one such packet has arrived
	window replay.Window // of the peer's numbers
}

// ours and theirs are the bases of the nonces of this end, and of the peer's. The
// session is one without TLS.
func (n *packetNumbers) ours() nonceBase   { return n.bases[:len(n.bases)/2] }
func (n *packetNumbers) theirs() nonceBase { return n.bases[len(n.bases)/2:] }

// exhaustedAt returns the first number that must not be used with a nonce of n
// bytes.
func exhaustedAt(n int) uint64 {
	if n >= longNonce {
		return 1<<64 - 1<<20 // failed calls still count up, and must not wrap
	}
	return 1<<32 - 1
}

// number starts packet numbers with the peer once both tokens are known. sends
// reports whether the peer is known to have both too, so that ours may be
// numbered.
func (c *Conn) number(sends bool) {
	l := &c.hs
	// With equal tokens both directions would have the same nonces.
	if c.ep.protection.nonces == nil || l.token == l.peerToken || l.token == 0 || l.peerToken == 0 {
		return
	}
	conv, size := c.entry.Conv, c.ep.protection.nonces.NonceSize()
	ours := newNonceBase(conv, l.token, l.peerToken)[:size]
	if n := c.in.numbers; n == nil || !bytes.Equal(n.ours(), ours) {
		macs := c.ep.newPacketMACs(conv, l.token, l.peerToken)
		if macs == nil && !c.ep.protection.authentic {
			return
		}
		both := append(ours[:size:size], newNonceBase(conv, l.peerToken, l.token)[:size]...)
		c.in.numbers = &packetNumbers{macs: macs, bases: both}
	}
	c.in.numbers.sends = c.in.numbers.sends || sends
}

// sender returns n if outgoing packets are numbered, and nil otherwise. n may
// be nil.
func (n *packetNumbers) sender() *packetNumbers {
	if n == nil || !n.sends {
		return nil
	}
	return n
}

// fresh reports whether a packet is neither a replay, nor a reflection of our
// own, nor of another session. Once the peer has numbered a packet, all its
// packets must be numbered. take marks the packet as received; otherwise it is
// only looked at.
func (c *Conn) fresh(p *inPacket, take bool) bool {
	if n := c.in.numbers; n != nil {
		if n.tls != nil {
			return n.window.IsNew(p.mark) && (!take || n.window.Take(p.mark))
		}
		number, ok := n.numberOf(p)
		switch {
		case ok && !take:
			return n.window.IsNew(number)
		case ok && !n.window.Take(number):
			return false
		case ok:
			n.heard, n.sends = true, true
			return true
		}
		if n.heard || n.reflected(p) {
			return false
		}
	}
	replays, mark := &c.ep.protection.replays, c.ep.protection.mark(p)
	if !take {
		return replays.IsNew(mark)
	}
	return replays.Take(mark)
}

// numbered reports whether a packet has a number of the peer's in this session.
// n may be nil.
func (n *packetNumbers) numbered(p *inPacket) bool {
	if n == nil {
		return false
	}
	if n.tls != nil {
		return true
	}
	_, ok := n.numberOf(p)
	return ok
}

// of reports whether a packet that arrives in TIME-WAIT may be the peer's: it
// has a new number, or the peer has never numbered its packets. n may be nil.
// Endpoint.mu is held.
func (n *packetNumbers) of(p *inPacket) bool {
	if n == nil {
		return true
	}
	if n.tls != nil {
		return p.kind < clearPacket && n.window.Take(p.mark)
	}
	number, ok := n.numberOf(p)
	return ok && n.window.Take(number) || !ok && !n.heard
}

// takeResets takes the RESETs of a packet that is not numbered. They come from
// an endpoint that does not know the session, and so cannot number them;
// takeReset accepts those that echo a request of ours. It reports whether the
// packet has any.
func (c *Conn) takeResets(p *inPacket) bool {
	if n := c.in.numbers; n == nil || n.tls != nil {
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

// eachSignal calls f for each signal in a packet. It reports false, possibly
// after some calls, if the packet is malformed or has a segment of another
// conversation.
func (c *Conn) eachSignal(p *inPacket, f func(signal)) bool {
	data, ok := p.segments()
	for ok && len(data) >= headerSize {
		h := decodeHeader(data)
		payload, fits := h.payload(data[headerSize:])
		if !fits || h.conv != c.entry.Conv {
			return false
		}
		if s, is := h.signal(); is {
			f(s)
		}
		data = data[headerSize+len(payload):]
	}
	return ok
}

// sealFrom encrypts content, a packet of the state machine, into buf, which has
// room for the cipher's overhead too. Content stays as it is. sealsFrom must be
// true. Otherwise sealFrom is as seal.
func (e *Endpoint) sealFrom(buf, content []byte, n *packetNumbers) error {
	if e.config.Cipher == nil {
		return n.tls.seal(buf, content)
	}
	cipher := e.config.Cipher.(crypt.SealerFrom)
	if n == nil {
		var err error
		if e.repeat.setNonce(e.protection.nonces, buf) {
			err = cipher.SealNonceFrom(buf, content)
		} else {
			err = cipher.SealFrom(buf, content)
		}
		e.protection.replays.Sent(buf)
		return err
	}
	if err := e.number(buf, n); err != nil {
		return err
	}
	return cipher.SealNonceFrom(buf, content)
}

// sealsFrom reports whether sealFrom may be used: the cipher can, and there is no
// FEC, whose header would have to be in the content.
func (e *Endpoint) sealsFrom() bool {
	_, can := e.config.Cipher.(crypt.SealerFrom)
	return (can || e.config.TLS != nil) && !e.config.FEC.enabled()
}

// seal encrypts the packet in buf, which includes the cipher's overhead. It
// uses the next number of n, if n is not nil. It needs no lock.
func (e *Endpoint) seal(buf []byte, n *packetNumbers) error {
	if e.config.Cipher == nil {
		if n != nil {
			return n.tls.seal(buf, n.tls.keys.Content(buf))
		}
		return nil
	}
	if n == nil {
		var err error
		if e.repeat.setNonce(e.protection.nonces, buf) {
			err = e.protection.nonces.SealNonce(buf)
		} else {
			err = e.config.Cipher.Seal(buf)
		}
		e.protection.replays.Sent(buf)
		return err
	}
	if err := e.number(buf, n); err != nil {
		return err
	}
	return e.protection.nonces.SealNonce(buf)
}

// number puts the next packet number into the nonce of a packet.
func (e *Endpoint) number(buf []byte, n *packetNumbers) error {
	nonce := buf[:min(e.protection.nonces.NonceSize(), len(buf))]
	number := n.next.Add(1) - 1
	switch {
	case n.macs != nil && number < packetmac.Numbers:
		e.markPacket(n.macs, buf, nonce, number)
		return nil
	case n.macs == nil && number < exhaustedAt(len(nonce)):
		n.ours().put(nonce, number)
		return nil
	}
	return crypt.ErrKeyExhausted
}
