package kcp

import "github.com/arqnet/kcp/internal/machine"

// NoDelay selects how the retransmission time-out is bounded and backed off.
type NoDelay uint8

const (
	// NoDelayDefault is NoDelayOff for a KCP and NoDelayOn for a session.
	NoDelayDefault NoDelay = iota
	// NoDelayOff bounds the time-out to at least 100 ms and doubles it at each time-out
	// of a segment. First transmissions wait an eighth longer. The reference's nodelay 0.
	NoDelayOff
	// NoDelayOn bounds the time-out to at least 30 ms and multiplies it by 1.5 at each
	// time-out of a segment. The reference's nodelay 1.
	NoDelayOn
	// NoDelayTurbo bounds the time-out to at least 30 ms. Each time-out of a segment adds
	// half of the connection's present RTO. The reference's nodelay 2.
	NoDelayTurbo
)

// SetNoDelay sets the bounds and the back-off of time-outs, and the minimum RTO: default
// NoDelayOff.
func (k *KCP) SetNoDelay(mode NoDelay) { k.m.SetNoDelay(machine.NoDelay(mode)) }

// SetMinRTO sets the minimum retransmission time-out in milliseconds: 1 to 60000.
// SetNoDelay sets it too, so call SetMinRTO after it.
func (k *KCP) SetMinRTO(ms uint32) error { return k.m.SetMinRTO(ms) }

// SetFastResend sets how many acknowledgements of later transmissions cause a fast
// retransmission (RFC 5681 §3.2). Zero, the default, turns that off.
func (k *KCP) SetFastResend(acks uint32) { k.m.SetFastResend(acks) }
