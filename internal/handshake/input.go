package handshake

import (
	"bytes"
	"crypto/tls"
	"fmt"

	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
)

// The packets that an Exchange takes.

// Result is what input has brought about. Fields add up over several calls.
type Result struct {
	Dropped int // packets that count for nothing
	Damaged int // packets that did not open

	PeerToken uint32      // of the peer, once it is known; 0: it is not
	Validated bool        // the peer's address is validated (RFC 9000 §8.1)
	Cookie    wire.Signal // the peer asks for it; code 0: it does not
	End       End         // the session ends
	Failed    error       // the handshake has failed now; nil: it has not
	Remote    bool        // the peer has said so
	Completed *Completed  // TLS is done now; nil: it is not
}

// End is how a handshake ends without having failed.
type End uint8

const (
	GoesOn   End = iota
	Reset        // the peer has no such session any more
	Refused      // the peer accepts no sessions
	NoTLS        // the peer accepts sessions, without TLS
	BothDial     // the peer has dialled this session, as this end has
)

// Peer is what the owner of an Exchange knows of the peer.
type Peer struct {
	Waiting     bool // HELLO is repeated until something arrives
	Unvalidated bool // its address is not validated
	Room        int  // bytes that may be held for it if so
	Pressed     bool // memory is short: nothing is kept early
}

// Kind is the kind of a packet of the handshake.
type Kind uint8

const (
	InClear   Kind = iota // in the clear
	Opened                // the same, already opened
	Protected             // under the handshake keys
	TooEarly              // under application keys that are not known yet
)

// Input takes a packet of the handshake. It reports whether that may have changed
// anything.
func (x *Exchange) Input(kind Kind, p *protect.Packet, peer Peer, r *Result) (changed bool) {
	level := Initial
	var err error
	switch kind {
	case TooEarly:
		x.keep(p.Data, peer, r)
		return false
	case InClear:
		if len(p.Data) >= wire.HeaderSize && wire.Code(p.Data[5]) == wire.Hello && x.bothDial(p.Data, r) {
			r.End = BothDial
			return true
		}
		if x.initial == nil { // no HELLO has left
			r.Dropped++
			return false
		}
		if p.Data, err = OpenInitial(x.initial, p.Data); err != nil {
			r.Damaged++ // the peer repeats it
			return false
		}
	case Protected:
		if err = x.Protection.Open(p); err == protect.ErrNotReady {
			x.keep(p.Data, peer, r) // it has overtaken ServerHello
			return false
		} else if err != nil {
			r.Damaged++
			return false
		}
		level, x.Reached = Handshake, true
		x.streams[Initial].Discard() // the peer has all of it (RFC 9001 §4.9.1)
		if !x.dialled {
			r.Validated, peer.Unvalidated = true, false // RFC 9000 §8.1
		}
	}
	m, ok := Parse(p.Data, x.conv)
	if !ok || level == Initial && !x.takeClear(&m, peer, r) {
		r.Dropped++
		return r.End != GoesOn || r.Failed != nil
	}
	x.take(level, &m, peer, r)
	return true
}

// bothDial reports whether a packet is the first of a handshake that the peer has begun
// in a session that this end dials, and leaves its token in r. It was not damaged, as its
// seal shows.
func (x *Exchange) bothDial(packet []byte, r *Result) bool {
	if x.initial != nil && !x.dialled || x.greeted || x.Reached {
		return false
	}
	m, ok := Parse(packet, x.conv)
	if !ok || m.Hello.Code == 0 || m.Hello.TS == x.token || !m.Crypto {
		return false
	}
	if _, err := OpenInitial(protect.NewInitial(x.conv, m.Hello.TS, false), bytes.Clone(packet)); err != nil {
		return false
	}
	r.PeerToken = m.Hello.TS
	return true
}

// keep keeps a packet whose keys are not known yet. A server sends nothing under
// the application keys before it has the client's Finished, and a client nothing
// protected before it has ServerHello: what comes before is not kept.
func (x *Exchange) keep(packet []byte, peer Peer, r *Result) {
	count, room := maxEarly, maxEarlyBytes-x.held
	if peer.Unvalidated {
		count, room = maxEarly/4, peer.Room-x.Received()
	}
	kept := bytes.Clone(packet)
	size := cap(kept) + earlyEntry
	if x.tls == nil || x.dialled && protect.LevelOf(packet) == protect.Application ||
		len(x.early) >= count || size > room || peer.Pressed {
		r.Dropped++
		return
	}
	x.early = append(x.early, kept)
	x.held += size
}

// takeClear takes the signals of a packet in the clear. It reports whether the
// packet is of this handshake.
func (x *Exchange) takeClear(m *Message, peer Peer, r *Result) bool {
	switch {
	case !m.Crypto:
		return x.dialled && peer.Waiting && !x.Protection.Keys.Opens() && x.takeUnsealed(m, r)
	case !x.dialled && (m.Hello.Code == 0 || m.Hello.TS != x.peerToken):
		return false
	case x.dialled && (m.Welcome.Code == 0 || m.Welcome.TS != x.token || x.greeted && m.Welcome.SN != x.peerToken):
		return false
	}
	if x.dialled && !x.greeted {
		x.greeted = true
		x.learn(m.Welcome.SN, r)
	}
	if x.peerInfo.Code == 0 {
		x.peerInfo = m.Info
	}
	// Once there are handshake keys, nothing in the clear ends the handshake.
	if m.Alert.Code != 0 && m.Alert.TS == x.token && !x.Protection.Keys.Opens() {
		x.alerted(m.Alert, r)
	}
	return true
}

// takeUnsealed is takeClear for a dialled session and a packet without seal: the
// answer of an end that has no such session, or speaks otherwise. It cannot have
// come about by damage, as it echoes the token of our HELLO, or has to come twice.
func (x *Exchange) takeUnsealed(m *Message, r *Result) bool {
	switch {
	case m.Cookie.Code != 0:
		r.Cookie = m.Cookie
		return true
	case m.Abort == (wire.Signal{Code: wire.Abort, SN: x.token}):
		r.End = Reset // Dial starts over
	case m.Reset == (wire.Signal{Code: wire.Reset, TS: x.token}):
		r.End = Refused
		if m.Info.Code != 0 && m.Info.TS&CapTLS == 0 {
			r.End = NoTLS
		}
	case m.Welcome.Code == 0:
		if m.Windows > 0 { // a legacy peer takes HELLO for window probes
			x.takePlain(m.Windows, 0, r)
		}
	case m.Welcome.TS != x.token || m.Info.Code == 0:
	case m.Info.TS&CapTLS == 0:
		x.takePlain(1, m.Welcome.SN, r)
	case m.Info.SN == VersionUnsealed:
		x.learn(m.Welcome.SN, r)
		x.fail(r, UnsealedError(), false)
	}
	return false
}

// learn takes the token of the peer.
func (x *Exchange) learn(token uint32, r *Result) { x.peerToken, r.PeerToken = token, token }

// takePlain takes n answers of a peer without TLS. The second one ends the
// handshake, and the session of a peer that has shown its token; 0: it has none.
func (x *Exchange) takePlain(n int, token uint32, r *Result) {
	if x.plain = min(x.plain+uint8(min(n, plainAnswers)), plainAnswers); x.plain < plainAnswers {
		return
	}
	x.fail(r, ErrNoTLS, false)
	if token != 0 {
		x.learn(token, r)
		x.owes |= owesAbort
	}
}

// take takes what is under the protection of its packet: the end of the session,
// an alert, and bytes of the handshake.
func (x *Exchange) take(level Level, m *Message, peer Peer, r *Result) {
	if level == Handshake && m.Abort == (wire.Signal{Code: wire.Abort, SN: x.token}) {
		r.End = Reset
		return
	}
	if level != Initial && m.Alert.Code != 0 && m.Alert.TS == x.token {
		x.alerted(m.Alert, r)
	}
	if x.Failed {
		if x.alert.TS != 0 && !x.ended {
			x.owes |= owesAlert
		}
		return
	}
	if level == Handshake && m.Ping.Code != 0 && x.dialled {
		x.pong = m.Ping.Answer()
		x.owes |= owesPong
	}
	if !m.Crypto || x.Done && level != Application {
		return
	}
	limit, room := maxAheadOfTLS, maxHeld
	if level == Initial {
		limit = maxClientHello
	} else if level == Handshake && uint64(m.Offset)+uint64(len(m.Data)) > maxPeerFlight {
		x.fail(r, fmt.Errorf("more than %d bytes of certificates: %w", maxPeerFlight, tls.AlertError(alertBadCertificate)), false)
		return
	}
	s := &x.streams[level]
	if peer.Unvalidated {
		room = peer.Room - (x.Received() - s.held)
	}
	s.Acknowledge(m.Una)
	if !s.Receive(m.Offset, m.Data, limit, room) {
		r.Dropped++
	}
}

// alerted ends the handshake because of the peer's alert.
func (x *Exchange) alerted(s wire.Signal, r *Result) {
	var err error = tls.AlertError(s.SN)
	if s.SN == alertChanged {
		err = ErrChanged
	} else if s.SN > 255 {
		err = tls.AlertError(alertInternalError)
	}
	x.fail(r, err, true)
}

// Prove records that a packet under the application keys has arrived.
func (x *Exchange) Prove() { x.proven = true }

// Ticket takes a packet under the application keys that carries the ticket, or
// acknowledges it.
func (x *Exchange) Ticket(packet []byte, r *Result) {
	if m, ok := Parse(packet, x.conv); !ok || !m.Crypto {
		r.Dropped++
	} else if x.Done {
		x.take(Application, &m, Peer{}, r)
	}
}

// TicketEnd returns what acknowledges the ticket in such a packet. ok is false if
// there is none in it.
func TicketEnd(packet []byte, conv uint32) (una uint32, ok bool) {
	m, ok := Parse(packet, conv)
	return m.Offset + uint32(len(m.Data)), ok && len(m.Data) > 0
}
