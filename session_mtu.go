package kcp

import (
	"encoding/binary"
	"time"

	"github.com/arqnet/kcp/internal/pmtud"
	"github.com/arqnet/kcp/internal/udp"
)

// Path MTU discovery of a session: what pmtud.Search decides is sent and set
// here. It takes a peer that answers PROBE; with others the MTU stays what it
// is in Config. WIRE.md §5.5.

// capPMTU in INFO says that PROBE is answered and PIECE segments are taken.
const capPMTU = 1

// onInfo takes what the peer says of itself, which it says alike each time. So
// what comes later, from whomever, does not matter.
func (c *Conn) onInfo(s signal) {
	l := &c.hs
	if l.version != 0 || l.kind != peerExtended {
		return // who is ours says it beside its HELLO, WELCOME or answer to CONFIRM
	}
	l.version, l.capabilities = s.sn, s.ts
	if s.ts&capPMTU != 0 {
		c.kcp.enablePieces(c.basePMTU() - c.outgoing.sender.overhead.total())
	}
}

// basePMTU returns the size that is fallen back to.
func (c *Conn) basePMTU() int {
	return min(max(pmtud.Base, c.outgoing.sender.overhead.total()+minMTU), c.ep.config.MTU)
}

// mtu returns the largest UDP payload that is sent.
func (c *Conn) mtu() int { return c.kcp.packetSize() + c.outgoing.sender.overhead.total() }

// newSearch returns the search on the present path.
func (c *Conn) newSearch() *pmtud.Search {
	cfg, ether := &c.ep.config, pmtud.EtherIPv6
	if c.path.key.addr.Addr().Unmap().Is4() {
		ether = pmtud.EtherIPv4
	}
	limit := cfg.MaxMTU
	if limit == 0 && c.path.key.peer == "" && c.ep.socket.shards[c.path.shard].sock.CanProbe() {
		limit = ether
	}
	// A segment of that size must be one that can be sent in pieces.
	room, base := c.outgoing.sender.overhead.total(), c.basePMTU()
	limit = min(limit, room+headerSize+maxPieces*(base-room-headerSize-pieceHeader))
	return pmtud.New(base, c.mtu(), limit, ether)
}

// mayProbeMTU reports whether the peer may be probed.
func (c *Conn) mayProbeMTU() bool {
	return c.hs.capabilities&capPMTU != 0 && !c.hs.unvalidated.Load() &&
		(c.closing.state == stateOpen || c.closing.state == stateLingering)
}

// advanceMTU goes on with the search.
func (c *Conn) advanceMTU(now time.Duration) {
	k := c.kcp
	if !c.mayProbeMTU() {
		return
	}
	suspicious := k.blackHoleSuspected()
	sent, lost := k.largePackets()
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
		p.ConfirmedByData()
	case suspicious && !p.Confirming():
		p.Suspect(now)
	default:
		p.Begin(now, sent)
	}
	if !p.Due(now) {
		return
	}
	if p.Outstanding() {
		c.plpmtu.counts.lost++
		if p.Expire(now) {
			c.plpmtu.counts.blackHoles++
			c.useMTU(p.Size())
		}
	}
	if p.Active() {
		c.sendMTUProbe(now)
	}
}

// confirmingMTU reports whether the path is being asked for the size of its packets, and
// the peer is there: then it is not its fault that it acknowledges nothing.
func (c *Conn) confirmingMTU(now time.Duration) bool {
	p := c.plpmtu.search
	if p == nil || !p.Confirming() || now-c.live.lastHeard >= pmtud.MaxWait {
		return false
	}
	_, lost := c.kcp.largePackets()
	return lost > 0
}

// useMTU sets the size of packets from now on.
func (c *Conn) useMTU(size int) {
	c.kcp.resizePackets(size - c.outgoing.sender.overhead.total())
}

// sendMTUProbe sends a probe, and a ping with it, whose answer tells a path that does
// not take the probe from one that takes nothing.
func (c *Conn) sendMTUProbe(now time.Duration) {
	k, p, room := c.kcp, c.plpmtu.search, &c.outgoing.sender.overhead
	p.Sent(randomConv(), now, c.requestWait())
	k.queueSignals(probePing(p.Nonce()))
	k.sendSignals()

	// The probe goes past FEC, which would recover what has been lost.
	buf := make([]byte, p.ProbeSize())
	content := buf[room.cipherHead : len(buf)-room.tail]
	signal{sigProbe, p.Nonce(), uint32(p.ProbeSize())}.encode(k.answerHeader(), content)
	binary.LittleEndian.PutUint32(content[headerSize-4:], uint32(len(content)-headerSize))
	c.outgoing.probe = buf
	c.plpmtu.counts.sent++
}

// probePing returns the ping that leaves with the probe of that nonce. Its values
// tell the answer to it from the answers to other pings.
func probePing(nonce uint32) signal { return signal{sigPing, nonce, ^nonce} }

// pingAnswered takes the answer to a ping, which may be the one that left with a
// probe.
func (c *Conn) pingAnswered(s signal) {
	if p := c.plpmtu.search; p != nil && p.Outstanding() && s == probePing(p.Nonce()).answer() {
		p.Heard()
	}
}

// probeAnswered takes the answer to a probe.
func (c *Conn) probeAnswered(s signal) {
	p := c.plpmtu.search
	if p == nil || !c.mayProbeMTU() {
		return
	}
	if p.Answered(s.sn, int(s.ts), c.live.lastInput) {
		c.kcp.forgetLosses() // chance, or other sizes
		if p.Size() > c.mtu() {
			c.useMTU(p.Size())
		}
	}
}

// restartMTUSearch begins anew on another path.
func (c *Conn) restartMTUSearch() {
	c.plpmtu.search, c.outgoing.probe = nil, nil
	c.kcp.restartSizeWatch()
	c.useMTU(c.ep.config.MTU)
}

// sendProbe writes a probe to the socket. The session's lock is held, but not
// meanwhile.
func (c *Conn) sendProbe(buf []byte) error {
	p, nonce := c.plpmtu.search, c.plpmtu.search.Nonce()
	numbers := c.in.numbers.sender()
	shard, d := int(c.path.shard), udp.Datagram{Buf: buf, Addr: c.path.key.addr, Peer: c.origin().peer}
	var err error
	tooLarge := false
	c.unlocked(func() {
		if err = c.ep.seal(buf, numbers); err == nil {
			tooLarge = c.ep.sendProbe(shard, &d)
		}
	})
	if tooLarge && p == c.plpmtu.search && p.Outstanding() && p.Nonce() == nonce {
		// The system knows without asking the path.
		c.plpmtu.counts.lost++
		if p.Refuse(c.ep.now()) {
			c.plpmtu.counts.blackHoles++
			c.useMTU(p.Size())
		}
		c.schedule(c.ep.now())
	}
	return err
}

// probeCounts are the counters behind PathMTUStats.
type probeCounts struct{ sent, lost, blackHoles uint32 }

// PathMTUStats is what path MTU discovery has done for a session.
type PathMTUStats struct {
	MTU        int    // largest UDP payload that is sent now
	Sent       uint64 // probes
	Lost       uint64 // probes not answered in time
	BlackHoles uint64 // times that the path was found to swallow packets it had taken, or was expected to take
}
