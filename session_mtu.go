package kcp

import (
	"encoding/binary"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/pmtud"
	"github.com/arqnet/kcp/internal/reassembly"
	"github.com/arqnet/kcp/internal/udp"
)

// Path MTU discovery of a session (DPLPMTUD, RFC 8899; WIRE.md §5.5).
// pmtud.Search decides; this file sends its probes and sets the MTU that it
// finds. It requires a peer that answers PROBE. With other peers the MTU is that of
// Config until a black hole shows, or the system refuses the size.

// capPMTU in INFO announces that the sender answers PROBE and takes PIECE
// segments.
const capPMTU = 1

// capAckDelay in INFO announces that the sender takes ACKs that have waited for
// data, and that its own may. See Extensions.AwaitReplies.
const capAckDelay = 32

// onInfo takes the peer's INFO. A peer sends the same each time, so the first
// counts; a later one, which may be forged, does not.
func (c *session) onInfo(s signal) {
	l := &c.hs
	if l.Peer == opening.Unknown && s.ts&capTLS != 0 && c.shared.config.TLS == nil {
		l.capabilities = capTLS // why a RESET refuses the session
	}
	if l.version != 0 || l.Peer < opening.Extended {
		return // an extended peer sends INFO with HELLO, WELCOME and the answer to CONFIRM
	}
	l.version, l.capabilities = s.sn, s.ts
	if s.ts&capAckDelay != 0 {
		c.kcp.awaitReplies()
	}
	if c.hs.kindAwaited {
		c.step.ready |= writers // OpenStream may wait for it
	}
	if s.ts&capPMTU != 0 {
		c.enablePieces()
	}
	if c.streams != nil {
		c.startStreams()
	}
}

// enablePieces lets segments leave in pieces.
func (c *session) enablePieces() {
	c.kcp.enablePieces()
	c.watchSizes()
	c.path.whole = 0
}

// watchSizes begins black hole detection. Packets of leastPMTU are taken to
// arrive; those of the base size [BASE_PLPMTU] if the path has shown it.
func (c *session) watchSizes() {
	room := c.shared.overhead.total
	c.kcp.watchSizes(c.leastPMTU()-room, pmtud.Floor-room, pmtud.Base-room)
}

// leastPMTU returns the UDP payload to fall back to at last, in bytes
// [MIN_PLPMTU]: the base size, or less if the session begins with less.
func (c *session) leastPMTU() int {
	return min(max(pmtud.Base, c.shared.overhead.total+minMTU), c.firstMTU())
}

// mtu returns the largest UDP payload that is sent, in bytes.
func (c *session) mtu() int { return c.kcp.packetSize() + c.shared.overhead.total }

// newSearch returns a search on the current path, which starts from the current
// MTU.
func (c *session) newSearch() *pmtud.Search {
	cfg, ether := &c.shared.config, pmtud.EtherIPv6
	if c.entry.Addr.Addr().Unmap().Is4() {
		ether = pmtud.EtherIPv4
	}
	limit := cfg.MaxMTU
	if limit == 0 && c.entry.Peer == "" && c.host.keepsWhole() {
		limit = ether
	}
	if pinned := c.pinnedMTU(); pinned > 0 {
		limit = pinned
	}
	// A segment of that size must still be divisible into reassembly.MaxPieces pieces.
	room, least := c.shared.overhead.total, c.leastPMTU()
	limit = min(limit, room+headerSize+reassembly.MaxPieces*(least-room-headerSize-reassembly.HeaderSize))
	return pmtud.New(least, c.mtu(), limit, ether)
}

// mayProbeMTU reports whether probes may be sent to the peer.
func (c *session) mayProbeMTU() bool { return c.hs.capabilities&capPMTU != 0 && c.mayJudgeMTU() }

// mayJudgeMTU reports whether the session finds out what its path takes.
func (c *session) mayJudgeMTU() bool {
	return !c.hs.unvalidated.Load() && c.closing.Phase <= closing.Lingering
}

// advanceMTU continues the search: it starts one when there is reason to, takes
// the losses that may show a black hole (RFC 8899 §4.3), and sends the probe
// that is due.
func (c *session) advanceMTU(now time.Duration) {
	k := c.kcp
	if !c.mayProbeMTU() {
		c.advanceUnprobed(now)
		return
	}
	sent, lost := k.largePackets()
	suspicious := lost > 0 && k.blackHoleSuspected()
	if c.plpmtu.search == nil {
		if sent < pmtud.SearchAfter && !suspicious {
			return
		}
		c.plpmtu.search = c.newSearch()
	}
	p := c.plpmtu.search
	if suspicious && p.Trusts(now) {
		suspicious, lost = false, 0
		k.forgetLosses()
	}
	switch {
	case p.Confirming() && lost == 0:
		p.ConfirmedByData(now)
	case suspicious && !p.Confirming():
		p.Suspect(now)
	default:
		p.Begin(now, sent)
	}
	if !p.Due(now) {
		return
	}
	if p.Outstanding() {
		c.path.probes.lost++
		if p.Expire(now) {
			c.path.probes.blackHoles++
			c.shrinkMTU(p.Size(), pmtud.Floor)
		}
	}
	if p.Active() {
		c.sendMTUProbe(now)
	}
}

// confirmingMTU reports whether the current MTU is being confirmed because
// large packets are lost, while the peer gives signs of life. Then the path may
// be why the peer acknowledges nothing, so Close waits on.
func (c *session) confirmingMTU(now time.Duration) bool {
	p := c.plpmtu.search
	if p == nil || !p.Confirming() || now-c.live.LastHeard() >= pmtud.MaxWait {
		return false
	}
	_, lost := c.kcp.largePackets()
	return lost > 0
}

// doubtTime is for how long an answer counts in advanceUnprobed.
const doubtTime = 15 * time.Second

// sizeDoubt is that of a peer that answers no probes, while large packets are lost.
// Times are since the endpoint's epoch.
type sizeDoubt struct {
	askedAt    time.Duration // when the peer was sent a PING; 0: it was not
	answeredAt time.Duration // when it gave a sign of life after that
}

// advanceUnprobed is advanceMTU for a peer that answers no probes. Losses show a
// black hole if the peer has given a sign of life, and all large packets are lost
// again after that. In an outage it gives none.
func (c *session) advanceUnprobed(now time.Duration) {
	k := c.kcp
	if c.hs.capabilities&capPMTU != 0 || !c.hs.Reached || !c.mayJudgeMTU() {
		return
	}
	_, lost := k.largePackets()
	if lost == 0 {
		if c.watchSizes(); c.rare != nil {
			if c.rare.doubt.askedAt = 0; k.largeArrived() {
				c.rare.doubt.answeredAt = 0
			}
		}
		return
	}
	p := &c.rarely().doubt
	switch {
	case p.askedAt > 0 && c.live.LastHeard() > p.askedAt:
		p.askedAt, p.answeredAt = 0, now
		k.restartSizeWatch()
	case !k.blackHoleSuspected() || p.askedAt > 0:
	case p.answeredAt > 0 && now-p.answeredAt < doubtTime:
		p.answeredAt = 0
		c.path.probes.blackHoles++
		c.shrinkMTU(c.leastPMTU(), pmtud.Floor)
	default:
		p.askedAt = now
		if c.hs.Unanswered&opening.Ping == 0 {
			c.startPing(now)
		}
	}
}

// shrinkMTU sets the largest UDP payload, in bytes, to what the path is known to
// take, or to leastPMTU. Segments of a peer that takes no pieces may be larger; then
// these packets may be fragmented. If not even leastPMTU passes, those may be that are
// larger than fits.
func (c *session) shrinkMTU(size, fits int) {
	switch {
	case size >= c.mtu():
		if c.path.whole == 0 || fits < int(c.path.whole) {
			c.path.whole = uint16(fits)
		}
		c.kcp.forgetLosses()
	case c.hs.capabilities&capPMTU == 0:
		c.path.whole = uint16(size)
		fallthrough
	default:
		c.useMTU(size)
	}
}

// sizeRefused is called when the system does not send packets of size bytes to the
// peer: the interface takes less. That is a fact of this path. What was refused leaves
// again at once if it can leave otherwise now.
func (c *session) sizeRefused(size int) {
	if c.closing.Phase >= closing.Ended {
		return
	}
	p, now, least := &c.plpmtu, c.host.now(), c.leastPMTU()
	mtu, whole := c.mtu(), c.path.whole
	switch {
	case size <= mtu && size > least && c.mayProbeMTU():
		if p.search == nil {
			p.search = c.newSearch()
		}
		if p.search.Lower(size, now) {
			c.useMTU(p.search.Size())
		}
	case size <= mtu && mtu > least:
		c.shrinkMTU(least, size-1)
	default:
		c.shrinkMTU(mtu, size-1)
	}
	if c.mtu() != mtu || c.path.whole != whole {
		c.setClock(now)
		c.kcp.packetsRefused(size - c.shared.overhead.total)
	}
	c.schedule(now)
}

// useMTU sets the largest UDP payload that is sent from now on, in bytes.
func (c *session) useMTU(size int) {
	c.call(func() { c.kcp.resizePackets(size - c.shared.overhead.total) })
}

// sendMTUProbe sends a probe, and a PING in a packet of its own. The answer to
// the PING distinguishes a path that drops the probe for its size from one that
// drops everything.
func (c *session) sendMTUProbe(now time.Duration) {
	k, p, room := c.kcp, c.plpmtu.search, &c.shared.overhead
	p.Sent(c.shared.env.Uint32(), now, c.requestWait())
	k.queueSignals(probePing(p.Nonce()))
	k.sendSignals()

	// The probe bypasses FEC, which would recover it although it was lost.
	buf := make([]byte, p.ProbeSize())
	content := buf[room.cipherHead : len(buf)-room.tail]
	c.traceSignal(true, sigProbe)
	signal{sigProbe, p.Nonce(), uint32(p.ProbeSize())}.encode(k.answerHeader(), content)
	binary.LittleEndian.PutUint32(content[headerSize-4:], uint32(len(content)-headerSize))
	c.outgoing.open().probe = buf
	k.borrowRate(len(buf))
	c.path.probes.sent++
}

// probePing returns the PING that is sent with the probe of that nonce. Its
// values distinguish the answer to it from the answers to other PINGs.
func probePing(nonce uint32) signal { return signal{sigPing, nonce, ^nonce} }

// pingAnswered takes the answer to a PING, which may be the one that was sent
// with a probe.
func (c *session) pingAnswered(s signal) {
	if p := c.plpmtu.search; p != nil && p.Outstanding() && s == probePing(p.Nonce()).answer() {
		p.Heard()
	}
}

// probeAnswered takes the answer to a probe: packets of its size arrive.
func (c *session) probeAnswered(s signal) {
	p := c.plpmtu.search
	if p == nil || !c.mayProbeMTU() {
		return
	}
	if p.Answered(s.sn, int(s.ts), c.step.inputAt) {
		c.kcp.probeArrived(int(s.ts) - c.shared.overhead.total) // losses were by chance, or of other sizes
		if p.Size() > c.mtu() {
			c.useMTU(p.Size())
		}
		c.path.whole = 0
	}
}

// restartMTUSearch starts MTU discovery anew, on another path, from Config.MTU or
// that of SetMTU.
func (c *session) restartMTUSearch() {
	c.plpmtu.search, c.path.whole = nil, 0
	c.outgoing.dropProbe()
	c.kcp.restartSizeWatch()
	c.useMTU(c.firstMTU())
}

// sentProbe is a probe on its way to the socket.
type sentProbe struct {
	buf    []byte
	search *pmtud.Search
	nonce  uint32 // of the search when the probe was taken
}

// beginProbe takes the probe that waits, as beginWrite takes packets.
func (c *session) beginProbe() (*sentProbe, written) {
	p := &sentProbe{c.outgoing.probe, c.plpmtu.search, c.plpmtu.search.Nonce()}
	c.outgoing.probe = nil
	return p, written{shard: int(c.path.shard), to: c.origin(), by: c.in.protection.Sender()}
}

// write writes the probe to the socket, without c.mu.
func (p *sentProbe) write(c *Conn, w *written) {
	if w.err = w.by.Seal(p.buf, nil); w.err == nil {
		w.refused = c.ep.write(w.shard, []udp.Datagram{w.to.datagram(p.buf)})
		c.ep.recycle([]packet{{buf: p.buf}})
	}
}

// writtenLocked records that the probe was written.
func (p *sentProbe) writtenLocked(c *Conn, w *written) {
	if s := p.search; w.refused && s == c.plpmtu.search && s.Outstanding() && s.Nonce() == p.nonce {
		// The local system refuses the size, so the path need not be probed.
		c.path.probes.lost++
		if s.Refuse(c.ep.now()) {
			c.path.probes.blackHoles++
			c.shrinkMTU(s.Size(), len(p.buf)-1)
		}
		c.schedule(c.ep.now())
	}
}

// probeCounts holds the counters of PathMTUStats.
type probeCounts struct{ sent, lost, blackHoles uint32 }
