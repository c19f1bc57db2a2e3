package kcp

import (
	"encoding/binary"
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

// Path MTU discovery of a session: what pmtuSearch decides is sent and set
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
	return min(max(basePMTU, c.outgoing.sender.overhead.total()+minMTU), c.ep.config.MTU)
}

// mtu returns the largest UDP payload that is sent.
func (c *Conn) mtu() int { return c.kcp.packetSize() + c.outgoing.sender.overhead.total() }

// newSearch returns the search on the present path.
func (c *Conn) newSearch() *pmtuSearch {
	cfg, ether := &c.ep.config, etherIPv6
	if c.path.key.addr.Addr().Unmap().Is4() {
		ether = etherIPv4
	}
	limit := cfg.MaxMTU
	if limit == 0 && c.path.key.peer == "" && c.ep.socket.shards[c.path.shard].sock.CanProbe() {
		limit = ether
	}
	// A segment of that size must be one that can be sent in pieces.
	room, base := c.outgoing.sender.overhead.total(), c.basePMTU()
	limit = min(limit, room+headerSize+maxPieces*(base-room-headerSize-pieceHeader))
	return newPMTUSearch(base, c.mtu(), limit, ether)
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
		if sent < searchAfter && !suspicious {
			return
		}
		c.plpmtu.search = c.newSearch()
	}
	p := c.plpmtu.search
	if suspicious && now < p.trusted {
		suspicious, lost = false, 0
		k.forgetLosses()
	}
	switch {
	case p.state == pmtuConfirming && lost == 0:
		p.confirmedByData()
	case suspicious && p.state != pmtuConfirming:
		p.suspect(now)
	default:
		p.begin(now, sent)
	}
	if !p.due(now) {
		return
	}
	if p.out {
		c.plpmtu.counts.lost++
		if p.expire(now) {
			c.plpmtu.counts.blackHoles++
			c.useMTU(p.size)
		}
	}
	if p.active() {
		c.sendMTUProbe(now)
	}
}

// confirmingMTU reports whether the path is being asked for the size of its packets, and
// the peer is there: then it is not its fault that it acknowledges nothing.
func (c *Conn) confirmingMTU(now time.Duration) bool {
	p := c.plpmtu.search
	if p == nil || p.state != pmtuConfirming || now-c.live.lastHeard >= maxPMTUWait {
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
	p.sent(randomConv(), now, c.requestWait())
	k.queueSignals(p.ping())
	k.sendSignals()

	// The probe goes past FEC, which would recover what has been lost.
	buf := make([]byte, p.probe)
	content := buf[room.cipherHead : len(buf)-room.tail]
	signal{sigProbe, p.nonce, uint32(p.probe)}.encode(k.answerHeader(), content)
	binary.LittleEndian.PutUint32(content[headerSize-4:], uint32(len(content)-headerSize))
	c.outgoing.probe = buf
	c.plpmtu.counts.sent++
}

// pingAnswered takes the answer to a ping, which may be the one that left with a
// probe.
func (c *Conn) pingAnswered(s signal) {
	if p := c.plpmtu.search; p != nil && p.out && s == p.ping().answer() {
		p.heard = true
	}
}

// probeAnswered takes the answer to a probe.
func (c *Conn) probeAnswered(s signal) {
	p := c.plpmtu.search
	if p == nil || !c.mayProbeMTU() {
		return
	}
	if p.answered(s.sn, int(s.ts), c.live.lastInput) {
		c.kcp.forgetLosses() // chance, or other sizes
		if p.size > c.mtu() {
			c.useMTU(p.size)
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
	p, nonce := c.plpmtu.search, c.plpmtu.search.nonce
	numbers := c.in.numbers.sender()
	shard, d := int(c.path.shard), udp.Datagram{Buf: buf, Addr: c.path.key.addr, Peer: c.origin().peer}
	var err error
	tooLarge := false
	c.unlocked(func() {
		if err = c.ep.seal(buf, numbers); err == nil {
			tooLarge = c.ep.sendProbe(shard, &d)
		}
	})
	if tooLarge && p == c.plpmtu.search && p.out && p.nonce == nonce {
		// The system knows without asking the path.
		c.plpmtu.counts.lost++
		if p.refuse(c.ep.now()) {
			c.plpmtu.counts.blackHoles++
			c.useMTU(p.size)
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
