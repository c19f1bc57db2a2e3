package session

import (
	"encoding/binary"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/netpath"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wire"
)

// Path MTU discovery of a session (DPLPMTUD, RFC 8899; WIRE.md §5.5).
// netpath.PathMTU decides; this file sends its probes and sets the MTU that it
// finds. It requires a peer that answers PROBE. With other peers the MTU is
// Config's until a black hole shows, or the system refuses the size.

// CapPMTU in INFO announces that the sender answers PROBE and takes PIECE segments.
const CapPMTU = 1

// CapAckDelay in INFO announces that the sender takes ACKs that have waited for data, and
// that its own may (Extensions.AwaitReplies); CapCopies, that segments may carry copies.
const CapAckDelay, CapCopies = 32, 128

// CapCounts in INFO announces that the sender takes COUNT, and answers it beside PING.
const CapCounts = 1 << 10

// onInfo takes the peer's INFO. A peer sends the same each time, so the first
// counts; a later one, which may be forged, does not.
func (c *Session) onInfo(s wire.Signal) {
	l := &c.hs
	if l.Peer == opening.Unknown && s.TS&CapTLS != 0 && c.shared.Config.TLS == nil {
		l.capabilities = CapTLS // why a RESET refuses the session
	}
	if l.version != 0 || l.Peer < opening.Extended {
		return // an extended peer sends INFO with HELLO, WELCOME and the answer to CONFIRM
	}
	l.version, l.capabilities = s.SN, s.TS
	c.number(l.Peer == opening.Welcomed)
	if s.TS&CapAckDelay != 0 {
		c.kcp.Enable(machine.FeatureReplies)
	}
	if s.TS&CapCopies != 0 {
		c.kcp.Enable(machine.FeatureCopies)
	}
	if c.hs.kindAwaited {
		c.step.left.Ready |= Writers // OpenStream may wait for it
	}
	if s.TS&CapPMTU != 0 {
		c.enablePieces()
	}
	if c.streams != nil {
		c.startStreams()
	}
}

// enablePieces lets segments leave in pieces.
func (c *Session) enablePieces() {
	c.kcp.Enable(machine.FeaturePieces)
	c.watchSizes()
	if c.plpmtu != nil {
		c.plpmtu.Restart() // what it knows is from losses
	}
}

// watchSizes begins black hole detection. Packets of leastPMTU are taken to
// arrive; packets of the base size [BASE_PLPMTU] if the path has shown it.
func (c *Session) watchSizes() {
	room := c.shared.Overhead.Total
	c.kcp.BlackHole().Watch(c.leastPMTU()-room, netpath.FloorMTU-room, netpath.BaseMTU-room)
}

// leastPMTU returns the UDP payload to fall back to at last, in bytes
// [MIN_PLPMTU]: the base size, or less if the session begins with less.
func (c *Session) leastPMTU() int {
	return min(max(netpath.BaseMTU, c.shared.Overhead.Total+machine.MinMTU), c.firstMTU())
}

// mtu returns the largest UDP payload that is sent, in bytes.
func (c *Session) mtu() int { return c.kcp.PacketSize() + c.shared.Overhead.Total }

// sizes returns what is known of the sizes that the path takes. It begins a search, from
// the current MTU, if there has been none.
func (c *Session) sizes() *netpath.PathMTU {
	if c.plpmtu.Begun() {
		return c.plpmtu
	}
	cfg, ether := &c.shared.Config, netpath.EtherIPv6
	if c.entry.Addr.Addr().Unmap().Is4() {
		ether = netpath.EtherIPv4
	}
	limit := cfg.MaxMTU
	if limit == 0 && c.entry.Peer == "" && c.host.KeepsWhole(int(c.path.shard)) {
		limit = ether
	}
	if pinned := c.pinnedMTU(); pinned > 0 {
		limit = pinned
	}
	// A segment of that size must still be divisible into recovery.MaxPieces pieces.
	room, least := c.shared.Overhead.Total, c.leastPMTU()
	divisible := func(least int) int {
		return room + wire.HeaderSize + recovery.MaxPieces*(least-room-wire.HeaderSize-recovery.PieceHeader)
	}
	if floor := max(netpath.FloorMTU, room+machine.MinMTU); c.hs.capabilities&CapPMTU != 0 && floor < least && limit <= divisible(floor) {
		least = floor
	}
	limit = min(limit, divisible(least))
	if c.plpmtu == nil {
		c.plpmtu = new(netpath.PathMTU)
	}
	c.plpmtu.Begin(netpath.NewSearch(least, c.mtu(), limit, ether))
	return c.plpmtu
}

// datagramMTU returns the largest UDP payload of a datagram that is promised to arrive, and
// that is taken, in bytes. Nobody acknowledges datagrams, so what is promised has been
// confirmed (RFC 9221 §5, RFC 8899 §5.1.1), or is the base size. Until there is a verdict,
// and of peers that answer no PROBE, all is taken that fits into the size in use.
func (c *Session) datagramMTU() (promised, taken int) {
	promised, known := c.plpmtu.Promised(c.shared.Overhead.Total+machine.MinMTU, c.mtu())
	if known {
		return promised, promised
	}
	return promised, c.mtu()
}

// wantMTU has the size confirmed that datagrams may have, at once or when the peer is
// known to answer PROBE. One of size bytes leaves; 0: that is asked for.
func (c *Session) wantMTU(size int) {
	if c.plpmtu == nil {
		c.plpmtu = new(netpath.PathMTU)
	}
	if c.plpmtu.Want(size) {
		c.schedule(c.host.Now())
	}
}

// mayProbeMTU reports whether probes may be sent to the peer.
func (c *Session) mayProbeMTU() bool { return c.hs.capabilities&CapPMTU != 0 && c.mayJudgeMTU() }

// mayJudgeMTU reports whether the session finds out what its path takes.
func (c *Session) mayJudgeMTU() bool {
	return !c.hs.unvalidated.Load() && c.closing.Phase <= closing.Lingering
}

// advanceMTU continues the search. Losses may show a black hole (RFC 8899 §4.3), also if
// the peer answers no probes.
func (c *Session) advanceMTU(now time.Duration) {
	probes := c.hs.capabilities&CapPMTU != 0
	if !c.mayJudgeMTU() || !probes && !c.hs.Reached {
		return
	}
	if !probes {
		c.watchSizes()
	}
	w := c.kcp.WatchedSizes()
	wanted := probes && c.plpmtu != nil && c.plpmtu.Wanted()
	if wanted {
		w.Recent = c.kcp.BlackHole().TakeRecent() + c.shared.Overhead.Total
	}
	if w.Suspect || w.BySize || wanted || probes && w.Full >= netpath.SearchAfter || c.plpmtu != nil && c.plpmtu.Begun() {
		w.Heard, w.Probes = c.live.LastHeard(), probes
		c.followMTU(c.sizes().Step(now, w), now)
	}
}

// followMTU does what c.plpmtu has decided, and sets the size that it has found.
func (c *Session) followMTU(do netpath.Do, now time.Duration) {
	if do&netpath.Forget != 0 {
		c.kcp.BlackHole().Forget()
	}
	if do&netpath.Watch != 0 {
		c.kcp.BlackHole().Restart()
	}
	if n := c.plpmtu.Size(); n != c.mtu() {
		c.useMTU(n)
	}
	if do&netpath.Probe != 0 {
		c.sendMTUProbe(now)
	}
	if do&netpath.Ping != 0 && c.hs.Unanswered&opening.Ping == 0 {
		c.startPing(now)
	}
}

// confirmingMTU reports whether the current MTU is being confirmed because
// large packets are lost, while the peer gives signs of life. Then the path may
// be why the peer acknowledges nothing, so Close waits on.
func (c *Session) confirmingMTU(now time.Duration) bool {
	return c.plpmtu.Confirming() && now-c.live.LastHeard() < max(netpath.MaxWait, c.requestWait()) && c.kcp.WatchedSizes().Lost > 0
}

// sizeRefused is called when the system does not send packets of size bytes to the
// peer: the interface takes less. That is a fact of this path. What was refused leaves
// again at once if it can leave otherwise now.
func (c *Session) sizeRefused(size int) {
	if c.closing.Phase >= closing.Ended {
		return
	}
	now := c.host.Now()
	do := c.sizes().Refused(size, now, c.hs.capabilities&CapPMTU != 0)
	c.followMTU(do, now)
	if do&netpath.Resend != 0 {
		c.setClock(now)
		c.kcp.PacketsRefused(size - c.shared.Overhead.Total)
	}
	c.schedule(now)
}

// useMTU sets the largest UDP payload that is sent from now on, in bytes.
func (c *Session) useMTU(size int) {
	c.call(func() { c.kcp.ResizePackets(size - c.shared.Overhead.Total) })
}

// sendMTUProbe sends a probe, and a PING in a packet of its own. The answer to
// the PING distinguishes a path that drops the probe for its size from one that
// drops everything.
func (c *Session) sendMTUProbe(now time.Duration) {
	k, p, room, nonce := c.kcp, c.plpmtu, &c.shared.Overhead, c.shared.Env.Uint32()
	p.Sent(nonce, now, c.requestWait())
	k.SignalQueue().Add(probePing(nonce))
	k.SendSignals()

	// The probe bypasses FEC, which would recover it although it was lost.
	buf := make([]byte, p.ProbeSize())
	content := buf[room.CipherHead : len(buf)-room.Tail]
	c.traceSignal(true, wire.Probe)
	wire.Signal{Code: wire.Probe, SN: nonce, TS: uint32(p.ProbeSize())}.Encode(k.AnswerHeader(), content)
	binary.LittleEndian.PutUint32(content[wire.HeaderSize-4:], uint32(len(content)-wire.HeaderSize))
	c.outgoing.open().probe = buf
	k.RateCap().Charge(len(buf))
}

// probePing returns the PING that is sent with the probe of that nonce. Its
// values distinguish the answer to it from the answers to other PINGs.
func probePing(nonce uint32) wire.Signal { return wire.Signal{Code: wire.Ping, SN: nonce, TS: ^nonce} }

// pingAnswered takes the answer to a PING, which may be the one that was sent
// with a probe.
func (c *Session) pingAnswered(s wire.Signal) {
	if c.plpmtu.Awaits(s.SN) && s == probePing(s.SN).Answer() {
		c.plpmtu.Heard(c.step.inputAt)
	}
}

// probeAnswered takes the answer to a probe: packets of its size arrive.
func (c *Session) probeAnswered(s wire.Signal) {
	if c.mayProbeMTU() && c.plpmtu.Answered(s.SN, int(s.TS), c.step.inputAt) {
		c.kcp.BlackHole().Probed(int(s.TS) - c.shared.Overhead.Total) // losses were by chance, or of other sizes
		c.followMTU(0, c.step.inputAt)
	}
}

// restartMTUSearch starts MTU discovery again, on another path, from Config.MTU or
// SetMTU's.
func (c *Session) restartMTUSearch() {
	c.plpmtu.Restart()
	c.outgoing.dropProbe()
	c.kcp.BlackHole().Restart()
	c.useMTU(c.firstMTU())
}

// sentProbe is a probe on its way to the socket.
type sentProbe struct {
	buf   []byte
	nonce uint32 // of the search when the probe was taken
}

// takeProbe takes the probe that waits.
func (c *Session) takeProbe() *sentProbe {
	p := &sentProbe{c.outgoing.probe, c.plpmtu.Nonce()}
	c.outgoing.probe = nil
	c.outgoing.bytes += uint64(len(p.buf))
	return p
}

// sealProbe is Encode for a probe.
func (w *Written) sealProbe() {
	if w.err = w.by.Seal(w.probe.buf, nil); w.err == nil {
		w.Packets = []Packet{{Buf: w.probe.buf}}
		w.Datagrams = []udp.Datagram{w.to.Datagram(w.probe.buf)}
	}
}

// endProbe records that the probe was written.
func (c *Session) endProbe(w *Written) {
	if w.Refused && c.plpmtu.Awaits(w.probe.nonce) {
		now := c.host.Now()
		c.followMTU(c.plpmtu.ProbeRefused(now), now)
		c.schedule(now)
	}
}
