package session

import (
	"encoding/binary"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/incast"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/stats"
)

// Feed feeds packets to the state machine. It reports whether that may have changed
// anything.
func (c *Session) Feed(packets []InPacket, shard int, now time.Duration) (changed bool) {
	if c.closing.Phase >= closing.Ended {
		c.shared.Counters.DropEnded.Add(uint64(len(packets)))
		return false
	}
	done := false
	defer c.endIfUnwound(&done)
	c.setClock(now)
	changed = c.path.shard != uint16(shard) && c.changeShard(uint16(shard))
	segments, fresh := c.kcp.Counts().SegmentsReceived, uint64(0)
	beside := c.shared.Several() || c.in.sending != (incast.Sender{}) // other sessions, now or lately
	if beside {
		fresh = machine.NewSegments(c.kcp.Counts())
	}
	if c.path.validation != nil {
		changed = c.inputDeferred(now) || changed
	}
	for i := range packets {
		p := &packets[i]
		if c.closing.Phase >= closing.Ended {
			c.shared.Counters.DropEnded.Add(uint64(len(packets) - i))
			break
		}
		changed = c.inputPacket(p, now) || changed
	}
	if n := c.kcp.Counts().SegmentsReceived - segments; n > 0 {
		c.live.MoreExpected(now)
		if beside {
			c.takeShare(packets, int(machine.NewSegments(c.kcp.Counts())-fresh), c.host.Incast(shard), now)
		}
	} else if beside && c.kcp.Counts().PacketsSent == 0 {
		c.limitFirstWindow(c.host.Incast(shard))
	}
	if !changed {
		c.account() // else respond does it
	}
	done = true
	return changed
}

// inputPacket feeds one packet to the state machine. It reports whether that may
// have changed anything.
func (c *Session) inputPacket(p *InPacket, now time.Duration) (changed bool) {
	c.in.packets++
	c.in.bytes += uint64(p.Size)
	if p.Kind >= clearPacket {
		return c.inputHandshake(p, now)
	}
	if v := (*c.in.protection.Load()).Fresh(&p.Packet, true); v != protect.New {
		if v == protect.Foreign && c.takeResets(p) {
			return true
		}
		c.shared.Counters.DropReplay.Add(1)
		c.in.packets--
		c.in.bytes -= uint64(p.Size)
		return false
	}
	c.step.inputAt = now
	a := machine.Arrival{Unvalidated: c.hs.unvalidated.Load()}
	if a.Unvalidated || c.shared.OverMemoryLimit() {
		a.Pressure = c.memoryPressure()
	}
	credited := a.Unvalidated && c.credit(p) // what waits for that may leave
	if c.tls != nil && c.takeSecured(p) {
		return true
	}
	data := p.Data
	if p.Kind != PlainPacket {
		var ok bool
		if data, ok = c.decode(*p, a, now); !ok {
			return p.Kind != datagramPacket || credited // parity may have recovered something
		}
	}
	rtt, err := c.kcp.Feed(data, a)
	c.packetDone(err, len(data), now)
	if c.kcp.Receiver().Gapped() {
		c.growWindow(0)
	}
	c.measuredByData(time.Duration(rtt)*time.Microsecond, now)
	return true
}

// credit adds a packet to what may be sent to the peer's address, if that is not
// validated and the packet comes from there (RFC 9000 §8.1). It reports whether it does.
func (c *Session) credit(p *InPacket) bool {
	v := c.kcp.Validation()
	if v == nil || admission.MakeKey(p.From.Addr, p.From.Peer, c.entry.Conv) != c.entry.Key() {
		return false
	}
	c.hs.active.Store(true)
	c.path.blocked = false
	return v.Received(p.Size)
}

// decode takes a packet with an FEC header, and feeds packets that it recovers
// to the state machine. It returns the packet's own data. It reports false if
// there is none for the state machine.
func (c *Session) decode(p InPacket, a machine.Arrival, now time.Duration) ([]byte, bool) {
	if p.Kind == datagramPacket {
		if c.closing.Phase < closing.Lingering {
			c.takeDatagram(p.Data[DatagramHeader:])
			c.step.left.Ready |= Readers
			c.heard(now)
		}
		return nil, false
	}
	if a.Unvalidated || a.Pressure != machine.PressureNone {
		return c.decodePlain(p) // under pressure, nothing is kept for recovery
	}
	if c.in.decoder == nil {
		c.in.decoder = fec.NewDecoder()
	}
	recovered := a
	recovered.Recovered = true
	data, kind, err := c.in.decoder.Decode(p.Data, clock(now), func(packet []byte) {
		_, err := c.kcp.Feed(packet, recovered)
		c.packetDone(err, len(packet), now)
	})
	if err != nil {
		c.drops().FEC++
		return nil, false
	}
	return data, kind == fec.KindData
}

// decodePlain is decode under memory pressure: the packet is not kept for
// recovery, and the decoder releases what it holds.
func (c *Session) decodePlain(p InPacket) ([]byte, bool) {
	if c.in.decoder != nil && c.in.decoder.Stats().Held > 0 {
		c.in.decoder.Compact()
	}
	if p.Kind != FECPacket {
		return nil, false
	}
	if int(binary.LittleEndian.Uint16(p.Data[fec.HeaderSize-2:])) != len(p.Data)-(fec.HeaderSize-2) {
		c.drops().FEC++
		return nil, false
	}
	return p.Data[fec.HeaderSize:], true
}

// packetDone ends the processing of a packet of size bytes: it counts a packet
// that the state machine refused with err. Any other packet is a sign of life
// of the peer, unless it came from outside the session.
func (c *Session) packetDone(err error, size int, now time.Duration) {
	outside := c.step.offPath
	c.step.offPath = false
	if c.step.ping.Code != 0 {
		c.noteChallenge()
	}
	switch {
	case err != nil:
		CountDrop(c.drops(), err)
		c.traceDropped(size, err)
	case !outside:
		c.heard(now)
	}
}

// drops returns the drop counters, which it allocates: most sessions drop nothing.
func (c *Session) drops() *stats.Drops { return &c.rarely().dropped }

// Respond sends what a batch of input has caused, and lets calls go on that wait
// for it. woken is as for OnWake. It reports false if the session had ended.
func (c *Session) Respond(now time.Duration, woken bool) bool {
	c.step.left.Replied, c.step.woken = true, woken
	if c.closing.Phase >= closing.Ended {
		return false
	}
	if c.kcp.Receiver().Readable() || c.closing.Read != closing.ReadOpen {
		c.step.left.Ready |= Readers
	}
	done := false
	defer c.endIfUnwound(&done)
	c.sendDueSignals(now)
	c.flushDue(now)
	c.finishStep(now)
	if c.kcp.WaitSend() == 0 || c.Room() > 0 || c.flushDelivers() {
		c.step.left.Ready |= Writers
	}
	done = true
	return true
}

// endIfUnwound is deferred by what calls code of the application's in the middle of a
// change. If that has panicked, or has ended its goroutine, *done is not set, and the
// session ends: nobody knows what state it is in. No more such code is called.
func (c *Session) endIfUnwound(done *bool) {
	if *done {
		return
	}
	c.kcp.SetTrace(nil)
	if c.outgoing.outbox != nil {
		c.outgoing.probe, c.outgoing.packets = nil, nil
	}
	c.dropReceived()
	c.end(ErrUnwound)
}

// Unwind is endIfUnwound for a caller that has lost what it had taken.
func (c *Session) Unwind() {
	done := false
	c.endIfUnwound(&done)
}

// call calls f, which is, or calls, code of the application's.
func (c *Session) call(f func()) {
	done := false
	defer c.endIfUnwound(&done)
	f()
	done = true
}

// wakeAll wakes all waiting calls, which then look why.
func (c *Session) wakeAll() { c.step.left.Ready |= Readers | Writers }
