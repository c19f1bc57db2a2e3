package cluster

import "sync/atomic"

// counters are the figures of a Transport and of the Node on it.
type counters struct {
	dialled, dialsFailed, accepted, refused, replaced atomic.Uint64
	packetsUnsent, packetsDropped, packetsByStream    atomic.Uint64
	malformed, streamsRefused                         atomic.Uint64
	resent, duplicates, datagramsDropped              atomic.Uint64
	eventsDropped                                     atomic.Uint64
}

// Stats counts what a Transport, and a Node, have done since they began.
type Stats struct {
	Dialled     uint64 // sessions that this end has dialled
	DialsFailed uint64
	Accepted    uint64 // sessions that others have dialled
	Refused     uint64 // of those, without a usable certificate, or too late
	Replaced    uint64 // sessions ended because their node had opened too many

	PacketsUnsent   uint64 // datagrams dropped before they were sent: no session, too many
	PacketsDropped  uint64 // arrived, but memberlist was too slow
	PacketsByStream uint64 // did not fit into a datagram

	Malformed      uint64 // datagrams that are nothing known
	StreamsRefused uint64 // unknown, broken, too large, or too many

	Resent           uint64 // reliable messages sent again on another session
	Duplicates       uint64 // reliable messages that had arrived already
	DatagramsDropped uint64 // unreliable messages that Receive was too slow for
	EventsDropped    uint64 // nobody has read Events
}

// Stats returns the figures of the moment.
func (t *Transport) Stats() Stats {
	c := &t.counters
	return Stats{
		Dialled: c.dialled.Load(), DialsFailed: c.dialsFailed.Load(), Accepted: c.accepted.Load(),
		Refused: c.refused.Load(), Replaced: c.replaced.Load(),
		PacketsUnsent: c.packetsUnsent.Load(), PacketsDropped: c.packetsDropped.Load(),
		PacketsByStream: c.packetsByStream.Load(),
		Malformed:       c.malformed.Load(), StreamsRefused: c.streamsRefused.Load(),
		Resent: c.resent.Load(), Duplicates: c.duplicates.Load(),
		DatagramsDropped: c.datagramsDropped.Load(), EventsDropped: c.eventsDropped.Load(),
	}
}
