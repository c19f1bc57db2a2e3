package admission

import (
	"iter"
	"net/netip"
	"slices"
)

// Table finds sessions of type S. Each has an Entry, which the table alone
// changes while it lists the session. Init must be called before the other
// methods.
type Table[S any] struct {
	entry    func(*S) *Entry[S]
	sessions map[Key]uint32 // index in slots
	slots    slots[S]
	fec      map[Key][]*S         // sessions whose peers send FEC, by address alone
	convs    map[uint32]*S        // list of the sessions of a conversation id, oldest first, linked by sameConv
	networks map[netip.Addr]Count // nil: sessions of a network are not counted
	shaking  int                  // sessions of all networks that Count.Shaking counts
	halfOpen queue[S]
}

// Entry is a session's place in a Table. The caller sets the key before Add, and
// does not change it while the table lists the session.
type Entry[S any] struct {
	Addr netip.AddrPort // as in Key; the same below
	Peer string
	Conv uint32

	fecBound  bool // listed in Table.fec
	validated bool // counts as Count.Validated
	shaking   bool // counts as Count.Shaking, if it is validated too
	sameConv  *S   // next session of the same conversation id
}

// Key returns the key of the session.
func (e *Entry[S]) Key() Key { return Key{e.Addr, e.Peer, e.Conv} }

// SetKey sets the key of a session that no table lists.
func (e *Entry[S]) SetKey(k Key) { e.Addr, e.Peer, e.Conv = k.Addr, k.Peer, k.Conv }

// Count is the number of sessions with one network.
type Count struct {
	Validated int32 // the peer's address is validated; dialled sessions included
	Pending   int32 // the peer's address is not validated yet
	Shaking   int32 // of Validated: those whose TLS handshake is in progress
}

// Init prepares an empty table. entry returns the Entry of a session. Networks are
// counted if count is set.
func (t *Table[S]) Init(entry func(*S) *Entry[S], count bool) {
	*t = Table[S]{entry: entry}
	if count {
		t.networks = make(map[netip.Addr]Count)
	}
	t.reset()
}

// reset makes the maps of an empty table anew: a map gives no memory back.
func (t *Table[S]) reset() {
	t.sessions, t.convs, t.fec = make(map[Key]uint32), make(map[uint32]*S), nil
	if t.networks != nil {
		t.networks = make(map[netip.Addr]Count)
	}
}

// Len returns the number of sessions.
func (t *Table[S]) Len() int { return len(t.sessions) }

// Get returns the session of key; nil: there is none.
func (t *Table[S]) Get(key Key) *S {
	if slot, ok := t.sessions[key]; ok {
		return t.slots.all[slot]
	}
	return nil
}

// Lists reports whether the table lists s.
func (t *Table[S]) Lists(s *S) bool { return t.Get(t.entry(s).Key()) == s }

// Add lists a session. No other one has its key.
func (t *Table[S]) Add(s *S) {
	e := t.entry(s)
	t.sessions[e.Key()] = t.slots.add(s)
	t.addConv(s, e)
	t.count(e, 1)
}

// Remove removes a session that is listed.
func (t *Table[S]) Remove(s *S) {
	e := t.entry(s)
	emptied := t.slots.remove(t.sessions[e.Key()])
	delete(t.sessions, e.Key())
	if len(t.sessions) == 0 {
		t.halfOpen = queue[S]{} // it lists ended sessions, too
	}
	t.removeConv(s, e)
	t.count(e, -1)
	if e.fecBound {
		key := e.Key().address()
		rest := slices.DeleteFunc(t.fec[key], func(other *S) bool { return other == s })
		if t.fec[key] = rest; len(rest) == 0 {
			delete(t.fec, key)
		}
		e.fecBound = false
	}
	if emptied {
		t.reset()
	}
}

// Move gives a session the address of key. The conversation id stays. It reports
// false if another session has that key, or s is not listed.
func (t *Table[S]) Move(s *S, key Key) bool {
	e := t.entry(s)
	key.Conv = e.Conv
	if !t.Lists(s) || t.Get(key) != nil {
		return false
	}
	t.Remove(s)
	e.Addr, e.Peer = key.Addr, key.Peer
	t.Add(s)
	return true
}

// BindFEC takes note that the peer of s sends FEC. Parity names no conversation,
// so it is used only while its address has one such session. Together with data
// of another session, recovery would yield packets that were never sent. Some
// would look real: a field that all packets of a session share may come out of
// it unchanged.
func (t *Table[S]) BindFEC(s *S) {
	e := t.entry(s)
	if e.fecBound || !t.Lists(s) {
		return
	}
	if t.fec == nil {
		t.fec = make(map[Key][]*S)
	}
	key := e.Key().address()
	t.fec[key] = append(t.fec[key], s)
	e.fecBound = true
}

// Bound reports whether BindFEC was called for s.
func (t *Table[S]) Bound(s *S) bool { return t.entry(s).fecBound }

// OfParity returns the session that parity from the address of key is for; nil:
// there is none, or more than one.
func (t *Table[S]) OfParity(key Key) *S {
	if all := t.fec[key.address()]; len(all) == 1 {
		return all[0]
	}
	return nil
}

// MaxSameConv is how many sessions of one conversation id OfConv returns. Ids are
// drawn at random, so there is usually one. An attacker may open further ones
// to keep it from migrating.
const MaxSameConv = 4

// OfConv returns the sessions of a conversation id at all addresses, oldest first.
func (t *Table[S]) OfConv(conv uint32) iter.Seq[*S] {
	return func(yield func(*S) bool) {
		for s := t.convs[conv]; s != nil && yield(s); s = t.entry(s).sameConv {
		}
	}
}

// Alone reports whether s is the only session of its conversation id that OfConv
// returns.
func (t *Table[S]) Alone(s *S) bool {
	e := t.entry(s)
	return t.convs[e.Conv] == s && e.sameConv == nil
}

// addConv adds a session to the list of its conversation id, unless that is full.
func (t *Table[S]) addConv(s *S, e *Entry[S]) {
	e.sameConv = nil
	last := t.convs[e.Conv]
	if last == nil {
		t.convs[e.Conv] = s
		return
	}
	n := 1
	for ; t.entry(last).sameConv != nil; last = t.entry(last).sameConv {
		n++
	}
	if n < MaxSameConv {
		t.entry(last).sameConv = s
	}
}

// removeConv removes a session from the list of its conversation id.
func (t *Table[S]) removeConv(s *S, e *Entry[S]) {
	first := t.convs[e.Conv]
	switch {
	case first == s && e.sameConv == nil:
		delete(t.convs, e.Conv)
	case first == s:
		t.convs[e.Conv] = e.sameConv
	default:
		for ; first != nil; first = t.entry(first).sameConv {
			if t.entry(first).sameConv == s {
				t.entry(first).sameConv = e.sameConv
				break
			}
		}
	}
	e.sameConv = nil
}

// SetValidated makes a session count as one whose peer's address is validated.
func (t *Table[S]) SetValidated(s *S) { t.recount(s, func(e *Entry[S]) { e.validated = true }) }

// SetShaking says whether the TLS handshake of a session is in progress.
func (t *Table[S]) SetShaking(s *S, shaking bool) {
	t.recount(s, func(e *Entry[S]) { e.shaking = shaking })
}

// recount calls change, which changes what a session counts as.
func (t *Table[S]) recount(s *S, change func(*Entry[S])) {
	e, listed := t.entry(s), t.Lists(s)
	if listed {
		t.count(e, -1)
	}
	change(e)
	if listed {
		t.count(e, 1)
	}
}

// count adds times, which may be negative, to the counts that a session belongs
// to.
func (t *Table[S]) count(e *Entry[S], times int32) {
	shaking := int32(0)
	if e.shaking && e.validated {
		shaking = times
	}
	t.shaking += int(shaking)
	if t.networks == nil {
		return
	}
	network := e.Key().Network()
	n := t.networks[network]
	if e.validated {
		n.Validated += times
	} else {
		n.Pending += times
	}
	n.Shaking += shaking
	if n == (Count{}) {
		delete(t.networks, network)
	} else {
		t.networks[network] = n
	}
}

// Network returns the number of sessions with the network of key: zero if
// networks are not counted.
func (t *Table[S]) Network(key Key) Count {
	if t.networks == nil {
		return Count{}
	}
	return t.networks[key.Network()]
}

// Shaking returns the number of sessions of all networks that Count.Shaking
// counts.
func (t *Table[S]) Shaking() int { return t.shaking }
