package kcp

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wakeup"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
)

// sharedState is what an endpoint has in common with its sessions. It needs no lock.
type sharedState struct {
	config           sessionConfig       // immutable
	env              *wakeup.Environment // immutable
	fixedWriteBuffer bool                // Config.WriteBuffer was not 0; immutable
	fixedWindow      bool                // the same of Config.ReceiveWindow
	mostStreamBuffer int                 // bytes that the receive buffer of a stream grows to; immutable
	epoch            time.Time           // origin of all times given as time.Duration; immutable
	protection       *protect.Scheme     // immutable
	outside          protect.Protection  // of packets of no session; immutable
	overhead         overhead            // of sessions; immutable
	migrates         bool                // a cipher authenticates packets, and the id shows whose they are; immutable
	looks            bool                // the socket is connected again when its route changes; set before the first session
	compat           opening.Compat      // set before the first session
	counters         endpointCounters
	load             endpointLoad
	dear             handshake.Allowance // for clients whose signatures take long to check
}

// endpointLoad is the resources that all sessions together use. It needs no
// lock.
type endpointLoad struct {
	halfOpen atomic.Int32 // sessions whose peer's address is not validated (RFC 9000 §8)
	sessions atomic.Int32 // length of sessionTable.sessions
	buffered atomic.Int64 // bytes of memory that sessions hold because of their peers, without halfOpenMemory
	written  atomic.Int64 // what write buffers hold, in grains of writeGrain bytes
	share    atomic.Int64 // bytes that a session may hold; 0: memory is not short, or not scanned yet
}

// endpointCounters are the counters behind stats.Endpoint.
type endpointCounters struct {
	packetsSent, packetsReceived atomic.Uint64
	bytesSent, bytesReceived     atomic.Uint64
	readErrors, writeErrors      atomic.Uint64
	tooLarge                     atomic.Uint64

	dropShort, dropUnknown, dropEnded atomic.Uint64
	dropCipher, dropReplay            atomic.Uint64
	dropSessions, dropBacklog         atomic.Uint64
	dropHalfOpen, dropReplies         atomic.Uint64
	dropCredit, dropHandshake         atomic.Uint64
	handshakeErrors                   atomic.Uint64
	cookiesSent, endedForMemory       atomic.Uint64
	resetsSent                        atomic.Uint64
}

// count counts packets without a session, and the answers to them.
func (n *endpointCounters) count(what ...admission.Reason) {
	counters := [...]*atomic.Uint64{
		admission.Short: &n.dropShort, admission.Cipher: &n.dropCipher, admission.Replay: &n.dropReplay,
		admission.Unknown: &n.dropUnknown, admission.EndedSession: &n.dropEnded, admission.Sessions: &n.dropSessions,
		admission.Backlog: &n.dropBacklog, admission.HalfOpen: &n.dropHalfOpen, admission.Shaking: &n.dropHandshake,
		admission.Limited: &n.dropReplies, admission.CookieSent: &n.cookiesSent, admission.ResetSent: &n.resetsSent,
	}
	for _, w := range what {
		if w != admission.NoReason {
			counters[w].Add(1)
		}
	}
}

// halfOpenMemory returns what half-open sessions themselves take, in bytes.
func (l *endpointLoad) halfOpenMemory() int64 { return int64(l.halfOpen.Load()) * halfOpenBytes }

// held returns the bytes of memory that peers make the endpoint hold.
func (l *endpointLoad) held() int64 { return l.buffered.Load() + l.halfOpenMemory() }

// inPacket is an input packet: its conversation, and its kind.
type inPacket struct {
	protect.Packet
	conv uint32 // 0 for parityPacket without TLS
	kind packetKind
	from source
	size int // of the UDP payload, in bytes
}

// source is the addresses of a packet that has come: the peer's, and the one of this
// host that it was sent to. What is sent to the peer has both.
type source struct {
	addr  netip.AddrPort
	peer  net.Addr  // nil if it is a UDP address, in addr
	local udp.Local // none: the socket is bound to an address, or the system does not tell
}

// sourceOf returns the addresses of d.
func sourceOf(d *udp.Datagram) source { return source{d.Addr, d.Peer, d.Local} }

// datagram returns a datagram to the peer.
func (o source) datagram(buf []byte) udp.Datagram {
	return udp.Datagram{Buf: buf, Addr: o.addr, Peer: o.peer, Local: o.local}
}

// netAddr returns the address in the form that applications use.
func (o source) netAddr() net.Addr {
	if o.peer != nil {
		return o.peer
	}
	return net.UDPAddrFromAddrPort(o.addr)
}

// packetKind is the kind of an input packet (WIRE.md §4).
type packetKind = admission.Kind

const (
	plainPacket    = admission.Plain
	fecPacket      = admission.FEC
	parityPacket   = admission.Parity
	datagramPacket = admission.Datagram

	clearPacket     = admission.Clear
	openedPacket    = admission.Opened
	handshakePacket = admission.Handshake
	sealedPacket    = admission.Sealed
)

// packet is an outgoing UDP datagram. Its buffer belongs to the endpoint's
// pool, or to a segment.
type packet struct {
	buf      []byte
	pooled   *buffer          // of buf, to return to the pool; nil: buf is the segment's
	segment  *machine.Segment // to release once the packet is written; nil: there is none
	datagram bool             // from SendDatagram: bypasses the state machine and FEC
	ready    bool             // of a TLS handshake: leaves as it is
	repeats  uint8            // if ready: how often the flight has left before
	parity   bool             // of FEC, held back by the cap of the rate
}

// buffer is a packet buffer of the endpoint's pool.
type buffer struct{ b []byte }

// packetBuffers has the buffers of all endpoints, as many have few packets each.
var packetBuffers sync.Pool // of *buffer

// overhead is the space that a packet needs around its content, in bytes. The
// content is what the state machine or SendDatagram puts into it.
type overhead struct {
	cipherHead int // before all; 0 without a cipher
	fecHead    int // between cipherHead and the content; 0 without FEC
	tail       int // behind the content, for the cipher's tag

	head  int // cipherHead and fecHead
	total int // head and tail
}

// overheadOf returns the overhead of packets under a cipher, or TLS, with FEC.
func overheadOf(c crypt.Cipher, tls bool, f stats.Ratio) (o overhead) {
	o.cipherHead, o.tail = protect.Overhead(c, tls)
	if f != (stats.Ratio{}) {
		o.fecHead = fec.HeaderSize
	}
	o.head = o.cipherHead + o.fecHead
	o.total = o.head + o.tail
	return o
}

// several reports whether there is more than one session, so that there may be incast.
func (e *sharedState) several() bool { return e.load.sessions.Load() > 1 }

// single reports whether there is only one session. Half-open ones do not
// count, so that anyone who opens some cannot stop calls from reading the
// socket.
func (e *sharedState) single() bool { return e.load.sessions.Load()-e.load.halfOpen.Load() == 1 }

// overMemoryLimit reports whether all sessions together hold more than
// Limits.MaxBuffered.
func (e *sharedState) overMemoryLimit() bool {
	return e.load.held() > int64(e.config.maxBuffered)
}

// overload returns the bytes by which the sessions together exceed MaxBuffered,
// and a margin: they never exceed it by more than four times that.
func (e *sharedState) overload() (over, margin int64) {
	limit := int64(e.config.maxBuffered)
	return e.load.held() - limit, max(limit/8, leastMargin)
}

// packet returns a packet with a buffer of n bytes from the pool.
func (e *sharedState) packet(n int) packet {
	b, _ := packetBuffers.Get().(*buffer)
	if b == nil {
		b = new(buffer)
	}
	if cap(b.b) < n {
		b.b = make([]byte, max(n, e.config.mtu))
	}
	return packet{buf: b.b[:n], pooled: b}
}

// recycle counts packets that were written, and releases their buffers.
func (e *sharedState) recycle(packets []packet) {
	bytes := 0
	for i := range packets {
		bytes += len(packets[i].buf)
		if b := packets[i].pooled; b != nil {
			packetBuffers.Put(b)
			packets[i].buf, packets[i].pooled = nil, nil
		}
	}
	e.counters.bytesSent.Add(uint64(bytes))
}

// open opens a packet under the application keys of a session, and classifies it.
// A packet whose keys are not known yet remains a sealedPacket. Other errors are
// counted drops. It needs no lock of a session.
func (e *sharedState) open(by protect.Protection, p *inPacket) error {
	kind, why, err := admission.OpenSealed(by, &p.Packet, p.conv)
	if err != nil {
		e.counters.count(why)
		return err
	}
	p.kind = kind
	return nil
}

// sealsFrom reports whether segments are sealed from their buffers, which stay as
// they are: the protection can, and there is no FEC, whose header would have to be
// in the content.
func (e *sharedState) sealsFrom() bool {
	return e.protection.SealsFrom && e.config.fec == (stats.Ratio{})
}

// clock returns a time since the epoch in milliseconds, modulo 2^32.
func clock(now time.Duration) uint32 { return uint32(now.Milliseconds()) }

// sessionKey identifies a session: its peer's address and its conversation id.
type sessionKey = admission.Key

// timeWait is the state of a session in TIME-WAIT.
type timeWait = admission.Ended

// timeWaitTime is how long stragglers of an ended session are recognised
// (TIME-WAIT, RFC 9293 §3.6.1).
const timeWaitTime = admission.TimeWait

// simultaneous reports whether the peer of a session that this end dials does so too
// (simultaneous open, RFC 9293 §3.5). r may be nil.
func (r *rareState) simultaneous() bool { return r != nil && r.tie.Code != 0 }

// tiebreaker returns the TIEBREAKER that goes with HELLO then, and otherwise nothing.
func (r *rareState) tiebreaker() []wire.Signal {
	if !r.simultaneous() {
		return nil
	}
	return []wire.Signal{r.tie}
}

// bothDial returns why a dialled session ends for which a HELLO has come: its own, or the
// peer's, which dials it too. In a simultaneous open its own counts for nothing, and both
// ends draw another conversation id.
func (r *rareState) bothDial(own bool) error {
	switch simultaneous := r.simultaneous(); {
	case simultaneous && own:
		return nil
	case simultaneous:
		return ErrReset
	case own:
		return errOwnAddress
	}
	return errBothDial
}
