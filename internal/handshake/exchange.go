package handshake

import (
	"crypto/tls"
	"net/netip"
	"time"

	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
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
// this end's, and says what TLS has to do. It calls nobody, and its owner
// guards it, except for the Work that TLS does.
type Exchange struct {
	config  *tls.Config
	dialled bool

	conv, token, peerToken uint32

	info wire.Signal // of this end

	tls     *TLS             // nil before it has started
	initial *protect.Initial // nil before the dialling end's token is known
	app     *protect.TLS     // of the level Application
	streams [Levels]Stream

	peerInfo wire.Signal // the peer's INFO as it came in the clear
	early    [][]byte    // packets under keys that are not known yet
	held     int         // bytes of early as allocated
	alert    wire.Signal // tells the peer that the handshake has failed
	pong     wire.Signal // answers a challenge of the address that packets leave from
	owes     owed
	out      outgoing // the packet whose size Pending has returned

	// These are for the owner to read.
	Done       bool         // TLS is done
	Failed     bool         // the handshake has failed
	Started    bool         // TLS was given its first work
	Reached    bool         // a packet under the handshake keys has arrived
	Protection *protect.TLS // of the level Handshake; immutable

	// These are for the owner to set.
	FailedAt time.Duration // when the handshake has failed
	Cancel   func() bool   // takes back work that waits for its turn, and reports whether it could; nil: none waits
	Cookie   wire.Signal   // goes with HELLO; code 0: none
	Tie      wire.Signal   // the same

	plain    uint8 // answers of a peer without TLS
	working  bool  // TLS is at work
	greeted  bool  // the peer's WELCOME has arrived
	proven   bool  // dialled: a packet under the peer's application keys has arrived
	tickets  bool  // the client takes tickets, and the server sends them
	ticketed bool  // the ticket has been handled
	ended    bool  // the session ends: its peer is not told again
	closed   bool  // Close was called
}

// owed are packets that are to be sent whatever waits in the streams.
type owed uint8

const (
	owesAlert owed = 1 << iota // the alert
	owesAbort                  // ABORT to a peer that does not speak TLS
	owesAny                    // anything: the peer may need it to go on (RFC 9002 §6.2.2.1)
	owesPong                   // the answer to a challenge
)

// NewExchange returns the handshake of a session whose packets are protected by
// app, before it has begun. keys protects the handshake's.
func NewExchange(conv uint32, config *tls.Config, app, keys *protect.TLS) *Exchange {
	return &Exchange{conv: conv, config: config, app: app, Protection: keys}
}

// Dial begins the handshake of the dialling end. info is its INFO.
func (x *Exchange) Dial(config *tls.Config, token uint32, info wire.Signal) {
	x.config, x.dialled, x.token, x.info = config, true, token, info
	x.initial = protect.NewInitial(x.conv, token, true)
	x.tls = Client(config, x.params().Encode())
}

// Accept begins the handshake of the listening end. initial has opened the packet
// that HELLO came in.
func (x *Exchange) Accept(initial *protect.Initial, token, peerToken uint32, info wire.Signal) {
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
	payer         payer
}

// For returns w as work for a peer of a network, which is charged to an allowance.
func (w Work) For(network netip.Addr, now time.Duration, allowance *Allowance) Work {
	w.payer = payer{allowance, network, now}
	return w
}

// Run does w. It uses nothing of the Exchange that changes meanwhile.
func (w Work) Run() (s Step) {
	w.tls.payer = w.payer
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
	if x.working || x.Failed || x.initial == nil {
		return Work{}, false
	}
	w.ticket = x.tickets && !x.dialled
	switch {
	case x.dialled && !x.Started:
		x.Started, w.start = true, true
	case !x.Started:
		whole, ok := wholeClientHello(x.streams[Initial].in)
		if !ok {
			x.fail(r, tls.AlertError(alertDecodeError), false)
		}
		if !whole || !ok {
			return Work{}, false
		}
		x.tls = Server(x.config, x.params().Encode())
		x.Started, w.start, w.data = true, true, x.streams[Initial].Read()
	case x.Done && !x.dialled:
		return Work{}, false // no message of a client follows its Finished
	default:
		if w.data = x.streams[x.tls.reads].ReadMessages(); w.data == nil {
			return Work{}, false
		}
	}
	w.tls, x.working = x.tls, true
	return w, true
}

// Worked takes what TLS has brought about. It reports whether the handshake goes on.
func (x *Exchange) Worked(s Step, r *Result) bool {
	x.working = false
	switch {
	case x.closed: // meanwhile
		x.tls.Close()
		return false
	case x.Failed: // the same
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
		x.Done, x.ticketed = true, !x.tickets
		r.Completed = &Completed{x.tls.conn.ConnectionState(), x.peerInfo, x.tls.asked}
		x.streams[Initial] = Stream{}
		if !x.dialled {
			x.streams[Handshake] = Stream{}
		}
	case x.Done:
		x.ticketed = true // what follows Finished is the ticket
	}
	return true
}

// Over reports whether the handshake has failed, or was closed: no work is to be done
// for it.
func (x *Exchange) Over() bool { return x.Failed || x.closed }

// Completed is what TLS has agreed on.
type Completed struct {
	State tls.ConnectionState
	Info  wire.Signal // the peer's
	Asked bool        // the server has asked this client for a certificate, which it may refuse
}

// takeSecret sets keys by a secret of TLS.
func (x *Exchange) takeSecret(s Secret) error {
	keys := x.Protection
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

// Settle reports what remains to be done: repeats whether the flight is repeated
// still, and over whether both ends have shown that they have the application
// keys, and the ticket has been handled. confirmed says that the peer of an
// accepted session has shown the former.
func (x *Exchange) Settle(confirmed bool) (repeats, over bool) {
	if !x.Done || x.working {
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

// Close ends the handshake. While TLS is at work, Worked does it.
func (x *Exchange) Close() {
	x.closed = true
	if x.working && x.Cancel != nil && x.Cancel() {
		x.working = false
	}
	if x.tls != nil && !x.working {
		x.tls.Close()
	}
}

// fail ends the handshake: the peer gets an alert, unless it has sent one, or
// speaks no TLS.
func (x *Exchange) fail(r *Result, err error, remote bool) {
	if x.Failed {
		return
	}
	code := uint32(AlertOf(err))
	if err == ErrChanged {
		code = alertChanged
	}
	x.Failed, x.alert = true, wire.Signal{Code: wire.Alert, SN: code, TS: x.peerToken}
	x.drop()
	if !remote && err != ErrNoTLS {
		x.owes |= owesAlert
	}
	x.ended = x.dialled || remote
	r.Failed, r.Remote = err, remote
}

// drop drops what a handshake that has failed holds, except for the keys of its
// alert. While TLS is at work, Worked calls it.
func (x *Exchange) drop() {
	if x.tls != nil && !x.working {
		x.tls.Close()
		x.tls = nil
	}
	x.early, x.held = nil, 0
	clear(x.streams[:])
}

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
		n += x.streams[i].held
	}
	return n
}

// Held returns the memory held because of the peer, in bytes as allocated.
func (x *Exchange) Held() int {
	n := x.Received()
	for i := range x.streams {
		n += x.streams[i].kept
	}
	if x.tls != nil { // it keeps what it has read of a message, in a buffer that doubles
		n += TLSBytes + 2*int(x.streams[Handshake].Received())
	}
	return n
}
