// Package trace has the hooks that show what sessions and state machines of package
// kcp do, and the names that they use. Config.Tracer, Conn.SetTrace and
// KCP.SetTrace install them.
// Package qlog writes what they see to a file. kcp.Trace is Hooks.
package trace

import "github.com/arqnet/kcp/stats"

// Hooks holds hooks that show what a state machine and its session do, for
// logging and tools. Any may be nil. They are called from within the methods of
// the KCP, or under the lock of the session: they must not block, nor call
// methods of either. Config.Tracer has the hooks of sessions. Package qlog
// writes them to a file.
//
// Sequence numbers are numbers of segments. A segment has the same one in each of
// its transmissions, and they begin at 0 in each direction.
type Hooks struct {
	// Sent is called for every transmission of a data segment, but not for
	// redundant copies. size is its payload in bytes. transmissions is 1 for
	// the first. rto is the time-out that starts now, in milliseconds, without
	// the eighth that NoDelayOff adds to the first.
	Sent func(sn uint32, size, transmissions int, rto uint32)
	// Repeated is called for every redundant copy of a data segment
	// (Counters.Repeats), outage probes included.
	Repeated func(sn uint32, size int)
	// Received is called for every data segment that arrives, new or not. size
	// is its payload in bytes.
	Received func(sn uint32, size int)
	// Stream is called just before Sent, Repeated, Received or Lost for the same sn, if
	// the segment is of a stream: stream is its Stream.ID, which is never 0.
	Stream func(sn, stream uint32)
	// RTT is called for every round-trip sample. All three are in milliseconds.
	RTT func(sample, srtt, rto uint32)
	// Acked is called when a data segment is acknowledged, once for each.
	// transmissions is how often it was sent.
	Acked func(sn uint32, size, transmissions int)
	// Lost is called when the last transmission of a data segment is declared
	// lost. The segment is retransmitted as soon as congestion control allows.
	Lost func(sn uint32, size, transmissions int, cause LossCause)
	// Spurious is called when it shows that a segment that was declared lost
	// had arrived (Eifel detection, RFC 3522).
	Spurious func(sn uint32)
	// Metrics is called after a packet was processed, and after a flush, if
	// any of the figures has changed since the last call.
	Metrics func(m Metrics)
	// CongestionState is called when the state of the congestion controller
	// changes, with the names that its State method returns. old is empty the
	// first time. Controllers without that method have no states.
	CongestionState func(old, new string)
	// MTU is called when the size of the largest packet changes: path MTU
	// discovery, or black hole detection. size is in bytes, without what
	// cipher and error correction add.
	MTU func(size int)
	// Signal is called for every signal (WIRE.md §5) that is sent or received.
	// name is as in WIRE.md, such as HELLO.
	Signal func(sent bool, name string)

	// Datagram is called for every datagram of SendDatagram that is sent, not sent,
	// received or dropped. size is its payload in bytes.
	Datagram func(e DatagramEvent, size int)

	// State is called when the state of a session changes. err is why the
	// session ended, and nil otherwise or if it ended in order.
	State func(s SessionState, err error)
	// Moved is called when the peer's address changes (connection migration,
	// RFC 9000 §9), with the new one.
	Moved func(remote string)
	// Dropped is called for every packet of the peer, or forged in its name,
	// that the session refuses from some segment on. size is in bytes.
	Dropped func(size int, reason error)
	// Stopped is called when Conn.SetTrace has put others in the place of these hooks,
	// or was given them after the session had ended. No hook is called after it.
	Stopped func()
}

// Metrics are the figures that determine how much may be sent.
type Metrics struct {
	CongestionWindow int    // segments; the largest int32 without congestion control
	PacingRate       int64  // bytes a second, segment headers included; 0: unpaced
	InFlight         int    // segments sent and not acknowledged
	BytesInFlight    int64  // their bytes, segment headers included
	Queued           int    // segments waiting to be sent
	RemoteWindow     int    // window that the peer advertises, in segments
	SegmentSize      int    // payload of a full segment, in bytes
	SRTT, RTTVar     uint32 // milliseconds; 0: no sample yet
	RTO              uint32 // milliseconds
	MinRTT           int64  // microseconds; 0: no sample yet

	LimitedBy stats.Limit // what keeps the session from sending more, as in stats.Conn
}

// DatagramEvent is what has happened to a datagram, as Hooks.Datagram shows it. Each has a
// counter in stats.Datagrams.
type DatagramEvent uint8

const (
	DatagramSent     DatagramEvent = 1 + iota // given to the socket
	DatagramUnsent                            // not sent: too much waits, or the address is not validated
	DatagramReceived                          // arrived
	DatagramDropped                           // arrived, and was discarded
)

// String returns the name of the event, such as "sent".
func (e DatagramEvent) String() string {
	switch e {
	case DatagramSent:
		return "sent"
	case DatagramUnsent:
		return "unsent"
	case DatagramReceived:
		return "received"
	case DatagramDropped:
		return "dropped"
	}
	return "unknown"
}

// LossCause is why a transmission was declared lost.
type LossCause uint8

const (
	// LossFastRetransmit: enough later segments were acknowledged (fast
	// retransmit, RFC 5681 §3.2).
	LossFastRetransmit LossCause = 1 + iota
	// LossReordering: a later segment was acknowledged, and the reordering
	// window has passed since (RFC 8985 §6.2).
	LossReordering
	// LossTailProbe: nothing was acknowledged for a time-out, the first of the
	// segment. One packet probes for what is missing (tail loss probe, RFC 8985
	// §7.3), so the segment may not be lost at all.
	LossTailProbe
	// LossTimeout: the retransmission time-out has passed (RFC 6298).
	LossTimeout
	// LossOutage: the segment was in flight when nothing arrived from the peer,
	// and something has arrived again.
	LossOutage
	// LossRefused: the system has refused the packet as larger than the interface
	// takes.
	LossRefused
)

// String returns the name of the cause, such as "tail loss probe".
func (c LossCause) String() string {
	switch c {
	case LossFastRetransmit:
		return "fast retransmit"
	case LossReordering:
		return "reordering window"
	case LossTailProbe:
		return "tail loss probe"
	case LossTimeout:
		return "time-out"
	case LossOutage:
		return "end of outage"
	case LossRefused:
		return "refused as too large"
	}
	return "unknown"
}

// SessionState is a state of a session, as Hooks.State shows it.
type SessionState uint8

const (
	// SessionDialled: the first state of a session that this end opens.
	SessionDialled SessionState = 1 + iota
	// SessionAccepted: the first state of a session that the peer has opened.
	SessionAccepted
	// SessionEstablished: the peer has answered, or its address is validated
	// (RFC 9000 §8).
	SessionEstablished
	// SessionClosing: the application has closed it, and written data, or the
	// end, is not acknowledged yet.
	SessionClosing
	// SessionDraining: all is delivered, and the retransmissions of a peer
	// without signals are still acknowledged.
	SessionDraining
	// SessionEnded: it is over. No hook is called after it.
	SessionEnded
)

// String returns the name of the state, such as "established".
func (s SessionState) String() string {
	switch s {
	case SessionDialled:
		return "dialled"
	case SessionAccepted:
		return "accepted"
	case SessionEstablished:
		return "established"
	case SessionClosing:
		return "closing"
	case SessionDraining:
		return "draining"
	case SessionEnded:
		return "ended"
	}
	return "unknown"
}
