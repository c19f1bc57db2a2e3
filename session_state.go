package kcp

import (
	"crypto/tls"
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/udp"
)

// What a session's caller may ask, and what it has to do after each step.

// sessionState is what may be asked of a session at any time.
type sessionState struct {
	left    bool  // it was closed or aborted at this end: all calls fail
	ended   bool  // it sends and takes nothing more
	retired bool  // it has ended, and its last packet has left
	dialled bool  // this end has opened it
	offered bool  // it was dialled, or offered to Accept
	reached bool  // something has come from the peer
	message bool  // what is written are messages
	hellos  int   // how often HELLO was sent
	sending bool  // a goroutine is writing packets of this session alone
	err     error // why it has ended, as applications see it; nil: it has not, or was closed in order
}

// state returns what may be asked at any time.
func (c *session) state() sessionState {
	s := sessionState{
		left: c.closing.Caller != closing.Uses, ended: c.closing.Phase >= closing.Ended, retired: c.closing.Phase == closing.Retired,
		dialled: c.hs.Role >= opening.Dialled, offered: c.hs.Role != opening.Accepted, reached: c.hs.Reached,
		sending: c.outgoing.sending && !c.outgoing.batched, message: c.messageMode(), hellos: int(c.hs.Of(opening.Hello).Tries),
	}
	if c.closing.err != nil {
		s.err = c.reason(c.closing.err)
	}
	return s
}

// arrivals is what of the peer's waits for the application.
type arrivals struct {
	any       bool // data, or the peer has announced its end
	data      bool // bytes of the session itself, or a part of a message
	all       bool // all of the peer's data has arrived, up to its end
	eof       bool // the same, and the peer has not closed the session
	datagrams int
	streams   int // that the peer has opened
}

// waiting returns what of the peer's waits for the application.
func (c *session) waiting() arrivals {
	a := arrivals{data: c.kcp.Receiver().Readable(), all: c.allReceived(), datagrams: c.in.datagrams.Len()}
	a.any = a.data || c.closing.Read != closing.ReadOpen
	a.eof = a.all && c.closing.Phase < closing.Lingering && c.closing.Read != closing.ReadClosed
	if c.streams != nil {
		a.streams = c.streams.Waiting()
	}
	return a
}

// effects is what steps have left to the session's caller.
type effects struct {
	ready   ready
	replied bool          // what batches of input have made due has left
	failed  error         // why the TLS handshake of an accepted session has failed; nil: it has not
	wakeAt  time.Duration // when onWake is to be called, in place of the time before, since the epoch; 0: that stays
}

// take returns what steps have left to do since the last time.
func (c *session) take() effects {
	e := c.step.left
	c.step.left = effects{}
	return e
}

// sessionEnd is what the endpoint keeps of a session that has ended.
type sessionEnd struct {
	state timeWait
	hold  time.Duration // for which a socket of its own stays open
}

// question asks whether a packet from an address that is not the peer's is of a session.
type question struct {
	what     admission.Question
	first    *admission.First // what the packet says
	shown    bool             // for AskHello: it shows the cookie of its address
	numbered bool             // for AskPacket: a number shows whose it is
}

// ready is who can go on after a step, or has something to do.
type ready uint8

const (
	readers   ready = 1 << iota // calls that read
	writers                     // calls that write, or wait for a state of the session
	acceptors                   // calls of AcceptStream
	stopped                     // all calls fail from now on, and deadlines are void
	receivers                   // of receipts
	admitted                    // opening.Compat.Validated
	shaken                      // the TLS handshake is not in progress any more
	lingers                     // a socket of its own stays, for a peer that repeats its end
)

// pathEnds is the addresses of a path. It is immutable.
type pathEnds struct {
	remote net.Addr  // the peer's, as applications see it
	local  udp.Local // of an accepted session: the one that its peer sends to
}

// addresses returns the peer's address, as applications see it, and of an accepted
// session the one of this host that it sends to. It needs no lock.
func (c *session) addresses() (remote net.Addr, own netip.Addr) {
	ends := c.ends.Load()
	return ends.remote, ends.local.Addr()
}

// owner returns the host of the session. It needs no lock.
func (c *session) owner() host { return c.host }

// place returns the session's place in the endpoint's table. Endpoint.mu guards it.
func (c *session) place() *admission.Entry { return &c.entry }

// seed returns a random number of the session, which does not change.
func (c *session) seed() uint32 { return c.timers.clockBase }

// extended reports whether the peer is known to be an extended one. It needs no lock.
func (c *session) extended() bool { return c.hs.greeted.Load() }

// halfOpen reports whether the peer's address is not validated. It needs no lock.
func (c *session) halfOpen() bool { return c.hs.unvalidated.Load() }

// peerInfo is what is known of the peer; see kcp.PeerInfo.
type peerInfo struct {
	Known, Legacy bool
	Version       int
}

// peer returns what is known of the peer, and what the TLS handshake has agreed on; nil:
// nothing yet.
func (c *session) peer() (info peerInfo, secured *tls.ConnectionState) {
	l := &c.hs
	info = peerInfo{Known: l.Peer != opening.Unknown, Legacy: l.Peer == opening.Legacy, Version: int(min(l.version, math.MaxInt32))}
	if c.tls != nil && c.tls.secured != nil {
		state := c.tls.secured.state
		secured = &state
	}
	return info, secured
}
