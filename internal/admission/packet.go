// Package admission finds the sessions of an endpoint by everything that a packet
// may identify them by, and judges the packets of senders without a session: what they
// open, and what they are answered. It has the table of sessions, TIME-WAIT, cookies,
// stateless resets, and limits of all of these.
//
// All of it is pure: the caller passes the time, and its lock guards what it
// calls. Times are since an origin of the caller's.
package admission

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
)

// Kind is the kind of a packet that arrives (WIRE.md §4).
type Kind uint8

const (
	Plain    Kind = iota // segments, without an FEC header
	FEC                  // segments behind an FEC header
	Parity               // names no conversation: its address identifies the session
	Datagram             // unreliable, past the state machine

	// With TLS, before the session has opened them.
	Clear     // of the handshake, in the clear
	Opened    // the same, opened
	Handshake // under the handshake keys
	Sealed    // under the application keys, which may not be known yet
)

// Alone reports whether the conversation of such a packet is all that its session is
// found by. With an FEC header it has to be entered in the tables too.
func (k Kind) Alone() bool { return k == Plain || k >= Clear }

// Classify determines the kind and the conversation of a packet; Parity without TLS
// names none. tls says that it is a packet with TLS that was not opened: its header
// tells both. Classify reports false if data is too short, or shorter or longer than
// its header says.
func Classify(data []byte, tls bool) (kind Kind, conv uint32, ok bool) {
	switch {
	case tls || !fec.IsFEC(data):
		if len(data) < wire.HeaderSize {
			return Plain, 0, false
		}
		if tls {
			kind = [...]Kind{
				protect.Clear: Clear, protect.Handshake: Handshake, protect.Application: Sealed,
			}[protect.LevelOf(data)]
		}
		return kind, binary.LittleEndian.Uint32(data), true
	case binary.LittleEndian.Uint16(data[4:]) == fec.TypeParity:
		return Parity, 0, len(data) > fec.HeaderSize
	case binary.LittleEndian.Uint16(data[4:]) == fec.TypeOOB:
		if len(data) < fec.HeaderSize+4 || int(binary.LittleEndian.Uint16(data[6:])) != len(data)-6 {
			return Datagram, 0, false
		}
		kind = Datagram
	default:
		if len(data) < fec.HeaderSize+wire.HeaderSize {
			return FEC, 0, false
		}
		kind = FEC
	}
	return kind, binary.LittleEndian.Uint32(data[fec.HeaderSize:]), true
}

// OpenSealed opens a packet of a conversation under the application keys of its session,
// in place, and returns its kind. That remains Sealed if the keys are not known yet. A
// packet with an error is dropped, for the reason.
func OpenSealed(by protect.Protection, p *protect.Packet, conv uint32) (Kind, Reason, error) {
	if by == nil { // a header that names the session says so by luck
		return Sealed, Cipher, protect.ErrForged
	}
	switch err := by.Open(p); {
	case errors.Is(err, protect.ErrNotReady):
		return Sealed, NoReason, nil
	case err != nil:
		return Sealed, Cipher, err
	}
	kind, inner, ok := Classify(p.Data, false)
	switch {
	case !ok:
		return kind, Short, protect.ErrForged
	case kind != Parity && inner != conv:
		return kind, Unknown, protect.ErrForged
	}
	return kind, NoReason, nil
}

// Open opens a packet from the source of key, and returns its kind and its conversation.
// Keys that are derived from the cipher (WIRE.md §4.1) open it if its header says so: the
// kind is Sealed then, and it is left to its session. Few other packets seem to be of a
// known session, one in 2^32 for each. Parity names none, and is tried. So two ciphers at
// most work on a packet. One with a reason is dropped. If that is Cipher, a predecessor
// may have the keys, unless the kind is Plain.
//
// Open runs without the lock of the gate, which lock takes for reading. kept is working
// memory of the caller's.
func (g *Gate[S]) Open(p *protect.Packet, key Key, kept *[]byte, lock sync.Locker, now time.Duration) (kind Kind, conv uint32, why Reason) {
	var named, ok, opened bool
	if g.Protection.Derives {
		conv, named, ok = g.Protection.ReadHeader(p, kept)
	}
	switch key.Conv = conv; {
	case ok && named:
		if g.Find(key) != nil || g.knows(key, lock, now) {
			return Sealed, conv, NoReason
		}
		kind = Sealed
	case ok:
		kind, opened = Parity, g.openParity(p, key, kept)
	}
	if !opened {
		switch err := g.Outside.Open(p); {
		case errors.Is(err, protect.ErrShort):
			return Plain, 0, Short
		case err != nil:
			return kind, conv, Cipher
		}
	}
	if kind, conv, ok = Classify(p.Data, g.TLS); !ok {
		return Plain, 0, Short
	}
	return kind, conv, NoReason
}

// openParity opens a packet under the keys of the session that parity from its address is
// for. It reports false, and leaves the packet as it was, if they do not open it.
func (g *Gate[S]) openParity(p *protect.Packet, key Key, kept *[]byte) bool {
	s := g.OfParity(key)
	if s == nil || g.Keys(s) == nil {
		return false
	}
	*kept = append((*kept)[:0], p.Data...)
	if g.Keys(s).Open(p) == nil {
		return true
	}
	copy(p.Data, *kept)
	return false
}

// knows reports whether there is a session of a key, or one of its conversation at
// another address, or in TIME-WAIT: one of these may have the keys of a packet.
func (g *Gate[S]) knows(key Key, lock sync.Locker, now time.Duration) bool {
	lock.Lock()
	defer lock.Unlock()
	if g.Get(key) != nil || g.Candidates(key.Conv)[0] != nil || g.TimeWaits.Holds(key, now) {
		return true
	}
	_, ok := g.TimeWaits.AtAnyAddress(key.Conv, now)
	return ok && !g.SharedConvs
}

// Segments returns the segments in a packet. ok is false if one of its kind has none.
func Segments(kind Kind, data []byte) (segments []byte, ok bool) {
	switch kind {
	case Plain, Clear:
		return data, true
	case FEC:
		return data[fec.HeaderSize:], true
	}
	return nil, false
}

// Initial is what the first packet of a conversation says.
type Initial struct {
	Data    bool             // it contains a PUSH or PIECE
	Newest  container.Serial // for Data: the largest sn of those
	Push    bool             // it contains the PUSH with sn 0, and acknowledges nothing
	Crypto  bool             // it contains a CRYPTO segment, as first packets of peers with TLS do
	Hello   wire.Signal      // code 0: none; the same below
	Cookie  wire.Signal
	Info    wire.Signal
	Tie     wire.Signal // TIEBREAKER: the sender expects that this end dials it
	Pong    wire.Signal // the answer to a challenge
	Request wire.Signal // the first signal that wants an answer
}

// Parse reads a packet of an unknown conversation. ok is false if the packet is not
// well-formed to its end.
//
// Data opens a session only if it includes the very first segment. Later segments
// cannot show whether a conversation begins, or the peer continues one that this
// endpoint has forgotten.
func Parse(kind Kind, data []byte, conv uint32) (f Initial, ok bool) {
	packet, ok := Segments(kind, data)
	if !ok {
		return f, false
	}
	old := false // it acknowledges something, so the conversation did not begin with it
	for len(packet) >= wire.HeaderSize {
		h, crypto := wire.DecodeHeader(packet), wire.IsCrypto(packet)
		payload, fits := h.Payload(packet[wire.HeaderSize:])
		if !fits || h.Conv != conv || h.Cmd < wire.CmdPush || h.Cmd > wire.CmdStreamPiece {
			return Initial{}, false
		}
		packet = packet[wire.HeaderSize+len(payload):]
		old = old || h.Una != 0 || h.Cmd == wire.CmdAck
		if h.Cmd == wire.CmdPush || h.Cmd >= wire.CmdPiece {
			if !f.Data || f.Newest.Before(h.SN) {
				f.Newest = h.SN
			}
			f.Data = true
		}
		f.Push = f.Push || h.Cmd == wire.CmdPush && h.SN == 0
		f.Crypto = f.Crypto || crypto
		s, is := h.Signal()
		if !is || s.Tokenless() {
			continue
		}
		switch {
		case s.Code == wire.Hello && f.Hello.Code == 0:
			f.Hello = s
		case s.Code == wire.Cookie:
			f.Cookie = s
		case s.Code == wire.Info && f.Info.Code == 0:
			f.Info = s
		case s.Code == wire.Tiebreak:
			f.Tie = s
		case s.Code == wire.Pong:
			f.Pong = s
		}
		if f.Request.Code == 0 && s.Asks() {
			f.Request = s
		}
	}
	if old {
		f.Push, f.Hello = false, wire.Signal{}
	}
	return f, true
}

// Key identifies a session: its peer's address and its conversation id. Peer
// takes the place of Addr if the address is not a UDP address, and is empty
// otherwise.
type Key struct {
	Addr netip.AddrPort
	Peer string
	Conv uint32
}

// MakeKey returns the key of a session; peer is nil if the address is addr.
func MakeKey(addr netip.AddrPort, peer net.Addr, conv uint32) Key {
	key := Key{Addr: addr, Conv: conv}
	if peer != nil {
		key.Peer = peer.Network() + " " + peer.String()
	}
	return key
}

// address returns the key of the address alone.
func (k Key) address() Key {
	k.Conv = 0
	return k
}

// ResetKey returns the key of the stateless resets of the session, from a secret. It
// depends on the address of the socket too, local, as several endpoints may have one
// secret.
func (k Key) ResetKey(secret []byte, local string) protect.ResetKey {
	text := binary.LittleEndian.AppendUint32(nil, k.Conv)
	text = binary.LittleEndian.AppendUint16(text, k.Addr.Port())
	ip := k.Addr.Addr().As16()
	text = append(append(text, ip[:]...), k.Addr.Addr().Zone()...)
	text = append(append(text, 0), k.Peer...)
	text = append(append(text, 0), local...)
	return protect.NewResetKey(secret, text)
}

// Block returns the networks that limits count the session for.
func (k Key) Block() fair.Block { return fair.BlockOf(k.Addr.Addr(), k.Peer) }
