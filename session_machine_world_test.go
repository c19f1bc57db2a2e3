package kcp

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/incast"
	"github.com/arqnet/kcp/internal/liveness"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wakeup"
	"github.com/arqnet/kcp/internal/wire"
)

// Two sessions without endpoints: no goroutine, lock, socket or clock. What an endpoint
// does for its session is done by a machineEnd, in the order in which the caller asks
// for it.

// machineWorld is two ends and the packets between them. The first dials the second.
type machineWorld struct {
	t    testing.TB
	now  time.Duration // since the epoch of both
	ends [2]*machineEnd
	send func(from *machineEnd, d *udp.Datagram) // a packet leaves
}

// machineEnd is an endpoint with one session, whose host it is.
type machineEnd struct {
	w       *machineWorld
	side    int
	shared  sharedState
	gate    admission.Gate[session]
	turns   socketIncast
	addr    netip.AddrPort // of its packets
	conn    *session       // nil: there was none yet
	work    []func()       // of TLS, that waits
	wakeAt  time.Duration  // when onWake is due; 0: never
	limit   int            // largest packet that its interface takes; 0: any
	backlog bool           // its listener takes no session now
	delayed bool           // what has arrived at its socket was not read
	owes    bool           // respond has something to do
	stale   bool           // a datagram has answered a PING, whose timer goes on
	ready   ready          // what its steps have brought about since somebody looked
	others  int64          // bytes that its other sessions hold
	streams map[uint32]*machineStream
	failed  error // why the TLS handshake has failed
}

// machineStream is a stream as its application has it.
type machineStream struct {
	state  streams.Stream
	closed bool // by the application, in both directions
}

func (*machineStream) Readable() {}
func (*machineStream) Writable() {}

// newMachineWorld returns two ends, of which none has a session.
func newMachineWorld(t testing.TB, seed uint64, configs ...*worldConfig) *machineWorld {
	run := new(wakeup.Run)
	run.Seed(seed)
	w := &machineWorld{t: t, now: time.Second}
	for side := range w.ends {
		w.ends[side] = newMachineEnd(w, side, configs[side], run.Environment())
	}
	return w
}

// worldConfig is the settings of an end.
type worldConfig struct {
	sessionConfig
	cipher         crypt.Cipher // nil: none
	alwaysValidate bool
	fixedWrite     bool // writeBuffer is the application's
	fixedRead      bool // the same of streamReceiveBuffer
}

// defaults returns the settings that sessions have if an application sets none.
func defaults() *worldConfig {
	return &worldConfig{sessionConfig: sessionConfig{
		mtu: 1400, sendWindow: machine.MostWindow, receiveWindow: 2048, writeBuffer: defaultWriteBuffer,
		maxBuffered: 1 << 30, maxStreams: 256, streamReceiveBuffer: 1 << 20, streamWriteBuffer: defaultStreamWrite,
		noDelay: machine.NoDelayOn, interval: 30 * time.Millisecond, fastResend: 2, fastResendLimit: 5,
		keepAlive: 25 * time.Second, peerTimeout: liveness.DefaultPeerTimeout, stallTimeout: 30 * time.Minute,
		linger: defaultLinger, maxLinger: 128 * time.Second, congestionControl: congestion.NewBBR,
	}}
}

func newMachineEnd(w *machineWorld, side int, config *worldConfig, env *wakeup.Environment) *machineEnd {
	e := &machineEnd{
		w: w, side: side, streams: make(map[uint32]*machineStream),
		addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(side + 1)}), 4000),
	}
	s := &e.shared
	s.config, s.env, s.mostStreamBuffer, s.epoch = config.sessionConfig, env, maxStreamReceive, time.Unix(1e9, 0)
	s.fixedWriteBuffer = config.fixedWrite
	if config.fixedRead {
		s.mostStreamBuffer = config.streamReceiveBuffer
	}
	s.protection = protect.NewScheme(config.cipher, config.tls != nil, env.Nonces())
	s.migrates = s.protection.Authentic
	s.outside, s.overhead = s.protection.Outside, overheadOf(config.cipher, config.tls != nil, config.fec)
	s.load.sessions.Store(1)
	e.turns.Init((*session).sender, func(*session, incast.Grant, time.Duration) bool { return true }, func() {})
	g := &e.gate
	g.Init((*session).place, 65536/2)
	g.Cookies.Random = env
	if config.tls != nil {
		g.ResetSecret = make([]byte, 32)
		_, _ = env.Read(g.ResetSecret) // cannot fail
	}
	g.Hooks = admission.Hooks[session]{
		Extended: (*session).extended, Full: func(bool) bool { return e.backlog },
		Look: func(*session, time.Duration) fair.Look { return fair.Young },
		Keys: (*session).packetKeys,
	}
	g.Rules = admission.Rules{
		TLS: config.tls != nil, Authentic: s.protection.Authentic, Migrates: s.migrates,
		RefusesLegacy: s.protection.Authentic, AlwaysValidate: config.alwaysValidate,
		MaxSessions: 65536, MaxHalfOpen: 1024,
		Protection: s.protection, Outside: s.outside, Info: handshakeSignal(s.infoSignal()), Random: env, Epoch: s.epoch,
	}
	return e
}

// dial begins the session of the first end.
func (w *machineWorld) dial(conv uint32, quiet bool) {
	e, to := w.ends[0], w.ends[1]
	c := new(session)
	c.init(&e.shared, e, admission.MakeKey(to.addr, nil, conv), net.UDPAddrFromAddrPort(to.addr), true)
	e.conn = c
	e.gate.SetValidated(c)
	e.gate.Add(c)
	if quiet {
		c.dial(opening.Quiet)
	} else {
		c.dial(opening.Dialled)
	}
	e.carryOut()
}

// carryOut writes what the last step has left, and retires a session that has ended.
func (e *machineEnd) carryOut() {
	c := e.conn
	if c == nil {
		return
	}
	var w written
	for round := 0; ; round++ {
		more, over := c.nextWrite(&w, round)
		if over {
			e.retire()
		}
		if !more {
			break
		}
		c.encode(&w)
		w.refused = e.write(w.datagrams)
		e.shared.recycle(w.packets)
	}
	done := c.take()
	if done.wakeAt > 0 {
		e.wakeAt = done.wakeAt
	}
	if done.ready&receivers != 0 {
		for due := c.takeReceipts(); len(due) > 0; due = c.takeReceipts() {
			for _, r := range due {
				r.Done(r.Err)
			}
		}
	}
	if done.ready&shaken != 0 {
		e.gate.SetShaking(c, false)
	}
	if done.failed != nil {
		e.failed = done.failed
	}
	e.ready |= done.ready
}

// retire is Conn.retire.
func (e *machineEnd) retire() {
	c := e.conn
	end, _ := c.retire()
	e.wakeAt = 0
	if !e.gate.Lists(c) {
		return
	}
	key := c.place().Key()
	e.gate.Remove(c)
	e.gate.Remember(key, end.state, end.state.Token != 0, e.w.now)
}

// write lets packets leave, and reports whether the interface has refused some.
func (e *machineEnd) write(batch []udp.Datagram) (refused bool) {
	if e.conn.state().retired {
		e.w.t.Fatalf("end %d sends after its end", e.side)
	}
	for i := range batch {
		d := &batch[i]
		if e.limit > 0 && len(d.Buf) > e.limit && !d.Cut {
			d.TooLarge, refused = true, true
			continue
		}
		e.w.send(e, d)
	}
	return refused
}

// receive takes a packet from an address. Of what it causes, replies are left to respond.
func (e *machineEnd) receive(b []byte, from netip.AddrPort) {
	p := &inPacket{from: source{addr: from}, size: len(b)}
	p.Data = bytes.Clone(b)
	var why admission.Reason
	if p.kind, p.conv, why = e.gate.Open(&p.Packet, admission.MakeKey(from, nil, 0), new([]byte), new(sync.Mutex), e.w.now); why != admission.NoReason {
		return
	}
	key := admission.MakeKey(from, nil, p.conv)
	c := e.gate.Get(key)
	if p.kind == parityPacket {
		c = e.gate.OfParity(key)
	}
	bound := c != nil && p.kind == fecPacket && e.gate.Bound(c)
	if c == nil {
		c = e.admit(key, p)
	}
	if c != nil && p.kind == fecPacket && !bound {
		e.gate.BindFEC(c)
	}
	if c != nil && (p.kind != sealedPacket || e.openSealed(p)) {
		if changed := c.feed([]inPacket{*p}, 0, e.w.now); changed {
			e.owes = true
		} else if p.kind == datagramPacket {
			e.stale = true
		}
	}
	e.carryOut()
}

// respond sends what a batch of packets has caused.
func (e *machineEnd) respond() {
	if c := e.conn; c != nil && e.owes {
		e.owes = false
		c.respond(e.w.now, false)
		e.stale = false
		e.carryOut()
	}
}

// openSealed is Endpoint.openSealed.
func (e *machineEnd) openSealed(p *inPacket) bool {
	c, kept := e.conn, bytes.Clone(p.Data)
	switch err := e.shared.open(c.packetKeys(), p); {
	case err == nil:
		return true
	case errors.Is(err, protect.ErrExhausted):
		c.endFor(causeFailed, crypt.ErrKeyExhausted)
	case errors.Is(err, protect.ErrTooFast):
		c.endFor(causeFailed, errors.New("keys change too fast"))
	case c.resetBy(kept):
		c.endFor(causeReset, nil)
	}
	return false
}

// admit is Endpoint.admit.
func (e *machineEnd) admit(key sessionKey, p *inPacket) *session {
	first, now := e.gate.Read(key, p.kind, &p.Packet, p.size), e.w.now
	for {
		v := e.gate.Judge(&first, admission.State{
			Listening: e.side == 1 && e.conn == nil,
		}, now)
		if a := &v.Answer; a.Size > 0 {
			e.answer(p.from, a.By, a.Content[:a.Size])
		}
		if v.Note == admission.ResetSent {
			a := e.gate.StatelessReset(&first, e.addr.String(), now)
			e.answer(p.from, a.By, a.Content[:a.Size])
		}
		switch v.Do {
		case admission.Ask:
			c, claimed := e.ask(&v, &first, p)
			if first.Claimed = claimed; c != nil {
				return c
			}
			continue
		case admission.Unseal:
			if _, ok := first.Unseal(); !ok {
				return nil
			}
			p.kind = first.Kind
			continue
		case admission.Open:
			return e.accept(&first, p, v.Validated, v.Offers)
		}
		if v.Session == nil && v.Seen {
			e.shared.outside.Fresh(&p.Packet, true)
		}
		return v.Session
	}
}

// ask is Endpoint.ask.
func (e *machineEnd) ask(v *admission.Verdict[session], first *admission.First, p *inPacket) (to *session, claimed bool) {
	c, now := v.Asked[0], e.w.now
	var mine, moved bool
	switch q := (question{v.Question, first, v.Shown, true}); q.what {
	case admission.AskSealed:
		at := *p
		at.Data = bytes.Clone(p.Data)
		if e.shared.open(c.packetKeys(), &at) == nil && at.kind != sealedPacket {
			q.what = admission.AskPacket
			if _, moved = c.claims(q, &at, now); moved {
				*p = at
			}
			mine = true
		}
	default:
		if mine, moved = c.claims(q, p, now); !mine && q.what == admission.AskPacket {
			q.numbered = false
			mine, moved = c.claims(q, p, now)
		}
	}
	e.carryOut()
	if moved {
		return c, true
	}
	return nil, mine
}

// accept is Endpoint.openAccepted.
func (e *machineEnd) accept(first *admission.First, p *inPacket, validated, offers bool) *session {
	c := new(session)
	c.init(&e.shared, e, first.Key, p.from.netAddr(), false)
	if c.accept(first, p, validated); validated {
		e.gate.SetValidated(c)
	} else {
		e.shared.load.halfOpen.Add(1)
	}
	e.gate.SetShaking(c, first.Keys != nil)
	e.gate.Add(c)
	e.conn = c
	var offer func(bool) bool
	if offers {
		offer = func(bool) bool { return true }
	}
	c.begin(offer)
	return c
}

// answer sends a packet that is of no session.
func (e *machineEnd) answer(to source, by protect.Protection, content []byte) {
	head, tail := by.Overhead()
	b := make([]byte, head+len(content)+tail)
	copy(b[head:], content)
	if by.Seal(b, nil) == nil {
		d := to.datagram(b)
		e.w.send(e, &d)
	}
}

// wakes calls onWake if it is due.
func (e *machineEnd) wakes() {
	if e.wakeAt > 0 && e.wakeAt <= e.w.now {
		e.wakeAt, e.stale = 0, false
		e.conn.onWake(false)
		e.carryOut()
	}
}

// works does the work of TLS that waits.
func (e *machineEnd) works() {
	for len(e.work) > 0 {
		work := e.work[0]
		e.work = e.work[1:]
		work()
		e.carryOut()
	}
}

// What a session asks of its host.

func (e *machineEnd) now() time.Duration { return e.w.now }

func (e *machineEnd) offer() (ok, none bool) { return !e.backlog, false }
func (e *machineEnd) validated() bool        { return e.gate.SetValidated(e.conn) }

func (e *machineEnd) move(to source) bool {
	return e.gate.Move(e.conn, admission.MakeKey(to.addr, to.peer, e.conn.entry.Conv))
}

func (e *machineEnd) reply(to source, by protect.Protection, h wire.Header, signals ...wire.Signal) bool {
	if !e.gate.MayReply(e.w.now) {
		return false
	}
	content := make([]byte, len(signals)*wire.HeaderSize)
	for i, s := range signals {
		s.Encode(h, content[i*wire.HeaderSize:])
	}
	e.answer(to, by, content)
	return true
}

func (e *machineEnd) pays(int) bool { return true }

func (e *machineEnd) challenge(to source, token uint32, at time.Duration) wire.Signal {
	s := e.gate.Cookies.Challenge(admission.MakeKey(to.addr, to.peer, e.conn.entry.Conv), to.local.Addr(), token, at)
	return wire.Signal{Code: wire.Ping, SN: s[0], TS: s[1]}
}

func (e *machineEnd) resetKey() *protect.ToldKey {
	key := e.conn.entry.Key()
	return &protect.ToldKey{ResetKey: key.ResetKey(e.gate.ResetSecret, e.addr.String()), Since: uint32(e.shared.epoch.Add(e.w.now).Unix())}
}

func (e *machineEnd) workTLS(_ fair.Block, x *handshake.Exchange, work handshake.Work) {
	e.work = append(e.work, func() {
		var s handshake.Step
		if !x.Over() {
			s = work.Run()
		}
		e.conn.workedTLS(x, s)
	})
}

func (e *machineEnd) arrived(int) uint32       { return 0 }
func (e *machineEnd) unread(int, uint32) bool  { return e.delayed }
func (e *machineEnd) incast(int) *socketIncast { return &e.turns }
func (e *machineEnd) hand(int, []byte)         {}

func (e *machineEnd) newStream(*streams.Params) *streams.Stream {
	s := new(machineStream)
	s.state.Owner = s
	return &s.state
}

func (e *machineEnd) look()                 {}
func (e *machineEnd) looked() time.Duration { return 0 }
func (e *machineEnd) keepsWhole(int) bool   { return true }
func (e *machineEnd) socketError(time.Duration) error {
	return nil
}
func (e *machineEnd) ownSocket() bool { return false }
func (e *machineEnd) stopped() bool   { return false }

func (e *machineEnd) publicError(err error) error { return err }
