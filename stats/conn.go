// Package stats has the figures that sessions, streams and endpoints of package kcp
// return as snapshots: Conn.Stats, Stream.Stats, Endpoint.Stats, Endpoint.Totals.
// Counts begin at 0 with what they count, and wrap only at 2^64. Names such as
// Config.WriteBuffer in the comments are in package kcp.
package stats

import "time"

// Conn is a snapshot of a session.
type Conn struct {
	Counters
	Dropped Drops // bad packets of the peer, or forged; segments before the bad one have taken effect

	LimitedBy Limit      // what keeps the session from sending more now
	Limited   LimitTimes // how long each Limit has, since the session began; the sum is its age

	// RTT is the smoothed round-trip time, to a microsecond; 0 before the first sample.
	// Samples are the handshake, PINGs (keep-alive, Conn.Ping, one a second beside
	// datagrams) and acknowledgements of data, which may be delayed (RFC 1122 §4.2.3.2)
	// by 25 ms, by other implementations by their interval. While Stats is called at
	// least every 10 s, a PING a second beside data takes the place of acknowledgements.
	RTT time.Duration
	// RTTMin is the shortest sample of the last one to two minutes; 0: none yet. After a
	// change of the route it is the new one's in that time. So is that of a queue which
	// others fill without a pause.
	RTTMin        time.Duration
	RTTAge        time.Duration // since the last sample; 0: none yet
	Silence       time.Duration // since the last packet of the peer, or since the session began
	Jitter        time.Duration // mean deviation of these samples (RFC 6298 §2)
	RTTVar        time.Duration // variation of the round-trip time of data; whole milliseconds
	RTO           time.Duration // retransmission time-out; whole milliseconds
	InFlight      int           // segments sent and not acknowledged
	Queued        int           // segments waiting to be sent
	WriteBuffered int           // payload bytes of InFlight and Queued
	// WriteBufferUsed is how much of Config.WriteBuffer is in use, in bytes. It
	// is WriteBuffered and 64 for each segment.
	WriteBufferUsed int
	ReadBuffered    int // payload bytes waiting to be read, or for a missing segment
	RemoteWindow    int // the window that the peer advertises, in segments
	// RemoteUnread is by how many segments RemoteWindow is below the largest that the
	// peer has advertised: what is not read there, or waits for a missing segment, and
	// what the peer takes back when many send to it at once.
	RemoteUnread int
	// Held is the memory in bytes because of what the peer has sent: unread data, places
	// for missing segments, error correction, and buffers kept for a second.
	Held             int
	CongestionWindow int // in segments; without congestion control the largest int32
	MaxRate          int // the cap of Conn.SetMaxRate or Config.MaxRate, in bytes a second; 0: none

	Streams int // open ones, until both directions are over
	// Moves counts changes of either end's address (connection migration, RFC 9000 §9).
	// Of its own address an end learns if the socket of a Dial was connected again, or if
	// the peer, of this version or later, has validated a new one, as of a NAT.
	Moves int

	Sent     Traffic // all packets to the peer: with data, datagrams, parity and probes
	Received Traffic // all packets of the peer that are the session's, forged ones included if the Cipher is none

	Datagrams Datagrams // unreliable ones, both ways
	PathMTU   PathMTU   // the session's MTU, and how it was found
	FEC       FEC       // forward error correction, both ways
}

// Traffic is the packets of a session in one direction.
type Traffic struct {
	Packets uint64 // UDP datagrams
	Bytes   uint64 // UDP payload
	Loss
}

// Loss is how many packets of one direction were lost. The ends tell each other how many
// they have sent: every second beside datagrams, and while Stats is called at least every
// 10 s; after 256 packets, data or ACKs; otherwise with keep-alives.
// It is zero with a peer of another implementation, or an earlier version. Of what the
// peer has sent it has the word of the peer.
type Loss struct {
	Counted uint64 // packets sent, when the ends last told each other; probes of the MTU are left out
	Lost    uint64 // of Counted, those that had not arrived

	RecentCounted uint64 // the same of the last interval, which is mostly a second
	RecentLost    uint64
}

// Share returns the share of packets that were lost since the session began, 0 to 1.
func (l Loss) Share() float64 { return min(float64(l.Lost)/max(float64(l.Counted), 1), 1) }

// RecentShare returns the share of packets that were lost in the last interval, 0 to 1.
func (l Loss) RecentShare() float64 {
	return min(float64(l.RecentLost)/max(float64(l.RecentCounted), 1), 1)
}

// Datagrams counts the datagrams of SendDatagram and ReceiveDatagram.
type Datagrams struct {
	Sent     uint64 // given to the socket
	Received uint64 // including dropped ones
	// Dropped counts received datagrams that were discarded: too many were
	// waiting for ReceiveDatagram, the session was closed, or memory was short.
	Dropped uint64
	// Unsent counts datagrams that were not sent: too much was waiting for the
	// socket or for the cap of the rate, or the anti-amplification limit forbade it
	// (RFC 9000 §8.1).
	Unsent uint64
}

// FEC counts what forward error correction has done for a session.
type FEC struct {
	DataSent   uint64 // packets
	ParitySent uint64 // packets

	DataReceived   uint64 // packets that arrived by themselves
	ParityReceived uint64 // packets
	Recovered      uint64 // lost packets that parity has restored
	Lost           uint64 // groups with packets lost for good
	PeerRatio      Ratio  // the peer's ratio, detected from its traffic; zero while unknown
}

// Ratio is a ratio of forward error correction: every Data packets are followed
// by Parity packets, from which as many lost packets can be recovered without
// retransmission. It costs Parity/Data of bandwidth.
type Ratio struct {
	Data   int // 1 to 255
	Parity int // 1 to 255; at most 256 together with Data
}

// PathMTU counts what path MTU discovery (DPLPMTUD, RFC 8899) has done for
// a session. See Config.MTU and Config.MaxMTU.
type PathMTU struct {
	MTU        int    // largest UDP payload that is sent now, in bytes
	Sent       uint64 // probes sent
	Lost       uint64 // probes not answered in time, or too large for the local system
	BlackHoles uint64 // times that the MTU fell because packets of its size were lost, all (RFC 8899 §4.3) or many
}

// Stream is a snapshot of a stream.
type Stream struct {
	MessagesSent     uint64 // taken from the application, except for those still queued; chunks of Write count too
	MessagesReceived uint64 // complete
	BytesSent        uint64 // payload given to the session's machine, without retransmissions
	BytesReceived    uint64 // payload that has arrived
	Abandoned        uint64 // messages given up by this end
	Skipped          uint64 // messages given up by the peer, and not received
	WriteQueued      int    // bytes that wait to be sent for the first time
	ReadBuffered     int    // bytes received and not read
}
