package kcp

import "github.com/arqnet/kcp/internal/pacing"

// The cap of the rate at which a session sends, Config.MaxRate. It counts bytes of
// UDP payload. New segments and retransmissions wait for it, besides pacing by
// congestion control. So do datagrams and parity, which the session holds back. ACKs,
// signals and probes are counted, but do not wait: they borrow from what follows.

// rateCap is the cap of a session. It has a rare place, as few sessions have one.
type rateCap struct {
	pacing.Cap
	overhead int // bytes of UDP payload that a packet has beside its segments
	packet   int // bytes of the largest packet, without overhead
	lead     int // by how many bytes datagrams are ahead of data
}

// capRate caps the rate of all that is sent, in bytes a second; 0: no cap. Each packet
// has overhead bytes of UDP payload beside its segments.
func (k *KCP) capRate(rate int64, overhead int) {
	if rate == 0 {
		if k.rare != nil {
			k.rare.capped = nil
		}
		return
	}
	r := k.rareMachine()
	if r.capped == nil {
		r.capped = &rateCap{overhead: overhead, packet: k.cfg.mtu}
	}
	r.capped.SetRate(rate, k.clock.micros)
}

// rateCap returns the cap; nil: there is none.
func (k *KCP) rateCap() *rateCap {
	if k.rare == nil {
		return nil
	}
	return k.rare.capped
}

// sent counts a packet of n bytes that the machine has put out. Without data it does
// not wait for the cap.
func (c *rateCap) sent(n int, data bool) {
	n += c.overhead
	if !data {
		c.Borrow(n)
		return
	}
	c.Spend(n)
	c.lead = max(c.lead-n, 0)
}

// unspent returns the bytes of the packet under construction that has waited for the
// cap, and is not counted yet. ACKs alone have not.
func (k *KCP) unspent(c *rateCap) int {
	if k.out.last == nil {
		return 0
	}
	return len(k.out.packet) + c.overhead
}

// capHolds reports whether a segment of n bytes, which is sent now, has to wait for the
// cap. One that fits behind another does not.
func (k *KCP) capHolds(n int) bool {
	c := k.rateCap()
	if c == nil || k.out.last != nil && k.fits(n, k.cfg.mtu) {
		return false
	}
	return !c.Ready(k.clock.micros, k.unspent(c))
}

// capped reports whether something waits for the cap.
func (k *KCP) capped() bool {
	c := k.rateCap()
	return c != nil && c.Blocked()
}

// rateWait returns the microseconds until the cap lets a packet begin; 0: it does now,
// or there is no cap.
func (k *KCP) rateWait() int64 {
	if c := k.rateCap(); c != nil {
		return c.Wait(k.clock.micros)
	}
	return 0
}

// spend counts a packet of n bytes that the machine has not built, if the cap lets it
// leave now, in microseconds. c may be nil.
func (c *rateCap) spend(n int, datagram bool, now int64) bool {
	if c == nil {
		return true
	}
	if !c.Ready(now, 0) {
		return false
	}
	c.Spend(n)
	if datagram {
		c.lead = min(c.lead+n, 2*c.packet)
	}
	return true
}

// borrow counts a packet of n bytes that the machine has not built and that does not wait
// for the cap. c may be nil.
func (c *rateCap) borrow(n int) {
	if c != nil {
		c.Borrow(n)
	}
}

// datagramsFirst reports whether datagrams that wait for the cap leave before data. They
// do, up to half of the rate.
func (c *rateCap) datagramsFirst() bool { return c.lead < c.packet }
