package kcp

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/incast"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wakeup"
	"github.com/arqnet/kcp/internal/wire"
)

// Conn is a session: a reliable, ordered connection with one peer. It implements
// net.Conn. All methods are safe for concurrent use.
//
// Errors are of type *net.OpError, except io.EOF and those of Err; use errors.Is and
// errors.As. Methods return net.ErrClosed after Close or Abort of this end. Those that
// read, write or wait return, once the session has ended, what Err does. Their comments
// name further errors.
//
// An extended peer is an endpoint of this package, and a legacy peer any other, such as
// kcp-go or the C reference.
type Conn struct {
	ep *Endpoint // immutable

	writing sync.Mutex // held for a whole Write or WriteMessage; locked before mu

	// mu guards the fields below, unless their comment says otherwise. Unexported methods
	// require it, unless their comment says that they lock it or run without it.
	mu      sync.Mutex
	session session.Session
	io      ioState
	calls   *callState // nil: nothing of it is needed

	value  atomic.Pointer[any] // of SetValue; not guarded
	wakeAt int32               // position in its queue of Endpoint.wakes, from 1; 0: not queued; guarded by its lock
}

// ioState is the state of the application's calls: what they wait for.
type ioState struct {
	canRead        notifier  // there is something to read, or a reason to fail
	canWrite       notifier  // there is room, all is acknowledged, or there is a reason to fail
	readerWaitsFor *notifier // what the call that reads the socket waits for; nil: no call reads
	readDeadline   deadline
	writeDeadline  deadline
	member         *groupMember // the session's place in a Group; nil: it is in none

	filling    bool // a blocked Read has lent its buffer to the state machine
	receipts   bool // runReceipts runs
	woken      bool // a waiting call was woken, and none has run since
	reply      pendingReply
	wokeWaiter bool      // a waiting call was woken since the last respond
	wakes      heldWakes // wake-ups that are held back until c.mu is free
	batched    batched
}

// pendingReply is whether respond has something to do, and who calls it.
type pendingReply uint8

const (
	noReply   pendingReply = iota
	replyDue               // at the end of the batch
	replyLeft              // to the next call of the application, or the read loop
)

// newConn returns a session that is not yet in the endpoint's tables. dialled says that
// this end opens it. It runs without Conn.mu, as no other goroutine knows the session.
func newConn(e *Endpoint, key session.Key, remote net.Addr, dialled bool) *Conn {
	c := &Conn{ep: e}
	c.io.canRead.init(c)
	c.io.canWrite.init(c)
	c.session.Init(&e.shared, (*sessionHost)(c), key, remote, dialled)
	return c
}

// wakeIndex returns where the session keeps its position in Endpoint.wakes.
func (c *Conn) wakeIndex() *int32 { return &c.wakeAt }

// wakeHash returns a random number of the session, which does not change.
func (c *Conn) wakeHash() uint32 { return c.session.Seed() }

// input locks c.mu and feeds packets to the state machine. It reports whether
// the caller must call respond after the batch, at most once per batch.
func (c *Conn) input(packets []session.InPacket, shard int, now time.Duration) bool {
	c.mu.Lock()
	defer c.unlock()
	c.io.readerWaitsFor = nil
	changed := c.session.Feed(packets, shard, now)
	c.letGoOn()
	if !changed && !c.io.wokeWaiter || c.io.reply != noReply {
		return false
	}
	c.io.reply = replyDue
	return true
}

// respond locks c.mu, sends what a batch of input has caused, and wakes the
// calls that wait for it. The packets are left to b, unless that is nil. It reports
// whether a waiting call was woken since the last time.
func (c *Conn) respond(now time.Duration, b *sendBatch) bool {
	c.mu.Lock()
	defer c.unlockWith(b)
	c.io.wakes |= holdWakes
	c.io.reply = noReply
	if !c.session.Respond(now, c.io.woken) {
		return false
	}
	c.letGoOn()
	woke := c.io.wokeWaiter
	c.io.wokeWaiter = false
	return woke
}

// respondLater locks c.mu, and leaves what respond would do to the waiting calls and the
// next wake-up, unless it was done.
func (c *Conn) respondLater() {
	c.mu.Lock()
	defer c.unlock()
	if c.io.reply != noReply {
		c.io.reply = noReply
		c.io.canRead.Broadcast()
		c.io.canWrite.Broadcast()
		c.session.Wake(c.ep.now())
	}
}

// unlock carries out what a step has brought about. Packets are written once c.mu is
// released: see writePackets. Nothing lets go of c.mu in the middle but await.
func (c *Conn) unlock() {
	c.letGoOn()
	held, writes := c.io.wakes, c.session.ToWrite(session.Caller)
	c.io.wakes = 0
	c.mu.Unlock()
	if held&heldRead != 0 {
		c.io.canRead.cond.Broadcast() // without c.mu, which the calls lock at once
	}
	if held&heldWrite != 0 {
		c.io.canWrite.cond.Broadcast()
	}
	if writes {
		c.writePackets()
	}
}

// unlockWith is unlock, but leaves the packets to b, unless that is nil.
func (c *Conn) unlockWith(b *sendBatch) {
	writes := b != nil && c.session.ToWrite(session.Batcher)
	c.unlock()
	if writes {
		b.add(c)
	}
}

// each calls f for each of conns, also for those behind one for which code of the
// application's panics.
func each(conns []*Conn, f func(*Conn)) {
	next := 0
	defer func() {
		if next < len(conns) {
			each(conns[next:], f)
		}
	}()
	for next < len(conns) {
		next++
		f(conns[next-1])
	}
}

// LocalAddr returns the address of the endpoint's socket. If that is bound to none, it is
// the one that the peer of an accepted session sends to, where Linux, macOS and the BSDs
// tell it.
func (c *Conn) LocalAddr() net.Addr {
	socket := c.ep.LocalAddr()
	at, ok := socket.(*net.UDPAddr)
	if _, own := c.session.Addresses(); ok && own.IsValid() {
		return net.UDPAddrFromAddrPort(netip.AddrPortFrom(own, at.AddrPort().Port()))
	}
	return socket
}

// RemoteAddr returns the address of the peer. Like LocalAddr it may change when the peer
// migrates (RFC 9000 §9), which needs TLS, or a Cipher that authenticates.
func (c *Conn) RemoteAddr() net.Addr {
	remote, _ := c.session.Addresses()
	return remote
}

// Conv returns the conversation id, which is the same at both ends, for good.
func (c *Conn) Conv() uint32 { return c.session.Place().Conv }

// SetDeadline sets the read and the write deadline.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, true, true) }

// SetReadDeadline sets the time after which Read, ReadMessage and ReceiveDatagram fail
// with os.ErrDeadlineExceeded. The zero time means never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, true, false) }

// SetWriteDeadline sets the time after which calls that wait for room, and CloseWrite,
// fail with os.ErrDeadlineExceeded. The zero time means never.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, false, true) }

// setDeadlines locks c.mu.
func (c *Conn) setDeadlines(t time.Time, read, write bool) error {
	c.mu.Lock()
	defer c.unlock()
	if c.session.State().Left {
		return c.opError("set", net.ErrClosed)
	}
	if read {
		c.io.readDeadline.set(t, &c.mu, &c.io.canRead)
	}
	if write {
		c.io.writeDeadline.set(t, &c.mu, &c.io.canWrite)
	}
	return nil
}

// opError wraps err in a *net.OpError, as package net does; io.EOF stays as it
// is, and so does ErrWouldBlock.
func (c *Conn) opError(op string, err error) error {
	if err == io.EOF || err == ErrWouldBlock {
		return err
	}
	return opError(op, c.LocalAddr(), c.RemoteAddr(), err)
}

// sessionHost is a Conn as the host of its session. Conn.mu is held.
type sessionHost Conn

// connOf returns the Conn of a session.
func connOf(c *session.Session) *Conn { return (*Conn)(c.Owner().(*sessionHost)) }

func (h *sessionHost) Now() time.Duration { return h.ep.now() }

func (h *sessionHost) Offer() (ok, none bool) {
	if h.ep.opens.N.Load() > 0 {
		if expected, won := h.ep.opens.Offer((*Conn)(h)); expected {
			return won, !won
		}
	}
	l := h.ep.acceptor()
	if l == nil {
		return false, true
	}
	ok = l.offer((*Conn)(h), true)
	if ok && h.ep.config.TLS != nil {
		h.ep.handshakeOver((*Conn)(h)) // the session is established, and makes no room
	}
	return ok, false
}

func (h *sessionHost) Validated() bool { return h.ep.countValidated((*Conn)(h)) }

func (h *sessionHost) Move(to session.Source) bool {
	return h.ep.rekey((*Conn)(h), admission.MakeKey(to.Addr, to.Peer, (*Conn)(h).Conv()))
}

func (h *sessionHost) Reply(to session.Source, by protect.Protection, first wire.Header, signals ...wire.Signal) bool {
	return h.ep.reply(to, by, first, signals...)
}

func (h *sessionHost) Pays(n int) bool {
	key := h.session.Place().Key()
	key.Conv = 0
	return h.ep.opens.Take(key, n)
}

func (h *sessionHost) Challenge(to session.Source, token uint32, at time.Duration) wire.Signal {
	return h.ep.challengeOf(to, (*Conn)(h).Conv(), token, at)
}

func (h *sessionHost) ResetKey() *protect.ToldKey { return h.ep.resetKeyOf((*Conn)(h)) }

// WorkTLS has the work done when it is the turn of its network.
func (h *sessionHost) WorkTLS(from fair.Block, x *handshake.Exchange, work handshake.Work) {
	c, e := (*Conn)(h), h.ep
	turn := e.handshakes.Go(from, func() {
		e.shared.Env.Woken(nil, c.Conv(), wakeup.AtTLS)
		c.workTLS(x, work)
	})
	x.Cancel = turn.Cancel
}

func (h *sessionHost) Arrived(shard int) uint32               { return h.ep.arrived(shard) }
func (h *sessionHost) Unread(shard int, n uint32) bool        { return h.ep.unread(shard, n) }
func (h *sessionHost) Incast(shard int) *session.SocketIncast { return h.ep.incastOf(shard) }
func (h *sessionHost) Hand(shard int, b []byte) {
	h.ep.hand(shard, handedDatagram{(*Conn)(h), b})
}

func (h *sessionHost) NewStream(p *streams.Params) *streams.Stream {
	c := (*Conn)(h)
	c.state()
	s := &Stream{conn: c, messages: p.Partial()}
	s.canRead.init(c)
	s.canWrite.init(c)
	s.state.Owner = (*streamOwner)(s)
	return &s.state
}

func (h *sessionHost) Look()                     { h.ep.look(0) }
func (h *sessionHost) Looked() time.Duration     { return h.ep.looked() }
func (h *sessionHost) KeepsWhole(shard int) bool { return h.ep.keepsWhole(shard) }
func (h *sessionHost) SocketError(since time.Duration) error {
	return h.ep.socketErrorOf((*Conn)(h).RemoteAddr(), since)
}
func (h *sessionHost) PublicError(err error) error { return publicError(err) }

func (h *sessionHost) Stopped() bool   { return h.ep.stopped() }
func (h *sessionHost) OwnSocket() bool { return h.ep.disposable() }

// takeGrant locks Conn.mu, and tells the peer of a session a window. It reports whether
// the session goes on.
func takeGrant(s *session.Session, g incast.Grant, now time.Duration) bool {
	c := connOf(s)
	c.mu.Lock()
	defer c.unlock()
	return c.session.TakeGrant(g, now, c.io.woken)
}

// letGoOn lets the calls, and whatever else, go on that a step has made ready.
func (c *Conn) letGoOn() {
	left := c.session.Take()
	if left.WakeAt > 0 {
		c.ep.wakes.Set(c, left.WakeAt)
	}
	if left.Replied && c.io.reply == replyLeft {
		c.io.reply = noReply
	}
	ready := left.Ready
	if ready == 0 && left.Failed == nil {
		return
	}
	if ready&session.Stopped != 0 {
		c.stopDeadlines()
	}
	if ready&session.Readers != 0 {
		c.io.canRead.Broadcast()
	}
	if ready&session.Writers != 0 {
		c.io.canWrite.Broadcast()
	}
	if ready&session.Acceptors != 0 && c.calls != nil {
		c.calls.canAccept.Broadcast()
		if c.reportsStreams() {
			c.io.member.wake()
		}
	}
	if ready&session.Shaken != 0 {
		c.ep.handshakeOver(c)
	}
	if ready&session.Lingers != 0 && c.ep.disposable() {
		c.ep.linger()
	}
	if left.Failed != nil && !c.ep.opens.Fail(c, !c.session.HalfOpen(), left.Failed) {
		c.ep.reportHandshake(c.RemoteAddr(), left.Failed.(*HandshakeError))
	}
	if ready&session.Receivers != 0 && !c.io.receipts {
		c.io.receipts = true
		go c.runReceipts()
	}
	if f := c.ep.shared.Compat.Validated; f != nil && ready&session.Admitted != 0 {
		go f(c)
	}
}

// stopDeadlines ends what only calls of the application need, which all fail now.
func (c *Conn) stopDeadlines() {
	c.io.readDeadline.set(time.Time{}, &c.mu, &c.io.canRead)
	c.io.writeDeadline.set(time.Time{}, &c.mu, &c.io.canWrite)
	if c.calls != nil && c.io.member == nil {
		c.endTurnsLocked()
	}
}

// What package compat and benchmarks use, and no package of others can.
var _ = opening.ConnectCompat(opening.CompatHooks{
	Set:       func(endpoint any, o opening.Compat) { endpoint.(*Endpoint).shared.Compat = o },
	Validated: func(conn any) bool { return !conn.(*Conn).session.HalfOpen() },
	Datagrams: func(conn any, f func([]byte)) { conn.(*Conn).handleDatagrams(f) },
	Recovered: func(k any, packet []byte) error { return k.(*KCP).m.InputRecovered(packet) },
	Close: func(conn any) ([][]byte, error) {
		call := &session.CloseCall{Keeps: true}
		err := conn.(*Conn).close(call)
		return call.Received, err
	},
	Machine: func(config, k any, alike bool) (mtu int) {
		c := config.(*Config).withDefaults()
		of := c.ofSessions()
		if of.Apply(k.(*machine.KCP), session.OverheadOf(c.Cipher, c.TLS != nil, c.FEC).Total); alike {
			k.(*machine.KCP).Enable(machine.FeatureCopies | machine.FeatureInformed)
		}
		return c.MTU
	},
})

// What endpoints and timers have sessions do: lock, do it, and carry out the effects.

func (c *Conn) do(f func(*session.Session)) {
	c.mu.Lock()
	defer c.unlock()
	f(&c.session)
}

func (c *Conn) claims(q session.Question, p *session.InPacket, now time.Duration) (mine, moved bool) {
	c.mu.Lock()
	defer c.unlock()
	return c.session.Claims(q, p, now)
}

func (c *Conn) onWake() {
	c.mu.Lock()
	defer c.unlock()
	c.session.OnWake(c.io.woken)
}

func (c *Conn) shedMemory() bool {
	c.mu.Lock()
	defer c.unlock()
	return c.session.ShedMemory()
}

func (c *Conn) endFor(why session.Cause, err error) {
	c.mu.Lock()
	defer c.unlock()
	c.session.EndFor(why, err)
}

func (c *Conn) moveOpening(to session.Source) bool {
	c.mu.Lock()
	defer c.unlock()
	return c.session.MoveOpening(to)
}

// lookAt locks c.mu, and returns what may be asked of the session.
func (c *Conn) lookAt() session.State {
	c.mu.Lock()
	defer c.unlock()
	return c.session.State()
}
