package session

import (
	"iter"
	"time"

	"github.com/arqnet/kcp/internal/recovery"
)

// The cap of the rate at which a session sends. The state machine counts the bytes and
// lets its segments wait; see machine/sender.go. Datagrams and parity do not pass
// through it, and wait here.

// heldPacketBytes is what a packet that waits takes in memory beside its buffer.
const heldPacketBytes = 128

// cappedOutput is the output side of a session with a cap of the rate.
type cappedOutput struct {
	rate      int // bytes a second
	datagrams recovery.Held[Packet]
	parity    recovery.Held[Packet]
}

// waiting returns how many packets wait for the cap.
func (s *cappedOutput) waiting() int { return s.datagrams.Len() + s.parity.Len() }

// maxRate returns the cap in bytes a second; 0: there is none.
func (c *Session) maxRate() int {
	if s := c.capped; s != nil {
		return s.rate
	}
	return 0
}

// capRate caps the rate, in bytes a second; 0: no cap. What waited for the cap that ends
// leaves with the packets that are sent next.
func (c *Session) capRate(rate int) {
	c.kcp.CapRate(int64(rate), c.shared.Overhead.Total)
	s := c.capped
	switch {
	case rate > 0 && s == nil:
		s = new(cappedOutput)
		c.capped = s
	case rate == 0 && s != nil:
		c.releaseHeld(s, c.host.Now(), true)
		c.capped = nil
	}
	if s != nil {
		s.rate = rate
	}
}

// holdDatagram sends a datagram if the cap allows it, or lets it wait.
func (c *Session) holdDatagram(s *cappedOutput, p Packet, now time.Duration) {
	c.setClock(now)
	s.datagrams.Add(p, now)
	c.releaseHeld(s, now, c.kcp.RateCap().DatagramsFirst())
	c.schedule(now)
}

// dropDatagrams drops datagrams that have waited for the cap.
func (c *Session) dropDatagrams(dropped iter.Seq[Packet]) {
	for p := range dropped {
		size := c.payloadOf(p)
		packetBuffers.Put(p.pooled)
		c.unsent(size)
	}
}

// holdParity lets parity wait that Encode has left in the outbox. It is dropped if ACKs
// exceed the cap, or that has ended meanwhile.
func (c *Session) holdParity() {
	o := &c.outgoing
	if s := c.capped; s != nil && len(o.parity) > 0 {
		most, now := recovery.MaxHeld, c.host.Now()
		if c.kcp.RateCap().Indebted() {
			most = 0
		}
		for _, p := range o.parity {
			s.parity.Add(p, now)
		}
		for p := range s.parity.Beyond(most) {
			packetBuffers.Put(p.pooled)
		}
		c.schedule(now)
	}
	clear(o.parity)
	o.parity = o.parity[:0]
}

// countParity returns how many of packets are parity that has waited for the cap.
func countParity(packets []Packet) (n int) {
	for i := range packets {
		if packets[i].parity {
			n++
		}
	}
	return n
}

// releaseHeld adds to the packets to be sent what the cap allows of those that wait. With
// datagrams these come first; otherwise they wait on.
func (c *Session) releaseHeld(s *cappedOutput, now time.Duration, datagrams bool) {
	c.dropDatagrams(s.datagrams.Stale(now))
	for datagrams && s.datagrams.Len() > 0 {
		if !c.kcp.RateCap().Pass(len(s.datagrams.First().Buf), true, c.kcp.Micros()) {
			return
		}
		c.addDatagram(s.datagrams.Take())
	}
	for s.parity.Len() > 0 && c.kcp.RateCap().Pass(len(s.parity.First().Buf), false, c.kcp.Micros()) {
		c.outgoing.add(s.parity.Take())
	}
}

// dropHeld drops the packets that wait for the cap, as the session has ended.
func (c *Session) dropHeld() {
	if s := c.capped; s != nil {
		c.dropDatagrams(s.datagrams.Beyond(0))
		*s = cappedOutput{rate: s.rate}
	}
}
