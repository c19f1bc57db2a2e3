package session

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

// Shared is what an endpoint has in common with its sessions. It needs no lock. The
// endpoint sets all fields before its first session. After that only what Counters, Load
// and dear have changes, which is atomic, or has a lock of its own.
type Shared struct {
	Config           Config              // immutable
	Env              *wakeup.Environment // immutable
	FixedWriteBuffer bool                // Config.WriteBuffer was not 0; immutable
	FixedWindow      bool                // the same of Config.ReceiveWindow
	MostStreamBuffer int                 // bytes that the receive buffer of a stream grows to; immutable
	Epoch            time.Time           // origin of all times given as time.Duration; immutable
	Protection       *protect.Scheme     // immutable
	Outside          protect.Protection  // of packets of no session; immutable
	Overhead         Overhead            // of sessions; immutable
	Migrates         bool                // a cipher authenticates packets, and the id shows whose they are; immutable
	Looks            bool                // the socket is connected again when its route changes; set before the first session
	Compat           opening.Compat      // set before the first session
	Counters         Counters            // atomic
	Load             Load                // atomic
	dear             handshake.Allowance // for clients whose signatures take long to check; has a lock
}

// Load is the resources that all sessions together use. It needs no
// lock.
type Load struct {
	HalfOpen atomic.Int32 // sessions whose peer's address is not validated (RFC 9000 §8)
	Sessions atomic.Int32 // in the table of the endpoint
	Buffered atomic.Int64 // bytes of memory that sessions hold because of their peers, without HalfOpenMemory
	Written  atomic.Int64 // what write buffers hold, in grains of WriteGrain bytes
	Share    atomic.Int64 // bytes that a session may hold; 0: memory is not short, or not scanned yet
}

// Counters are the counters behind stats.Endpoint.
type Counters struct {
	PacketsSent, PacketsReceived atomic.Uint64
	BytesSent, BytesReceived     atomic.Uint64
	ReadErrors, WriteErrors      atomic.Uint64
	TooLarge                     atomic.Uint64

	DropShort, DropUnknown, DropEnded atomic.Uint64
	DropCipher, DropReplay            atomic.Uint64
	DropSessions, DropBacklog         atomic.Uint64
	DropHalfOpen, DropReplies         atomic.Uint64
	DropCredit, DropHandshake         atomic.Uint64
	HandshakeErrors                   atomic.Uint64
	CookiesSent, EndedForMemory       atomic.Uint64
	ResetsSent                        atomic.Uint64
}

// Count counts packets without a session, and the answers to them.
func (n *Counters) Count(what ...admission.Reason) {
	counters := [...]*atomic.Uint64{
		admission.Short: &n.DropShort, admission.Cipher: &n.DropCipher, admission.Replay: &n.DropReplay,
		admission.Unknown: &n.DropUnknown, admission.EndedSession: &n.DropEnded, admission.Sessions: &n.DropSessions,
		admission.Backlog: &n.DropBacklog, admission.HalfOpen: &n.DropHalfOpen, admission.Shaking: &n.DropHandshake,
		admission.Limited: &n.DropReplies, admission.CookieSent: &n.CookiesSent, admission.ResetSent: &n.ResetsSent,
	}
	for _, w := range what {
		if w != admission.NoReason {
			counters[w].Add(1)
		}
	}
}

// HalfOpenMemory returns what half-open sessions themselves take, in bytes.
func (l *Load) HalfOpenMemory() int64 { return int64(l.HalfOpen.Load()) * HalfOpenBytes }

// Held returns the bytes of memory that peers make the endpoint hold.
func (l *Load) Held() int64 { return l.Buffered.Load() + l.HalfOpenMemory() }

// InPacket is an input packet: its conversation, and its kind.
type InPacket struct {
	protect.Packet
	Conv uint32 // 0 for ParityPacket without TLS
	Kind PacketKind
	From Source
	Size int // of the UDP payload, in bytes
}

// Source is the addresses of a packet that has come: the peer's, and the one of this
// Host that it was sent to. What is sent to the peer has both.
type Source struct {
	Addr  netip.AddrPort
	Peer  net.Addr  // nil if it is a UDP address, in Addr
	Local udp.Local // none: the socket is bound to an address, or the system does not tell
}

// SourceOf returns the addresses of d.
func SourceOf(d *udp.Datagram) Source { return Source{d.Addr, d.Peer, d.Local} }

// Datagram returns a datagram to the peer.
func (o Source) Datagram(buf []byte) udp.Datagram {
	return udp.Datagram{Buf: buf, Addr: o.Addr, Peer: o.Peer, Local: o.Local}
}

// NetAddr returns the address in the form that applications use.
func (o Source) NetAddr() net.Addr {
	if o.Peer != nil {
		return o.Peer
	}
	return net.UDPAddrFromAddrPort(o.Addr)
}

// PacketKind is the kind of an input packet (WIRE.md §4).
type PacketKind = admission.Kind

const (
	PlainPacket    = admission.Plain
	FECPacket      = admission.FEC
	ParityPacket   = admission.Parity
	datagramPacket = admission.Datagram

	clearPacket     = admission.Clear
	OpenedPacket    = admission.Opened
	handshakePacket = admission.Handshake
	SealedPacket    = admission.Sealed
)

// Packet is an outgoing UDP datagram. Its buffer belongs to the endpoint's
// pool, or to a segment.
type Packet struct {
	Buf      []byte
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

// Overhead is the space that a packet needs around its content, in bytes. The
// content is what the state machine or SendDatagram puts into it.
type Overhead struct {
	CipherHead int // before all; 0 without a cipher
	fecHead    int // between CipherHead and the content; 0 without FEC
	Tail       int // behind the content, for the cipher's tag

	head  int // CipherHead and fecHead
	Total int // head and tail
}

// OverheadOf returns the overhead of packets under a cipher, or TLS, with FEC.
func OverheadOf(c crypt.Cipher, tls bool, f stats.Ratio) (o Overhead) {
	o.CipherHead, o.Tail = protect.Overhead(c, tls)
	if f != (stats.Ratio{}) {
		o.fecHead = fec.HeaderSize
	}
	o.head = o.CipherHead + o.fecHead
	o.Total = o.head + o.Tail
	return o
}

// Several reports whether there is more than one session, so that there may be incast.
func (e *Shared) Several() bool { return e.Load.Sessions.Load() > 1 }

// Single reports whether there is only one session. Half-open ones do not
// count, so that anyone who opens some cannot stop calls from reading the
// socket.
func (e *Shared) Single() bool { return e.Load.Sessions.Load()-e.Load.HalfOpen.Load() == 1 }

// OverMemoryLimit reports whether all sessions together hold more than
// Limits.MaxBuffered.
func (e *Shared) OverMemoryLimit() bool {
	return e.Load.Held() > int64(e.Config.MaxBuffered)
}

// Overload returns the bytes by which the sessions together exceed MaxBuffered,
// and a margin: they never exceed it by more than four times that.
func (e *Shared) Overload() (over, margin int64) {
	limit := int64(e.Config.MaxBuffered)
	return e.Load.Held() - limit, max(limit/8, leastMargin)
}

// Packet returns a packet with a buffer of n bytes from the pool.
func (e *Shared) Packet(n int) Packet {
	b, _ := packetBuffers.Get().(*buffer)
	if b == nil {
		b = new(buffer)
	}
	if cap(b.b) < n {
		b.b = make([]byte, max(n, e.Config.MTU))
	}
	return Packet{Buf: b.b[:n], pooled: b}
}

// Recycle counts packets that were written, and releases their buffers.
func (e *Shared) Recycle(packets []Packet) {
	bytes := 0
	for i := range packets {
		bytes += len(packets[i].Buf)
		if b := packets[i].pooled; b != nil {
			packetBuffers.Put(b)
			packets[i].Buf, packets[i].pooled = nil, nil
		}
	}
	e.Counters.BytesSent.Add(uint64(bytes))
}

// Open opens a packet under the application keys of a session, and classifies it.
// A packet whose keys are not known yet remains a SealedPacket. Other errors are
// counted drops. It needs no lock of a session.
func (e *Shared) Open(by protect.Protection, p *InPacket) error {
	kind, why, err := admission.OpenSealed(by, &p.Packet, p.Conv)
	if err != nil {
		e.Counters.Count(why)
		return err
	}
	p.Kind = kind
	return nil
}

// sealsFrom reports whether segments are sealed from their buffers, which stay as
// they are: the protection can, and there is no FEC, whose header would have to be
// in the content.
func (e *Shared) sealsFrom() bool {
	return e.Protection.SealsFrom && e.Config.FEC == (stats.Ratio{})
}

// clock returns a time since the epoch in milliseconds, modulo 2^32.
func clock(now time.Duration) uint32 { return uint32(now.Milliseconds()) }

// Key identifies a session: its peer's address and its conversation id.
type Key = admission.Key

// TimeWait is the state of a session in TIME-WAIT.
type TimeWait = admission.Ended

// TimeWaitTime is how long stragglers of an ended session are recognised
// (TIME-WAIT, RFC 9293 §3.6.1).
const TimeWaitTime = admission.TimeWait

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
		return ErrOwnAddress
	}
	return ErrBothDial
}
