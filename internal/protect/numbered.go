package protect

import (
	"crypto/sha256"
	"encoding/binary"
	"sync/atomic"

	"github.com/arqnet/kcp/crypt"
)

// Packet numbers. kcp-go's format has none, but it has nonces, and a receiver
// takes any. Between two ends of this package a nonce is made as in TLS 1.3
// (RFC 8446 §5.3): a value unique to the session and direction, XORed at its
// end with the packet number. It shows whether a packet belongs to another
// session, or was reflected to its sender. An anti-replay window recognises
// replays, however late (RFC 4303 §3.4.3). WIRE.md §4.1 specifies the format.

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

// nonceBase is the nonce of packet 0 of a session in one direction, or more bytes
// that begin with it.
type nonceBase []byte

// newNonceBase derives a nonceBase from the conversation id and the tokens,
// which the ends have drawn at random.
func newNonceBase(conv, sender, receiver uint32) nonceBase {
	b := binary.LittleEndian.AppendUint32([]byte(nonceLabel), conv)
	b = binary.LittleEndian.AppendUint32(b, sender)
	base := sha256.Sum256(binary.LittleEndian.AppendUint32(b, receiver))
	return base[:]
}

// put sets nonce to packet n's.
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

// exhaustedAt returns the first number that must not be used with a nonce of n
// bytes.
func exhaustedAt(n int) uint64 {
	if n >= longNonce {
		return 1<<64 - 1<<20 // failed calls still count up, and must not wrap
	}
	return 1<<32 - 1
}

// Numbered is the protection of a session whose ends number their packets under a cipher
// that authenticates, and of one in which they are about to. Packets without number are
// protected as the cipher does it.
type Numbered struct {
	*filtered        // immutable, as is bases
	bases     []byte // of our nonces and of theirs, each as long as a nonce

	next   atomic.Uint64 // number of the next packet sent
	sends  bool          // our packets are numbered: the peer is known to have both tokens
	heard  bool          // the peer's packets are numbered: one such packet has arrived
	window Window        // of the peer's numbers
}

// newNumbered returns the protection of a session whose ends have drawn two tokens, which
// differ.
func newNumbered(f *filtered, conv, token, peerToken uint32) *Numbered {
	size := f.nonces.NonceSize()
	ours, theirs := newNonceBase(conv, token, peerToken), newNonceBase(conv, peerToken, token)
	return &Numbered{filtered: f, bases: append(ours[:size:size], theirs[:size]...)}
}

// ours and theirs are the bases of the nonces of this end, and of the peer's.
func (n *Numbered) ours() nonceBase   { return n.bases[:len(n.bases)/2] }
func (n *Numbered) theirs() nonceBase { return n.bases[len(n.bases)/2:] }

// of reports whether n belongs to these tokens.
func (n *Numbered) of(conv, token, peerToken uint32) bool {
	return string(n.ours()) == string(newNonceBase(conv, token, peerToken)[:len(n.bases)/2])
}

// Seal seals a packet with the next number.
func (n *Numbered) Seal(packet, content []byte) error {
	nonce := n.nonceOf(packet)
	number := n.next.Add(1) - 1
	if number >= exhaustedAt(len(nonce)) {
		return crypt.ErrKeyExhausted
	}
	n.ours().put(nonce, number)
	return n.sealNonce(packet, content)
}

// Fresh refuses packets without number once the peer has numbered one.
func (n *Numbered) Fresh(p *Packet, take bool) Verdict {
	number, ok := n.Number(p)
	switch {
	case ok && !take && n.window.IsNew(number):
		return New
	case ok && (!take || !n.window.Take(number)):
		return Replayed
	case ok:
		n.heard, n.sends = true, true
		return New
	case n.heard:
		return Foreign
	case n.reflected(p):
		return Replayed
	}
	return n.filtered.Fresh(p, take)
}

// Number returns the number in the peer's packet. ok reports whether the packet
// is of this session and of the peer's direction.
func (n *Numbered) Number(p *Packet) (number uint64, ok bool) {
	return n.theirs().number(p.nonce)
}

// reflected reports whether this end has sent the packet with a number.
func (n *Numbered) reflected(p *Packet) bool {
	_, back := n.ours().number(p.nonce)
	return back
}

func (n *Numbered) IsLatest(number uint64) bool { return n.window.IsLatest(number) }

// Sender returns n only if the peer is known to have both tokens.
func (n *Numbered) Sender() Protection {
	if n.sends {
		return n
	}
	return n.filtered
}

// Progress returns the number of the next packet sent, and whether the packets of
// this end and of the peer are numbered. The caller guards n, as for Fresh.
func (n *Numbered) Progress() (next uint64, sends, heard bool) {
	return n.next.Load(), n.sends, n.heard
}

// Skip makes next the number of the next packet sent, and last the latest that was
// received, unless it is 0. Tests come to the end of the numbers so.
func (n *Numbered) Skip(next, last uint64) {
	n.next.Store(next)
	if last > 0 {
		n.window.Take(last)
	}
}
