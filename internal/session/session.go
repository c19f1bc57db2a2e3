// Package session is a session with one peer as a state machine: what it knows of the
// peer, what it has to send, and what is due when. It has no lock, clock, goroutine,
// channel or socket. A Host, which package kcp's Conn is, calls it, and carries out the
// Effects that its steps leave.
package session

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/incast"
	"github.com/arqnet/kcp/internal/liveness"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/netpath"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/trace"
)

// Session is a session as a state machine: what it knows of its peer, what it has to
// send, and what is due when. It has no lock, clock, goroutine, channel or socket. Its
// caller keeps its methods apart, and carries out what they bring about: it writes the
// packets of outgoing, lets the calls of ready go on, and removes a session that has
// ended. What a session asks for, it asks its host.
type Session struct {
	shared *Shared // with the endpoint; the pointer is immutable
	host   Host    // immutable
	ends   atomic.Pointer[pathEnds]

	kcp      *machine.KCP // the state machine of the protocol; the pointer is immutable
	path     pathState
	step     stepState
	hs       handshakeState
	live     liveness.State
	closing  closeState
	timers   timerState
	plpmtu   *netpath.PathMTU // nil: nothing has shown what the path takes
	in       inputState
	tls      *tlsState // nil without TLS; the pointer is immutable
	outgoing outgoing
	streams  *Streams      // nil: there have been none
	rare     *rareState    // nil: nothing of it is needed
	capped   *cappedOutput // nil: the rate is not capped
	rtt      netpath.RTTEstimate
	asked    *netpath.AskedPings  // PINGs that wait for their answers; nil: none
	losses   *netpath.Losses      // nil: the ends have told each other nothing
	limits   *recovery.LimitClock // nil: the handshake has limited for hs.took, and since then the application

	// entry is the session's place in the endpoint's table. To change the key takes
	// Conn.mu and Endpoint.mu, so either is enough to read it; entry.Conv does not
	// change once the session is in the table. Endpoint.mu guards the rest.
	entry admission.Entry
}

// Host is what a session asks of its endpoint. The session's caller calls the session,
// and the host may ask the session, but changes nothing of it.
type Host interface {
	// Now returns the time since the endpoint's epoch.
	Now() time.Duration

	// Offer puts an accepted session into the backlog of the listener. It reports false
	// if that has no room, and with none whether there is no listener.
	Offer() (ok, none bool)
	// Validated counts a session whose peer's address is validated. It reports false if
	// the peer's network has more of them than it may.
	Validated() bool
	// Move changes the address in the session's key. It reports false if the endpoint
	// has another session there.
	Move(to Source) bool
	// Reply sends signals to an address that is not the peer's, as far as the limit of
	// the rate allows, and reports whether it does.
	Reply(to Source, by protect.Protection, h wire.Header, signals ...wire.Signal) bool
	// Pays takes n bytes from what has come from the peer's address in a simultaneous
	// open, and reports whether so many may leave for it.
	Pays(n int) bool
	// Challenge returns the challenge of an address.
	Challenge(to Source, token uint32, at time.Duration) wire.Signal
	// ResetKey returns the key of stateless resets for the peer; nil: it gets none.
	ResetKey() *protect.ToldKey

	// WorkTLS does work of a TLS handshake for a network, and calls WorkedTLS with
	// what it has come to.
	WorkTLS(from fair.Block, x *handshake.Exchange, work handshake.Work)

	// Arrived and Unread are about what waits at a socket; see Endpoint.arrived.
	Arrived(shard int) uint32
	Unread(shard int, n uint32) bool
	// Incast returns what a socket does against incast.
	Incast(shard int) *incast.Socket[Session]
	// Hand leaves a datagram of the batch of input of a socket to the handler of datagrams.
	Hand(shard int, b []byte)

	// NewStream makes a stream of the application's.
	NewStream(p *streams.Params) *streams.Stream

	// Look has the route to the peer looked at. Looked returns when it last was, if
	// Shared.Looks is set.
	Look()
	Looked() time.Duration
	// KeepsWhole reports whether what a socket sends is fragmented nowhere.
	KeepsWhole(shard int) bool
	// SocketError returns an error of the socket since a time; nil: there was none.
	SocketError(since time.Duration) error
	// OwnSocket reports whether the socket is the session's own.
	OwnSocket() bool
	// PublicError returns an error of this package as the type that applications know.
	PublicError(err error) error
	// Stopped reports whether the endpoint is closed.
	Stopped() bool
}

// stepState is about the step that is under way, and what it leaves for the next.
type stepState struct {
	inputAt    time.Duration // arrival of the current batch of input, since the epoch
	left       Effects
	woken      bool        // a call was woken, and none has run since
	ping       wire.Signal // a PING in the current packet that may be a challenge; code 0: none
	offPath    bool        // a signal of the current packet is not from within the session
	challenged bool        // the current packet has a PING, which may be a path challenge
}

// Init sets up a new session with the peer of key. dialled says that this end opens it.
func (c *Session) Init(e *Shared, h Host, key Key, remote net.Addr, dialled bool) {
	c.shared, c.host = e, h
	if dialled {
		c.hs.Role = opening.Dialled
	}
	c.timers.clockBase = e.Env.Uint32()
	c.ends.Store(&pathEnds{remote: remote})
	c.entry.SetKey(key)
	c.outgoing.init(e)
	hooks := machine.Hooks{Output: c.collect, PacketBuffer: c.packetBuffer, Host: c, Frugal: true}
	switch {
	case e.sealsFrom():
		hooks.OutputInPlace, hooks.Headroom = c.queueSegment, wire.HeaderSize
	case e.Protection.None:
		hooks.OutputInPlace, hooks.Headroom = c.queueSegment, int32(e.Overhead.head+wire.HeaderSize)
	}
	c.kcp = machine.NewWith(key.Conv, hooks)
	c.in.fixedWindow = e.FixedWindow
	e.Config.Apply(c.kcp, e.Overhead.Total)
	now := h.Now()
	c.hs.born, c.step.inputAt, c.live = now, now, liveness.New(now)
	c.closing.Linger = e.Config.Linger
	c.protect()
	c.setClock(now)
	if e.Config.MaxRate > 0 {
		c.capRate(e.Config.MaxRate)
	}
}

// SetTrace has t called from now on in place of the hooks before, first with how far the
// session is; nil: none.
func (c *Session) SetTrace(t *trace.Hooks) {
	old := c.kcp.Tracing()
	if c.closing.Phase >= closing.Ended {
		old, t = t, nil
	}
	c.kcp.SetTrace(t)
	if old != nil && old.Stopped != nil {
		c.call(old.Stopped)
	}
	if t == nil {
		return
	}
	first, established := trace.SessionAccepted, !c.hs.unvalidated.Load()
	if c.hs.Role >= opening.Dialled {
		first, established = trace.SessionDialled, c.hs.Reached
	}
	c.traceState(first, nil)
	if established {
		c.traceState(trace.SessionEstablished, nil)
	}
	switch c.closing.Phase {
	case closing.Lingering:
		c.traceState(trace.SessionClosing, nil)
	case closing.Draining:
		c.traceState(trace.SessionDraining, nil)
	}
	if t.MTU != nil {
		c.call(func() { t.MTU(c.kcp.PacketSize()) })
	}
}

// traceState calls Trace.State.
func (c *Session) traceState(s trace.SessionState, err error) {
	if t := c.kcp.Tracing(); t != nil && t.State != nil {
		c.call(func() { t.State(s, err) })
	}
}

// traceMoved calls Trace.Moved with the address that the peer now has.
func (c *Session) traceMoved() {
	if t := c.kcp.Tracing(); t != nil && t.Moved != nil {
		c.call(func() { t.Moved(c.ends.Load().remote.String()) })
	}
}

// traceDropped calls Trace.Dropped.
func (c *Session) traceDropped(size int, reason error) {
	if t := c.kcp.Tracing(); t != nil && t.Dropped != nil {
		c.call(func() { t.Dropped(size, reason) })
	}
}

// traceDatagram calls Trace.Datagram.
func (c *Session) traceDatagram(e trace.DatagramEvent, size int) {
	if t := c.kcp.Tracing(); t != nil && t.Datagram != nil {
		c.call(func() { t.Datagram(e, size) })
	}
}

// traceSignal calls Trace.Signal for a signal that does not pass the state machine.
func (c *Session) traceSignal(sent bool, code wire.Code) {
	if t := c.kcp.Tracing(); t != nil && t.Signal != nil {
		c.call(func() { t.Signal(sent, code.String()) })
	}
}

// pathState is the network path to the peer.
type pathState struct {
	validation *netpath.Validation[InPacket] // nil: no packet has come from another address
	shard      uint16                        // index of the endpoint's socket that receives the peer's packets
	moves      uint32                        // of this end's own address; see noteChallenge
	challenge  uint32                        // the number of the last challenge
	rerouted   bool                          // the next challenge is due to a move that moves has
	outage     bool                          // the peer answers nothing; see setOutage
	blocked    bool                          // a packet of a TLS handshake exceeds what may be sent to an address that is not validated
}

// closeState is how far a session is with its end, and why it ends. Times are since the
// endpoint's epoch.
type closeState struct {
	closing.State
	err      error // why the session ended; nil: it has not, or was closed in order
	ending   error // ends the session after the batch of input; nil: it goes on
	reported bool  // a call of the application has returned err
}

// timerState is the session's timers. Times are since the endpoint's epoch.
type timerState struct {
	wakeAt    time.Duration // the wake-up that is set; 0: none
	dueAt     time.Duration // when something is to be done; 0: never. Not before wakeAt
	compactAt time.Duration // when spare memory is released; 0: there is none
	heldSince uint32        // since when time-outs wait, in ms since the epoch, from 1; 0: they do not
	heldFor   uint32        // for what they wait; see Endpoint.arrived
	clockBase uint32        // the state machine's clock at the epoch, ms; random, see internal/netpath
}

// inputState is what handles input before the state machine, or beside it.
type inputState struct {
	decoder   *fec.Decoder        // nil until the peer sends FEC, and once the session is retired
	datagrams *streams.Datagrams  // nil until the first
	holding   holding             // memory held because of the peer
	meter     streams.BufferMeter // of what the application reads

	unmetered      int    // bytes read that meter does not have yet
	packets, bytes uint64 // of the peer's packets
	probes         uint32 // of packets, PROBEs

	fixedWindow bool          // the application has set the receive window
	arrived     uint32        // payload bytes that holding.recent counts, or has counted, modulo 2^32
	sending     incast.Sender // its turn: the lock of incast.Turns

	protection atomic.Pointer[protect.Protection] // of packets; see protect.Scheme.Number
}

const (
	// CompactAfter is the idle time after which spare memory is released.
	CompactAfter = time.Second
	// WriteBatch is how many segments Write queues before each flush.
	WriteBatch = 64
	// HandshakeTime is how long a session that has not been offered to Accept
	// may wait for address validation (RFC 9000 §8).
	HandshakeTime = 10 * time.Second
)
