package kcp

import (
	"context"
	"errors"
	"net"
)

// SessionTotals are sums over the sessions of an endpoint since it was made.
type SessionTotals struct {
	Counters
	Dropped   Drops         // bad packets
	Datagrams DatagramStats // unreliable ones, both ways
	FEC       FECStats      // PeerRatio is zero
	Probes    PathMTUStats  // MTU is 0
	Moves     uint64        // changes of peers' addresses (connection migration, RFC 9000 §9)
}

// EndedSessions counts the sessions that have ended, by cause, each once.
// Conn.Err has the same causes.
type EndedSessions struct {
	Closed       uint64 // in order, after Close at this end
	PeerClosed   uint64 // in order, after Close at the peer
	Aborted      uint64 // by Abort, Endpoint.Close, or a cancelled Dial
	NotDelivered uint64 // Close has given up
	Reset        uint64 // aborted by the peer, or unknown to it after a restart
	Refused      uint64 // Dial: the peer accepts no sessions
	NoAnswer     uint64 // Dial: the peer has not answered in time
	Lost         uint64 // nothing arrived within Config.PeerTimeout, or DeadLink
	Idle         uint64 // no data passed within Config.IdleTimeout
	Stalled      uint64 // the peer accepted no data within Config.StallTimeout
	Memory       uint64 // with ErrMemoryPressure
	// Unaccepted counts sessions that peers have opened and Accept could not
	// return: the peer's address was not validated, or the backlog was full.
	Unaccepted uint64
	Failed     uint64 // anything else, such as an error of the Cipher
}

// Total returns the sum of all causes.
func (n EndedSessions) Total() uint64 {
	return n.Closed + n.PeerClosed + n.Aborted + n.NotDelivered + n.Reset + n.Refused + n.NoAnswer +
		n.Lost + n.Idle + n.Stalled + n.Memory + n.Unaccepted + n.Failed
}

// count counts a session that has ended with err. offered says whether it was
// dialled, or Accept could have returned it.
func (n *EndedSessions) count(err error, offered bool) { *n.counter(err, offered)++ }

// counter returns the counter of a session that has ended with err.
func (n *EndedSessions) counter(err error, offered bool) *uint64 {
	var lost *PeerLostError
	var silent *NoAnswerError
	switch {
	case !offered:
		return &n.Unaccepted
	case err == nil:
		return &n.Closed
	case errors.Is(err, ErrPeerClosed):
		return &n.PeerClosed
	case errors.Is(err, net.ErrClosed), errors.Is(err, context.Canceled):
		return &n.Aborted
	case errors.Is(err, ErrNotDelivered):
		return &n.NotDelivered
	case errors.Is(err, ErrReset):
		return &n.Reset
	case errors.Is(err, ErrRefused):
		return &n.Refused
	case errors.Is(err, ErrMemoryPressure):
		return &n.Memory
	case errors.As(err, &silent):
		return &n.NoAnswer
	case errors.As(err, &lost) && lost.Idle:
		return &n.Idle
	case lost != nil && lost.Stalled > 0:
		return &n.Stalled
	case lost != nil:
		return &n.Lost
	}
	return &n.Failed
}

// addTo adds the session's figures to t. c.mu is held.
func (c *Conn) addTo(t *SessionTotals) {
	t.Counters.add(c.kcp.counts())
	if c.rare != nil {
		t.Dropped.add(&c.rare.dropped)
	}
	if q := c.in.datagrams; q != nil {
		t.Datagrams.add(&q.stats)
	}
	f := c.fecStats()
	t.FEC.add(&f)
	p := c.pathMTUStats()
	t.Probes.Sent += p.Sent
	t.Probes.Lost += p.Lost
	t.Probes.BlackHoles += p.BlackHoles
	t.Moves += uint64(c.path.validation.count())
}

func (d *Drops) add(o *Drops) {
	d.Short += o.Short
	d.Conv += o.Conv
	d.Length += o.Length
	d.Command += o.Command
	d.Una += o.Una
	d.Piece += o.Piece
	d.Requests += o.Requests
	d.FEC += o.FEC
	d.Stream += o.Stream
}

func (d *DatagramStats) add(o *DatagramStats) {
	d.Sent += o.Sent
	d.Received += o.Received
	d.Dropped += o.Dropped
	d.Unsent += o.Unsent
}

// add adds what o has counted; PeerRatio is no count.
func (f *FECStats) add(o *FECStats) {
	f.DataSent += o.DataSent
	f.ParitySent += o.ParitySent
	f.DataReceived += o.DataReceived
	f.ParityReceived += o.ParityReceived
	f.Recovered += o.Recovered
	f.Lost += o.Lost
}
