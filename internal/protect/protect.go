// Package protect protects the packets of sessions, and recognises replays: ciphers of
// pre-shared keys with or without packet numbers, and TLS. It has the keys of packets,
// and how they are derived and changed. It has no clock, socket or goroutine. WIRE.md
// §4.1 and §8 specify the formats.
package protect

import (
	"bytes"
	"io"
	"sync/atomic"

	"github.com/arqnet/kcp/crypt"
)

// Protection is how the packets of a session are protected. A Scheme makes them.
//
// Seal, Open and Overhead may be called at any time from any goroutine. The other
// methods share state with each other, which the caller has to guard.
type Protection interface {
	// Overhead returns how many bytes a packet has in front of its content, and
	// behind it.
	Overhead() (head, tail int)

	// Seal seals a packet. Its content is in its place between the bytes of
	// Overhead, or is elsewhere, as in content. The latter requires
	// Scheme.SealsFrom, and leaves content as it is. nil: it is in its place.
	Seal(packet, content []byte) error

	// Open opens a packet in place. Afterwards p.Data is its content. One that
	// does not open is destroyed.
	Open(p *Packet) error

	// Fresh judges an opened packet. take records that it has arrived;
	// otherwise it is only looked at.
	Fresh(p *Packet, take bool) Verdict

	// Number returns the number of an opened packet. ok reports whether it has one
	// of the peer's in this session.
	Number(p *Packet) (number uint64, ok bool)

	// IsLatest reports whether a number is above the numbers of all packets taken.
	IsLatest(number uint64) bool

	// Sender returns what seals the packets that are sent from now on.
	Sender() Protection

	// Authentic reports whether what counts as new is from one who has the key, whatever
	// its source address.
	Authentic() bool

	// Compact releases what can be made again when it is needed.
	Compact()
}

// KeysOf returns what opens packets under keys of the session that p protects, of TLS or
// derived from the cipher; nil: there are none.
func KeysOf(p Protection) Protection {
	switch p.(type) {
	case *TLS, *Keyed:
		return p
	}
	return nil
}

// Packet is a packet that has arrived.
type Packet struct {
	Data []byte // as it came, or its content once it is open

	nonce  []byte // nil if the cipher takes no packet numbers
	mark   uint64 // the hash by which the replay filter knows it, or its number under keys
	opened bool   // with TLS: under the keys of its session

	headed bool            // header is set
	header PresharedHeader // of a packet under the keys of a Keyed
	by     *SessionKeys    // those that have opened it; nil: none
}

// Clone returns a copy of p with memory of its own.
func (p *Packet) Clone() Packet {
	c := *p
	c.Data, c.nonce = bytes.Clone(p.Data), bytes.Clone(p.nonce)
	return c
}

// Header returns what Scheme.ReadHeader has returned for the packet.
func (p *Packet) Header() (conv uint32, named, ok bool) {
	return p.header.Conv, p.header.Form != Nameless, p.headed
}

// ErrShort is the error of Protection.Open for a packet shorter than its overhead.
var ErrShort = crypt.ErrShort

// Verdict is what Protection.Fresh says of a packet.
type Verdict uint8

const (
	Replayed Verdict = iota // it has arrived before, or this end has sent it
	Foreign                 // it has no number, though the peer numbers its packets
	New                     // neither
)

// Scheme is the protection that the sessions of an endpoint have in common. Its
// fields are immutable.
type Scheme struct {
	// Outside is the protection of packets of no session: the cipher's. With
	// TLS these packets are in the clear.
	Outside Protection

	Authentic bool // an opened packet is a peer's, whatever its source address
	SealsFrom bool // Protection.Seal takes a content that is not in the packet
	None      bool // packets are not protected at all
	Derives   bool // sessions with peers whose scheme does so too change over to an AEAD

	Capabilities uint32 // in INFO: CapKeys, CapChaCha

	cipher    *filtered  // nil: there is no cipher
	preshared *Preshared // nil: no keys are derived from the cipher
	tls       bool
	own       bool // with TLS: packets have nonces of their own
}

// NewScheme returns the protection of a cipher, which is nil for none, or of
// TLS. random is nil but in tests, where it makes the nonces of packets without
// number.
func NewScheme(cipher crypt.Cipher, tls bool, random io.Reader) *Scheme {
	if cipher == nil {
		return &Scheme{Outside: none{}, Authentic: tls, SealsFrom: tls, None: !tls, tls: tls, own: tls && OwnNonces()}
	}
	f := newFiltered(cipher, random)
	derived := newPreshared(f)
	s := &Scheme{Outside: f, Authentic: f.authentic, SealsFrom: f.from != nil || derived != nil, Derives: derived != nil, cipher: f, preshared: derived}
	if s.Derives {
		s.Capabilities = capabilities()
	}
	return s
}

// Session returns the protection that a session of a conversation begins with.
// With TLS app is the same, and handshake protects the handshake; without, both are
// nil.
func (s *Scheme) Session(conv uint32) (p Protection, app, handshake *TLS) {
	if s.tls {
		app = newTLS(conv, Application, s.own)
		return app, app, newTLS(conv, Handshake, s.own)
	}
	return s.Outside, nil, nil
}

// Number changes the protection of a session whose ends have drawn these tokens. sends
// reports whether the peer is known to have both tokens, so that packets to it may be
// numbered. If the cipher does not authenticate, the capabilities of the peer have to say
// besides that it derives keys. Nothing changes if the cipher leaves no room for numbers.
func (s *Scheme) Number(of *atomic.Pointer[Protection], conv, token, peerToken, capabilities uint32, sends bool) {
	// With equal tokens both directions would have the same nonces.
	if s.cipher == nil || s.cipher.nonces == nil || token == peerToken || token == 0 || peerToken == 0 {
		return
	}
	old := *of.Load()
	p := old
	if s.cipher.authentic {
		n, _ := old.(*Numbered)
		if n == nil || !n.of(conv, token, peerToken) {
			n = newNumbered(s.cipher, conv, token, peerToken)
		}
		n.sends = n.sends || sends
		p = n
	} else {
		p = s.key(old, conv, token, peerToken, capabilities, sends)
	}
	if p != old {
		of.Store(&p)
	}
}

// Forget empties the replay filter, as many other packets would.
func (s *Scheme) Forget() {
	if s.cipher != nil {
		s.cipher.replays.Forget()
	}
}

// Overhead returns the overhead of the sessions with a cipher, or with TLS.
func Overhead(cipher crypt.Cipher, tls bool) (head, tail int) {
	switch {
	case cipher != nil:
		return cipher.Overhead()
	case tls:
		return tlsOverhead(OwnNonces())
	}
	return 0, 0
}

// none leaves packets as they are.
type none struct{}

func (none) Overhead() (head, tail int)        { return 0, 0 }
func (none) Seal(_, _ []byte) error            { return nil }
func (none) Open(*Packet) error                { return nil }
func (none) Fresh(*Packet, bool) Verdict       { return New }
func (none) Number(*Packet) (n uint64, _ bool) { return 0, false }
func (none) IsLatest(uint64) bool              { return false }
func (p none) Sender() Protection              { return p }
func (none) Authentic() bool                   { return false }
func (none) Compact()                          {}
