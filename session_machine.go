package kcp

import (
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/liveness"
	"github.com/arqnet/kcp/internal/pmtud"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/streams"
)

// session is a session as a state machine: what it knows of its peer, what it has to
// send, and what is due when. It has no lock, clock, goroutine, channel or socket. Its
// caller keeps its methods apart, and carries out what they bring about: it writes the
// packets of outgoing, lets those of ready go on, and removes a session that has ended.
// What a session asks for, it asks its host.
type session struct {
	shared *sharedState // with the endpoint; the pointer is immutable
	host   host         // immutable
	ends   atomic.Pointer[pathEnds]

	kcp      *KCP // the state machine of the protocol; the pointer is immutable
	path     pathState
	step     stepState
	hs       handshakeState
	live     liveness.State
	closing  closeState
	timers   timerState
	plpmtu   *pmtud.Path // nil: nothing has shown what the path takes
	in       inputState
	tls      *tlsState // nil without TLS; the pointer is immutable
	outgoing outgoing
	streams  *sessionStreams // nil: there have been none
	rare     *rareState      // nil: nothing of it is needed
	rtt      rttState

	// entry is the session's place in the endpoint's table. To change the key takes
	// Conn.mu and Endpoint.mu, so either is enough to read it; entry.Conv does not
	// change once the session is in the table. Endpoint.mu guards the rest.
	entry admission.Entry
}

// host is what a session asks of its endpoint. The session's caller calls the session,
// and the host may ask the session, but changes nothing of it.
type host interface {
	// now returns the time since the endpoint's epoch.
	now() time.Duration
	// wake has onWake called at a time, in place of the one asked for before.
	wake(at time.Duration)

	// offer puts an accepted session into the backlog of the listener. It reports false
	// if that has no room, and with none whether there is no listener.
	offer() (ok, none bool)
	// validated counts a session whose peer's address is validated. It reports false if
	// the peer's network has more of them than it may.
	validated() bool
	// move changes the address in the session's key. It reports false if the endpoint
	// has another session there.
	move(to source) bool
	// reply sends signals to an address that is not the peer's, as far as the limit of
	// the rate allows, and reports whether it does.
	reply(to source, by protect.Protection, h header, signals ...signal) bool
	// challenge returns the challenge of an address.
	challenge(to source, token uint32, at time.Duration) signal
	// resetKey returns the key of stateless resets for the peer; nil: it gets none.
	resetKey() *resetKey

	// workTLS does work of a TLS handshake, and calls workedTLS with what it has come to.
	workTLS(flow netip.Addr, x *handshake.Exchange, work handshake.Work)
	// handshakeOver says that the TLS handshake is not in progress any more, and
	// handshakeFailed that it has failed.
	handshakeOver()
	handshakeFailed(err *HandshakeError)

	// arrived and unread are about what waits at a socket; see Endpoint.arrived.
	arrived(shard int) uint32
	unread(shard int, n uint32) bool
	// incast returns what a socket does against incast.
	incast(shard int) *socketIncast
	// hand leaves a datagram of the batch of input to the handler of datagrams.
	hand(b []byte)

	// newStream makes a stream of the application's.
	newStream(p *streams.Params) *streams.Stream

	// look has the route to the peer looked at; looked returns when it last was.
	look()
	looked() (at time.Duration, ok bool)
	// keepsWhole reports whether what the socket sends is fragmented nowhere.
	keepsWhole() bool
	// socketError returns an error of the socket since a time; nil: there was none.
	socketError(since time.Duration) error
	// ownSocket reports whether the socket is the session's own. linger keeps it, then,
	// for a peer that repeats its end.
	ownSocket() bool
	linger()
	// stopped reports whether the endpoint is closed.
	stopped() bool
}

// stepState is about the step that is under way, and what it leaves for the next.
type stepState struct {
	inputAt        time.Duration // arrival of the current batch of input, since the epoch
	ready          ready
	respondPending bool // respond is due at the end of the batch
	replyPending   bool // a reply is due; the next application call or the read loop sends it
	offPath        bool // a signal of the current packet is not from within the session
	challenged     bool // the current packet has a PING, which may be a path challenge
}

// ready is who can go on after a step, or has something to do.
type ready uint8

const (
	readers   ready = 1 << iota // calls that read
	writers                     // calls that write, or wait for a state of the session
	acceptors                   // calls of AcceptStream
	stopped                     // all calls fail from now on, and deadlines are void
	receivers                   // of receipts
	admitted                    // compatibility.Options.Validated
)

// init sets up a new session with the peer of key.
func (c *session) init(e *sharedState, h host, key sessionKey, remote net.Addr) {
	c.shared, c.host = e, h
	c.timers.clockBase = e.env.Uint32()
	c.ends.Store(&pathEnds{remote: remote})
	c.entry.SetKey(key)
	c.outgoing.init(e)
	hooks := hooks{output: c.collect, packetBuffer: c.packetBuffer, host: c, frugal: true}
	switch {
	case e.sealsFrom():
		hooks.outputInPlace, hooks.headroom = c.queueSegment, headerSize
	case e.protection.None:
		hooks.outputInPlace, hooks.headroom = c.queueSegment, int32(e.overhead.head+headerSize)
	}
	c.kcp = newMachine(key.Conv, hooks)
	e.config.apply(c.kcp)
	now := h.now()
	c.hs.born, c.step.inputAt, c.live = now, now, liveness.New(now)
	c.closing.Linger = e.config.Linger
	c.protect()
	c.setClock(now)
	if e.config.MaxRate > 0 {
		c.capRate(e.config.MaxRate)
	}
}
