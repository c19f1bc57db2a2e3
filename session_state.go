package kcp

import (
	"crypto/tls"
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
	replies bool  // respond has something to do
	owes    bool  // it was left to the next call to do that
	sending bool  // a goroutine is writing packets of this session alone
	err     error // why it has ended, as applications see it; nil: it has not, or was closed in order
}

// state returns what may be asked at any time.
func (c *session) state() sessionState {
	s := sessionState{
		left: c.closing.Caller != closing.Uses, ended: c.closing.Phase >= closing.Ended, retired: c.closing.Phase == closing.Retired,
		dialled: c.hs.Role >= opening.Dialled, offered: c.hs.Role != opening.Accepted, reached: c.hs.Reached,
		replies: c.step.reply != noReply, owes: c.step.reply == replyLeft,
		sending: c.outgoing.sending && !c.outgoing.batched,
	}
	if c.closing.err != nil {
		s.err = c.reason(c.closing.err)
	}
	return s
}

// arrivals is what of the peer's waits for the application.
type arrivals struct {
	data      bool // bytes of the session itself, or a part of a message
	all       bool // all of the peer's data has arrived, up to its end
	eof       bool // the same, and the peer has not closed the session
	datagrams int
	streams   int // that the peer has opened
}

// waiting returns what of the peer's waits for the application.
func (c *session) waiting() arrivals {
	a := arrivals{data: c.kcp.receiver().readable(), all: c.allReceived(), datagrams: c.in.datagrams.Len()}
	a.eof = a.all && c.closing.Phase < closing.Lingering && c.closing.Read != closing.ReadClosed
	if c.streams != nil {
		a.streams = c.streams.Waiting()
	}
	return a
}

// effects is what a step has left to the session's caller.
type effects struct {
	ready ready
}

// take returns what steps have left to do since the last time.
func (c *session) take() effects {
	e := effects{ready: c.step.ready}
	c.step.ready = 0
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
	admitted                    // compatibility.Options.Validated
)

// pendingReply is whether respond has something to do, and who calls it.
type pendingReply uint8

const (
	noReply   pendingReply = iota
	replyDue               // at the end of the batch
	replyLeft              // to the next call of the application, or the read loop
)

// oweReply makes respond due, if a batch has changed something. It reports whether the
// caller has to call it, and has not to anyway.
func (c *session) oweReply(changed bool) bool {
	if !changed || c.step.reply != noReply || c.closing.Phase >= closing.Ended {
		return false
	}
	c.step.reply = replyDue
	return true
}

// leaveReply leaves a reply that is due to the next call.
func (c *session) leaveReply() { c.step.reply = replyLeft }

// postponeReply leaves what respond would do to the waiting calls and the next wake-up.
func (c *session) postponeReply() {
	if c.step.reply != noReply && c.closing.Phase < closing.Ended {
		c.step.reply = noReply
		c.wakeAll()
		c.wake(c.host.now())
	}
}

// callWoken records whether a call was woken, and none has run since.
func (c *session) callWoken(is bool) { c.step.woken = is }

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

// place returns the session's place in the endpoint's table. Endpoint.mu guards it.
func (c *session) place() *admission.Entry { return &c.entry }

// seed returns a random number of the session, which does not change.
func (c *session) seed() uint32 { return c.timers.clockBase }

// extended reports whether the peer is known to be an extended one. It needs no lock.
func (c *session) extended() bool { return c.hs.greeted.Load() }

// halfOpen reports whether the peer's address is not validated. It needs no lock.
func (c *session) halfOpen() bool { return c.hs.unvalidated.Load() }

// peer returns what is known of the peer.
func (c *session) peer() PeerInfo {
	l := &c.hs
	return PeerInfo{Known: l.Peer != opening.Unknown, Legacy: l.Peer == opening.Legacy, Version: int(min(l.version, maxInt32))}
}

// agreed returns what the TLS handshake has agreed on; nil: nothing yet.
func (c *session) agreed() *tls.ConnectionState {
	if c.tls == nil || c.tls.secured == nil {
		return nil
	}
	state := c.tls.secured.state
	return &state
}
