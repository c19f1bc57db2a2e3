package session

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

// State is what may be asked of a session at any time.
type State struct {
	Left    bool  // it was closed or aborted at this end: all calls fail
	Ended   bool  // it sends and takes nothing more
	Retired bool  // it has ended, and its last packet has left
	Dialled bool  // this end has opened it
	Offered bool  // it was dialled, or offered to Accept
	Reached bool  // something has come from the peer
	Message bool  // what is written are messages
	Hellos  int   // how often HELLO was sent
	Sending bool  // a goroutine is writing packets of this session alone
	Err     error // why it has ended, as applications see it; nil: it has not, or was closed in order
}

// State returns what may be asked at any time.
func (c *Session) State() State {
	s := State{
		Left: c.closing.Caller != closing.Uses, Ended: c.closing.Phase >= closing.Ended, Retired: c.closing.Phase == closing.Retired,
		Dialled: c.hs.Role >= opening.Dialled, Offered: c.hs.Role != opening.Accepted, Reached: c.hs.Reached,
		Sending: c.outgoing.sending && !c.outgoing.batched, Message: c.messageMode(), Hellos: int(c.hs.Of(opening.Hello).Tries),
	}
	if c.closing.err != nil {
		s.Err = c.reason(c.closing.err)
	}
	return s
}

// Arrivals is what of the peer's waits for the application.
type Arrivals struct {
	Any       bool // data, or the peer has announced its end
	Data      bool // bytes of the session itself, or a part of a message
	All       bool // all of the peer's data has arrived, up to its end
	EOF       bool // the same, and the peer has not closed the session
	Datagrams int
	Streams   int // that the peer has opened
}

// Waiting returns what of the peer's waits for the application.
func (c *Session) Waiting() Arrivals {
	a := Arrivals{Data: c.kcp.Receiver().Readable(), All: c.allReceived(), Datagrams: c.in.datagrams.Len()}
	a.Any = a.Data || c.closing.Read != closing.ReadOpen
	a.EOF = a.All && c.closing.Phase < closing.Lingering && c.closing.Read != closing.ReadClosed
	if c.streams != nil {
		a.Streams = c.streams.Waiting()
	}
	return a
}

// Effects is what steps have left to the session's caller.
type Effects struct {
	Ready   Ready
	Replied bool          // what batches of input have made due has left
	Failed  error         // why the TLS handshake of an accepted session has failed; nil: it has not
	WakeAt  time.Duration // when OnWake is to be called, in place of the time before, since the epoch; 0: that stays
}

// Take returns what steps have left to do since the last time.
func (c *Session) Take() Effects {
	e := c.step.left
	c.step.left = Effects{}
	return e
}

// End is what the endpoint keeps of a session that has ended.
type End struct {
	State TimeWait
	Hold  time.Duration // for which a socket of its own stays open
}

// Question asks whether a packet from an address that is not the peer's is of a session.
type Question struct {
	What     admission.Question
	First    *admission.First // what the packet says
	Shown    bool             // for AskHello: it shows the cookie of its address
	Numbered bool             // for AskPacket: a number shows whose it is
}

// Ready is who can go on after a step, or has something to do.
type Ready uint8

const (
	Readers   Ready = 1 << iota // calls that read
	Writers                     // calls that write, or wait for a state of the session
	Acceptors                   // calls of AcceptStream
	Stopped                     // all calls fail from now on, and deadlines are void
	Receivers                   // of receipts
	Admitted                    // opening.Compat.Validated
	Shaken                      // the TLS handshake is not in progress any more
	Lingers                     // a socket of its own stays, for a peer that repeats its end
)

// pathEnds is the addresses of a path. It is immutable.
type pathEnds struct {
	remote net.Addr  // the peer's, as applications see it
	local  udp.Local // of an accepted session: the one that its peer sends to
}

// Addresses returns the peer's address, as applications see it, and of an accepted
// session the one of this host that it sends to. It needs no lock.
func (c *Session) Addresses() (remote net.Addr, own netip.Addr) {
	ends := c.ends.Load()
	return ends.remote, ends.local.Addr()
}

// Owner returns the host of the session. It needs no lock.
func (c *Session) Owner() Host { return c.host }

// Place returns the session's place in the endpoint's table. Endpoint.mu guards it.
func (c *Session) Place() *admission.Entry { return &c.entry }

// Seed returns a random number of the session, which does not change.
func (c *Session) Seed() uint32 { return c.timers.clockBase }

// Extended reports whether the peer is known to be an extended one. It needs no lock.
func (c *Session) Extended() bool { return c.hs.greeted.Load() }

// HalfOpen reports whether the peer's address is not validated. It needs no lock.
func (c *Session) HalfOpen() bool { return c.hs.unvalidated.Load() }

// PeerInfo is what is known of the peer; see kcp.PeerInfo.
type PeerInfo struct {
	Known, Legacy bool
	Version       int
}

// Peer returns what is known of the peer, and what the TLS handshake has agreed on; nil:
// nothing yet.
func (c *Session) Peer() (info PeerInfo, secured *tls.ConnectionState) {
	l := &c.hs
	info = PeerInfo{Known: l.Peer != opening.Unknown, Legacy: l.Peer == opening.Legacy, Version: int(min(l.version, math.MaxInt32))}
	if c.tls != nil && c.tls.secured != nil {
		state := c.tls.secured.state
		secured = &state
	}
	return info, secured
}
