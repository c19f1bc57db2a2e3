package handshake

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/arqnet/kcp/internal/packetkeys"
	"github.com/arqnet/kcp/internal/protect"
)

const (
	// maxPeerFlight is how many bytes a peer's messages under the handshake keys
	// may have, most of which are its certificates. crypto/tls would take four
	// times as many.
	maxPeerFlight = 64 << 10
	// maxAheadOfTLS is how far beyond what TLS has read handshake bytes are held.
	maxAheadOfTLS = 64 << 10
	// maxHeld is how much memory of each stream is held until TLS has read it, as
	// buffers are larger than what is in them.
	maxHeld = 2 * maxAheadOfTLS
	// maxEarly and maxEarlyBytes bound the packets that are held until their
	// keys are known; the first quarter of the packets is for an address that
	// is not validated.
	maxEarly      = 32
	maxEarlyBytes = 64 << 10
	// earlyEntry is what such a packet takes beside its bytes.
	earlyEntry = 24
	// TLSBytes is what a handshake in progress takes beside what the peer sends
	// and what it is sent: the state and the goroutine of crypto/tls.
	TLSBytes = 40 << 10
	// plainAnswers is how many answers of a peer without TLS end a handshake.
	plainAnswers = 2
	// ticketTries is how often a ticket is sent that the client does not
	// acknowledge.
	ticketTries = 6
)

// Exchange is one end of a handshake: it takes the packets of the peer, makes
// those of this end, and says what TLS has to do. It calls nobody, and its owner
// guards it, but for the Work that TLS does.
type Exchange struct {
	config  *tls.Config
	dialled bool

	conv, token, peerToken uint32

	info Signal // of this end

	tls     *TLS                // nil before it has started
	initial *packetkeys.Initial // nil before the dialling end's token is known
	keys    *protect.TLS        // of the level Handshake
	app     *protect.TLS        // of the level Application
	streams [Levels]Stream

	peerInfo Signal   // the peer's INFO as it came in the clear
	cookie   Signal   // goes with HELLO; code 0: none
	early    [][]byte // packets under keys that are not known yet
	held     int      // bytes of early as allocated
	alert    Signal   // tells the peer that the handshake has failed; code 0: it has not
	owes     owed
	out      outgoing // the packet whose size Pending has returned

	// FailedAt is when the handshake has failed. It is the owner's.
	FailedAt time.Duration

	plain    uint8 // answers of a peer without TLS
	started  bool  // TLS was given its first work
	working  bool  // TLS is at work
	greeted  bool  // the peer's WELCOME has arrived
	done     bool  // TLS is done
	proven   bool  // dialled: a packet under the peer's application keys has arrived
	tickets  bool  // the client takes tickets, and the server sends them
	ticketed bool  // the ticket has been handled
	ended    bool  // the session ends: its peer is not told again
}

// owed are packets that are to be sent whatever waits in the streams.
type owed uint8

const (
	owesAlert owed = 1 << iota // the alert
	owesAbort                  // ABORT to a peer that does not speak TLS
	owesAny                    // anything: the peer may need it to go on (RFC 9002 §6.2.2.1)
)

// NewExchange returns the handshake of a session whose packets are protected by
// app, before it has begun. keys protects those of the handshake.
func NewExchange(conv uint32, config *tls.Config, app, keys *protect.TLS) *Exchange {
	return &Exchange{conv: conv, config: config, app: app, keys: keys}
}

// Dial begins the handshake of the dialling end. info is its INFO.
func (x *Exchange) Dial(config *tls.Config, token uint32, info Signal) {
	x.config, x.dialled, x.token, x.info = config, true, token, info
	x.initial = packetkeys.NewInitial(x.conv, token, true)
	x.tls = Client(config, x.params().Encode())
}

// Accept begins the handshake of the listening end. initial has opened the packet
// that HELLO came in.
func (x *Exchange) Accept(initial *packetkeys.Initial, token, peerToken uint32, info Signal) {
	x.initial, x.token, x.peerToken, x.info = initial, token, peerToken, info
}

// params returns this end's parameters. A listening end knows both tokens by
// then.
func (x *Exchange) params() Params {
	p := Params{Conv: x.conv, Dialler: x.token, Version: x.info.SN, Capabilities: x.info.TS}
	if !x.dialled {
		p.Dialler, p.Listener = x.peerToken, x.token
	}
	if takesTickets(x.config, x.dialled) {
		p.Flags |= paramTickets
	}
	return p
}

// checkParams compares the peer's parameters with what has arrived in the clear.
func (x *Exchange) checkParams(b []byte) error {
	p, ok := DecodeParams(b)
	if !ok {
		return ErrChanged
	}
	want := Params{Conv: x.conv, Dialler: x.peerToken, Version: x.peerInfo.SN, Capabilities: x.peerInfo.TS, Flags: p.Flags}
	if x.dialled {
		want.Dialler, want.Listener = x.token, x.peerToken
	}
	if p != want {
		return ErrChanged
	}
	x.tickets = p.Flags&paramTickets != 0 && takesTickets(x.config, x.dialled)
	return nil
}

// Work is what TLS has to do. It may take milliseconds, and calls callbacks of the
// application's tls.Config.
type Work struct {
	tls           *TLS
	start, ticket bool
	data          []byte
}

// Run does w. It uses nothing of the Exchange that changes meanwhile.
func (w Work) Run() (s Step) {
	if w.start {
		s = w.tls.Start()
	}
	if s.Err == nil && len(w.data) > 0 {
		first := s
		s = w.tls.Handle(w.data)
		for l := range s.Out {
			s.Out[l] = append(first.Out[l], s.Out[l]...)
		}
	}
	if s.Err == nil && s.Done && w.ticket {
		if t := w.tls.SendTicket(); t.Err == nil { // without a ticket the client cannot resume
			s.Out[Application] = t.Out[Application]
		}
	}
	return s
}

// Next returns the work that TLS has to do now. ok is false if there is none. The
// caller passes what comes of it to Worked. The handshake may fail.
func (x *Exchange) Next(r *Result) (w Work, ok bool) {
	if x.working || x.alert.Code != 0 || x.initial == nil {
		return Work{}, false
	}
	w.ticket = x.tickets && !x.dialled
	switch {
	case x.dialled && !x.started:
		x.started, w.start = true, true
	case !x.started:
		whole, ok := wholeClientHello(x.streams[Initial].Available())
		if !ok {
			x.fail(r, tls.AlertError(alertDecodeError), false)
		}
		if !whole || !ok {
			return Work{}, false
		}
		x.tls = Server(x.config, x.params().Encode())
		x.started, w.start, w.data = true, true, x.streams[Initial].Read()
	case x.done && !x.dialled:
		return Work{}, false // no message of a client follows its Finished
	default:
		if w.data = x.streams[x.tls.Reads()].Read(); w.data == nil {
			return Work{}, false
		}
	}
	w.tls, x.working = x.tls, true
	return w, true
}

// Worked takes what TLS has brought about. It reports whether TLS has completed the
// handshake just now.
func (x *Exchange) Worked(s Step, r *Result) (done bool) {
	x.working = false
	if x.alert.Code != 0 { // it has failed meanwhile
		x.drop()
		return false
	}
	err := s.Err
	if err == nil && s.Params != nil {
		err = x.checkParams(s.Params)
	}
	for _, secret := range s.Secrets {
		if err == nil {
			err = x.takeSecret(secret)
		}
	}
	for l, out := range s.Out {
		if err == nil && len(out) > 0 && !x.streams[l].Write(out) {
			err = tls.AlertError(alertInternalError)
		}
	}
	switch {
	case err != nil:
		x.fail(r, err, false)
	case s.Done:
		x.done, x.ticketed = true, !x.tickets
		x.streams[Initial] = Stream{}
		if !x.dialled {
			x.streams[Handshake] = Stream{}
		}
		return true
	case x.done:
		x.ticketed = true // what follows Finished is the ticket
	}
	return false
}

// takeSecret sets keys by a secret of TLS.
func (x *Exchange) takeSecret(s Secret) error {
	keys := x.keys
	if s.Level == Application {
		keys = x.app
	}
	if s.Seals {
		return keys.Keys.SetSealSecret(s.Suite, s.Bytes)
	}
	return keys.Keys.SetOpenSecret(s.Suite, s.Bytes)
}

// Early returns the packets that have come before their keys, and forgets them.
func (x *Exchange) Early() [][]byte {
	early := x.early
	x.early, x.held = nil, 0
	return early
}

// Prove takes note that a packet under the application keys has arrived.
func (x *Exchange) Prove() { x.proven = true }

// Settle reports what remains to be done: repeats whether the flight is repeated
// still, and over whether both ends have shown that they have the application
// keys, and the ticket has been handled. confirmed says that the peer of an
// accepted session has shown the former.
func (x *Exchange) Settle(confirmed bool) (repeats, over bool) {
	if !x.done || x.working {
		return true, false
	}
	if !x.dialled && !x.streams[Application].Unacknowledged() {
		x.ticketed = true
	}
	if x.dialled {
		return !x.proven, x.ticketed && x.proven
	}
	return !x.ticketed, x.ticketed && confirmed
}

// Close ends the handshake, unless TLS is at work: then Abandon has to be called
// once that has returned.
func (x *Exchange) Close() {
	if !x.working {
		x.Abandon()
	}
}

// Abandon ends a handshake whose session has ended.
func (x *Exchange) Abandon() {
	x.working = false
	if x.tls != nil {
		x.tls.Close()
	}
}

// fail ends the handshake: the peer gets an alert, unless it has sent one, or
// speaks no TLS.
func (x *Exchange) fail(r *Result, err error, remote bool) {
	if x.alert.Code != 0 {
		return
	}
	code := uint32(AlertOf(err))
	if err == ErrChanged {
		code = alertChanged
	}
	x.alert = Signal{CodeAlert, code, x.peerToken}
	x.drop()
	if !remote && err != ErrNoTLS {
		x.owes |= owesAlert
	}
	x.ended = x.dialled || remote
	r.Failed, r.Remote = err, remote
}

// drop drops what a handshake that has failed holds, but for the keys of its
// alert. While TLS is at work, Worked calls it.
func (x *Exchange) drop() {
	if x.tls != nil && !x.working {
		x.tls.Close()
		x.tls = nil
	}
	x.early, x.held = nil, 0
	clear(x.streams[:])
}

// Started reports whether TLS has started.
func (x *Exchange) Started() bool { return x.tls != nil }

// Failed reports whether the handshake has failed.
func (x *Exchange) Failed() bool { return x.alert.Code != 0 }

// Done reports whether TLS is done.
func (x *Exchange) Done() bool { return x.done }

// State returns what TLS has agreed on. TLS must be done.
func (x *Exchange) State() tls.ConnectionState { return x.tls.State() }

// CertificateRequested reports whether the server has asked this client for a
// certificate. It may still refuse what it was sent. TLS must be done.
func (x *Exchange) CertificateRequested() bool { return x.tls.CertificateRequested() }

// PeerToken returns the token of the peer; 0: it is not known.
func (x *Exchange) PeerToken() uint32 { return x.peerToken }

// PeerInfo returns the peer's INFO, which counts once TLS is done.
func (x *Exchange) PeerInfo() Signal { return x.peerInfo }

// SetCookie sets the COOKIE that goes with HELLO.
func (x *Exchange) SetCookie(s Signal) { x.cookie = s }

// Keys returns what protects the packets of the handshake.
func (x *Exchange) Keys() *protect.TLS { return x.keys }

// Unacknowledged reports whether anything was written that the peer has not
// acknowledged.
func (x *Exchange) Unacknowledged() bool {
	for i := range x.streams {
		if x.streams[i].Unacknowledged() {
			return true
		}
	}
	return false
}

// Received returns the memory of what the peer has sent, and TLS has not read,
// in bytes as allocated.
func (x *Exchange) Received() int {
	n := x.held
	for i := range x.streams {
		n += x.streams[i].Held()
	}
	return n
}

// Held returns the memory held because of the peer, in bytes as allocated.
func (x *Exchange) Held() int {
	n := x.Received()
	for i := range x.streams {
		n += x.streams[i].Kept()
	}
	if x.tls != nil { // it keeps what it has read of a message, in a buffer that doubles
		n += TLSBytes + 2*int(x.streams[Handshake].Received())
	}
	return n
}

// Result is what input has brought about. Fields add up over several calls.
type Result struct {
	Dropped int // packets that count for nothing
	Damaged int // packets that did not open

	Validated bool   // the peer's address is validated (RFC 9000 §8.1)
	Cookie    Signal // the peer asks for it; code 0: it does not
	End       End    // the session ends
	Failed    error  // the handshake has failed now; nil: it has not
	Remote    bool   // the peer has said so
}

// End is how a handshake ends without having failed.
type End uint8

const (
	GoesOn  End = iota
	Reset       // the peer has no such session any more
	Refused     // the peer accepts no sessions
	NoTLS       // the peer accepts sessions, without TLS
)

// Peer is what the owner of an Exchange knows of the peer.
type Peer struct {
	Waiting     bool // HELLO is repeated until something arrives
	Unvalidated bool // its address is not validated
	Room        int  // bytes that may be held for it if so
	Pressed     bool // memory is short: nothing is kept early
}

// Kind is the kind of a packet of the handshake.
type Kind uint8

const (
	InClear   Kind = iota // in the clear
	Opened                // the same, already opened
	Protected             // under the handshake keys
	TooEarly              // under application keys that are not known yet
)

// Input takes a packet of the handshake. It reports whether that may have changed
// anything.
func (x *Exchange) Input(kind Kind, p *protect.Packet, peer Peer, r *Result) (changed bool) {
	level := Initial
	var err error
	switch kind {
	case TooEarly:
		x.keep(p.Data, peer, r)
		return false
	case InClear:
		if x.initial == nil { // no HELLO has left
			r.Dropped++
			return false
		}
		if p.Data, err = OpenInitial(x.initial, p.Data); err != nil {
			r.Damaged++ // the peer repeats it
			return false
		}
	case Protected:
		if err = x.keys.Open(p); err == packetkeys.ErrNotReady {
			x.keep(p.Data, peer, r) // it has overtaken ServerHello
			return false
		} else if err != nil {
			r.Damaged++
			return false
		}
		level = Handshake
		x.streams[Initial].Discard() // the peer has all of it (RFC 9001 §4.9.1)
		if !x.dialled {
			r.Validated, peer.Unvalidated = true, false // RFC 9000 §8.1
		}
	}
	m, ok := Parse(p.Data, x.conv)
	if !ok || level == Initial && !x.takeClear(&m, peer, r) {
		r.Dropped++
		return r.End != GoesOn || r.Failed != nil
	}
	x.take(level, &m, peer, r)
	return true
}

// keep keeps a packet whose keys are not known yet. A server sends nothing under
// the application keys before it has the client's Finished, and a client nothing
// protected before it has ServerHello: what comes before is not kept.
func (x *Exchange) keep(packet []byte, peer Peer, r *Result) {
	count, room := maxEarly, maxEarlyBytes-x.held
	if peer.Unvalidated {
		count, room = maxEarly/4, peer.Room-x.Received()
	}
	kept := bytes.Clone(packet)
	size := cap(kept) + earlyEntry
	if x.tls == nil || x.dialled && packetkeys.LevelOf(packet) == packetkeys.Application ||
		len(x.early) >= count || size > room || peer.Pressed {
		r.Dropped++
		return
	}
	x.early = append(x.early, kept)
	x.held += size
}

// takeClear takes the signals of a packet in the clear. It reports whether the
// packet is of this handshake.
func (x *Exchange) takeClear(m *Message, peer Peer, r *Result) bool {
	switch {
	case !m.Crypto:
		return x.dialled && peer.Waiting && !x.keys.Keys.Opens() && x.takeUnsealed(m, r)
	case !x.dialled && (m.Hello.Code == 0 || m.Hello.TS != x.peerToken):
		return false
	case x.dialled && (m.Welcome.Code == 0 || m.Welcome.TS != x.token || x.greeted && m.Welcome.SN != x.peerToken):
		return false
	}
	if x.dialled && !x.greeted {
		x.greeted, x.peerToken = true, m.Welcome.SN
	}
	if x.peerInfo.Code == 0 {
		x.peerInfo = m.Info
	}
	// Once there are handshake keys, nothing in the clear ends the handshake.
	if m.Alert.Code != 0 && m.Alert.TS == x.token && !x.keys.Keys.Opens() {
		x.alerted(m.Alert, r)
	}
	return true
}

// takeUnsealed is takeClear for a dialled session and a packet without seal: the
// answer of an end that has no such session, or speaks otherwise. It cannot have
// come about by damage, as it echoes the token of our HELLO, or has to come twice.
func (x *Exchange) takeUnsealed(m *Message, r *Result) bool {
	switch {
	case m.Cookie.Code != 0:
		r.Cookie = m.Cookie
		return true
	case m.Abort == (Signal{CodeAbort, x.token, 0}):
		r.End = Reset // Dial begins anew
	case m.Reset == (Signal{CodeReset, 0, x.token}):
		r.End = Refused
		if m.Info.Code != 0 && m.Info.TS&CapTLS == 0 {
			r.End = NoTLS
		}
	case m.Welcome.Code == 0:
		if m.Windows > 0 { // a legacy peer takes HELLO for window probes
			x.takePlain(m.Windows, 0, r)
		}
	case m.Welcome.TS != x.token || m.Info.Code == 0:
	case m.Info.TS&CapTLS == 0:
		x.takePlain(1, m.Welcome.SN, r)
	case m.Info.SN == VersionUnsealed:
		x.peerToken = m.Welcome.SN
		x.fail(r, UnsealedError(), false)
	}
	return false
}

// takePlain takes n answers of a peer without TLS. The second one ends the
// handshake, and the session of a peer that has shown its token; 0: it has none.
func (x *Exchange) takePlain(n int, token uint32, r *Result) {
	if x.plain = min(x.plain+uint8(min(n, plainAnswers)), plainAnswers); x.plain < plainAnswers {
		return
	}
	x.fail(r, ErrNoTLS, false)
	if token != 0 {
		x.peerToken = token
		x.owes |= owesAbort
	}
}

// take takes what is under the protection of its packet: the end of the session,
// an alert, and bytes of the handshake.
func (x *Exchange) take(level Level, m *Message, peer Peer, r *Result) {
	if level == Handshake && m.Abort == (Signal{CodeAbort, x.token, 0}) {
		r.End = Reset
		return
	}
	if level != Initial && m.Alert.Code != 0 && m.Alert.TS == x.token {
		x.alerted(m.Alert, r)
	}
	if x.alert.Code != 0 {
		if x.alert.TS != 0 && !x.ended {
			x.owes |= owesAlert
		}
		return
	}
	if !m.Crypto || x.done && level != Application {
		return
	}
	limit, room := maxAheadOfTLS, maxHeld
	if level == Initial {
		limit = maxClientHello
	} else if level == Handshake && uint64(m.Offset)+uint64(len(m.Data)) > maxPeerFlight {
		x.fail(r, fmt.Errorf("more than %d bytes of certificates: %w", maxPeerFlight, tls.AlertError(alertBadCertificate)), false)
		return
	}
	s := &x.streams[level]
	if peer.Unvalidated {
		room = peer.Room - (x.Received() - s.Held())
	}
	s.Acknowledge(m.Una)
	if !s.Receive(m.Offset, m.Data, limit, room) {
		r.Dropped++
	}
}

// alerted ends the handshake because of the peer's alert.
func (x *Exchange) alerted(s Signal, r *Result) {
	var err error = tls.AlertError(s.SN)
	if s.SN == alertChanged {
		err = ErrChanged
	} else if s.SN > 255 {
		err = tls.AlertError(alertInternalError)
	}
	x.fail(r, err, true)
}

// Ticket takes a packet under the application keys if it is of the handshake: it
// carries the ticket, or acknowledges it. It reports false for any other packet.
func (x *Exchange) Ticket(packet []byte, r *Result) bool {
	m, is, ok := ticket(packet, x.conv)
	switch {
	case !is:
		return false
	case !ok:
		r.Dropped++
	case x.done:
		x.take(Application, &m, Peer{}, r)
	}
	return true
}

// ticket reads a packet under the application keys. is reports whether it is of
// the handshake, and ok whether it is well-formed then.
func ticket(packet []byte, conv uint32) (m Message, is, ok bool) {
	if first := decodeSegment(packet); !first.isCrypto() {
		return m, false, false
	}
	m, ok = Parse(packet, conv)
	return m, true, ok && m.Crypto
}

// TicketAgain is Ticket for a handshake that is over: the acknowledgement was lost,
// and the packet comes again. If una is not 0, it is to be acknowledged once more.
func TicketAgain(packet []byte, conv uint32, r *Result) (is bool, una uint32) {
	m, is, ok := ticket(packet, conv)
	if is && !ok {
		r.Dropped++
	} else if ok && len(m.Data) > 0 {
		una = m.Offset + uint32(len(m.Data))
	}
	return is, una
}
