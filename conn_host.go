package kcp

import (
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/incast"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wakeup"
	"github.com/arqnet/kcp/internal/wire"
)

// sessionHost is a Conn as the host of its session. Conn.mu is held.
type sessionHost Conn

// connOf returns the Conn of a session.
func connOf(c *session) *Conn { return (*Conn)(c.owner().(*sessionHost)) }

func (h *sessionHost) now() time.Duration { return h.ep.now() }

func (h *sessionHost) offer() (ok, none bool) {
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

func (h *sessionHost) validated() bool { return h.ep.countValidated((*Conn)(h)) }

func (h *sessionHost) move(to source) bool {
	return h.ep.rekey((*Conn)(h), admission.MakeKey(to.addr, to.peer, (*Conn)(h).Conv()))
}

func (h *sessionHost) reply(to source, by protect.Protection, first wire.Header, signals ...wire.Signal) bool {
	return h.ep.reply(to, by, first, signals...)
}

func (h *sessionHost) pays(n int) bool {
	key := h.session.place().Key()
	key.Conv = 0
	return h.ep.opens.Take(key, n)
}

func (h *sessionHost) challenge(to source, token uint32, at time.Duration) wire.Signal {
	return h.ep.challengeOf(to, (*Conn)(h).Conv(), token, at)
}

func (h *sessionHost) resetKey() *protect.ToldKey { return h.ep.resetKeyOf((*Conn)(h)) }

// workTLS has the work done when it is the turn of its network.
func (h *sessionHost) workTLS(from fair.Block, x *handshake.Exchange, work handshake.Work) {
	c, e := (*Conn)(h), h.ep
	turn := e.handshakes.Go(from, func() {
		e.env.Woken(nil, c.Conv(), wakeup.AtTLS)
		c.workTLS(x, work)
	})
	x.Cancel = turn.Cancel
}

func (h *sessionHost) arrived(shard int) uint32        { return h.ep.arrived(shard) }
func (h *sessionHost) unread(shard int, n uint32) bool { return h.ep.unread(shard, n) }
func (h *sessionHost) incast(shard int) *socketIncast  { return h.ep.incastOf(shard) }
func (h *sessionHost) hand(shard int, b []byte) {
	h.ep.hand(shard, handedDatagram{(*Conn)(h), b})
}

func (h *sessionHost) newStream(p *streams.Params) *streams.Stream {
	c := (*Conn)(h)
	c.state()
	s := &Stream{conn: c, messages: p.Partial()}
	s.canRead.init(c)
	s.canWrite.init(c)
	s.state.Owner = (*streamOwner)(s)
	return &s.state
}

func (h *sessionHost) look()                     { h.ep.look(0) }
func (h *sessionHost) looked() time.Duration     { return h.ep.looked() }
func (h *sessionHost) keepsWhole(shard int) bool { return h.ep.keepsWhole(shard) }
func (h *sessionHost) socketError(since time.Duration) error {
	return h.ep.socketErrorOf((*Conn)(h).RemoteAddr(), since)
}
func (h *sessionHost) publicError(err error) error { return publicError(err) }

func (h *sessionHost) stopped() bool   { return h.ep.stopped() }
func (h *sessionHost) ownSocket() bool { return h.ep.disposable() }

// takeGrant locks Conn.mu, and tells the peer of a session a window. It reports whether
// the session goes on.
func takeGrant(s *session, g incast.Grant, now time.Duration) bool {
	c := connOf(s)
	c.mu.Lock()
	defer c.unlock()
	return c.session.takeGrant(g, now, c.io.woken)
}

// letGoOn lets the calls, and whatever else, go on that a step has made ready.
func (c *Conn) letGoOn() {
	left := c.session.take()
	if left.wakeAt > 0 {
		c.ep.wakes.Set(c, left.wakeAt)
	}
	if left.replied && c.io.reply == replyLeft {
		c.io.reply = noReply
	}
	ready := left.ready
	if ready == 0 && left.failed == nil {
		return
	}
	if ready&stopped != 0 {
		c.stopDeadlines()
	}
	if ready&readers != 0 {
		c.io.canRead.Broadcast()
	}
	if ready&writers != 0 {
		c.io.canWrite.Broadcast()
	}
	if ready&acceptors != 0 && c.calls != nil {
		c.calls.canAccept.Broadcast()
		if c.reportsStreams() {
			c.io.member.wake()
		}
	}
	if ready&shaken != 0 {
		c.ep.handshakeOver(c)
	}
	if ready&lingers != 0 && c.ep.disposable() {
		c.ep.linger()
	}
	if left.failed != nil && !c.ep.opens.Fail(c, !c.session.halfOpen(), left.failed) {
		c.ep.reportHandshake(c.RemoteAddr(), left.failed.(*HandshakeError))
	}
	if ready&receivers != 0 && !c.io.receipts {
		c.io.receipts = true
		go c.runReceipts()
	}
	if f := c.ep.compat.Validated; f != nil && ready&admitted != 0 {
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
	Set:       func(endpoint any, o opening.Compat) { endpoint.(*Endpoint).compat = o },
	Validated: func(conn any) bool { return !conn.(*Conn).session.halfOpen() },
	Datagrams: func(conn any, f func([]byte)) { conn.(*Conn).handleDatagrams(f) },
	Recovered: func(k any, packet []byte) error { return k.(*KCP).m.InputRecovered(packet) },
	Close: func(conn any) ([][]byte, error) {
		call := &closeCall{keeps: true}
		err := conn.(*Conn).close(call)
		return call.received, err
	},
	Machine: func(config, k any, alike bool) (mtu int) {
		c := config.(*Config).withDefaults()
		of := c.ofSessions()
		if of.apply(k.(*machine.KCP), overheadOf(c.Cipher, c.TLS != nil, c.FEC).total); alike {
			k.(*machine.KCP).Enable(machine.FeatureCopies | machine.FeatureInformed)
		}
		return c.MTU
	},
})

// What endpoints and timers have sessions do: lock, do it, and carry out the effects.

func (c *Conn) do(f func(*session)) {
	c.mu.Lock()
	defer c.unlock()
	f(&c.session)
}

func (c *Conn) claims(q question, p *inPacket, now time.Duration) (mine, moved bool) {
	c.mu.Lock()
	defer c.unlock()
	return c.session.claims(q, p, now)
}

func (c *Conn) onWake() {
	c.mu.Lock()
	defer c.unlock()
	c.session.onWake(c.io.woken)
}

func (c *Conn) shedMemory() bool {
	c.mu.Lock()
	defer c.unlock()
	return c.session.shedMemory()
}

func (c *Conn) endFor(why cause, err error) {
	c.mu.Lock()
	defer c.unlock()
	c.session.endFor(why, err)
}

func (c *Conn) moveOpening(to source) bool {
	c.mu.Lock()
	defer c.unlock()
	return c.session.moveOpening(to)
}

// lookAt locks c.mu, and returns what may be asked of the session.
func (c *Conn) lookAt() sessionState {
	c.mu.Lock()
	defer c.unlock()
	return c.session.state()
}
