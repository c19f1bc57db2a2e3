package kcp

import (
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/fec"
)

// Drops counts packets dropped, by reason.
type Drops struct {
	Short    uint64 // shorter than a segment header
	Conv     uint64 // a segment of another conversation inside
	Length   uint64 // a segment longer than its packet
	Command  uint64 // an unknown command
	Una      uint64 // acknowledges data that was never sent
	Piece    uint64 // a piece that is malformed, or contradicts others of its segment
	FEC      uint64 // a malformed or repeated FEC header
	Requests uint64 // more requests than are answered at a time
	Stream   uint64 // a stream segment that is malformed, or breaks the rules of its stream
}

// count counts one packet that the state machine has dropped with err.
func (d *Drops) count(err error) {
	switch err {
	case ErrPacketShort:
		d.Short++
	case ErrConv:
		d.Conv++
	case ErrSegmentLength:
		d.Length++
	case ErrCommand:
		d.Command++
	case ErrForgedUna:
		d.Una++
	case ErrPiece:
		d.Piece++
	case ErrRequests:
		d.Requests++
	}
}

// Total returns the sum of all reasons.
func (d Drops) Total() uint64 {
	return d.Short + d.Conv + d.Length + d.Command + d.Una + d.Piece + d.Requests + d.FEC + d.Stream
}

// ConnStats is a snapshot of a session.
type ConnStats struct {
	Counters
	// Dropped counts bad packets from the peer, or forged in its name. Segments
	// before the bad one have taken effect.
	Dropped Drops

	// RTT is the smoothed round-trip time, in microseconds; 0 before the first
	// sample. Samples are the acknowledgements of data, the handshake, and PINGs
	// (keep-alive, Conn.Ping, and one a second beside datagrams that are sent).
	// Those of data include up to 25 ms for which the peer holds them back.
	RTT           time.Duration
	RTTMin        time.Duration // the shortest sample on this path; 0: none yet
	RTTAge        time.Duration // since the last sample; 0: none yet
	RTTVar        time.Duration // variation of the round-trip time of data, in milliseconds
	RTO           time.Duration // retransmission time-out, in milliseconds
	InFlight      int           // segments sent and not acknowledged
	Queued        int           // segments waiting to be sent
	WriteBuffered int           // payload bytes of InFlight and Queued
	// WriteBufferUsed is how much of Config.WriteBuffer is in use, in bytes. It
	// is WriteBuffered and 64 for each segment; see Conn.WriteAvailable.
	WriteBufferUsed int
	ReadBuffered    int // payload bytes waiting to be read, or for a missing segment
	RemoteWindow    int // the window that the peer advertises, in segments
	// Held is the memory in bytes that the session holds because of what the
	// peer has sent. It counts unread data and datagrams, places kept for
	// missing segments, packets kept for error correction, and buffers that are
	// released after a second without traffic.
	Held int
	// CongestionWindow is in segments. Without congestion control it is the
	// largest int32.
	CongestionWindow int

	Moves int // changes of the peer's address (connection migration, RFC 9000 §9)

	Datagrams DatagramStats // unreliable ones, both ways
	PathMTU   PathMTUStats  // the session's MTU, and how it was found
	// FEC counts what forward error correction has done in both directions.
	FEC FECStats
}

// DatagramStats counts the datagrams of SendDatagram and ReceiveDatagram.
type DatagramStats struct {
	Sent     uint64 // given to the socket
	Received uint64 // including dropped ones
	// Dropped counts received datagrams that were discarded: too many were
	// waiting for ReceiveDatagram, the session was closed, or memory was short.
	Dropped uint64
	// Unsent counts datagrams that were not sent: too much was waiting for the
	// socket, or the anti-amplification limit forbade it (RFC 9000 §8.1).
	Unsent uint64
}

// FECStats counts what forward error correction has done for a session.
type FECStats struct {
	DataSent   uint64 // packets
	ParitySent uint64 // packets

	DataReceived   uint64 // packets that arrived by themselves
	ParityReceived uint64 // packets
	Recovered      uint64 // lost packets that parity has restored
	Lost           uint64 // groups with packets lost for good
	PeerRatio      FEC    // the peer's ratio, detected from its traffic; zero while unknown
}

// Stats returns a snapshot of the session.
func (c *Conn) Stats() ConnStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, size := c.kcp.snapshot(), c.writeBuffer()
	return ConnStats{
		Counters:         c.kcp.Counters(),
		Dropped:          c.dropCounts(),
		RTT:              c.rtt.current(k.srtt),
		RTTMin:           time.Duration(c.rtt.least) * time.Microsecond,
		RTTAge:           c.rtt.age(c.ep.now()),
		RTTVar:           time.Duration(k.rttvar) * time.Millisecond,
		RTO:              time.Duration(k.rto) * time.Millisecond,
		InFlight:         k.inFlight,
		Queued:           k.queued,
		WriteBuffered:    c.kcp.sendBytes(),
		WriteBufferUsed:  size - c.room(),
		ReadBuffered:     k.readable,
		RemoteWindow:     k.window,
		Held:             c.held(),
		CongestionWindow: k.congestionWindow,
		Moves:            int(c.path.validation.count()),
		Datagrams:        c.datagramStats(),
		FEC:              c.fecStats(),
		PathMTU:          c.pathMTUStats(),
	}
}

// fecStats returns what both directions of FEC have done. c.mu is held.
func (c *Conn) fecStats() (s FECStats) {
	s.DataSent, s.ParitySent = c.outgoing.fecData, c.outgoing.fecParity
	var d *fec.DecoderStats
	if c.in.decoder != nil {
		now := c.in.decoder.Stats()
		d = &now
	} else if c.rare != nil {
		d = c.rare.decoded
	}
	if d != nil {
		s.DataReceived, s.ParityReceived = d.Data, d.Parity
		s.Recovered, s.Lost = d.Recovered, d.Lost
		s.PeerRatio = FEC{Data: d.DataShards, Parity: d.ParityShards}
	}
	return s
}

func (c *Conn) pathMTUStats() PathMTUStats {
	n := c.plpmtu.counts
	return PathMTUStats{MTU: c.mtu(), Sent: uint64(n.sent), Lost: uint64(n.lost), BlackHoles: uint64(n.blackHoles)}
}

func (c *Conn) dropCounts() (d Drops) {
	if c.rare != nil {
		d = c.rare.dropped
	}
	return d
}

// endpointCounters are the counters behind EndpointStats.
type endpointCounters struct {
	packetsSent, packetsReceived atomic.Uint64
	bytesSent, bytesReceived     atomic.Uint64
	readErrors, writeErrors      atomic.Uint64

	dropShort, dropUnknown, dropEnded atomic.Uint64
	dropCipher, dropReplay            atomic.Uint64
	dropSessions, dropBacklog         atomic.Uint64
	dropHalfOpen, dropReplies         atomic.Uint64
	dropCredit, dropHandshake         atomic.Uint64
	handshakeErrors                   atomic.Uint64
	cookiesSent, endedForMemory       atomic.Uint64
	resetsSent                        atomic.Uint64

	lastWriteError atomic.Pointer[socketError] // nil: none
}

// EndpointStats is a snapshot of an endpoint and of its listener.
type EndpointStats struct {
	Sessions int // open now, including those in the backlog
	Peak     int // the most sessions that were open at a time
	Backlog  int // waiting for Accept
	HalfOpen int // accepted, of peers whose addresses are not validated
	// Buffered is the memory in bytes that all sessions hold because of what
	// their peers have sent, the sum of ConnStats.Held. Config.MaxBuffered
	// bounds it.
	Buffered int
	// WriteBuffered is the memory in bytes of what all sessions and their streams
	// have to send, or to be acknowledged, to within 16 KiB a session. See
	// Config.WriteBuffer.
	WriteBuffered int
	// EndedForMemory counts sessions ended with ErrMemoryPressure. It is
	// Ended.Memory and the sessions among Ended.Unaccepted.
	EndedForMemory uint64

	// Dialled and Accepted count the sessions opened so far, by this end and by
	// peers. Accepted includes those that Accept has not returned. Without those
	// of Sessions, all have ended: Dialled + Accepted = Sessions + Ended.Total().
	Dialled, Accepted uint64
	Ended             EndedSessions // the sessions that have ended, by cause

	PacketsSent     uint64 // datagrams
	PacketsReceived uint64 // datagrams
	BytesSent       uint64 // UDP payload
	BytesReceived   uint64 // UDP payload
	ReadErrors      uint64 // of the socket; each concerns one packet
	WriteErrors     uint64 // of the socket; each concerns one packet
	// SocketDrops counts datagrams that the system dropped because the receive
	// buffer of a socket was full, since the socket was opened, modulo 2^32 for
	// each socket. It is known on Linux only, for sockets of the system.
	SocketDrops uint64

	// Packets dropped because no session took them, or not sent.
	DropShort    uint64 // shorter than a segment header
	DropCipher   uint64 // fails the check of Config.Cipher: wrong key, forged or damaged
	DropReplay   uint64 // replayed, changed, or not from within its session; with a cipher that hides the content
	DropUnknown  uint64 // matched no session and could not open one
	DropEnded    uint64 // late packets of a session that has ended
	DropSessions uint64 // would exceed Config.MaxSessions or MaxSessionsPerAddress
	DropHalfOpen uint64 // would exceed Config.MaxHalfOpen
	DropBacklog  uint64 // would exceed Config.Backlog
	DropReplies  uint64 // replies outside sessions not sent, because of the rate limit
	DropCredit   uint64 // packets not sent, because of the anti-amplification limit (RFC 9000 §8.1)
	// DropHandshake counts packets of TLS handshakes that were dropped: not
	// well-formed, of another handshake or one that is over, too much of one,
	// of too many at a time, or of a peer that has TLS where this end has not, or
	// the reverse.
	DropHandshake uint64
	// HandshakeErrors counts TLS handshakes that have failed, at either end.
	HandshakeErrors uint64
	CookiesSent     uint64 // cookies sent to new peers, instead of keeping state for them
	// ResetsSent counts stateless resets (RFC 9000 §10.3): answers to packets of
	// sessions with TLS that the endpoint does not know, as after a restart.
	ResetsSent uint64
}

// Stats returns a snapshot of the endpoint.
func (e *Endpoint) Stats() EndpointStats {
	e.mu.RLock()
	sessions, l := e.table.Len(), e.listener
	tally := &e.table.tally
	peak, dialled, accepted, ended := tally.peak, tally.dialled, tally.accepted, tally.ended
	e.mu.RUnlock()
	n := &e.counters
	s := EndpointStats{
		Sessions:        sessions,
		Peak:            peak,
		Dialled:         dialled,
		Accepted:        accepted,
		Ended:           ended,
		PacketsSent:     n.packetsSent.Load(),
		PacketsReceived: n.packetsReceived.Load(),
		BytesSent:       n.bytesSent.Load(),
		BytesReceived:   n.bytesReceived.Load(),
		ReadErrors:      n.readErrors.Load(),
		WriteErrors:     n.writeErrors.Load(),
		DropShort:       n.dropShort.Load(),
		DropCipher:      n.dropCipher.Load(),
		DropReplay:      n.dropReplay.Load(),
		DropUnknown:     n.dropUnknown.Load(),
		DropEnded:       n.dropEnded.Load(),
		DropSessions:    n.dropSessions.Load(),
		DropBacklog:     n.dropBacklog.Load(),
		DropHalfOpen:    n.dropHalfOpen.Load(),
		DropReplies:     n.dropReplies.Load(),
		DropCredit:      n.dropCredit.Load(),
		DropHandshake:   n.dropHandshake.Load(),
		HandshakeErrors: n.handshakeErrors.Load(),
		CookiesSent:     n.cookiesSent.Load(),
		ResetsSent:      n.resetsSent.Load(),
		HalfOpen:        int(e.load.halfOpen.Load()),
		Buffered:        int(e.load.buffered.Load()),
		WriteBuffered:   int(e.load.written.Load()) * writeGrain,
		EndedForMemory:  n.endedForMemory.Load(),
	}
	if l != nil {
		l.mu.Lock()
		s.Backlog = len(l.backlog)
		l.mu.Unlock()
	}
	for i := range e.socket.shards {
		s.SocketDrops += e.socket.shards[i].dropped()
	}
	return s
}

// Stats returns a snapshot of the listener's endpoint.
func (l *Listener) Stats() EndpointStats { return l.ep.Stats() }
