package kcp

import "time"

// The cap of the rate at which a session sends. The state machine counts the bytes and
// lets its segments wait; see rate_cap.go. Datagrams and parity do not pass through it,
// and wait here.

const (
	// heldTime is how long datagrams wait for the cap at most.
	heldTime = 100 * time.Millisecond
	// maxHeld is how many datagrams and how many parity packets wait at most. The oldest
	// make room: fresh datagrams are worth more, and old parity is of no use.
	maxHeld = 256
	// heldPacketBytes is what a packet that waits takes in memory beside its buffer.
	heldPacketBytes = 128
	// leastCapWait is the shortest time between wake-ups for a cap above fineCap bytes a
	// second. Several packets leave at each then.
	leastCapWait = time.Millisecond
	fineCap      = 1_000_000
	// cappedTime is for how long the write buffer lasts at the cap, unless its size is
	// set. It is at least leastCappedBuffer bytes.
	cappedTime        = time.Second
	leastCappedBuffer = 64 << 10
)

// cappedOutput is the output side of a session with a cap of the rate. Conn.mu guards
// it.
type cappedOutput struct {
	rate      int            // bytes a second
	datagrams []heldDatagram // oldest first
	parity    []packet       // likewise
}

// heldDatagram is a datagram that waits for the cap.
type heldDatagram struct {
	packet
	since time.Duration // since the endpoint's epoch
}

// writeBuffer returns the largest write buffer at the cap, in bytes.
func (s *cappedOutput) writeBuffer() int {
	return max(min(s.rate, defaultWriteBuffer)*int(cappedTime/time.Second), leastCappedBuffer)
}

// cappedOutput returns what the session has for its cap; nil: there is no cap.
func (c *session) cappedOutput() *cappedOutput {
	if c.rare == nil {
		return nil
	}
	return c.rare.capped
}

// maxRate returns the cap in bytes a second; 0: there is none.
func (c *session) maxRate() int {
	if s := c.cappedOutput(); s != nil {
		return s.rate
	}
	return 0
}

// SetMaxRate caps the rate at which the session sends from now on, in bytes a second, in
// place of Config.MaxRate: 1000 or more; 0, the default, means no cap.
//
// All bytes of UDP payload count that the session sends: data and retransmissions of the
// session and its streams, datagrams, ACKs, signals, path MTU probes, parity, and what
// Cipher, TLS and FEC add. IP and UDP headers do not. In any time no more leaves than the
// rate allows and one packet, and above 1 MB/s what it allows in 1 ms. A late timer is
// made up for by at most 10 ms. ACKs, signals and probes do not wait; until they are paid
// for, the rest has half of the rate.
//
// Data waits in the write buffer, where its lifetimes go on. That buffer, unless its size
// is set, is what the rate carries in a second, at least 64 KiB. Write and WriteReady
// wait for room in it. Datagrams leave before data, up to half of the rate; see
// SendDatagram.
//
// Errors are a *ConfigError for a rate out of range, which changes nothing, and
// net.ErrClosed after Close or Abort. A session that has ended ignores it.
func (c *Conn) SetMaxRate(bytes int) error {
	if err := validateRate(bytes); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.unlock()
	if done, err := c.unsettable(); done {
		return err
	}
	c.setClock(c.ep.now())
	c.capRate(bytes)
	c.step.ready |= writers // the write buffer may have room
	if c.streams != nil {
		c.streams.WakeWriter()
	}
	c.push()
	return nil
}

// capRate caps the rate, in bytes a second; 0: no cap. What waited for the cap that ends
// leaves with the packets that are sent next.
func (c *session) capRate(rate int) {
	c.kcp.capRate(int64(rate), c.shared.overhead.total)
	s := c.cappedOutput()
	switch {
	case rate > 0 && s == nil:
		s = new(cappedOutput)
		c.rarely().capped = s
	case rate == 0 && s != nil:
		c.releaseHeld(s, c.host.now(), true)
		c.rare.capped = nil
	}
	if s != nil {
		s.rate = rate
	}
}

// holdDatagram sends a datagram if the cap allows it, or lets it wait.
func (c *session) holdDatagram(s *cappedOutput, p packet, now time.Duration) {
	c.setClock(now)
	s.datagrams = append(s.datagrams, heldDatagram{p, now})
	if len(s.datagrams) > maxHeld {
		c.dropDatagram(s)
	}
	c.releaseHeld(s, now, c.kcp.datagramsFirst())
	c.schedule(now)
}

// dropDatagram drops the oldest datagram that waits.
func (c *session) dropDatagram(s *cappedOutput) {
	packetBuffers.Put(s.datagrams[0].pooled)
	s.datagrams[0] = heldDatagram{}
	s.datagrams = s.datagrams[1:]
	c.datagramQueue().stats.Unsent++
}

// holdParity lets parity wait that encode has left in the outbox. It is dropped if ACKs
// exceed the cap, or that has ended meanwhile.
func (c *session) holdParity() {
	o := &c.outgoing
	if s := c.cappedOutput(); s != nil && len(o.parity) > 0 {
		s.parity = append(s.parity, o.parity...)
		for len(s.parity) > maxHeld || len(s.parity) > 0 && c.kcp.indebted() {
			packetBuffers.Put(s.parity[0].pooled)
			s.parity = s.parity[1:]
		}
		c.schedule(c.host.now())
	}
	clear(o.parity)
	o.parity = o.parity[:0]
}

// countParity returns how many of packets are parity that has waited for the cap.
func countParity(packets []packet) (n int) {
	for i := range packets {
		if packets[i].parity {
			n++
		}
	}
	return n
}

// releaseHeld adds to the packets to be sent what the cap allows of those that wait. With
// datagrams these come first; otherwise they wait on.
func (c *session) releaseHeld(s *cappedOutput, now time.Duration, datagrams bool) {
	for len(s.datagrams) > 0 && now-s.datagrams[0].since > heldTime {
		c.dropDatagram(s)
	}
	for datagrams && len(s.datagrams) > 0 {
		p := &s.datagrams[0]
		if !c.kcp.spendRate(len(p.buf), true) {
			return
		}
		c.addDatagram(p.packet)
		*p = heldDatagram{}
		s.datagrams = s.datagrams[1:]
	}
	for len(s.parity) > 0 {
		if !c.kcp.spendRate(len(s.parity[0].buf), false) {
			return
		}
		c.outgoing.add(s.parity[0])
		s.parity[0] = packet{}
		s.parity = s.parity[1:]
	}
}

// dropHeld drops the packets that wait for the cap, as the session has ended.
func (c *session) dropHeld() {
	s := c.cappedOutput()
	if s == nil {
		return
	}
	for len(s.datagrams) > 0 {
		c.dropDatagram(s)
	}
	s.datagrams, s.parity = nil, nil
}

// holdsPackets reports whether packets wait for the cap.
func (c *session) holdsPackets() bool {
	s := c.cappedOutput()
	return s != nil && len(s.datagrams)+len(s.parity) > 0
}

// capWait returns for how long something has to wait for the cap; 0: nothing does.
func (c *session) capWait(s *cappedOutput) time.Duration {
	wait := time.Duration(c.kcp.rateWait()) * time.Microsecond
	if len(s.datagrams)+len(s.parity) == 0 && (wait == 0 || !c.kcp.capped()) {
		return 0
	}
	if s.rate > fineCap {
		wait = max(wait, leastCapWait)
	}
	return max(wait, time.Microsecond)
}
