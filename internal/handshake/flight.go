package handshake

import (
	"slices"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
)

// The packets that an Exchange sends. Its owner asks for the size of the next one,
// sees whether it may be sent, and has it put into a buffer.

// Pending returns the size of the next packet to send; 0: there is none.
func (x *Exchange) Pending() int {
	var ok bool
	if x.out, ok = x.next(); !ok {
		return 0
	}
	return x.out.size()
}

// outgoing is a packet to be sent.
type outgoing struct {
	level   Level
	plain   bool // as it is: to a peer that does not speak TLS
	signals []wire.Signal
	crypto  bool // with a CRYPTO segment
	n       int  // bytes of its payload
	padding int  // and behind them
	head    int  // bytes in front of the content, and behind it
	tail    int
	clears  owed // what it is owed for
}

// size returns the size of the packet.
func (p *outgoing) size() int {
	n := p.head + len(p.signals)*wire.HeaderSize + p.tail
	if p.crypto {
		n += wire.HeaderSize + p.n + p.padding
	}
	return n
}

// next returns the next packet to send. ok is false if there is none.
func (x *Exchange) next() (p outgoing, ok bool) {
	switch {
	case x.Failed:
		return x.nextOwed()
	case x.initial == nil:
		return p, false
	case x.owes&owesPong != 0:
		p = outgoing{level: Handshake, signals: []wire.Signal{x.pong}, clears: owesPong}
		p.head, p.tail = x.Protection.Overhead()
		return p, true
	}
	any := Levels
	if x.owes&owesAny != 0 {
		any = int(Initial)
		if x.Protection.Keys.Opens() {
			any = int(Handshake)
		}
	}
	for level := Initial; level < Levels; level++ {
		s := &x.streams[level]
		owes := s.owes && level != Initial && !(x.Done && level == Handshake)
		if s.Unsent() || owes || int(level) == any {
			return x.flight(level), true
		}
	}
	return p, false
}

// nextOwed is next once the handshake has failed: the alert, under the handshake
// keys if there are any, and the end of the session at a peer without TLS.
func (x *Exchange) nextOwed() (p outgoing, ok bool) {
	switch {
	case x.owes&owesAlert != 0 && x.Protection.Keys.Seals():
		p = outgoing{level: Handshake, signals: []wire.Signal{x.alert}, clears: owesAlert}
		p.head, p.tail = x.Protection.Overhead()
	case x.owes&owesAlert != 0 && !x.Protection.Keys.Opens() && x.initial != nil:
		p = outgoing{signals: append(x.clearSignals(), x.alert), crypto: true, tail: protect.InitialOverhead, clears: owesAlert}
	case x.owes&owesAbort != 0:
		p = outgoing{plain: true, signals: []wire.Signal{{Code: wire.Abort, SN: x.peerToken}}, clears: owesAbort}
	default:
		return p, false
	}
	return p, true
}

// flight returns a packet with bytes of a level, as many as fit, and an
// acknowledgement.
func (x *Exchange) flight(level Level) outgoing {
	p := outgoing{level: level, crypto: true, tail: protect.InitialOverhead, clears: owesAny}
	if level == Initial {
		p.signals = x.clearSignals()
	} else {
		p.head, p.tail = x.Protection.Overhead()
	}
	room := PacketSize - p.size()
	_, data := x.streams[level].Peek(room)
	p.n = len(data)
	if level == Initial && x.dialled {
		p.padding = room - p.n // RFC 9000 §14.1
	}
	return p
}

// HelloSize returns how many bytes the packets of HELLO have together, at most.
func (x *Exchange) HelloSize() int {
	room := PacketSize - (len(x.clearSignals())+1)*wire.HeaderSize - protect.InitialOverhead
	return (len(x.streams[Initial].out) + room - 1) / room * PacketSize
}

// clearSignals returns the signals at the beginning of a packet in the clear.
func (x *Exchange) clearSignals() []wire.Signal {
	info := x.info
	info.Code = wire.Info
	if !x.dialled {
		return []wire.Signal{{Code: wire.Welcome, SN: x.token, TS: x.peerToken}, info}
	}
	s := []wire.Signal{{Code: wire.Hello, TS: x.token}, info}
	for _, more := range []wire.Signal{x.Cookie, x.Tie} {
		if more.Code != 0 {
			s = append(s, more)
		}
	}
	return s
}

// Skip records that this packet must not be sent now. It reports whether to ask
// for another one.
func (x *Exchange) Skip() bool {
	x.owes &^= x.out.clears
	return x.Failed
}

// Put makes that packet, in a buffer of as many bytes. It reports false if there
// are no keys for it.
func (x *Exchange) Put(packet []byte) bool {
	p := &x.out
	x.owes &^= p.clears
	at := p.head
	for _, s := range p.signals {
		s.Encode(wire.Header{Conv: x.conv, Wnd: window}, packet[at:])
		at += wire.HeaderSize
	}
	s := &x.streams[p.level]
	if p.crypto {
		offset, data := s.Peek(p.n)
		n := p.n + p.padding
		h := wire.Header{
			Conv: x.conv, Cmd: wire.CmdWins, Frg: uint8(wire.Crypto), Wnd: window,
			SN: container.Serial(offset), TS: container.Serial(p.n), Una: container.Serial(s.Received()), Len: uint32(n),
		}
		if p.level == Initial {
			h.Len += protect.InitialOverhead
		}
		h.Encode(packet[at:])
		at += wire.HeaderSize
		clear(packet[at+p.n : at+n])
		copy(packet[at:], data)
	}
	if p.plain {
		return true
	}
	if !x.seal(p.level, packet, at) {
		return false
	}
	if p.crypto {
		s.Sent(p.n)
		s.owes = false
	}
	return true
}

// seal seals a packet, in the clear from the offset at on.
func (x *Exchange) seal(level Level, packet []byte, at int) bool {
	switch level {
	case Initial:
		x.initial.Seal(packet, at)
		return true
	case Handshake:
		return x.Protection.Seal(packet, nil) == nil
	}
	return x.app.Seal(packet, nil) == nil
}

// Answers reports whether an opened packet under the handshake keys has one of the
// answers to a challenge.
func (x *Exchange) Answers(packet []byte, answers [2]wire.Signal) bool {
	m, ok := Parse(packet, x.conv)
	return ok && m.Pong.Code != 0 && slices.Contains(answers[:], m.Pong)
}

// Repeat makes what is not acknowledged wait to be sent again. tries is how often
// that has been. It reports false if nothing is to be repeated any more. A dialling
// end sends something in any case.
func (x *Exchange) Repeat(tries int) bool {
	if !x.dialled && (!x.Unacknowledged() || x.Done && tries > ticketTries) {
		x.ticketed = x.ticketed || x.Done
		return false
	}
	for i := range x.streams {
		x.streams[i].Rewind()
	}
	if x.dialled && !x.Unacknowledged() {
		x.owes |= owesAny
	}
	return true
}

// AckSize is the size of the packet that PutAck makes.
func AckSize(app *protect.TLS) int {
	head, tail := app.Overhead()
	return head + wire.HeaderSize + tail
}

// PutAck makes a packet that acknowledges the ticket once more.
func PutAck(packet []byte, app *protect.TLS, conv, una uint32) bool {
	head, _ := app.Overhead()
	wire.Signal{Code: wire.Crypto}.Encode(wire.Header{Conv: conv, Wnd: window, Una: container.Serial(una)}, packet[head:])
	return app.Seal(packet, nil) == nil
}
