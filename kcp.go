package kcp

import (
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/stats"
	"github.com/arqnet/kcp/trace"
)

// KCP is the protocol's state machine, driven by calls alone. The caller passes it
// packets with Input, data with Send and the time with Update. With the settings of New
// it behaves as the reference implementation does, byte for byte, except for the few
// differences that WIRE.md lists. Times are milliseconds on a uint32 clock that may wrap
// and must not run backwards. Outside its range a Set method returns an error, and
// changes nothing. A KCP is not safe for concurrent use.
type KCP struct{ m *machine.KCP }

// New returns a bare state machine, which has no socket (Dial and Listen have), with the
// reference's settings. conv must be the same at both ends. output is called with each
// packet to be sent, which is valid only during the call, and must not call the KCP's
// methods. New panics if it is nil.
func New(conv uint32, output func(Packet []byte)) *KCP { return &KCP{machine.New(conv, output)} }

// Extend switches on what sessions have beyond the reference, as far as one end alone
// can: RACK and tail loss probes (RFC 8985), delayed ACKs. Call it before the first
// packet.
func (k *KCP) Extend() { k.m.Extend() }

// Update sets the clock to now, and flushes if the interval has passed since the last
// scheduled flush. Call it when Check says, or every 10 to 100 ms.
func (k *KCP) Update(now uint32) { k.m.Update(now) }

// Check returns when Update should be called next, if neither Input nor Send is called
// before: one interval from now at most.
func (k *KCP) Check(now uint32) uint32 { return k.m.Check(now) }

// SetClock sets the clock to now, without flushing. Together with Flush and NextFlush it
// drives a KCP by events. The interval then only affects the RTO.
func (k *KCP) SetClock(now uint32) { k.m.SetClock(now) }

// SetTrace installs hooks for logging and tools; nil removes them.
func (k *KCP) SetTrace(t *trace.Hooks) { k.m.SetTrace(t) }

// Counters returns a copy of the counters of k.
func (k *KCP) Counters() stats.Counters { return k.m.Counters() }

// Conv returns the conversation id.
func (k *KCP) Conv() uint32 { return k.m.Conv() }
