package kcp

import "github.com/arqnet/kcp/internal/pacing"

// The cap of the rate at which a session sends, Config.MaxRate. It counts bytes of
// UDP payload. New segments and retransmissions wait for it, besides pacing by
// congestion control. So do datagrams and parity, which the session holds back. ACKs,
// signals and probes are counted, but do not wait: they borrow from what follows.

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
		r.capped = pacing.NewShaper(overhead, k.cfg.mtu)
	}
	r.capped.SetRate(rate, k.clock.micros)
}

// rateCap returns the cap; nil: there is none.
func (k *KCP) rateCap() *pacing.Shaper {
	if k.rare == nil {
		return nil
	}
	return k.rare.capped
}

// unspent returns the bytes of the packet under construction that has waited for the
// cap, and is not counted yet. ACKs alone have not.
func (k *KCP) unspent(c *pacing.Shaper) int {
	if k.out.last == nil {
		return 0
	}
	return len(k.out.packet) + c.Overhead
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
