package takeover

import "net/netip"

// Owned is the sessions of another process. Its zero value is empty. The caller's lock
// guards it.
type Owned struct {
	sessions map[place]state
	convs    map[uint32]count
	addrs    map[netip.AddrPort]int
	ended    int // of sessions
}

// state is what there is to know of a session.
type state struct {
	extended bool // its peer is an extended one
	ended    bool
}

// place is what a session is found by.
type place struct {
	addr netip.AddrPort
	conv uint32
}

// count is how many sessions have a conversation id.
type count struct{ all, extended int }

// MaxOwned is how many sessions Owned holds.
const MaxOwned = 1 << 20

// Add adds a session. It reports false if there are too many.
func (o *Owned) Add(addr netip.AddrPort, conv uint32, extended bool) bool {
	if o.sessions == nil {
		o.sessions, o.convs, o.addrs = make(map[place]state), make(map[uint32]count), make(map[netip.AddrPort]int)
	}
	if len(o.sessions) >= MaxOwned {
		return false
	}
	o.Remove(addr, conv)
	o.sessions[place{addr, conv}] = state{extended: extended}
	o.count(addr, conv, extended, 1)
	return true
}

// Remove removes a session, if it is there.
func (o *Owned) Remove(addr netip.AddrPort, conv uint32) {
	at := place{addr, conv}
	if s, ok := o.sessions[at]; ok {
		delete(o.sessions, at)
		o.count(addr, conv, s.extended, -1)
		if s.ended {
			o.ended--
		}
	}
}

// End notes that a session has ended, whose process still answers for it. It adds one
// that is not there, unless there are too many.
func (o *Owned) End(addr netip.AddrPort, conv uint32, extended bool) {
	at := place{addr, conv}
	if _, ok := o.sessions[at]; !ok {
		o.Add(addr, conv, extended)
	}
	if s, ok := o.sessions[at]; ok && !s.ended {
		s.ended = true
		o.sessions[at] = s
		o.ended++
	}
}

// Move gives a session another address.
func (o *Owned) Move(addr netip.AddrPort, conv uint32, to netip.AddrPort) {
	if s, ok := o.sessions[place{addr, conv}]; ok {
		o.Remove(addr, conv)
		o.Add(to, conv, s.extended)
	}
}

// count adds n to the counts of a session.
func (o *Owned) count(addr netip.AddrPort, conv uint32, extended bool, n int) {
	c := o.convs[conv]
	if c.all += n; extended {
		c.extended += n
	}
	if o.convs[conv] = c; c.all == 0 {
		delete(o.convs, conv)
	}
	if o.addrs[addr] += n; o.addrs[addr] == 0 {
		delete(o.addrs, addr)
	}
}

// Len returns the number of sessions that have not ended.
func (o *Owned) Len() int { return len(o.sessions) - o.ended }

// At returns the session of that conversation id at addr. ok is false if there is none.
func (o *Owned) At(addr netip.AddrPort, conv uint32) (s Session, ok bool) {
	state, ok := o.sessions[place{addr, conv}]
	return Session{addr, conv, state.extended, state.ended}, ok
}

// Conv reports whether there is a session of that conversation id at any address, and
// whether one of them has an extended peer.
func (o *Owned) Conv(conv uint32) (any, extended bool) {
	c := o.convs[conv]
	return c.all > 0, c.extended > 0
}

// Addr reports whether there is a session at addr.
func (o *Owned) Addr(addr netip.AddrPort) bool { return o.addrs[addr] > 0 }

// Session is one session of another process.
type Session struct {
	Addr     netip.AddrPort
	Conv     uint32
	Extended bool // its peer is
	Ended    bool // its process still answers for it
}

// All yields each session.
func (o *Owned) All(yield func(Session) bool) {
	for at, s := range o.sessions {
		if !yield(Session{at.addr, at.conv, s.extended, s.ended}) {
			return
		}
	}
}

// apply changes what is known of one session. It reports false if there are too many.
func (o *Owned) apply(n Note) bool {
	switch n.Kind {
	case Owns:
		return o.Add(n.Addr, n.Conv, n.Extended)
	case Moved:
		o.Move(n.Addr, n.Conv, n.To)
	case Ended:
		// Only its process has the keys to answer what arrives in TIME-WAIT, also if
		// that began before the takeover.
		if n.End.Mute {
			o.End(n.Addr, n.Conv, n.Extended)
		} else {
			o.Remove(n.Addr, n.Conv)
		}
	}
	return true
}

// appendNotes appends notes of all sessions, which are of the given predecessor.
func (o *Owned) appendNotes(notes []Note, of uint32) []Note {
	for s := range o.All {
		notes = append(notes, Note{Kind: Owns, Of: of, Addr: s.Addr, Conv: s.Conv, Extended: s.Extended})
		if s.Ended {
			notes = append(notes, Note{Kind: Ended, Of: of, Addr: s.Addr, Conv: s.Conv, End: End{Mute: true}})
		}
	}
	return notes
}
