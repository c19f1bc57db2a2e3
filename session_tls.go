package kcp

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/packetkeys"
	"github.com/arqnet/kcp/internal/protect"
)

// TLS 1.3 of a session (WIRE.md §8). crypto/tls makes the handshake, through the
// interface that it has for QUIC (RFC 9001), and its secrets protect the packets.
// Until both ends have them, the state machine neither sends nor receives: this
// file and session_tls_flight.go exchange HELLO, WELCOME and the bytes of the
// handshake beside it.

// capTLS in INFO announces that the sender speaks TLS, and nothing else.
const capTLS = 2

const (
	// maxClientHello is the longest ClientHello that a server reads, in bytes.
	maxClientHello = 16 << 10
	// maxPeerFlight is how many bytes a peer's messages under the handshake keys
	// may have, most of which are its certificates. crypto/tls would take four
	// times as many.
	maxPeerFlight = 64 << 10
	// maxTLSAhead is how far beyond what TLS has read handshake bytes are held.
	maxTLSAhead = 64 << 10
	// maxTLSHeld is how much memory of each stream is held until TLS has read
	// it, as buffers are larger than what is in them.
	maxTLSHeld = 2 * maxTLSAhead
	// maxEarly and maxEarlyBytes bound the packets that are held until their
	// keys are known; the first quarter of the packets is for an address that
	// is not validated.
	maxEarly      = 32
	maxEarlyBytes = 64 << 10
	// earlyEntry is what such a packet takes beside its bytes.
	earlyEntry = 24
	// handshakeBytes is what a handshake in progress takes beside what the peer
	// sends and what it is sent: the state and the goroutine of crypto/tls.
	handshakeBytes = 40 << 10
	// failedTime is how long an accepted session goes on to tell its peer that
	// the handshake has failed.
	failedTime = 3 * time.Second
	// ticketTries is how often a ticket is sent that the client does not
	// acknowledge.
	ticketTries = 6
)

// tlsState is what a session with TLS has besides. Conn.mu guards it, but for
// reset.theirs, which is atomic, and what says so.
type tlsState struct {
	app       *protect.TLS  // of the session's packets; immutable
	handshake *tlsHandshake // nil once the handshake is over and settled
	reset     resetKeys

	// ended is the protection of the handshake of an accepted session that has
	// ended within it: its peer is told under these keys. nil: none.
	ended *protect.TLS

	secured *securedState // nil before the handshake is done, and in TIME-WAIT
}

// securedState is what a TLS handshake has agreed on, for the application.
type securedState struct {
	state tls.ConnectionState
	bytes int // of memory of the peer's certificates
}

// tlsHandshake is the state of a TLS handshake. Conn.mu guards it, but for tls
// while working is set.
type tlsHandshake struct {
	tls     *handshake.TLS      // nil before it has started
	initial *packetkeys.Initial // nil before the dialling end's token is known
	keys    *protect.TLS        // of the level Handshake
	streams [handshake.Levels]handshake.Stream
	info    signal   // the peer's INFO as it came in the clear
	early   [][]byte // packets under keys that are not known yet
	held    int      // bytes of early as allocated
	alert   signal   // tells the peer that the handshake has failed; code 0: it has not

	failedAt time.Duration // when it failed, since the epoch
	plain    uint8         // answers of a peer without TLS
	working  bool          // a goroutine runs TLS
	greeted  bool          // the peer's WELCOME has arrived
	done     bool          // TLS is done
	proven   bool          // dialled: a packet under the peer's application keys has arrived
	tickets  bool          // the client takes tickets, and the server sends them
	ticketed bool          // the ticket has been handled
}

// protect sets the protection that a session begins with. No other
// goroutine has c yet.
func (c *Conn) protect() {
	scheme := c.ep.protection
	var app *protect.TLS
	if c.in.protection, app = scheme.Session(c.entry.Conv); app != nil {
		c.tls = &tlsState{app: app, handshake: &tlsHandshake{keys: scheme.Handshake(c.entry.Conv)}}
		c.hs.securing = true
	}
}

// tlsHandshake returns the state of the handshake; nil without TLS, and once it
// is settled.
func (c *Conn) tlsHandshake() *tlsHandshake {
	if c.tls == nil {
		return nil
	}
	return c.tls.handshake
}

// securing reports whether packets of the state machine cannot be sent yet, as
// the keys for them are not agreed on.
func (c *Conn) securing() bool { return c.hs.securing }

// ConnectionState is how a session is secured. It is a type of this package
// because programs such as net/http take every connection for TLS that has a
// method ConnectionState() tls.ConnectionState.
type ConnectionState struct {
	// TLS is what the TLS handshake has agreed on, such as the certificates of
	// the peer and the application protocol. It is nil without Config.TLS, and
	// before the handshake is done.
	TLS *tls.ConnectionState
}

// ConnectionState returns how the session is secured. Sessions from Accept, and
// from a Dial that has waited, have completed their handshake.
func (c *Conn) ConnectionState() ConnectionState {
	c.mu.Lock()
	defer c.mu.Unlock()
	var secured *securedState
	if c.tls != nil {
		secured = c.tls.secured
	}
	if secured == nil && c.rare != nil {
		secured = c.rare.secured
	}
	if secured == nil {
		return ConnectionState{}
	}
	state := secured.state
	return ConnectionState{TLS: &state}
}

// dialTLS begins the handshake of a dialled session. HELLO leaves with what TLS
// has to say.
func (c *Conn) dialTLS() {
	c.hs.hello.signal = signal{sigHello, 0, c.hs.token} // the session is not silent any more
	config := c.ep.config.TLS
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName = serverName(c.path.remote.String())
	}
	h := c.tlsHandshake()
	h.initial = packetkeys.NewInitial(c.entry.Conv, c.hs.token, true)
	h.tls = handshake.Client(config, c.tlsParams().encode())
	c.runTLS(h, true, nil)
}

// serverName returns the host of an address, which a certificate has to name.
func serverName(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// advanceTLS runs TLS if something has arrived for it.
func (c *Conn) advanceTLS() {
	h := c.tlsHandshake()
	if h == nil || h.working || h.alert.code != 0 || c.closing.state == stateEnded {
		return
	}
	if h.tls == nil {
		hello := h.streams[handshake.Initial].Available()
		whole, ok := wholeClientHello(hello)
		if !ok {
			c.failTLS(&HandshakeError{Err: tls.AlertError(alertDecodeError)})
		}
		if whole && ok {
			h.tls = handshake.Server(c.ep.config.TLS, c.tlsParams().encode())
			c.runTLS(h, true, h.streams[handshake.Initial].Read())
		}
		return
	}
	if h.done && !c.hs.dialled {
		return // no message of a client follows its Finished
	}
	if data := h.streams[h.tls.Reads()].Read(); data != nil {
		c.runTLS(h, false, data)
	}
}

// wholeClientHello reports whether b begins with a whole ClientHello. ok is
// false if it cannot be one, or is too long.
func wholeClientHello(b []byte) (whole, ok bool) {
	const typeClientHello, head = 1, 4
	if len(b) == 0 {
		return false, true
	}
	if b[0] != typeClientHello {
		return false, false
	}
	if len(b) < head {
		return false, true
	}
	n := int(b[1])<<16 | int(b[2])<<8 | int(b[3])
	return len(b) >= head+n, n <= maxClientHello-head
}

// runTLS starts TLS, or passes data to it, or both. That may take milliseconds,
// and calls callbacks of the application's tls.Config: so it is done on a
// goroutine of its own, without locks.
func (c *Conn) runTLS(h *tlsHandshake, start bool, data []byte) {
	h.working = true
	ticket := h.tickets && !c.hs.dialled
	go c.workTLS(h, start, data, ticket)
}

// workTLS is the goroutine of runTLS. It locks c.mu once TLS has returned.
func (c *Conn) workTLS(h *tlsHandshake, start bool, data []byte, ticket bool) {
	c.ep.repeat.wait(c.entry.Conv, rankTLS)
	var s handshake.Step
	if start {
		s = h.tls.Start()
	}
	if s.Err == nil && len(data) > 0 {
		first := s
		s = h.tls.Handle(data)
		for l := range s.Out {
			s.Out[l] = append(first.Out[l], s.Out[l]...)
		}
	}
	if s.Err == nil && s.Done && ticket {
		if t := h.tls.SendTicket(); t.Err == nil { // without a ticket the client cannot resume
			s.Out[handshake.Application] = t.Out[handshake.Application]
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h.working = false
	if c.closing.state == stateEnded {
		h.tls.Close()
		return
	}
	if h.alert.code != 0 { // it has failed meanwhile
		h.drop()
		c.account()
		return
	}
	now := c.ep.now()
	c.setClock(now)
	c.tookStep(h, s, now)
	c.inputEarly(h, now)
	c.advanceTLS()
	c.respondLocked(now)
}

// tookStep takes what TLS has brought about.
func (c *Conn) tookStep(h *tlsHandshake, s handshake.Step, now time.Duration) {
	err := s.Err
	if err == nil && s.Params != nil {
		err = c.checkParams(s.Params)
	}
	for _, secret := range s.Secrets {
		if err == nil {
			err = c.takeSecret(h, secret)
		}
	}
	for l, out := range s.Out {
		if err == nil && len(out) > 0 && !h.streams[l].Write(out) {
			err = tls.AlertError(alertInternalError)
		}
	}
	if err != nil {
		c.failTLS(&HandshakeError{Err: err})
		return
	}
	if l := &c.hs; !l.hello.active && h.unacknowledged() {
		l.hello.start(signal{sigHello, 0, l.token}, now, firstHelloWait)
		l.hello.sent(now)
		l.helloAt = now
	}
	switch {
	case s.Done:
		c.securedTLS(h, now)
	case h.done:
		h.ticketed = true // what follows Finished is the ticket
	}
}

// takeSecret sets keys by a secret of TLS.
func (c *Conn) takeSecret(h *tlsHandshake, s handshake.Secret) error {
	keys := h.keys
	if s.Level == handshake.Application {
		keys = c.tls.app
	}
	if s.Seals {
		return keys.Keys.SetSealSecret(s.Suite, s.Bytes)
	}
	return keys.Keys.SetOpenSecret(s.Suite, s.Bytes)
}

// securedTLS begins the session proper: TLS is done.
func (c *Conn) securedTLS(h *tlsHandshake, now time.Duration) {
	l := &c.hs
	state := h.tls.State()
	c.tls.secured = &securedState{state, handshake.CertificateBytes(&state)}
	c.hs.securing = false
	h.done, h.ticketed = true, !h.tickets
	h.streams[handshake.Initial] = handshake.Stream{}
	c.live.lastHeard = now
	l.kind = peerExtended
	c.greetTLS(now)
	c.inputInfo(h.info)
}

// inputInfo inputs the peer's INFO, which TLS has confirmed, together with the
// window that every peer with signals has at least.
func (c *Conn) inputInfo(s signal) {
	b := make([]byte, headerSize)
	s.encode(header{conv: c.entry.Conv, wnd: minRcvWnd}, b)
	_ = c.kcp.Input(b) // cannot fail: una is that of a session without data
}

// inputEarly inputs the packets whose keys have become known, and keeps the
// others.
func (c *Conn) inputEarly(h *tlsHandshake, now time.Duration) {
	early := h.early
	h.early, h.held = nil, 0
	for _, packet := range early {
		p := inPacket{Packet: protect.Packet{Data: packet}, from: c.origin(), conv: c.entry.Conv, kind: handshakePacket}
		if packetkeys.LevelOf(packet) == packetkeys.Application {
			p.kind = sealedPacket
			if !c.securing() && c.ep.open(c.tls.app, &p) != nil {
				continue
			}
		}
		if c.closing.state != stateEnded {
			c.inputPacket(&p, now)
		}
	}
}

// greetTLS takes the place of WELCOME and CONFIRM in the clear. The dialling end
// asks the other to confirm the session. If that has asked for a certificate,
// Dial waits until it has taken it. The listening end shows that it is there.
func (c *Conn) greetTLS(now time.Duration) {
	l, h := &c.hs, c.tlsHandshake()
	c.hs.greeted.Store(true)
	if l.dialled {
		l.welcomed, l.finish.signal.ts = true, l.peerToken
		l.confirm.start(signal{sigConfirm, l.peerToken, l.token}, now, c.requestWait())
		if !h.tls.CertificateRequested() {
			c.noteReached()
		}
		return
	}
	c.addressValidated()
	c.queueAnswer(c.infoSignal())
	h.streams[handshake.Handshake] = handshake.Stream{}
}

// takeSecured takes note of a packet under the application keys. It reports
// whether the packet is of the handshake, and not for the state machine.
func (c *Conn) takeSecured(p *inPacket) bool {
	if c.tls == nil {
		return false
	}
	if h := c.tls.handshake; h != nil {
		h.proven = true
	}
	return c.inputTicket(p)
}

// settleTLS drops the state of a handshake that is over: both ends have shown
// that they have the application keys, and the ticket has been handled.
func (c *Conn) settleTLS() {
	h := c.tlsHandshake()
	if h == nil || !h.done || h.working {
		return
	}
	l := &c.hs
	if !l.dialled && !h.streams[handshake.Application].Unacknowledged() {
		h.ticketed = true
	}
	if l.dialled && h.proven || !l.dialled && h.ticketed {
		l.hello.active = false
	}
	if h.ticketed && (l.dialled && h.proven || !l.dialled && l.confirmed) {
		c.closeTLS()
	}
}

// closeTLS drops the state of the handshake, also of one that has not completed.
func (c *Conn) closeTLS() {
	t := c.tls
	if t == nil {
		return
	}
	h := t.handshake
	if c.closing.state == stateEnded {
		t.app.Compact() // it remains for TIME-WAIT
		if h != nil && !c.hs.dialled && h.keys.Keys.Opens() && !t.app.Keys.Opens() {
			h.keys.Compact()
			t.ended = h.keys
		}
		if t.secured != nil {
			c.rarely().secured, t.secured = t.secured, nil
		}
	}
	if h != nil {
		t.handshake = nil
		if h.tls != nil && !h.working { // else workTLS does it
			h.tls.Close()
		}
		c.ep.handshakeOver(c)
	}
}

// failTLS ends a handshake: the peer gets an alert. A dialled session ends. An
// accepted one goes on for some time to repeat the alert.
func (c *Conn) failTLS(err *HandshakeError) {
	h := c.tlsHandshake()
	if h == nil || h.alert.code != 0 {
		return
	}
	c.ep.counters.handshakeErrors.Add(1)
	code := uint32(handshake.AlertOf(err.Err))
	if err.Err == ErrHandshakeChanged {
		code = alertChanged
	}
	h.alert, h.failedAt = signal{sigAlert, code, c.hs.peerToken}, c.ep.now()
	h.drop()
	if !err.Remote && err.Err != ErrNoTLS {
		c.sendAlert()
	}
	c.hs.hello.active = false
	if c.hs.dialled {
		c.closing.ending = err
		return
	}
	c.ep.reportHandshake(c.path.remote, err)
	if err.Remote {
		c.closing.ending = err
	}
}

// tlsExpires returns when a handshake is given up at this end; 0: never. Dial has
// a time-out of its own.
func (c *Conn) tlsExpires() time.Duration {
	switch h := c.tlsHandshake(); {
	case h == nil || c.hs.dialled:
		return 0
	case h.alert.code != 0:
		return h.failedAt + failedTime
	case !h.done:
		return c.hs.born + handshakeTime
	}
	return 0
}

// Alerts of TLS that are sent here (RFC 8446 §6), and one beyond them.
const (
	alertBadCertificate  = 42
	alertDecodeError     = 50
	alertProtocolVersion = 70
	alertInternalError   = 80
	alertChanged         = 256 // the transport parameters contradict the signals in the clear
)

// versionUnsealed is the version of peers with TLS that do not seal their packets
// in the clear, and cannot open those of this end.
const versionUnsealed = 1

// errUnsealed is the error of a handshake with such a peer.
func errUnsealed() *HandshakeError {
	return &HandshakeError{Err: fmt.Errorf("the peer speaks version %d, this end %d: %w", versionUnsealed, signalVersion, tls.AlertError(alertProtocolVersion))}
}

// unacknowledged reports whether anything was written that the peer has not
// acknowledged.
func (h *tlsHandshake) unacknowledged() bool {
	for i := range h.streams {
		if h.streams[i].Unacknowledged() {
			return true
		}
	}
	return false
}

// drop drops what a handshake that has failed holds, but for the keys of its
// alert. While TLS runs, workTLS calls it.
func (h *tlsHandshake) drop() {
	if h.tls != nil && !h.working {
		h.tls.Close()
		h.tls = nil
	}
	h.early, h.held = nil, 0
	clear(h.streams[:])
}

// received returns the memory of what the peer has sent, and TLS has not read,
// in bytes as allocated.
func (h *tlsHandshake) received() int {
	n := h.held
	for i := range h.streams {
		n += h.streams[i].Held()
	}
	return n
}

// bytesHeld returns the memory held because of the peer, in bytes as allocated.
func (h *tlsHandshake) bytesHeld() int {
	n := h.received()
	for i := range h.streams {
		n += h.streams[i].Kept()
	}
	if h.tls != nil { // it keeps what it has read of a message, in a buffer that doubles
		n += handshakeBytes + 2*int(h.streams[handshake.Handshake].Received())
	}
	return n
}

// handshakeFromNewAddress locks c.mu and takes a packet under the handshake keys
// from an address that is not the peer's. What it says counts from anywhere. The
// session stays where it is until TLS is done, and migrates then. It reports
// whether the packet belongs to this session.
func (c *Conn) handshakeFromNewAddress(p *inPacket, now time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.tlsHandshake()
	if h == nil || c.hs.dialled || c.closing.state == stateEnded {
		return false
	}
	if _, _, err := h.keys.Keys.Open(bytes.Clone(p.Data)); err != nil {
		return false
	}
	c.setClock(now)
	if c.inputPacket(p, now) {
		c.respondLocked(now)
	}
	return true
}
