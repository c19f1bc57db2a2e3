package stats

import "time"

// Endpoint is a snapshot of an endpoint and of its listener.
type Endpoint struct {
	Sessions int // open now, including those in the backlog
	Peak     int // the most sessions that were open at a time
	Backlog  int // waiting for Accept
	HalfOpen int // accepted, of peers whose addresses are not validated
	Buffered int // the sum of Conn.Held, in bytes, which Limits.MaxBuffered bounds
	// WriteBuffered is the memory in bytes, to within 16 KiB a session, of what all
	// sessions and streams have to send, or to be acknowledged, and keep to send more.
	WriteBuffered  int
	Limits         Limits // the limits of the endpoint's Config
	EndedForMemory uint64 // with ErrMemoryPressure: Ended.Memory, and the sessions among Ended.Unaccepted

	// Lag is how late the wake-ups of sessions were, and with a Listener a timer ten
	// times a second while Stats is called every 90 s or sooner. A long one is a lack of
	// processor time.
	Lag Lag

	// Dialled and Accepted count the sessions opened so far, by this end and by
	// peers. Accepted includes those that Accept has not returned. All that are
	// not in Sessions have ended: Dialled + Accepted = Sessions + Ended.Total().
	Dialled, Accepted uint64
	Ended             Ended // the sessions that have ended, by cause

	PacketsSent     uint64 // datagrams
	PacketsReceived uint64 // datagrams
	BytesSent       uint64 // UDP payload
	BytesReceived   uint64 // UDP payload
	ReadErrors      uint64 // of the socket; each concerns one packet
	WriteErrors     uint64 // of the socket; each concerns one packet
	// TooLarge counts datagrams, probes of the path MTU included, that were larger than
	// the interface takes. Their sessions went on with smaller ones.
	TooLarge uint64
	// Unmerged is why no datagrams leave merged (UDP segmentation offload, GSO), which
	// costs processor time. It is empty if they do. With shards it is the last one's.
	Unmerged string
	// UnmergedPeers is to how many addresses the system has refused merged datagrams in
	// the last 10 minutes, at most 64 a socket. They leave one by one then.
	UnmergedPeers int
	// SocketDrops counts datagrams that the system dropped because the receive buffer of
	// a socket was full, modulo 2^32 for each; on Linux only, for sockets of the system.
	SocketDrops uint64

	// Packets dropped because no session took them, or not sent.
	DropShort    uint64 // shorter than a segment header
	DropCipher   uint64 // fails the check of Config.Cipher: wrong key, forged or damaged
	DropReplay   uint64 // replayed, changed, or not from within its session; with a cipher that hides the content
	DropUnknown  uint64 // matched no session and could not open one
	DropEnded    uint64 // late packets of a session that has ended
	DropSessions uint64 // would exceed Limits.MaxSessions or MaxSessionsPerAddress
	DropHalfOpen uint64 // would exceed Limits.MaxHalfOpen
	DropBacklog  uint64 // would exceed Limits.Backlog
	DropReplies  uint64 // replies outside sessions not sent, because of the rate limit
	DropCredit   uint64 // packets not sent, because of the anti-amplification limit (RFC 9000 §8.1)
	// DropHandshake counts packets of TLS handshakes: not well-formed, of another one or
	// one that is over, too many, or of a peer that has TLS where this end has not, or
	// the reverse.
	DropHandshake   uint64
	HandshakeErrors uint64 // TLS handshakes that have failed, at either end
	CookiesSent     uint64 // cookies sent to new peers, instead of keeping state for them
	ResetsSent      uint64 // stateless resets (RFC 9000 §10.3), as after a restart, to peers with TLS

	Forwarded           uint64 // packets passed on to processes that have handed over to this one
	DropForward         uint64 // of those, packets that such a process did not read in time
	PredecessorSessions int    // sessions that such processes still have
}

// Limits are the limits of an endpoint's Config, with its defaults. They do not change.
type Limits struct {
	Sessions int // Limits.MaxSessions, for Endpoint.Sessions
	Backlog  int // Limits.Backlog, for Endpoint.Backlog
	HalfOpen int // Limits.MaxHalfOpen, for Endpoint.HalfOpen
	Buffered int // Limits.MaxBuffered, in bytes, for Endpoint.Buffered
}

// Lag is how late wake-ups were, in the last 10 to 20 seconds; 0 if there was none.
type Lag struct {
	P50 time.Duration // median, to the power of two above it in microseconds
	Max time.Duration // longest
}

// Totals are sums over the sessions of an endpoint since it was made.
type Totals struct {
	Counters
	Dropped   Drops     // bad packets
	Datagrams Datagrams // unreliable ones, both ways
	Streams   Streams   // of sessions with streams
	FEC       FEC       // PeerRatio is zero
	Probes    PathMTU   // MTU is 0
	Moves     uint64    // changes of peers' addresses (connection migration, RFC 9000 §9)
	Limited   LimitTimes
}

// Streams counts the streams of sessions. Those that are not over yet are
// Opened + Accepted - Ended.
type Streams struct {
	Opened   uint64 // by this end
	Accepted uint64 // opened by peers, those that AcceptStream has not returned included
	Refused  uint64 // of peers: beyond Limits.MaxStreams, or in a session that closes; none of the others
	Ended    uint64 // both directions are over, or the session has ended
	// Reset counts streams that were reset with a code other than 0, by either end:
	// by Stream.Reset, a break of the rules, or a refusal. Close of both directions
	// has the code 0. Streams of sessions that have ended first are not among them.
	Reset uint64
}

// Ended counts the sessions that have ended, by cause, each once.
// Conn.Err has the same causes.
type Ended struct {
	Closed       uint64 // in order, after Close at this end
	PeerClosed   uint64 // in order, after Close at the peer
	Aborted      uint64 // by Abort, Endpoint.Close, or a cancelled Dial
	NotDelivered uint64 // Close has given up
	Reset        uint64 // aborted by the peer, or unknown to it after a restart
	Refused      uint64 // Dial: the peer accepts no sessions
	NoAnswer     uint64 // Dial: the peer has not answered in time
	Lost         uint64 // nothing arrived within Config.PeerTimeout, or DeadLink
	Idle         uint64 // no data passed within Config.IdleTimeout
	Stalled      uint64 // the peer accepted no data within Config.StallTimeout
	Memory       uint64 // with ErrMemoryPressure
	Unaccepted   uint64 // of peers whose addresses were not validated, or the backlog was full
	Failed       uint64 // anything else, such as an error of the Cipher
}

// Total returns the sum of all causes.
func (n Ended) Total() uint64 {
	return n.Closed + n.PeerClosed + n.Aborted + n.NotDelivered + n.Reset + n.Refused + n.NoAnswer +
		n.Lost + n.Idle + n.Stalled + n.Memory + n.Unaccepted + n.Failed
}

// Add adds the counts of o.
func (d *Datagrams) Add(o *Datagrams) {
	d.Sent += o.Sent
	d.Received += o.Received
	d.Dropped += o.Dropped
	d.Unsent += o.Unsent
}

// Add adds the counts of o.
func (s *Streams) Add(o *Streams) {
	s.Opened += o.Opened
	s.Accepted += o.Accepted
	s.Refused += o.Refused
	s.Ended += o.Ended
	s.Reset += o.Reset
}

// Add adds the counts of o; PeerRatio is not a count.
func (f *FEC) Add(o *FEC) {
	f.DataSent += o.DataSent
	f.ParitySent += o.ParitySent
	f.DataReceived += o.DataReceived
	f.ParityReceived += o.ParityReceived
	f.Recovered += o.Recovered
	f.Lost += o.Lost
}
