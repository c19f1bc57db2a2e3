package session

import (
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/incast"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
)

// Inside is a session as tests of the layers above see it. No other code does.
type Inside struct{ c *Session }

// Inside returns c for tests.
func (c *Session) Inside() Inside { return Inside{c} }

// Parts of the session, which tests may change.

func (i Inside) Machine() *machine.KCP             { return i.c.kcp }
func (i Inside) Opening() *opening.State           { return &i.c.hs.State }
func (i Inside) Closing() *closing.State           { return &i.c.closing.State }
func (i Inside) Entry() *admission.Entry           { return &i.c.entry }
func (i Inside) Unvalidated() *atomic.Bool         { return &i.c.hs.unvalidated }
func (i Inside) Capabilities() *uint32             { return &i.c.hs.capabilities }
func (i Inside) Version() *uint32                  { return &i.c.hs.version }
func (i Inside) Held() *atomic.Int64               { return &i.c.in.holding.bytes }
func (i Inside) Protection() protect.Protection    { return *i.c.in.protection.Load() }
func (i Inside) Keys() *protect.TLS                { return i.c.tls.app }
func (i Inside) ResetKeys() *protect.ToldKeys      { return &i.c.tls.reset }
func (i Inside) Exchange() *handshake.Exchange     { return i.c.tlsHandshake() }
func (i Inside) Sender() *incast.Sender            { return &i.c.in.sending }
func (i Inside) Reasons() (peer string, said bool) { return i.c.hs.reasons.read() }
func (i Inside) Tokens() (ours, peers uint32)      { return i.c.hs.token, i.c.hs.peerToken }
func (i Inside) Shard() int                        { return int(i.c.path.shard) }
func (i Inside) Lately(now time.Duration) int64    { return i.c.in.holding.lately(now) }
func (i Inside) LastHeard() time.Duration          { return i.c.live.LastHeard() }
func (i Inside) WakeAt() time.Duration             { return i.c.timers.wakeAt }
func (i Inside) Datagrams() stats.Datagrams        { return i.c.in.datagrams.Stats }
func (i Inside) Decodes() bool                     { return i.c.in.decoder != nil }
func (i Inside) ProbesMTU() (may, begun bool)      { return i.c.mayProbeMTU(), i.c.plpmtu.Begun() }
func (i Inside) MayProbeMTU() bool                 { return i.c.mayProbeMTU() }
func (i Inside) Drops() stats.Drops                { return i.c.rare.dropped }
func (i Inside) IsRare() bool                      { return i.c.rare != nil }
func (i Inside) HasSettings() bool                 { return i.c.settings() != nil }
func (i Inside) Writing() (sending, outbox bool) {
	return i.c.outgoing.sending, i.c.outgoing.outbox != nil
}
func (i Inside) Streams() *Streams                              { return i.c.streams }
func (i Inside) StreamHost() *StreamHost                        { return (*StreamHost)(i.c) }
func (i Inside) WaitsForCap() int                               { return i.c.capped.waiting() }
func (i Inside) HoldSocket() time.Duration                      { return i.c.holdSocket() }
func (i Inside) WriteBuffer() int                               { return i.c.writeBuffer() }
func (i Inside) Available(w *WriteCall) int                     { return i.c.available(w) }
func (i Inside) Account()                                       { i.c.account() }
func (i Inside) AccountWrites()                                 { i.c.accountWrites() }
func (i Inside) DropUnreliable()                                { i.c.dropUnreliable() }
func (i Inside) TakeDatagram(b []byte)                          { i.c.takeDatagram(b) }
func (i Inside) TakeFin(s wire.Signal) bool                     { return i.c.takeFin(s) }
func (i Inside) LimitWindow(g incast.Grant)                     { i.c.limitWindow(g, false) }
func (i Inside) ChangeShard(n uint16) bool                      { return i.c.changeShard(n) }
func (i Inside) PacketDone(err error, n int, now time.Duration) { i.c.packetDone(err, n, now) }
func (i Inside) InputHandshake(p *InPacket, now time.Duration)  { i.c.inputHandshake(p, now) }
func (i Inside) DeferPacket(p *InPacket, token uint32, size int) {
	i.c.path.validating().Defer(p, token, size)
}

func (i Inside) Decode(p InPacket, a machine.Arrival, now time.Duration) bool {
	_, ok := i.c.decode(p, a, now)
	return ok
}

// Receipts returns how many messages await a receipt.
func (i Inside) Receipts() (n int) {
	if i.c.rare != nil {
		n += i.c.rare.awaiting.Len() + i.c.rare.receipts.Len()
	}
	if i.c.streams != nil {
		n += i.c.streams.Figures().Awaiting
	}
	return n
}

// DatagramBytes returns what the buffers of datagrams take that wait for the cap.
func (i Inside) DatagramBytes() (n int) {
	for p := range i.c.capped.datagrams.Beyond(0) {
		n += cap(p.pooled.b)
	}
	return n
}
