package session

import (
	"math"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/liveness"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/stats"
)

// The figures of a session.

// Stats returns a snapshot.
func (c *Session) Stats() stats.Conn {
	k, now := c.kcp.Snapshot(), c.host.Now()
	c.rtt.Ask(now)
	var t stats.Totals
	limit, open := c.AddTo(&t), 0
	t.Probes.MTU = c.mtu()
	if c.streams != nil {
		open = c.streams.Len()
	}
	s := stats.Conn{
		Counters:         *c.kcp.Counts(),
		LimitedBy:        limit,
		Limited:          t.Limited,
		Dropped:          t.Dropped,
		RTT:              c.rtt.Current(k.SRTT),
		RTTMin:           c.rtt.Least(),
		RTTAge:           c.rtt.Age(now),
		Jitter:           time.Duration(c.rtt.Jitter) * time.Microsecond,
		Silence:          c.live.Silence(now, liveness.Lost),
		RTTVar:           time.Duration(k.RTTVar) * time.Millisecond,
		RTO:              time.Duration(k.RTO) * time.Millisecond,
		InFlight:         k.InFlight,
		Queued:           k.Queued,
		WriteBuffered:    c.kcp.Load().Bytes,
		WriteBufferUsed:  c.kcp.Load().Used,
		ReadBuffered:     k.Readable,
		RemoteWindow:     k.Window,
		RemoteUnread:     k.Unread,
		Held:             c.held(),
		CongestionWindow: k.CongestionWindow,
		MaxRate:          c.maxRate(),
		Streams:          open,
		Moves:            int(t.Moves),
		Sent:             stats.Traffic{Packets: c.outgoing.sent + t.Probes.Sent, Bytes: c.outgoing.bytes},
		Received:         stats.Traffic{Packets: c.in.packets, Bytes: c.in.bytes},
		Datagrams:        t.Datagrams,
		FEC:              c.fecStats(),
		PathMTU:          t.Probes,
	}
	s.Sent.Loss, s.Received.Loss = c.losses.Loss()
	return s
}

// Report is what there is to say of a session at its end.
type Report struct {
	stats.Totals
	Err         error // why it has ended
	Undelivered bool  // the peer lacks something of what was written
	Age, RTT    time.Duration
	MTU         int
}

// Report returns what there is to say of the session at its end.
func (c *Session) Report() Report {
	r := Report{
		Err: c.closing.err, Undelivered: c.closing.Undelivered(), MTU: c.mtu(),
		Age: c.host.Now() - c.hs.born, RTT: time.Duration(c.kcp.Snapshot().SRTT) * time.Millisecond,
	}
	c.AddTo(&r.Totals)
	return r
}

// startLimits begins to count what limits the session, once the handshake does not.
func (c *Session) startLimits(now time.Duration) {
	if l := &c.hs; !l.securing && !l.unvalidated.Load() && (l.Reached || l.Role < opening.Dialled) {
		l.took = uint32(min(max((now-l.born).Milliseconds(), 1), math.MaxUint32))
		c.LimitedBy(c.kcp.Snapshot().Limit)
	}
}

// LimitedBy is the machine's hook for what limits it from now on.
func (c *Session) LimitedBy(l stats.Limit) {
	if c.hs.took > 0 && (c.limits != nil || l != stats.LimitApplication) {
		c.limits = c.limitClock()
		c.limits.Change(l, c.host.Now())
	}
}

// limitClock returns c.limits, or what it stands for; nil: the handshake limits.
func (c *Session) limitClock() *recovery.LimitClock {
	if l := &c.hs; c.limits == nil && l.took > 0 {
		return recovery.NewLimitClock(l.born, l.born+time.Duration(l.took)*time.Millisecond, stats.LimitApplication)
	}
	return c.limits
}

// fecStats returns what both directions of FEC have done.
func (c *Session) fecStats() (s stats.FEC) {
	s.DataSent, s.ParitySent = c.outgoing.fecData, c.outgoing.fecParity
	var d *fec.DecoderStats
	if c.in.decoder != nil {
		now := c.in.decoder.Stats()
		d = &now
	} else if c.rare != nil {
		d = c.rare.decoded
	}
	if d != nil {
		s.DataReceived, s.ParityReceived = d.Data, d.Parity
		s.Recovered, s.Lost = d.Recovered, d.Lost
		s.PeerRatio = stats.Ratio{Data: d.DataShards, Parity: d.ParityShards}
	}
	return s
}

// AddTo adds the session's figures to t, and returns what limits it.
func (c *Session) AddTo(t *stats.Totals) stats.Limit {
	now := c.host.Now()
	c.noteOutage(now)
	t.Counters.Add(c.kcp.Counts())
	if c.rare != nil {
		t.Dropped.Add(&c.rare.dropped)
	}
	if q := c.in.datagrams; q != nil {
		t.Datagrams.Add(&q.Stats)
	}
	if s := c.streams; s != nil {
		n := stats.Streams(s.Counts)
		if c.closing.Phase >= closing.Ended {
			n.Ended = n.Opened + n.Accepted // none is carried any more
		}
		t.Streams.Add(&n)
	}
	f := c.fecStats()
	t.FEC.Add(&f)
	p := c.plpmtu.Counts()
	t.Probes.Sent += uint64(p.Sent)
	t.Probes.Lost += uint64(p.Lost)
	t.Probes.BlackHoles += uint64(p.BlackHoles)
	t.Moves += uint64(c.path.validation.Moves()) + uint64(c.path.moves)
	return c.limitClock().Add(&t.Limited, c.hs.born, now)
}

// CountDrop counts one packet that the state machine has dropped with err.
func CountDrop(d *stats.Drops, err error) {
	switch err {
	case machine.ErrPacketShort:
		d.Short++
	case machine.ErrConv:
		d.Conv++
	case machine.ErrSegmentLength:
		d.Length++
	case machine.ErrCommand:
		d.Command++
	case machine.ErrForgedUna:
		d.Una++
	case machine.ErrPiece:
		d.Piece++
	case machine.ErrRequests:
		d.Requests++
	}
}
