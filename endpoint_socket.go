package kcp

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/incast"
	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/readturn"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/udp"
)

// shard is one socket of an endpoint. All shards have the same port, so peers
// cannot tell which one sends to them. A session uses the shard that its peer's
// packets arrive at: then it runs on the same processor as that shard's reader.
type shard struct {
	link atomic.Pointer[takeover.Socket]
	lead readturn.Turn[Conn] // whose turn it is to read

	asked   atomic.Bool   // interrupt was called since the last time-out
	taking  atomic.Int64  // since when its reader has fed a batch to the sessions, in ns since the epoch; 0: it does not
	taken   atomic.Uint32 // what was read; see Endpoint.arrived
	fed     atomic.Uint32 // of that, what the sessions have got
	foreign bool          // the caller of NewEndpoint has pc, too; immutable

	// Used only by the present reader.
	batch    []udp.Datagram
	in       readState
	failures neterr.Failures
	parked   *takeover.Handover // the last one that the reader has paused for
	queue    udp.Queue          // as of the last look
	incast   socketIncast

	drops atomic.Uint32 // what dropped returns once the socket is closed
}

func (s *shard) conn() net.PacketConn { return s.link.Load().Conn }
func (s *shard) sock() udp.Conn       { return s.link.Load().Packets }

// readQueue sets q to the state of the socket's receive buffer, and reports
// whether it has.
func (s *shard) readQueue(q *udp.Queue) bool {
	if pc, ok := s.conn().(interface{ ReadQueue(*udp.Queue) bool }); ok {
		return pc.ReadQueue(q) // a simulated socket
	}
	return s.sock().ReadQueue(q)
}

// dropped returns how many datagrams the system has dropped because the receive
// buffer was full.
func (s *shard) dropped() uint64 {
	var q udp.Queue
	if s.readQueue(&q) {
		s.drops.Store(q.Drops)
	}
	return uint64(s.drops.Load())
}

// observe looks at the socket's receive buffer now and then, against incast. A reader
// calls it after each batch, of n bytes.
func (s *shard) observe(n int, now time.Duration) {
	if !s.incast.Due(n, now) {
		return
	}
	q := &s.queue // a variable would be allocated
	if s.incast.Alone() || s.link.Load().Inbox != nil || !s.readQueue(q) {
		*q = udp.Queue{}
	}
	s.incast.Look(incast.Buffer{Limit: q.Limit, Used: q.Used, Drops: q.Drops}, now)
	s.incast.Follow()
}

// advanceTurns is called when it is time to end turns of senders, or begin others,
// though perhaps nothing arrives.
func (e *Endpoint) advanceTurns(s *shard) {
	s.incast.Woken()
	if !e.stopped() {
		s.incast.Advance(e.now())
	}
}
