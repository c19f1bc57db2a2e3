package session

import (
	"crypto/tls"
	"net"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
)

// TLS 1.3 of a session (WIRE.md §8). crypto/tls makes the handshake, through the
// interface that it has for QUIC (RFC 9001), and its secrets protect the packets.
// Until both ends have them, the state machine neither sends nor receives:
// internal/handshake exchanges HELLO, WELCOME and the bytes of the handshake beside
// it. This file connects that to the session: its packets, timers and end.

// CapTLS in INFO announces that the sender speaks TLS, and nothing else.
const CapTLS = handshake.CapTLS

// FailedTime is how long an accepted session goes on to tell its peer that the
// handshake has failed.
const FailedTime = 3 * time.Second

// tlsState is what a session with TLS has besides. Conn.mu guards it, except
// reset.Theirs, which is atomic.
type tlsState struct {
	app       *protect.TLS        // of the session's packets; immutable
	handshake *handshake.Exchange // nil once the handshake is over and settled
	reset     protect.ToldKeys

	// ended is the protection of the handshake of an accepted session that has
	// ended within it: its peer is told under these keys. nil: none.
	ended *protect.TLS

	secured *securedState // nil before the handshake is done
}

// securedState is what a TLS handshake has agreed on, for the application.
type securedState struct {
	state tls.ConnectionState
	bytes int // of memory of the peer's certificates
}

// protect sets the protection that a session begins with. No other goroutine has c yet.
func (c *Session) protect() {
	c.in.protection.Store(&c.shared.Protection.Outside)
	if p, app, keys := c.shared.Protection.Session(c.entry.Conv); app != nil {
		c.in.protection.Store(&p)
		c.tls = &tlsState{app: app, handshake: handshake.NewExchange(c.entry.Conv, c.shared.Config.TLS, app, keys)}
		c.hs.securing = true
	}
}

// tlsHandshake returns the state of the handshake; nil without TLS, and once it
// is settled.
func (c *Session) tlsHandshake() *handshake.Exchange {
	if c.tls == nil {
		return nil
	}
	return c.tls.handshake
}

// dialTLS begins the handshake of a dialled session. HELLO leaves with what TLS
// has to say.
func (c *Session) dialTLS() {
	c.hs.Of(opening.Hello).Signal = wire.Signal{Code: wire.Hello, SN: 0, TS: c.hs.token} // the session is not silent any more
	config := c.shared.Config.TLS
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName = ServerName(c.ends.Load().remote.String())
	}
	if c.rare != nil {
		c.tls.handshake.Tie = c.rare.tie
	}
	c.tls.handshake.Dial(config, c.hs.token, c.infoSignal())
	c.advanceTLS()
}

// ServerName returns the host of an address, which a certificate has to name.
func ServerName(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// PacketKeys returns what opens packets under keys of the session; nil: there are none.
// It needs no lock.
func (c *Session) PacketKeys() protect.Protection { return protect.KeysOf(*c.in.protection.Load()) }

// ResetBy reports whether a packet that did not open is a stateless reset of the
// peer of a session with TLS. It needs no lock.
func (c *Session) ResetBy(packet []byte) bool { return c.tls != nil && c.tls.reset.By(packet) }

// advanceTLS runs TLS if something has arrived for it. That may take milliseconds,
// and calls callbacks of the application's tls.Config: so it is done on a goroutine
// of its own, without locks, when it is the turn of the peer's network. Addresses that
// are not validated share one turn, as anybody may have forged them.
func (c *Session) advanceTLS() {
	x := c.tlsHandshake()
	if x == nil || c.closing.Phase >= closing.Ended {
		return
	}
	var r handshake.Result
	work, ok := x.Next(&r)
	if ok {
		var from fair.Block
		if !c.hs.unvalidated.Load() {
			from = c.entry.Key().Block()
		}
		c.host.WorkTLS(from, x, work.For(from.Subnet, c.host.Now(), &c.shared.dear))
	}
	c.tookHandshake(x, &r)
}

// WorkedTLS takes what work of TLS has come to.
func (c *Session) WorkedTLS(x *handshake.Exchange, s handshake.Step) {
	var r handshake.Result
	if !x.Worked(s, &r) {
		if c.closing.Phase < closing.Ended {
			c.account()
		}
		return
	}
	now := c.host.Now()
	c.setClock(now)
	c.tookHandshake(x, &r)
	if l := &c.hs; !x.Failed && l.Unanswered&opening.Hello == 0 && x.Unacknowledged() {
		l.Start(opening.Hello, wire.Signal{Code: wire.Hello, SN: 0, TS: l.token}, now, c.firstHello())
		l.Sent(opening.Hello, now, opening.MaxWait)
		c.live.Asked(now)
	}
	if r.Completed != nil {
		c.securedTLS(r.Completed, now)
	}
	c.inputEarly(x, now)
	c.advanceTLS()
	c.Respond(now, c.step.woken)
}

// inputHandshake takes a packet of the handshake, in the clear or under the
// handshake keys, or one that came before its keys. It reports whether that may
// have changed anything.
func (c *Session) inputHandshake(p *InPacket, now time.Duration) (changed bool) {
	x := c.tlsHandshake()
	if x == nil {
		c.shared.Counters.DropHandshake.Add(1)
		return false
	}
	c.step.inputAt = now
	credited := c.credit(p)
	peer := handshake.Peer{Waiting: c.hs.Unanswered&opening.Hello != 0, Unvalidated: c.hs.unvalidated.Load(), Room: machine.UnvalidatedBytes}
	peer.Pressed = c.memoryPressure() == machine.PressureHigh
	var r handshake.Result
	changed = x.Input(handshake.Kind(p.Kind-clearPacket), &p.Packet, peer, &r)
	c.tookHandshake(x, &r)
	c.advanceTLS()
	return changed || credited // what waits for that may leave
}

// tookHandshake takes what a packet, or TLS, has brought about.
func (c *Session) tookHandshake(x *handshake.Exchange, r *handshake.Result) {
	l := &c.hs
	if r.Dropped > 0 {
		c.shared.Counters.DropHandshake.Add(1)
	}
	if r.Damaged > 0 {
		c.shared.Counters.DropCipher.Add(1)
	}
	if r.PeerToken != 0 {
		l.peerToken = r.PeerToken
	}
	if r.Validated {
		c.addressValidated()
	}
	if r.Cookie.Code != 0 {
		c.takeOutside(r.Cookie)
		x.Cookie = l.cookie
	}
	switch {
	case r.End == handshake.Reset:
		c.closing.ending = ErrReset
	case r.End == handshake.NoTLS:
		c.closing.ending = handshake.ErrNoTLS
	case r.End == handshake.Refused && l.Role != opening.Quiet && !c.rare.simultaneous(): // else the peer may come later
		c.closing.ending = ErrRefused
	case r.End == handshake.BothDial:
		l.Peer, l.dropped = opening.Extended, true // TIME-WAIT answers its HELLO by ABORT
		c.closing.ending = c.rare.bothDial(false)
	}
	if r.Failed != nil {
		c.failTLS(x, &HandshakeError{Remote: r.Remote, Err: r.Failed})
	}
}

// failTLS records that the handshake has failed: the peer gets an alert. A
// dialled session ends. An accepted one goes on for some time to repeat the alert.
func (c *Session) failTLS(x *handshake.Exchange, failed *HandshakeError) {
	err := c.host.PublicError(failed)
	c.shared.Counters.HandshakeErrors.Add(1)
	x.FailedAt = c.host.Now()
	c.sendFlight()
	c.hs.Unanswered &^= opening.Hello
	if c.hs.Role < opening.Dialled {
		c.step.left.Failed = err
	}
	if c.hs.Role >= opening.Dialled || failed.Remote {
		c.closing.ending = err
	}
}

// securedTLS begins the session proper: TLS is done. The peer's INFO counts now,
// and with it the window that every peer with signals has at least.
func (c *Session) securedTLS(by *handshake.Completed, now time.Duration) {
	c.tls.secured = &securedState{by.State, handshake.CertificateBytes(&by.State)}
	c.hs.securing = false
	c.live.Heard(now)
	c.hs.Peer = max(c.hs.Peer, opening.Extended)
	c.greetTLS(by.Asked, now)
	b := make([]byte, wire.HeaderSize)
	by.Info.Encode(wire.Header{Conv: c.entry.Conv, Wnd: machine.MinRcvWnd}, b)
	_, _ = c.kcp.Feed(b, machine.Arrival{}) // cannot fail: una is as in a session without data
}

// greetTLS takes the place of WELCOME and CONFIRM in the clear. The dialling end
// asks the other to confirm the session. If that has asked for a certificate,
// Dial waits until it has taken it. The listening end shows that it is there.
func (c *Session) greetTLS(asked bool, now time.Duration) {
	l := &c.hs
	l.greeted.Store(true)
	if l.Role >= opening.Dialled {
		l.Peer, l.Of(opening.Finish).Signal.TS = opening.Welcomed, l.peerToken
		l.Start(opening.Confirm, wire.Signal{Code: wire.Confirm, SN: l.peerToken, TS: l.token}, now, c.requestWait())
		if !asked {
			c.noteReached()
		}
		return
	}
	c.addressValidated()
	c.queueAnswer(c.infoSignal())
}

// inputEarly inputs the packets whose keys have become known, and keeps the others.
func (c *Session) inputEarly(x *handshake.Exchange, now time.Duration) {
	for _, packet := range x.Early() {
		p := InPacket{Packet: protect.Packet{Data: packet}, From: c.origin(), Conv: c.entry.Conv, Kind: handshakePacket}
		if protect.LevelOf(packet) == protect.Application {
			p.Kind = SealedPacket
			if !c.hs.securing && c.shared.Open(c.tls.app, &p) != nil {
				continue
			}
		}
		if c.closing.Phase < closing.Ended {
			packets, bytes := c.in.packets, c.in.bytes
			c.inputPacket(&p, now)
			c.in.packets, c.in.bytes = packets, bytes // it was counted when it came
		}
	}
}

// takeSecured records a packet under the application keys. It reports
// whether the packet is of the handshake, and not for the state machine.
func (c *Session) takeSecured(p *InPacket) bool {
	x, is := c.tls.handshake, p.Kind == PlainPacket && wire.IsCrypto(p.Data)
	switch {
	case x != nil:
		x.Prove()
		if is {
			var r handshake.Result
			x.Ticket(p.Data, &r)
			c.tookHandshake(x, &r)
			c.advanceTLS()
		}
	case is: // again: the acknowledgement was lost
		if una, ok := handshake.TicketEnd(p.Data, p.Conv); ok {
			again := c.shared.Packet(handshake.AckSize(c.tls.app))
			c.queueFlight(again, handshake.PutAck(again.Buf, c.tls.app, p.Conv, una))
		}
	}
	return is
}

// sendFlight sends the packets of the handshake that wait, as far as the
// anti-amplification limit permits.
func (c *Session) sendFlight() {
	x := c.tls.handshake
	for size := x.Pending(); size > 0; size = x.Pending() {
		if !c.kcp.Validation().Take(size) {
			if !x.Skip() {
				c.path.blocked = true
				return
			}
			continue
		}
		p := c.shared.Packet(size)
		if !c.queueFlight(p, x.Put(p.Buf)) {
			return
		}
	}
}

// queueFlight queues a packet of the handshake for the socket if it was sealed.
func (c *Session) queueFlight(p Packet, sealed bool) bool {
	if !sealed {
		packetBuffers.Put(p.pooled)
		return false
	}
	p.ready = true
	p.repeats = max(c.hs.Of(opening.Hello).Tries, 1) - 1
	c.outgoing.add(p)
	c.kcp.RateCap().Charge(len(p.Buf))
	return true
}

// abortTLS sends ABORT under the handshake keys, as far as the anti-amplification limit
// permits.
func (c *Session) abortTLS(abort wire.Signal) {
	x := c.tlsHandshake()
	if x == nil || !x.Protection.Keys.Seals() {
		return
	}
	head, tail := x.Protection.Overhead()
	if size := head + wire.HeaderSize + tail; c.kcp.Validation().Take(size) {
		p := c.shared.Packet(size)
		abort.Encode(wire.Header{Conv: c.entry.Conv, Wnd: machine.MinRcvWnd}, p.Buf[head:])
		c.queueFlight(p, x.Protection.Seal(p.Buf, nil) == nil)
	}
}

// repeatFlight sends what is not acknowledged again.
func (c *Session) repeatFlight(now time.Duration) {
	l, x := &c.hs, c.tlsHandshake()
	if x == nil {
		l.Unanswered &^= opening.Hello
		return
	}
	l.Sent(opening.Hello, now, opening.MaxWait)
	c.live.Asked(now)
	if !x.Repeat(int(l.Of(opening.Hello).Tries)) {
		l.Unanswered &^= opening.Hello
		return
	}
	c.sendFlight()
}

// settleTLS drops the state of a handshake that is over.
func (c *Session) settleTLS() {
	repeats, over := c.tls.handshake.Settle(c.hs.Confirmed)
	if !repeats {
		c.hs.Unanswered &^= opening.Hello
	}
	if over {
		c.closeTLS()
	}
}

// closeTLS drops the state of the handshake, also of one that has not completed.
func (c *Session) closeTLS() {
	t := c.tls
	if t == nil {
		return
	}
	x := t.handshake
	if c.closing.Phase >= closing.Ended {
		t.app.Compact() // it remains for TIME-WAIT
		if t.secured != nil {
			t.secured.bytes = 0 // they last as long as the application has c
		}
		if x != nil && c.hs.Role < opening.Dialled && x.Protection.Keys.Opens() && !t.app.Keys.Opens() {
			t.ended = x.Protection
			t.ended.Compact()
		}
	}
	if x != nil {
		t.handshake = nil
		x.Close()
		c.step.left.Ready |= Shaken
	}
}

// tlsExpires returns when a handshake is given up at this end; 0: never. Dial has
// a time-out of its own.
func (c *Session) tlsExpires() time.Duration {
	switch x := c.tlsHandshake(); {
	case x == nil || c.hs.Role >= opening.Dialled:
		return 0
	case x.Failed:
		return x.FailedAt + FailedTime
	case !x.Done:
		return c.hs.born + HandshakeTime
	}
	return 0
}

// Stateless reset of sessions with TLS (RFC 9000 §10.3, WIRE.md §8.6): each end
// tells the other, under the application keys, how it will know a reset. How an
// endpoint without the session makes one is in admission/answer.go.

// ResetKeyWithin is how soon after the begin of a dialled session the peer has to
// tell its key, or the key does not count. TIME-WAIT is longer. So an attacker
// that holds back HELLO cannot have held a session of its own in its place, from
// the same address and with the same conversation id, to learn the key.
const ResetKeyWithin = TimeWaitTime / 2

// tellResetKey queues RESETKEY, the key by which the peer knows a stateless reset
// of this endpoint. It goes with CONFIRM and the answer to it, one of which is
// repeated until it arrives.
func (c *Session) tellResetKey() {
	if c.tls == nil {
		return
	}
	if c.tls.reset.Ours == nil {
		c.tls.reset.Ours = c.host.ResetKey()
	}
	if k := c.tls.reset.Ours; k != nil {
		c.queueAnswer(wire.Signal{Code: wire.ResetKey, SN: k.Since, TS: k.Mask})
	}
}

// resetKeyPayload returns the payload of RESETKEY.
func (c *Session) resetKeyPayload() []byte {
	if c.tls == nil || c.tls.reset.Ours == nil {
		return nil
	}
	return c.tls.reset.Ours.Key[:]
}

// renewResetKey tells the peer another key, as keys depend on its address.
func (c *Session) renewResetKey() {
	if c.tls != nil {
		c.tls.reset.Ours = nil
		c.tellResetKey()
	}
}

// noteResetKey takes the peer's RESETKEY.
func (c *Session) noteResetKey(s wire.Signal, payload []byte) {
	if c.tls == nil || len(payload) != protect.ResetKeySize {
		return
	}
	reset := &c.tls.reset
	if c.hs.Role >= opening.Dialled && reset.Theirs.Load() == nil && c.step.inputAt-c.hs.born > ResetKeyWithin {
		return
	}
	k := &protect.ToldKey{Since: s.SN}
	k.Key, k.Mask = [protect.ResetKeySize]byte(payload), s.TS
	if old := reset.Theirs.Load(); old == nil || *old != *k {
		reset.Theirs.Store(k)
	}
}
