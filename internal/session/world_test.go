package session

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
	shared  Shared
	gate    admission.Gate[Session]
	turns   SocketIncast
	addr    netip.AddrPort // of its packets
	conn    *Session       // nil: there was none yet
	work    []func()       // of TLS, that waits
	wakeAt  time.Duration  // when onWake is due; 0: never
	limit   int            // largest packet that its interface takes; 0: any
	backlog bool           // its listener takes no session now
	delayed bool           // what has arrived at its socket was not read
	owes    bool           // respond has something to do
	stale   bool           // a datagram has answered a PING, whose timer goes on
	ready   Ready          // what its steps have brought about since somebody looked
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
	Config
	cipher         crypt.Cipher // nil: none
	alwaysValidate bool
	fixedWrite     bool // writeBuffer is the application's
	fixedRead      bool // the same of StreamReceiveBuffer
}

// defaults returns the settings that sessions have if an application sets none.
func defaults() *worldConfig {
	return &worldConfig{Config: Config{
		MTU: 1400, SendWindow: machine.MostWindow, ReceiveWindow: 2048, WriteBuffer: DefaultWriteBuffer,
		MaxBuffered: 1 << 30, MaxStreams: 256, StreamReceiveBuffer: 1 << 20, StreamWriteBuffer: DefaultStreamWrite,
		NoDelay: machine.NoDelayOn, Interval: 30 * time.Millisecond, FastResend: 2, FastResendLimit: 5,
		KeepAlive: 25 * time.Second, PeerTimeout: liveness.DefaultPeerTimeout, StallTimeout: 30 * time.Minute,
		Linger: DefaultLinger, MaxLinger: 128 * time.Second, CongestionControl: congestion.NewBBR,
	}}
}

func newMachineEnd(w *machineWorld, side int, config *worldConfig, env *wakeup.Environment) *machineEnd {
	e := &machineEnd{
		w: w, side: side, streams: make(map[uint32]*machineStream),
		addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(side + 1)}), 4000),
	}
	s := &e.shared
	s.Config, s.Env, s.MostStreamBuffer, s.Epoch = config.Config, env, MaxStreamReceive, time.Unix(1e9, 0)
	s.FixedWriteBuffer = config.fixedWrite
	if config.fixedRead {
		s.MostStreamBuffer = config.StreamReceiveBuffer
	}
	s.Protection = protect.NewScheme(config.cipher, config.TLS != nil, env.Nonces())
	s.Migrates = s.Protection.Authentic
	s.Outside, s.Overhead = s.Protection.Outside, OverheadOf(config.cipher, config.TLS != nil, config.FEC)
	s.Load.Sessions.Store(1)
	e.turns.Init((*Session).Sender, func(*Session, incast.Grant, time.Duration) bool { return true }, func() {})
	g := &e.gate
	g.Init((*Session).Place, 65536/2)
	g.Cookies.Random = env
	if config.TLS != nil {
		g.ResetSecret = make([]byte, 32)
		_, _ = env.Read(g.ResetSecret) // cannot fail
	}
	g.Hooks = admission.Hooks[Session]{
		Extended: (*Session).Extended, Full: func(bool) bool { return e.backlog },
		Look: func(*Session, time.Duration) fair.Look { return fair.Young },
		Keys: (*Session).PacketKeys,
	}
	g.Rules = admission.Rules{
		TLS: config.TLS != nil, Authentic: s.Protection.Authentic, Migrates: s.Migrates,
		RefusesLegacy: s.Protection.Authentic, AlwaysValidate: config.alwaysValidate,
		MaxSessions: 65536, MaxHalfOpen: 1024,
		Protection: s.Protection, Outside: s.Outside, Info: s.InfoSignal(), Random: env, Epoch: s.Epoch,
	}
	return e
}

// dial begins the session of the first end.
func (w *machineWorld) dial(conv uint32, quiet bool) {
	e, to := w.ends[0], w.ends[1]
	c := new(Session)
	c.Init(&e.shared, e, admission.MakeKey(to.addr, nil, conv), net.UDPAddrFromAddrPort(to.addr), true)
	e.conn = c
	e.gate.SetValidated(c)
	e.gate.Add(c)
	if quiet {
		c.Dial(opening.Quiet)
	} else {
		c.Dial(opening.Dialled)
	}
	e.carryOut()
}

// carryOut writes what the last step has left, and retires a session that has ended.
func (e *machineEnd) carryOut() {
	c := e.conn
	if c == nil {
		return
	}
	var w Written
	for round := 0; ; round++ {
		more, over := c.NextWrite(&w, round)
		if over {
			e.retire()
		}
		if !more {
			break
		}
		c.Encode(&w)
		w.Refused = e.write(w.Datagrams)
		e.shared.Recycle(w.Packets)
	}
	done := c.Take()
	if done.WakeAt > 0 {
		e.wakeAt = done.WakeAt
	}
	if done.Ready&Receivers != 0 {
		for due := c.TakeReceipts(); len(due) > 0; due = c.TakeReceipts() {
			for _, r := range due {
				r.Done(r.Err)
			}
		}
	}
	if done.Ready&Shaken != 0 {
		e.gate.SetShaking(c, false)
	}
	if done.Failed != nil {
		e.failed = done.Failed
	}
	e.ready |= done.Ready
}

// retire is Conn.retire.
func (e *machineEnd) retire() {
	c := e.conn
	end, _ := c.Retire()
	e.wakeAt = 0
	if !e.gate.Lists(c) {
		return
	}
	key := c.Place().Key()
	e.gate.Remove(c)
	e.gate.Remember(key, end.State, end.State.Token != 0, e.w.now)
}

// write lets packets leave, and reports whether the interface has refused some.
func (e *machineEnd) write(batch []udp.Datagram) (refused bool) {
	if e.conn.State().Retired {
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
	p := &InPacket{From: Source{Addr: from}, Size: len(b)}
	p.Data = bytes.Clone(b)
	var why admission.Reason
	if p.Kind, p.Conv, why = e.gate.Open(&p.Packet, admission.MakeKey(from, nil, 0), new([]byte), new(sync.Mutex), e.w.now); why != admission.NoReason {
		return
	}
	key := admission.MakeKey(from, nil, p.Conv)
	c := e.gate.Get(key)
	if p.Kind == ParityPacket {
		c = e.gate.OfParity(key)
	}
	bound := c != nil && p.Kind == FECPacket && e.gate.Bound(c)
	if c == nil {
		c = e.admit(key, p)
	}
	if c != nil && p.Kind == FECPacket && !bound {
		e.gate.BindFEC(c)
	}
	if c != nil && (p.Kind != SealedPacket || e.openSealed(p)) {
		if changed := c.Feed([]InPacket{*p}, 0, e.w.now); changed {
			e.owes = true
		} else if p.Kind == datagramPacket {
			e.stale = true
		}
	}
	e.carryOut()
}

// respond sends what a batch of packets has caused.
func (e *machineEnd) respond() {
	if c := e.conn; c != nil && e.owes {
		e.owes = false
		c.Respond(e.w.now, false)
		e.stale = false
		e.carryOut()
	}
}

// openSealed is Endpoint.openSealed.
func (e *machineEnd) openSealed(p *InPacket) bool {
	c, kept := e.conn, bytes.Clone(p.Data)
	switch err := e.shared.Open(c.PacketKeys(), p); {
	case err == nil:
		return true
	case errors.Is(err, protect.ErrExhausted):
		c.EndFor(CauseFailed, crypt.ErrKeyExhausted)
	case errors.Is(err, protect.ErrTooFast):
		c.EndFor(CauseFailed, errors.New("keys change too fast"))
	case c.ResetBy(kept):
		c.EndFor(CauseReset, nil)
	}
	return false
}

// admit is Endpoint.admit.
func (e *machineEnd) admit(key Key, p *InPacket) *Session {
	first, now := e.gate.Read(key, p.Kind, &p.Packet, p.Size), e.w.now
	for {
		v := e.gate.Judge(&first, admission.State{
			Listening: e.side == 1 && e.conn == nil,
		}, now)
		if a := &v.Answer; a.Size > 0 {
			e.answer(p.From, a.By, a.Content[:a.Size])
		}
		if v.Note == admission.ResetSent {
			a := e.gate.StatelessReset(&first, e.addr.String(), now)
			e.answer(p.From, a.By, a.Content[:a.Size])
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
			p.Kind = first.Kind
			continue
		case admission.Open:
			return e.accept(&first, p, v.Validated, v.Offers)
		}
		if v.Session == nil && v.Seen {
			e.shared.Outside.Fresh(&p.Packet, true)
		}
		return v.Session
	}
}

// ask is Endpoint.ask.
func (e *machineEnd) ask(v *admission.Verdict[Session], first *admission.First, p *InPacket) (to *Session, claimed bool) {
	c, now := v.Asked[0], e.w.now
	var mine, moved bool
	switch q := (Question{v.Question, first, v.Shown, true}); q.What {
	case admission.AskSealed:
		at := *p
		at.Data = bytes.Clone(p.Data)
		if e.shared.Open(c.PacketKeys(), &at) == nil && at.Kind != SealedPacket {
			q.What = admission.AskPacket
			if _, moved = c.Claims(q, &at, now); moved {
				*p = at
			}
			mine = true
		}
	default:
		if mine, moved = c.Claims(q, p, now); !mine && q.What == admission.AskPacket {
			q.Numbered = false
			mine, moved = c.Claims(q, p, now)
		}
	}
	e.carryOut()
	if moved {
		return c, true
	}
	return nil, mine
}

// accept is Endpoint.openAccepted.
func (e *machineEnd) accept(first *admission.First, p *InPacket, validated, offers bool) *Session {
	c := new(Session)
	c.Init(&e.shared, e, first.Key, p.From.NetAddr(), false)
	if c.Accept(first, p, validated); validated {
		e.gate.SetValidated(c)
	} else {
		e.shared.Load.HalfOpen.Add(1)
	}
	e.gate.SetShaking(c, first.Keys != nil)
	e.gate.Add(c)
	e.conn = c
	var offer func(bool) bool
	if offers {
		offer = func(bool) bool { return true }
	}
	c.Begin(offer)
	return c
}

// answer sends a packet that is of no session.
func (e *machineEnd) answer(to Source, by protect.Protection, content []byte) {
	head, tail := by.Overhead()
	b := make([]byte, head+len(content)+tail)
	copy(b[head:], content)
	if by.Seal(b, nil) == nil {
		d := to.Datagram(b)
		e.w.send(e, &d)
	}
}

// wakes calls onWake if it is due.
func (e *machineEnd) wakes() {
	if e.wakeAt > 0 && e.wakeAt <= e.w.now {
		e.wakeAt, e.stale = 0, false
		e.conn.OnWake(false)
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

func (e *machineEnd) Now() time.Duration { return e.w.now }

func (e *machineEnd) Offer() (ok, none bool) { return !e.backlog, false }
func (e *machineEnd) Validated() bool        { return e.gate.SetValidated(e.conn) }

func (e *machineEnd) Move(to Source) bool {
	return e.gate.Move(e.conn, admission.MakeKey(to.Addr, to.Peer, e.conn.entry.Conv))
}

func (e *machineEnd) Reply(to Source, by protect.Protection, h wire.Header, signals ...wire.Signal) bool {
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

func (e *machineEnd) Pays(int) bool { return true }

func (e *machineEnd) Challenge(to Source, token uint32, at time.Duration) wire.Signal {
	s := e.gate.Cookies.Challenge(admission.MakeKey(to.Addr, to.Peer, e.conn.entry.Conv), to.Local.Addr(), token, at)
	return wire.Signal{Code: wire.Ping, SN: s[0], TS: s[1]}
}

func (e *machineEnd) ResetKey() *protect.ToldKey {
	key := e.conn.entry.Key()
	return &protect.ToldKey{ResetKey: key.ResetKey(e.gate.ResetSecret, e.addr.String()), Since: uint32(e.shared.Epoch.Add(e.w.now).Unix())}
}

func (e *machineEnd) WorkTLS(_ fair.Block, x *handshake.Exchange, work handshake.Work) {
	e.work = append(e.work, func() {
		var s handshake.Step
		if !x.Over() {
			s = work.Run()
		}
		e.conn.WorkedTLS(x, s)
	})
}

func (e *machineEnd) Arrived(int) uint32       { return 0 }
func (e *machineEnd) Unread(int, uint32) bool  { return e.delayed }
func (e *machineEnd) Incast(int) *SocketIncast { return &e.turns }
func (e *machineEnd) Hand(int, []byte)         {}

func (e *machineEnd) NewStream(*streams.Params) *streams.Stream {
	s := new(machineStream)
	s.state.Owner = s
	return &s.state
}

func (e *machineEnd) Look()                 {}
func (e *machineEnd) Looked() time.Duration { return 0 }
func (e *machineEnd) KeepsWhole(int) bool   { return true }
func (e *machineEnd) SocketError(time.Duration) error {
	return nil
}
func (e *machineEnd) OwnSocket() bool { return false }
func (e *machineEnd) Stopped() bool   { return false }

func (e *machineEnd) PublicError(err error) error { return err }
