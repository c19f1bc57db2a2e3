package takeover

import (
	"net/netip"

	"github.com/arqnet/kcp/internal/udp"
)

// Packet is what tells whose session a packet may be of.
type Packet struct {
	Addr   netip.AddrPort
	Conv   uint32
	Sort   Sort
	Shared bool // ids of different addresses are of different sessions
	// First parses a Plain packet as the first of a session. ok is false if it is
	// malformed.
	First func() (f First, ok bool)
}

// Sort is how a packet shows its session.
type Sort uint8

const (
	Plain  Sort = iota // by address and id; its segments tell whether it opens one
	Sealed             // by address and id, and it opens none
	Clear              // by address and id, and it may open one
	Parity             // by address only
)

// First is what there is in a packet that opens a session.
type First struct {
	Hello bool // an extended peer opens one
	Push  bool // the first segment, with which a legacy peer opens one
}

// Whose is which process has the session of a packet.
type Whose uint8

const (
	Own     Whose = iota // none of the predecessors
	Theirs               // a session of a predecessor
	Perhaps              // predecessors have one of this id, but not at this address
)

// hasAt reports whether a packet is of a session that o has at its address. What opens a
// session there after the end of another is new.
func (o *Owned) hasAt(p *Packet) bool {
	if p.Sort == Parity {
		return o.Addr(p.Addr)
	}
	s, ok := o.At(p.Addr, p.Conv)
	return ok && !(s.Ended && p.opensAfter(s))
}

// opensAfter reports whether a packet opens a session after the end of s. An extended
// peer of s may still repeat the first segment of that.
func (p *Packet) opensAfter(s Session) bool {
	switch p.Sort {
	case Clear:
		return true
	case Sealed:
		return false
	}
	f, ok := p.First()
	return ok && (f.Hello || f.Push && !s.Extended)
}

// hasConv reports whether o has a session that a packet from another address may belong
// to.
func (o *Owned) hasConv(p *Packet) bool {
	conv, extended := o.Conv(p.Conv)
	switch {
	case !conv || p.Shared || p.Sort == Clear || p.Sort == Parity:
		return false
	case p.Sort == Sealed:
		return true
	}
	f, ok := p.First()
	return ok && !f.Hello && (!f.Push || extended)
}

// Forwarder is what the reader of one socket has for predecessors.
type Forwarder struct {
	socket int
	whole  []byte // the datagram as it has arrived, if opening changes it
	boxes  []addressed
}

// addressed is what a Forwarder has for one predecessor.
type addressed struct {
	to  *Predecessor
	box Outbox
}

// NewForwarder returns the Forwarder of a socket.
func NewForwarder(socket int) *Forwarder { return &Forwarder{socket: socket} }

// Keep keeps a datagram as it has arrived, for Forward. It is called for each if opening
// changes them.
func (f *Forwarder) Keep(b []byte) { f.whole = append(f.whole[:0], b...) }

// Forward leaves a packet to be written to the predecessor that has its session. A packet
// that opens a session is new, unless it comes from the very address of that session.
func (f *Forwarder) Forward(s *Predecessors, d *udp.Datagram, p *Packet) (whose Whose) {
	all := s.list()
	for _, to := range all {
		to.mu.RLock()
		has := to.owned.hasAt(p)
		to.mu.RUnlock()
		if has {
			f.forwardTo(s, to, d)
			return Theirs
		}
	}
	// Its peer may have another address now. Only the process can tell which has the
	// key: peers choose the ids, so several may have a session of this one.
	for _, to := range all {
		to.mu.RLock()
		has := to.owned.hasConv(p)
		to.mu.RUnlock()
		if has {
			f.forwardTo(s, to, d)
			whose = Perhaps
		}
	}
	return whose
}

// forwardTo leaves a packet to be written to one predecessor.
func (f *Forwarder) forwardTo(s *Predecessors, to *Predecessor, d *udp.Datagram) {
	whole := *d
	if len(f.whole) > 0 {
		whole.Buf = f.whole
	}
	if !to.locals {
		whole.Local = udp.Local{}
	}
	s.Forwarded.Add(1)
	s.Dropped.Add(uint64(f.box(to).Put(to.feeds[f.socket], &whole)))
}

// box returns what the reader has for a predecessor.
func (f *Forwarder) box(to *Predecessor) *Outbox {
	for i := range f.boxes {
		if f.boxes[i].to == to {
			return &f.boxes[i].box
		}
	}
	f.boxes = append(f.boxes, addressed{to: to})
	return &f.boxes[len(f.boxes)-1].box
}

// Flush writes what a batch has left for predecessors. It reports whether f is needed
// further: there are some.
func (f *Forwarder) Flush(s *Predecessors) bool {
	for i := range f.boxes {
		b := &f.boxes[i]
		s.Dropped.Add(uint64(b.box.Flush(b.to.feeds[f.socket])))
	}
	return s.Any()
}
