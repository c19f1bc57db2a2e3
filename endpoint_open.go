package kcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wakeup"
)

// Dial opens a session with the peer at addr; options nil means none. It sends HELLO
// (WIRE.md §5.1) and waits for any answer, unless Config.DialTimeout is negative. Every
// KCP endpoint that accepts sessions answers. After Dial has returned, ctx has no effect
// on the session.
//
// Errors are wrapped in a *net.OpError:
//   - ErrRefused if the peer or its system says that it accepts no sessions;
//   - a *NoAnswerError after Config.DialTimeout, or the deadline of ctx; ctx.Err() if ctx
//     is cancelled;
//   - ErrReset if the peer has dropped the session four times before its answer arrived,
//     or once if options choose the id, without Config.SharedConvs;
//   - ErrNoTLS, ErrTLSRequired, a *HandshakeError;
//   - a *net.AddrError if a UDP socket cannot send to addr, or that is the endpoint's
//     own;
//   - net.ErrWriteToConnected if the UDP socket is connected elsewhere;
//   - ErrTooManySessions if the endpoint has Limits.MaxSessions already;
//   - ErrInUse if the endpoint has a session of the chosen id with that peer or, without
//     SharedConvs, had one within the last minute;
//   - an *OptionError for options that exclude each other; net.ErrClosed.
func (e *Endpoint) Dial(ctx context.Context, addr net.Addr, options *DialOptions) (*Conn, error) {
	var o DialOptions
	if options != nil {
		o = *options
	}
	if err := ctx.Err(); err != nil {
		return nil, opError("dial", e.LocalAddr(), addr, err)
	}
	if err := e.checkAddress(addr); err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.beginsNoMoreLocked() { // another process may have the socket
			err = net.ErrClosed
		}
		return nil, opError("dial", e.LocalAddr(), addr, err)
	}
	if o.SimultaneousOpen {
		c, err := e.openSimultaneously(ctx, addr, &o)
		if err != nil {
			return nil, opError("dial", e.LocalAddr(), addr, err)
		}
		return c, nil
	}
	_, key := addressOf(addr)
	if e.opens.N.Load() > 0 {
		each(e.opens.Claim(key), func(c *Conn) { c.endFor(session.CauseFailed, ErrReset) })
	}
	if o.Conv != nil {
		key.Conv = *o.Conv
	} else {
		key.Conv = e.shared.Env.Uint32()
	}
	c, err := e.dial(ctx, key, addr, o.Conv != nil, o.Quiet)
	if err != nil {
		return nil, opError("dial", e.LocalAddr(), addr, err)
	}
	return c, nil
}

// checkAddress returns an error if the endpoint's socket cannot send to addr, or has it
// itself. A socket that is not one of the system's may take any type of address.
func (e *Endpoint) checkAddress(addr net.Addr) error {
	if addr == nil {
		return &net.AddrError{Err: "missing address"}
	}
	pc := e.socket.shards[0].conn()
	system, open := pc.(*net.UDPConn)
	if _, detached := pc.(*udp.Detached); !open && !detached {
		return nil
	}
	to, ok := addr.(*net.UDPAddr)
	if !ok {
		return &net.AddrError{Err: fmt.Sprintf("a %T, not a *net.UDPAddr", addr), Addr: addr.String()}
	}
	if to == nil || !to.AddrPort().IsValid() {
		return &net.AddrError{Err: "missing address"}
	}
	local, ok := e.LocalAddr().(*net.UDPAddr)
	if ok && local.IP.To4() != nil && to.IP.To4() == nil {
		return &net.AddrError{Err: "non-IPv4 address", Addr: addr.String()}
	}
	if !open {
		return nil // another process has the socket
	}
	if peer, ok := system.RemoteAddr().(*net.UDPAddr); ok && udp.Unmap(peer.AddrPort()) != udp.Unmap(to.AddrPort()) {
		return net.ErrWriteToConnected
	}
	if ok && isOwn(udp.Unmap(local.AddrPort()), udp.Unmap(to.AddrPort())) {
		return errOwnAddress
	}
	return nil
}

// isOwn reports whether what a socket at local sends to an address arrives at itself. It
// does not know which addresses the host has; takeHello finds those.
func isOwn(local, to netip.AddrPort) bool {
	return to == local || to.Port() == local.Port() &&
		(to.Addr().IsUnspecified() || local.Addr().IsUnspecified() && to.Addr().IsLoopback())
}

// maxDials is how many sessions a Dial opens at most, one after the other.
const maxDials = 4

// dial opens a session, and waits for the peer's answer unless quiet. It starts
// over if the peer has dropped the session meanwhile, as an outage of the path was
// longer than a listener waits: with another conversation id, since the peer
// ignores that one for a while.
func (e *Endpoint) dial(ctx context.Context, key session.Key, addr net.Addr, chosen, quiet bool) (*Conn, error) {
	e.holdForDial(1)
	defer e.holdForDial(-1)
	called := e.now()
	for dials := 1; ; dials++ {
		c, err := e.openSession(key, addr, chosen)
		if err != nil {
			return nil, err
		}
		if err = e.connect(ctx, c, quiet, called); err == nil {
			return c, nil
		}
		if err != ErrReset || dials == maxDials || chosen && !e.config.SharedConvs {
			return nil, err
		}
		if !chosen {
			key.Conv = e.shared.Env.Uint32()
		}
	}
}

// connect starts a session that was dialled at a time since the epoch, and waits for the
// peer's answer unless quiet.
func (e *Endpoint) connect(ctx context.Context, c *Conn, quiet bool, called time.Duration) (err error) {
	defer discardIfUnwound(&c)
	e.debug("session dialled", c.RemoteAddr(), c.Conv())
	if quiet {
		c.do(func(s *session.Session) { s.Dial(opening.Quiet) })
	} else {
		err = c.connect(ctx, called)
	}
	c = nil
	return err
}

// discardIfUnwound is deferred while a session begins. It discards the session, unless
// that is nil, as code of the application's has panicked.
func discardIfUnwound(c **Conn) {
	if *c != nil {
		(*c).endFor(session.CauseDiscarded, errUnwound)
	}
}

// holdForDial adds n to the calls of Dial that may still open a session. The
// sockets are not closed meanwhile for lack of sessions.
func (e *Endpoint) holdForDial(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.socket.dials += n
	e.shutIfUnusedLocked()
}

// Admission: packets that belong to no session. Package admission decides on them; what
// it decides is done here.

// initGate prepares the endpoint's gate.
func (e *Endpoint) initGate() {
	c, t := &e.config, &e.table
	t.Init(func(c *Conn) *admission.Entry { return c.session.Place() }, c.Limits.MaxSessionsPerAddress)
	t.Cookies.Random = e.shared.Env
	if t.ResetSecret = c.StatelessResetKey; len(t.ResetSecret) == 0 && c.TLS != nil {
		t.ResetSecret = make([]byte, 32)        // that only this endpoint knows
		_, _ = e.shared.Env.Read(t.ResetSecret) // cannot fail
	}
	t.Hooks = admission.Hooks[Conn]{
		Extended: func(c *Conn) bool { return c.session.Extended() },
		Keys:     func(c *Conn) protect.Protection { return c.session.PacketKeys() },
		Look:     func(c *Conn, now time.Duration) fair.Look { return c.session.Evictable(now) },
		Full:     func(privileged bool) bool { return e.listener.full(privileged) },
	}
	t.Rules = admission.Rules{
		TLS: c.TLS != nil, Authentic: e.shared.Protection.Authentic, Migrates: e.shared.Migrates, SharedConvs: c.SharedConvs,
		RefusesLegacy: refusesLegacy(c, e.shared.Protection), AlwaysValidate: c.AddressValidation == ValidateAlways,
		MaxSessions: c.Limits.MaxSessions, MaxHalfOpen: c.Limits.MaxHalfOpen,
		Protection: e.shared.Protection, Outside: e.shared.Outside, Info: e.shared.InfoSignal(), Random: e.shared.Env, Epoch: e.shared.Epoch,
	}
}

// refusesLegacy reports whether only extended peers may open sessions. An attacker can
// replay the recorded first packets of a legacy session at any time, which would void
// what an authenticating cipher promises.
func refusesLegacy(c *Config, scheme *protect.Scheme) bool {
	switch c.LegacyPeers {
	case LegacyAllow:
		return false
	case LegacyRefuse:
		return true
	}
	return scheme.Authentic
}

// admit handles a packet for which there is no session. It returns the session that the
// packet has opened, or the one that has migrated to the packet's address. A packet is
// judged three times at most.
func (e *Endpoint) admit(key session.Key, p *session.InPacket, now time.Duration) (c *Conn) {
	first := e.table.Read(key, p.Kind, &p.Packet, p.Size)
	var o *simultaneousOpen // that the packet opens a session for; nil: none
	if e.opens.N.Load() > 0 {
		var done bool
		if c, o, done = e.meet(&first, p, now); done {
			return c
		}
	}
	for {
		e.mu.Lock()
		l := e.listener
		v := e.table.Judge(&first, admission.State{Listening: l != nil, Closed: e.closed}, now)
		if a := &v.Answer; a.Size > 0 {
			e.queueReplyLocked(p.From, a.By, a.Content[:a.Size])
		}
		e.mu.Unlock()
		if v.Drop|v.Note != 0 {
			e.shared.Counters.Count(v.Drop, v.Note)
		}
		if v.Note == admission.ResetSent {
			a := e.table.StatelessReset(&first, e.LocalAddr().String(), now)
			e.mu.Lock()
			e.queueReplyLocked(p.From, a.By, a.Content[:a.Size])
			e.mu.Unlock()
		}
		switch v.Do {
		case admission.Ask:
			if c, first.Claimed = e.ask(&v, &first, p, now); c != nil {
				return c
			}
			continue
		case admission.Unseal:
			if why, ok := first.Unseal(); !ok {
				e.shared.Counters.Count(why)
				return nil
			}
			p.Kind = first.Kind
			continue
		case admission.Open:
			c = e.openAccepted(&v, &first, p, l, o, now)
		}
		if v.Unsealed {
			e.shared.Counters.HandshakeErrors.Add(1)
			e.reportHandshake(p.From.NetAddr(), &HandshakeError{Err: handshake.UnsealedError()})
		}
		if v.Session != nil {
			c = v.Session
		}
		if c == nil && v.Seen { // otherwise the session records it
			e.shared.Outside.Fresh(&p.Packet, true)
		}
		return c
	}
}

// ask asks sessions whose peers may have moved whether a packet is of one of them. It
// returns the session that has moved to the packet's address. claimed reports whether
// one takes the packet.
//
// A packet number identifies its session. Without one, a session that the peer has
// abandoned would claim the packet: a peer whose address changes during the handshake
// leaves such a session behind. So those with a number come first.
func (e *Endpoint) ask(v *admission.Verdict[Conn], first *admission.First, p *session.InPacket, now time.Duration) (to *Conn, claimed bool) {
	for _, numbered := range []bool{true, false} {
		for _, c := range v.Asked {
			if c == nil {
				break
			}
			var mine, moved bool
			if v.Question == admission.AskSealed {
				mine, moved = e.sealedFromNewAddress(c, p, now)
			} else {
				mine, moved = c.claims(session.Question{What: v.Question, First: first, Shown: v.Shown, Numbered: numbered}, p, now)
			}
			if moved {
				return c, true
			} else if mine {
				return nil, true
			}
		}
		if v.Question != admission.AskPacket {
			break
		}
	}
	return nil, false
}

// sealedFromNewAddress is claims for a packet under the application keys of
// c, which it opens. mine reports whether it does open.
func (e *Endpoint) sealedFromNewAddress(c *Conn, p *session.InPacket, now time.Duration) (mine, moved bool) {
	q := *p
	q.Data = bytes.Clone(p.Data) // a packet that does not open is destroyed
	if e.shared.Open(c.session.PacketKeys(), &q) != nil || q.Kind == session.SealedPacket {
		return false, false
	}
	if _, moved = c.claims(session.Question{What: admission.AskPacket, Numbered: true}, &q, now); moved {
		*p = q
	}
	return true, moved
}

// openAccepted opens a session for the first packet of a conversation, unless the
// endpoint has changed since the verdict. It returns the session of the packet.
func (e *Endpoint) openAccepted(v *admission.Verdict[Conn], first *admission.First, p *session.InPacket, l *Listener, o *simultaneousOpen, now time.Duration) *Conn {
	if v.Evicted != nil {
		v.Evicted.endFor(session.CauseEvicted, nil)
	}
	var dropped *Conn
	defer func() {
		if dropped != nil {
			dropped.endFor(session.CauseFailed, ErrReset)
		}
	}()
	// It calls Config.CongestionControl, the caller's own code: not under the lock.
	remote := p.From.NetAddr()
	c := newConn(e, first.Key, remote, false)
	c.session.Accept(first, p, v.Validated)
	e.mu.Lock()
	switch other := e.table.Get(first.Key); {
	case other != nil: // another reader has opened the session first
		e.mu.Unlock()
		return other
	case e.closed || o == nil && (e.listener != l || e.table.Len() >= e.config.Limits.MaxSessions):
		e.mu.Unlock()
		return nil
	}
	if o != nil {
		at, ok := first.Key, false
		at.Conv = 0
		if dropped, ok = o.Add(c, at, helloOf(first)); !ok {
			e.mu.Unlock()
			return nil
		}
	}
	if !v.Validated {
		e.shared.Load.HalfOpen.Add(1)
	} else {
		e.table.SetValidated(c)
	}
	e.table.SetShaking(c, first.Keys != nil)
	e.addLocked(c)
	e.table.tally.accepted++
	e.mu.Unlock()
	unbegun := c
	defer discardIfUnwound(&unbegun)
	e.debug("session opened", remote, first.Key.Conv)
	began := c.begin(l, v.Offers && o == nil)
	if unbegun = nil; !began {
		return nil
	}
	return c
}

// Sockets that somebody else may use, too: sockets of NewEndpoint. Their owners may
// set read deadlines, their reads may not be interruptible, and their errors may
// last. None of it must leave a call waiting forever.

// closeWait is how long Endpoint.Close waits for writes in progress, and for the
// readers of a socket that it does not close.
const closeWait = time.Second

// interrupt ends the read of the call that reads the socket: it returns with a
// time-out. The owner of a socket may set another deadline before the call has
// noticed, so the interrupt is repeated until the call has left its turn.
func (s *shard) interrupt() {
	s.expire()
	if s.foreign {
		s.lead.Insist(s.expire)
	}
}

// expire makes a read in progress return with a time-out, or else the next one.
func (s *shard) expire() {
	s.asked.Store(true)
	_ = s.link.Load().SetReadDeadline(longAgo())
}

// longAgo returns a deadline that has passed.
func longAgo() time.Time { return time.Unix(1, 0) }

// interrupted reports whether err is a read deadline that has passed, which it
// clears: the one of interrupt, or one that the owner of the socket has set. It does
// not clear the one that stopReaders sets. A socket that returns time-outs
// without end is not interrupted.
func (e *Endpoint) interrupted(s *shard, err error) bool {
	if !neterr.TimedOut(err) || e.stopped() {
		return false
	}
	if !s.failures.TimedOut(s.asked.Swap(false), e.now()) {
		return false
	}
	_ = s.link.Load().SetReadDeadline(time.Time{})
	if e.stopped() { // that deadline may have been set just before it was cleared above
		_ = s.link.Load().SetReadDeadline(longAgo())
		return false
	}
	return true
}

// survives handles a read error, and reports whether the socket can still be
// read. Most errors concern one packet, such as an ICMP message about one sent
// before. A closed socket is final. So are errors of a net.PacketConn that last
// for neterr.LastingErrors, unless the system reports them. From neterr.ManyFailures
// errors in a row on it pauses, 1 ms at first and up to 100 ms.
func (e *Endpoint) survives(s *shard, err error) bool {
	if e.stopped() {
		return false
	}
	if errors.Is(err, net.ErrClosed) {
		e.shut(errSocketClosed)
		return false
	}
	e.shared.Counters.ReadErrors.Add(1)
	e.noteSocketError(err)
	e.refused(err)
	e.troubled(err)
	e.warn("socket read failed", err)
	wait, last := s.failures.Failed(err, e.now())
	if last {
		e.shut(&SocketError{err})
	}
	if last || wait == 0 {
		return !last
	}
	pause := time.NewTimer(wait)
	defer pause.Stop()
	select {
	case <-pause.C:
		return true
	case <-e.socket.done:
		return false
	}
}

// refused handles ECONNREFUSED: the system reports that no socket is open at
// the address that this one is connected to. It ends the sessions that wait for
// a first answer, and those that wait only for the answer to CLOSE.
func (e *Endpoint) refused(err error) {
	if !neterr.PortUnreachable(err) {
		return
	}
	e.mu.RLock()
	var waiting []*Conn
	if e.socket.connected {
		waiting = e.table.Sessions()
	}
	e.mu.RUnlock()
	each(waiting, func(c *Conn) { c.endFor(session.CauseRefused, nil) })
}

// stopReaders makes the readers end. It closes owned sockets, and sets a read
// deadline in the past on the others.
func (e *Endpoint) stopReaders() {
	e.takeover.Before.Close()
	for i := range e.socket.shards {
		s := &e.socket.shards[i]
		s.lead.Stop()
		link := s.link.Load()
		if e.socket.owned {
			_ = link.Conn.Close()
		}
		if !e.socket.owned || link.Inbox != nil {
			_ = link.SetReadDeadline(longAgo())
		}
	}
}

// awaitReaders waits until no reader uses the sockets any more, which are not
// owned. It reports false after closeWait. It repeats the deadline of
// stopReaders, which the owner of a socket may have replaced.
func (e *Endpoint) awaitReaders() bool {
	ended := make(chan struct{})
	go func() {
		e.socket.readers.Wait()
		close(ended)
	}()
	limit := time.NewTimer(closeWait)
	defer limit.Stop()
	for wait := wakeup.Soon; ; wait = min(2*wait, wakeup.Late) {
		again := time.NewTimer(wait)
		select {
		case <-ended:
			again.Stop()
			return true
		case <-limit.C:
			again.Stop()
			return false
		case <-again.C:
			e.stopReaders()
		}
	}
}

// releaseSockets waits for the readers, and restores the options and the read
// deadline of sockets that the caller owns. If a read does not end, the deadline
// is restored nevertheless, and the rest is left to the reader's end.
func (e *Endpoint) releaseSockets() error {
	ended := e.awaitReaders()
	var errs []error
	for i := range e.socket.shards {
		s := &e.socket.shards[i]
		if ended && s.link.Load().Inbox == nil { // else it is another process's to set
			errs = append(errs, s.sock().Release())
		}
		errs = append(errs, s.conn().SetReadDeadline(time.Time{}))
	}
	if !ended {
		return opError("close", nil, e.LocalAddr(), errReadPending)
	}
	return errors.Join(errs...)
}
