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
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wakeup"
	"github.com/arqnet/kcp/internal/wire"
)

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
		e.Env.Woken(nil, c.Conv(), wakeup.AtTLS)
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
	if f := c.ep.Compat.Validated; f != nil && ready&session.Admitted != 0 {
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
	Set:       func(endpoint any, o opening.Compat) { endpoint.(*Endpoint).Compat = o },
	Validated: func(conn any) bool { return !conn.(*Conn).session.HalfOpen() },
	Datagrams: func(conn any, f func([]byte)) { conn.(*Conn).handleDatagrams(f) },
	Recovered: func(k any, Packet []byte) error { return k.(*KCP).m.InputRecovered(Packet) },
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
