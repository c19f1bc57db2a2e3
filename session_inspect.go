package kcp

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

// inside is a session as tests of the layers above see it. No other code does.
type inside struct{ c *session }

// inside returns c for tests.
func (c *session) inside() inside { return inside{c} }

// Parts of the session, which tests may change.

func (i inside) machine() *machine.KCP                { return i.c.kcp }
func (i inside) opening() *opening.State[wire.Signal] { return &i.c.hs.State }
func (i inside) closing() *closing.State              { return &i.c.closing.State }
func (i inside) entry() *admission.Entry              { return &i.c.entry }
func (i inside) unvalidated() *atomic.Bool            { return &i.c.hs.unvalidated }
func (i inside) capabilities() *uint32                { return &i.c.hs.capabilities }
func (i inside) version() *uint32                     { return &i.c.hs.version }
func (i inside) held() *atomic.Int64                  { return &i.c.in.holding.bytes }
func (i inside) protection() protect.Protection       { return *i.c.in.protection.Load() }
func (i inside) keys() *protect.TLS                   { return i.c.tls.app }
func (i inside) resetKeys() *protect.ToldKeys         { return &i.c.tls.reset }
func (i inside) exchange() *handshake.Exchange        { return i.c.tlsHandshake() }
func (i inside) sender() *incast.Sender               { return &i.c.in.sending }
func (i inside) reasons() (peer string, said bool)    { return i.c.hs.reasons.read() }
func (i inside) tokens() (ours, peers uint32)         { return i.c.hs.token, i.c.hs.peerToken }
func (i inside) shard() int                           { return int(i.c.path.shard) }
func (i inside) lately(now time.Duration) int64       { return i.c.in.holding.lately(now) }
func (i inside) lastHeard() time.Duration             { return i.c.live.LastHeard() }
func (i inside) wakeAt() time.Duration                { return i.c.timers.wakeAt }
func (i inside) datagrams() stats.Datagrams           { return i.c.in.datagrams.Stats }
func (i inside) decodes() bool                        { return i.c.in.decoder != nil }
func (i inside) probesMTU() (may, begun bool)         { return i.c.mayProbeMTU(), i.c.plpmtu.Begun() }
func (i inside) mayProbeMTU() bool                    { return i.c.mayProbeMTU() }
func (i inside) drops() stats.Drops                   { return i.c.rare.dropped }
func (i inside) isRare() bool                         { return i.c.rare != nil }
func (i inside) hasSettings() bool                    { return i.c.settings() != nil }
func (i inside) writing() (sending, outbox bool) {
	return i.c.outgoing.sending, i.c.outgoing.outbox != nil
}
func (i inside) streams() *sessionStreams                       { return i.c.streams }
func (i inside) streamHost() *streamHost                        { return (*streamHost)(i.c) }
func (i inside) waitsForCap() int                               { return i.c.capped.waiting() }
func (i inside) holdSocket() time.Duration                      { return i.c.holdSocket() }
func (i inside) writeBuffer() int                               { return i.c.writeBuffer() }
func (i inside) available(w *writeCall) int                     { return i.c.available(w) }
func (i inside) account()                                       { i.c.account() }
func (i inside) accountWrites()                                 { i.c.accountWrites() }
func (i inside) dropUnreliable()                                { i.c.dropUnreliable() }
func (i inside) takeDatagram(b []byte)                          { i.c.takeDatagram(b) }
func (i inside) takeFin(s wire.Signal) bool                     { return i.c.takeFin(s) }
func (i inside) limitWindow(g incast.Grant)                     { i.c.limitWindow(g, false) }
func (i inside) changeShard(n uint16) bool                      { return i.c.changeShard(n) }
func (i inside) packetDone(err error, n int, now time.Duration) { i.c.packetDone(err, n, now) }
func (i inside) inputHandshake(p *inPacket, now time.Duration)  { i.c.inputHandshake(p, now) }
func (i inside) deferPacket(p *inPacket, token uint32, size int) {
	i.c.path.validating().Defer(p, token, size)
}

func (i inside) decode(p inPacket, a machine.Arrival, now time.Duration) bool {
	_, ok := i.c.decode(p, a, now)
	return ok
}

// receipts returns how many messages await a receipt.
func (i inside) receipts() (n int) {
	if i.c.rare != nil {
		n += i.c.rare.awaiting.Len() + i.c.rare.receipts.Len()
	}
	if i.c.streams != nil {
		n += i.c.streams.Figures().Awaiting
	}
	return n
}

// datagramBytes returns what the buffers of datagrams take that wait for the cap.
func (i inside) datagramBytes() (n int) {
	for p := range i.c.capped.datagrams.Beyond(0) {
		n += cap(p.pooled.b)
	}
	return n
}
