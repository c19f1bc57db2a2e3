package fuzz_test

import (
	"testing"

	kcp "github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/trace"

	"github.com/arqnet/kcp/congestion"
)

// book keeps account of one state machine from outside: what it is told, and
// what its congestion controller and its trace hooks are told. It fails the
// test where the accounts do not balance.
type book struct {
	t    testing.TB
	name string
	now  uint32 // the clock that the machine was last given

	// Sending.
	next    uint32            // sn of the next new segment
	una     uint32            // below it everything is acknowledged
	flights map[uint32]flight // by sn; what is neither is acknowledged
	sending uint32            // sn whose trace record is due
	traced  bool              // it has come
	pushes  uint64            // transmissions
	rto     uint32            // for new segments

	// What the peer and the settings allow.
	sndWnd, rmtWnd, rmtWndMax uint32
	rmtUna                    uint32 // with rmtWnd
	freshWindow               bool   // Extensions.FreshWindow
	control                   congestion.Control
	cwnd                      int // of control, before the flush that is going on

	fastResend bool // has ever been on: repetitions may precede time-outs
	maxRTO     bool // has ever been bounded: time-outs may shrink
	deadLink   uint32
	dead       bool
}

// flight is the last transmission of a segment that is not acknowledged.
type flight struct {
	sent          uint32
	transmissions int
	rto           uint32
}

// watched is a congestion controller that tells the book what it is told.
type watched struct {
	congestion.Control
	book *book
}

func (w watched) OnPacketSent(s *congestion.State, p congestion.Segment) {
	w.book.sent(p)
	w.Control.OnPacketSent(s, p)
}

func (w watched) OnPacketAcked(s *congestion.State, p congestion.Segment) {
	w.book.acked(p)
	w.Control.OnPacketAcked(s, p)
}

func (w watched) OnAck(s *congestion.State) {
	w.book.checkInFlight(s)
	w.Control.OnAck(s)
	w.book.cwnd = w.Window()
}

func (w watched) OnTick(s *congestion.State) {
	w.book.checkInFlight(s)
	if b := w.book; s.Now != b.now || s.SendWindow != int(b.sndWnd) || s.RemoteWindow != int(b.rmtWnd) {
		b.fatalf("controller sees %+v at %d, windows %d and %d", *s, b.now, b.sndWnd, b.rmtWnd)
	}
	w.Control.OnTick(s)
	w.book.cwnd = w.Window()
}

// attach makes the book follow k.
func (b *book) attach(k *kcp.KCP) {
	b.flights = make(map[uint32]flight)
	b.rmtWnd, b.rto = 128, 200
	b.traced = true
	k.SetTrace(&trace.Hooks{Sent: b.trace, RTT: b.rtt})
	b.install(k, congestion.NewReference())
}

// install sets the congestion controller of k.
func (b *book) install(k *kcp.KCP, c congestion.Control) {
	b.control, b.cwnd = c, c.Window()
	k.SetCongestionControl(watched{c, b})
}

func (b *book) fatalf(format string, args ...any) {
	b.t.Helper()
	b.t.Fatalf(b.name+": "+format, args...)
}

// heard takes note of the segments that an Input has taken. What they
// acknowledge is no longer in flight.
func (b *book) heard(taken []segment, recovered bool) {
	for _, s := range taken {
		if _, ok := b.flights[s.sn]; ok && s.cmd == cmdAck || ahead(s.una, b.una) > 0 {
			b.fatalf("did not take %+v as an acknowledgement", s)
		}
		old := b.freshWindow && b.rmtWndMax > 0 && ahead(s.una, b.rmtUna) < 0
		if !recovered && !old {
			b.rmtUna = s.una
			b.rmtWnd = uint32(s.wnd)
			b.rmtWndMax = max(b.rmtWndMax, b.rmtWnd)
		}
	}
}

// sent takes note of one transmission. New segments leave in order and within
// the windows; old ones are repeated only while they are in flight.
func (b *book) sent(p congestion.Segment) {
	if !b.traced {
		b.fatalf("segment %d was not traced", b.sending)
	}
	b.pushes++
	if p.Transmissions == 1 {
		window := min(b.sndWnd, b.rmtWnd, uint32(b.cwnd))
		switch {
		case p.SN != b.next:
			b.fatalf("new segment %d, expected %d", p.SN, b.next)
		case int32(p.SN-b.una) >= int32(window):
			b.fatalf("new segment %d beyond the window of %d from %d", p.SN, window, b.una)
		}
		b.next++
	} else if f, ok := b.flights[p.SN]; !ok || p.Transmissions != f.transmissions+1 {
		b.fatalf("transmission %d of segment %d follows %+v", p.Transmissions, p.SN, f)
	}
	if p.Sent != b.now {
		b.fatalf("segment %d stamped %d at %d", p.SN, p.Sent, b.now)
	}
	b.dead = b.dead || uint32(p.Transmissions) >= b.deadLink
	b.sending, b.traced = p.SN, false
}

// trace takes note of the time-out that starts with a transmission.
func (b *book) trace(sn uint32, _, transmissions int, rto uint32) {
	if b.traced || sn != b.sending {
		b.fatalf("trace of segment %d, transmission of %d", sn, b.sending)
	}
	b.traced = true
	if old, ok := b.flights[sn]; ok {
		b.checkRepetition(sn, old, rto)
	} else if rto != b.rto {
		b.fatalf("time-out of the new segment %d is %d ms, that of the connection %d", sn, rto, b.rto)
	}
	b.flights[sn] = flight{b.now, transmissions, rto}
}

// checkRepetition: without fast resend nothing is repeated before its
// time-out, and the time-outs of one segment grow, at most to the double.
func (b *book) checkRepetition(sn uint32, old flight, rto uint32) {
	waited := b.now - old.sent
	if !b.fastResend && waited < old.rto {
		b.fatalf("segment %d repeated after %d ms, time-out %d", sn, waited, old.rto)
	}
	if most := old.rto + max(old.rto, b.rto); rto > most {
		b.fatalf("time-out of segment %d backed off from %d to %d ms", sn, old.rto, rto)
	}
	if b.maxRTO || old.rto >= 1<<30 {
		return
	}
	if rto < old.rto || !b.fastResend && rto == old.rto {
		b.fatalf("time-out of segment %d backed off from %d to %d ms", sn, old.rto, rto)
	}
}

// acked takes note of an acknowledgement: of a segment in flight, once.
func (b *book) acked(p congestion.Segment) {
	f, ok := b.flights[p.SN]
	if !ok || f.transmissions != p.Transmissions || f.sent != p.Sent {
		b.fatalf("acknowledged %+v, in flight is %+v", p, f)
	}
	delete(b.flights, p.SN)
	for b.una != b.next {
		if _, ok := b.flights[b.una]; ok {
			return
		}
		b.una++
	}
}

// checkInFlight: what is in flight begins with the first segment that is not
// acknowledged.
func (b *book) checkInFlight(s *congestion.State) {
	if s.InFlight != int(b.next-b.una) {
		b.fatalf("controller sees %d in flight, of [%d, %d)", s.InFlight, b.una, b.next)
	}
}

func (b *book) rtt(sample, srtt, rto uint32) {
	if sample >= 1<<31 || rto < 1 || rto > 60000 {
		b.fatalf("round trip of %d ms, smoothed %d, time-out %d", sample, srtt, rto)
	}
	b.rto = rto
}

// checkOverdue fails where a segment has waited for longer than its time-out
// and slack. The reference adds an eighth to the first time-out.
func (b *book) checkOverdue(slack uint32) {
	for sn, f := range b.flights {
		if waited := b.now - f.sent; waited > f.rto+f.rto/8+slack {
			b.fatalf("segment %d overdue: sent %d ms ago, time-out %d", sn, waited, f.rto)
		}
	}
}

// longestTimeout returns by when each segment in flight is sent again.
func (b *book) longestTimeout() uint64 {
	longest := uint64(0)
	for _, f := range b.flights {
		longest = max(longest, uint64(f.rto)+uint64(f.rto)/8)
	}
	return longest
}

// checkCounters holds k's own accounts against the book.
func (b *book) checkCounters(k *kcp.KCP) {
	c := k.Counters()
	switch {
	case c.SegmentsSent != uint64(b.next):
		b.fatalf("%d new segments, counted %d", b.next, c.SegmentsSent)
	case c.SegmentsSent+c.Retransmits() != b.pushes:
		b.fatalf("%d transmissions, counted %+v", b.pushes, c)
	case !b.fastResend && c.FastRetransmits > 0:
		b.fatalf("fast retransmission while it is off")
	case c.AcksSent > c.SegmentsReceived:
		b.fatalf("more ACKs than segments: %+v", c)
	case k.WaitSend() < len(b.flights):
		b.fatalf("WaitSend %d with %d in flight", k.WaitSend(), len(b.flights))
	case k.Dead() != b.dead:
		b.fatalf("Dead is %v, transmissions say %v", k.Dead(), b.dead)
	}
}
