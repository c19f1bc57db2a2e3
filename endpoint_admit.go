package kcp

import (
	"bytes"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
)

// Admission: packets that belong to no session. Package admission decides on them; what
// it decides is done here.

// initGate prepares the endpoint's gate.
func (e *Endpoint) initGate() {
	c, t := &e.config, &e.table
	t.Init(func(c *Conn) *admission.Entry { return c.session.Place() }, c.Limits.MaxSessionsPerAddress)
	t.Cookies.Random = e.Env
	if t.ResetSecret = c.StatelessResetKey; len(t.ResetSecret) == 0 && c.TLS != nil {
		t.ResetSecret = make([]byte, 32) // that only this endpoint knows
		_, _ = e.Env.Read(t.ResetSecret) // cannot fail
	}
	t.Hooks = admission.Hooks[Conn]{
		Extended: func(c *Conn) bool { return c.session.Extended() },
		Keys:     func(c *Conn) protect.Protection { return c.session.PacketKeys() },
		Look:     func(c *Conn, now time.Duration) fair.Look { return c.session.Evictable(now) },
		Full:     func(privileged bool) bool { return e.listener.full(privileged) },
	}
	t.Rules = admission.Rules{
		TLS: c.TLS != nil, Authentic: e.Protection.Authentic, Migrates: e.Migrates, SharedConvs: c.SharedConvs,
		RefusesLegacy: refusesLegacy(c, e.Protection), AlwaysValidate: c.AddressValidation == ValidateAlways,
		MaxSessions: c.Limits.MaxSessions, MaxHalfOpen: c.Limits.MaxHalfOpen,
		Protection: e.Protection, Outside: e.Outside, Info: session.HandshakeSignal(e.InfoSignal()), Random: e.Env, Epoch: e.Epoch,
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
			e.Counters.Count(v.Drop, v.Note)
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
				e.Counters.Count(why)
				return nil
			}
			p.Kind = first.Kind
			continue
		case admission.Open:
			c = e.openAccepted(&v, &first, p, l, o, now)
		}
		if v.Unsealed {
			e.Counters.HandshakeErrors.Add(1)
			e.reportHandshake(p.From.NetAddr(), &HandshakeError{Err: handshake.UnsealedError()})
		}
		if v.Session != nil {
			c = v.Session
		}
		if c == nil && v.Seen { // otherwise the session records it
			e.Outside.Fresh(&p.Packet, true)
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
	if e.Open(c.session.PacketKeys(), &q) != nil || q.Kind == session.SealedPacket {
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
		e.Load.HalfOpen.Add(1)
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
