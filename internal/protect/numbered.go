package protect

import (
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

const (
	// minNonce is the size of the shortest nonce that has room for a number, in
	// bytes: the rest of it must suffice to tell sessions apart.
	minNonce = 12
	// longNonce is the size of the shortest nonce with a number of 8 bytes.
	// Shorter nonces have 4 bytes, for more packets than one key may encrypt.
	longNonce = 24
)

// Labels separate these uses of SHA-256 from others.
const (
	nonceLabel = "kcp packet number"
	macLabel   = "kcp packet authenticator"
)

// derive returns what is unique to a session, a direction and a use.
func derive(label string, conv, sender, receiver uint32) [sha256.Size]byte {
	b := binary.LittleEndian.AppendUint32([]byte(label), conv)
	b = binary.LittleEndian.AppendUint32(b, sender)
	return sha256.Sum256(binary.LittleEndian.AppendUint32(b, receiver))
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

// Numbered is the protection of a session whose ends number their packets, and of
// one in which they are about to. Packets without number are protected as the
// cipher does it.
//
// If the cipher does not authenticate, anyone on the path could change a number
// in a nonce. So a message authentication code over number and content goes with
// it, under a key that the tokens of the session make, which the cipher has
// hidden. WIRE.md §4.1 says what remains open.
type Numbered struct {
	*filtered        // immutable, as are the next two
	macs      *macs  // if the cipher does not authenticate; otherwise nil
	bases     []byte // of our nonces and of theirs, each as long as a nonce

	next   atomic.Uint64 // number of the next packet sent
	sends  bool          // our packets are numbered: the peer is known to have both tokens
	heard  bool          // the peer's packets are numbered: one such packet has arrived
	window replay.Window // of the peer's numbers
}

// macs are the authentication keys of a session; immutable.
type macs struct {
	ours, theirs *packetmac.Key
}

// newNumbered returns the protection of a session whose ends have drawn two
// tokens, which differ. It returns nil if the program may not use the algorithm
// that would have to authenticate the packets.
func newNumbered(f *filtered, conv, token, peerToken uint32) *Numbered {
	size := f.nonces.NonceSize()
	ours, theirs := newNonceBase(conv, token, peerToken), newNonceBase(conv, peerToken, token)
	n := &Numbered{filtered: f, bases: append(ours[:size:size], theirs[:size]...)}
	if f.authentic {
		return n
	}
	var err error
	if n.macs, err = newMACs(conv, token, peerToken); err != nil {
		return nil
	}
	return n
}

// newMACs returns the keys of a session. It fails if the program may not use the
// algorithm.
func newMACs(conv, token, peerToken uint32) (*macs, error) {
	ours, theirs := derive(macLabel, conv, token, peerToken), derive(macLabel, conv, peerToken, token)
	m := new(macs)
	var err error
	if m.ours, err = packetmac.New(ours[:]); err != nil {
		return nil, err
	}
	if m.theirs, err = packetmac.New(theirs[:]); err != nil {
		return nil, err
	}
	return m, nil
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
	switch {
	case n.macs != nil && number < packetmac.Numbers:
		hidden := content
		if hidden == nil {
			head, tail := n.cipher.Overhead()
			hidden = packet[head : len(packet)-tail]
		}
		n.macs.ours.Mark(nonce, hidden, number)
	case n.macs == nil && number < exhaustedAt(len(nonce)):
		n.ours().put(nonce, number)
	default:
		return crypt.ErrKeyExhausted
	}
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
	if n.macs == nil {
		return n.theirs().number(p.nonce)
	}
	number = n.window.Expand(packetmac.Low(p.nonce))
	return number, n.macs.theirs.Check(p.nonce, p.Data, number)
}

// reflected reports whether this end has sent the packet with a number.
func (n *Numbered) reflected(p *Packet) bool {
	if n.macs == nil {
		_, back := n.ours().number(p.nonce)
		return back
	}
	return n.macs.ours.Check(p.nonce, p.Data, replay.Expand(packetmac.Low(p.nonce), n.next.Load()))
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
