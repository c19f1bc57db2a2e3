package kcp

import (
	"context"
	"errors"
	"net"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/stats"
)

// countEnd counts a session that has ended with err. offered says whether it was
// dialled, or Accept could have returned it.
func countEnd(n *EndedSessions, err error, offered bool) { *endCounter(n, err, offered)++ }

// endCounter returns the counter of a session that has ended with err.
func endCounter(n *EndedSessions, err error, offered bool) *uint64 {
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

// addTo adds the session's figures to t, and returns what limits it. c.mu is held.
func (c *session) addTo(t *SessionTotals) stats.Limit {
	now := c.host.now()
	c.noteOutage(now)
	t.Counters.Add(c.kcp.counts())
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
