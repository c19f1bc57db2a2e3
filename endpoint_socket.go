package kcp

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/incast"
	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wakeup"
)

// shard is one socket of an endpoint. All shards have the same port, so peers
// cannot tell which one sends to them. A session uses the shard that its peer's
// packets arrive at: then it runs on the same processor as that shard's reader.
type shard struct {
	link atomic.Pointer[takeover.Socket]
	lead wakeup.ReadTurn[Conn] // whose turn it is to read

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
	incast   session.SocketIncast

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
	if s.incast.Single() || s.link.Load().Inbox != nil || !s.readQueue(q) {
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

// Sockets that outlive their sessions, to answer the peers. They are given up when
// descriptors are short: some are always left to the application.

// lingerers are the endpoints of the process whose sockets are open for that only.
var lingerers fair.Lingering[*Endpoint]

// linger counts the endpoint's socket as one that is open for peers of ended sessions
// only. The one that has been so for longest is given up if there are too many.
func (e *Endpoint) linger() {
	if _, ok := e.socket.shards[0].conn().(*net.UDPConn); !ok {
		return // a simulated socket has no descriptor
	}
	if oldest, ok := lingerers.Add(e, fair.LingeringLimit(udp.Descriptors())); ok {
		time.AfterFunc(0, oldest.giveUp) // locks of e are held
	}
}

// giveUp closes the socket if it is open for peers of ended sessions only. Endpoint.mu
// and Conn.mu are not held.
func (e *Endpoint) giveUp() {
	e.mu.RLock()
	conns := e.table.Sessions()
	e.mu.RUnlock()
	for _, c := range conns {
		c.endFor(session.CauseDrained, nil)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.socket.holdUntil = 0
	e.shutIfUnusedLocked()
}

// withDescriptors calls open, which opens a socket. If the process or the system has no
// descriptor for it, lingering sockets are given up, one after the other.
func withDescriptors[T any](open func() (T, error)) (T, error) {
	for {
		x, err := open()
		if err == nil || !neterr.OutOfDescriptors(err) {
			return x, err
		}
		oldest, ok := lingerers.Take()
		if !ok {
			return x, err
		}
		oldest.giveUp()
	}
}

// The address of the socket of a Dial. That socket is connected, which fixes the address
// that it sends from. When the host has another one, or another route to the peer, the
// socket is connected again, and the sessions that can migrate do (RFC 9000 §9.2).

// ownAddress is the socket of a Dial, and what is known of its route. It needs no lock.
type ownAddress struct {
	socket  *udp.Connected
	looked  atomic.Int64   // when the last look was, in ns since the epoch
	looking atomic.Bool    // a look is under way or about to be; who has set it uses watch
	watch   udp.RouteWatch // used by the present look
}

// keepConnected has the socket of a Dial, which was opened from local, connected again
// when that is necessary.
func (e *Endpoint) keepConnected(socket *net.UDPConn, local net.Addr) {
	if k := udp.NewConnected(socket, local, e.config.Control); k != nil {
		e.socket.own.Store(&ownAddress{socket: k})
		e.shared.Looks = true
	}
}

// looked returns when the route was looked at last, if Shared.Looks is set.
func (e *Endpoint) looked() time.Duration { return time.Duration(e.socket.own.Load().looked.Load()) }

// look has the route looked at, on a goroutine that ends with that, unless this is about
// to happen.
func (e *Endpoint) look(after time.Duration) {
	own := e.socket.own.Load()
	if own == nil {
		return
	}
	begins := own.looking.CompareAndSwap(false, true)
	if begins || after <= 0 { // else Config.Control holds a look up, and many come here
		own.looked.Store(int64(e.now() + max(after, 0)))
	}
	if begins {
		time.AfterFunc(after, func() { e.lookNow(own) })
	}
}

// troubled has the route looked at if an error of the socket may be due to it, and if no
// look was just before.
func (e *Endpoint) troubled(err error) {
	if own := e.socket.own.Load(); own != nil && udp.ConcernsRoute(err) {
		e.look(time.Duration(own.looked.Load()) + udp.RouteEvery - e.now())
	}
}

// lookNow looks at the route, and does what follows. While there is none it looks again,
// less often, unless sessions that wait for answers want that sooner.
func (e *Endpoint) lookNow(own *ownAddress) {
	e.mu.Lock()
	over := e.closed || e.socket.shards[0].link.Load().Inbox != nil // after a handover the socket is another process's
	if !over {
		e.socket.readers.Add(1) // Close waits for what Config.Control does
		defer e.socket.readers.Done()
	}
	e.mu.Unlock()
	if over {
		own.looked.Store(never / 2)
		return
	}
	action, moved := e.follow(own)
	again := own.watch.Again()
	own.looking.Store(false)
	switch action {
	case udp.RouteMissing:
		e.look(again)
	case udp.RouteDoubted, udp.RouteChanged, udp.RouteBack:
		e.mu.RLock()
		conns := e.table.Sessions()
		e.mu.RUnlock()
		for _, c := range conns {
			c.do(func(s *session.Session) { s.Rerouted(moved) })
		}
	}
}

// follow looks at the socket and the route, and connects the socket again if that is to
// be done. moved reports whether the socket has another address now.
func (e *Endpoint) follow(own *ownAddress) (action udp.RouteOutcome, moved bool) {
	socket, route, err := own.socket.Look()
	if err != nil {
		return udp.RouteKept, false // it is closed
	}
	action = own.watch.Decide(socket, route, own.socket.Peer(), e.shared.Migrates && e.shared.Protection.Authentic, e.now())
	if action == udp.RouteMissing && route.Err != nil {
		e.noteSocketError(route.Err)
	}
	if action != udp.RouteChanged {
		return action, false
	}
	device := route.Device
	if route.Unknown {
		device = socket.Device
	}
	before := own.socket.LocalAddr()
	moved, err = own.socket.Reconnect(device)
	own.watch.Connected(err == nil)
	if err != nil {
		e.noteSocketError(err)
		e.warn("socket cannot be connected again", err)
		return udp.RouteMissing, false
	}
	if log := e.config.Logger; log != nil && moved {
		log.Info("kcp: local address changed", "from", before.String(), "local", e.LocalAddr().String())
	}
	return action, moved
}
