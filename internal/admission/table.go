package admission

import (
	"iter"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/arqnet/kcp/internal/fair"
)

// Table finds sessions of type S. Each has an Entry, which the table alone
// changes while it lists the session. Init must be called before the other
// methods. Find, Bound and OfParity may be called without the lock that guards the
// rest, so packets of sessions take none.
type Table[S any] struct {
	entry    func(*S) *Entry
	convs    sync.Map // of *place[S]: the sessions of a conversation id, which is a uint32
	rest     map[Key]*S
	slots    slots[S]
	n        int
	fec      map[Key][]*S       // sessions whose peers send FEC, by address alone
	parity   sync.Map           // of *S: the only session of a list in fec, by its Key
	networks map[netip.Addr]int // validated sessions of a subnet; nil: they are not counted
	most     int                // of those

	halfOpen, shaking fair.LongestQueues[S] // what may make room, as Count counts it
}

// Entry is a session's place in a Table. The caller sets the key before Add, and
// does not change it while the table lists the session.
type Entry struct {
	Addr netip.AddrPort // as in Key; the same below
	Peer string
	Conv uint32

	fecBound  uint32 // 1 if it is listed in Table.fec; atomic
	slot      uint32
	validated bool        // counts as Count.Validated
	shaking   bool        // counts as Count.Shaking, if it is validated too
	rest      bool        // listed in Table.rest
	place     *fair.Place // nil: the session makes no room, as most
}

// place is where one of the sessions of a conversation id is found. It does not
// change.
type place[S any] struct {
	addr netip.AddrPort
	peer string
	s    *S
	next *place[S] // of a later session
}

// Key returns the key of the session.
func (e *Entry) Key() Key { return Key{e.Addr, e.Peer, e.Conv} }

// SetKey sets the key of a session that no table lists.
func (e *Entry) SetKey(k Key) { e.Addr, e.Peer, e.Conv = k.Addr, k.Peer, k.Conv }

// Validated reports whether the peer's address is validated, or the session was dialled.
func (e *Entry) Validated() bool { return e.validated }

// Count is the number of sessions with one subnet.
type Count struct {
	Validated int // the peer's address is validated; dialled sessions included
	Pending   int // the peer's address is not validated yet, and the session may make room
	Shaking   int // of Validated: those whose TLS handshake is in progress, and may make room
}

// Init prepares an empty table. entry returns the Entry of a session. A subnet may have
// most sessions with validated peers; 0 or less: any number, and they are not counted.
func (t *Table[S]) Init(entry func(*S) *Entry, most int) {
	*t = Table[S]{entry: entry, most: most}
	if most > 0 {
		t.networks = make(map[netip.Addr]int)
	}
}

// reset makes the maps of an empty table again: a map gives no memory back.
func (t *Table[S]) reset() {
	t.rest, t.fec = nil, nil
	if t.networks != nil {
		t.networks = make(map[netip.Addr]int)
	}
}

// Len returns the number of sessions.
func (t *Table[S]) Len() int { return t.n }

// Find returns the session of key; nil: there is none, or Get finds it.
func (t *Table[S]) Find(key Key) *S {
	for p := t.first(key.Conv); p != nil; p = p.next {
		if p.addr == key.Addr && p.peer == key.Peer {
			return p.s
		}
	}
	return nil
}

// Get returns the session of key; nil: there is none.
func (t *Table[S]) Get(key Key) *S {
	if s := t.Find(key); s != nil {
		return s
	}
	return t.rest[key]
}

// first returns the first place of a conversation id; nil: there is none.
func (t *Table[S]) first(conv uint32) *place[S] {
	p, _ := t.convs.Load(conv)
	first, _ := p.(*place[S])
	return first
}

// EntryOf returns the entry of a session.
func (t *Table[S]) EntryOf(s *S) *Entry { return t.entry(s) }

// Lists reports whether the table lists s.
func (t *Table[S]) Lists(s *S) bool { return t.Get(t.entry(s).Key()) == s }

// Add lists a session. No other one has its key.
func (t *Table[S]) Add(s *S) {
	e := t.entry(s)
	e.slot = t.slots.add(s)
	t.n++
	t.addConv(s, e)
	t.count(s, e)
}

// Remove removes a session that is listed.
func (t *Table[S]) Remove(s *S) {
	e := t.entry(s)
	emptied := t.slots.remove(e.slot)
	t.n--
	t.removeConv(s, e)
	t.uncount(e)
	t.unbindFEC(s, e)
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

// BindFEC records that the peer of s sends FEC. Parity names no conversation,
// so it is used only while its address has one such session. Together with data
// of another session, recovery would yield packets that were never sent. Some
// would look real: a field that all packets of a session share may come out of
// it unchanged.
func (t *Table[S]) BindFEC(s *S) {
	e := t.entry(s)
	if t.Bound(s) || !t.Lists(s) {
		return
	}
	if t.fec == nil {
		t.fec = make(map[Key][]*S)
	}
	key := e.Key().address()
	t.setFEC(key, append(t.fec[key], s))
	atomic.StoreUint32(&e.fecBound, 1)
}

// unbindFEC undoes BindFEC.
func (t *Table[S]) unbindFEC(s *S, e *Entry) {
	if e.fecBound == 0 {
		return
	}
	key := e.Key().address()
	t.setFEC(key, slices.DeleteFunc(t.fec[key], func(other *S) bool { return other == s }))
	atomic.StoreUint32(&e.fecBound, 0)
}

// setFEC sets which sessions of an address have peers that send FEC.
func (t *Table[S]) setFEC(key Key, all []*S) {
	if t.fec[key] = all; len(all) == 0 {
		delete(t.fec, key)
	}
	if len(all) == 1 {
		t.parity.Store(key, all[0])
	} else {
		t.parity.Delete(key)
	}
}

// Bound reports whether BindFEC was called for s.
func (t *Table[S]) Bound(s *S) bool { return atomic.LoadUint32(&t.entry(s).fecBound) != 0 }

// OfParity returns the session that parity from the address of key is for; nil:
// there is none, or more than one.
func (t *Table[S]) OfParity(key Key) *S {
	p, _ := t.parity.Load(key.address())
	s, _ := p.(*S)
	return s
}

// MaxSameConv is how many sessions of one conversation id OfConv returns, and Find
// finds. Ids are drawn at random, so there is usually one. An attacker may open further
// ones to keep it from migrating.
const MaxSameConv = 4

// OfConv returns the sessions of a conversation id at all addresses, oldest first.
func (t *Table[S]) OfConv(conv uint32) iter.Seq[*S] {
	return func(yield func(*S) bool) {
		for p := t.first(conv); p != nil && yield(p.s); p = p.next {
		}
	}
}

// Alone reports whether s is the only session of its conversation id that OfConv
// returns.
func (t *Table[S]) Alone(s *S) bool {
	p := t.first(t.entry(s).Conv)
	return p != nil && p.s == s && p.next == nil
}

// addConv adds a session to the others of its conversation id, or to the rest.
func (t *Table[S]) addConv(s *S, e *Entry) {
	all := slices.Collect(t.OfConv(e.Conv))
	if e.rest = len(all) >= MaxSameConv; !e.rest {
		t.setConv(e.Conv, append(all, s))
		return
	}
	if t.rest == nil {
		t.rest = make(map[Key]*S)
	}
	t.rest[e.Key()] = s
}

// removeConv undoes addConv.
func (t *Table[S]) removeConv(s *S, e *Entry) {
	if e.rest {
		delete(t.rest, e.Key())
		return
	}
	all := slices.Collect(t.OfConv(e.Conv))
	t.setConv(e.Conv, slices.DeleteFunc(all, func(other *S) bool { return other == s }))
}

// setConv sets the sessions of a conversation id.
func (t *Table[S]) setConv(conv uint32, all []*S) {
	var first *place[S]
	for _, s := range slices.Backward(all) {
		e := t.entry(s)
		first = &place[S]{e.Addr, e.Peer, s, first}
	}
	if first == nil {
		t.convs.Delete(conv)
	} else {
		t.convs.Store(conv, first)
	}
}

// SetValidated makes a session count as one whose peer's address is validated. It
// reports false if the network now has too many of those.
func (t *Table[S]) SetValidated(s *S) bool {
	return !t.recount(s, func(e *Entry) { e.validated = true }) || t.most <= 0 || t.Network(t.entry(s).Key()).Validated <= t.most
}

// Crowded reports whether the network of key has as many sessions as it may. A third
// party may have opened unvalidated sessions in its name, so those count only against
// other unvalidated ones.
func (t *Table[S]) Crowded(key Key, validated bool) bool {
	n := t.Network(key)
	if !validated {
		n.Validated += n.Pending
	}
	return t.most > 0 && n.Validated >= t.most
}

// SetShaking says whether the TLS handshake of a session is in progress.
func (t *Table[S]) SetShaking(s *S, shaking bool) {
	t.recount(s, func(e *Entry) { e.shaking = shaking })
}

// recount calls change, which changes what a session counts as. It reports whether the
// session is listed.
func (t *Table[S]) recount(s *S, change func(*Entry)) (listed bool) {
	e := t.entry(s)
	listed = t.Lists(s)
	if listed {
		t.uncount(e)
	}
	change(e)
	if listed {
		t.count(s, e)
	}
	return listed
}

// count counts a session for its network.
func (t *Table[S]) count(s *S, e *Entry) {
	block := e.Key().Block()
	if !e.validated || e.shaking {
		e.place = new(fair.Place)
		t.queueOf(e).Add(e.place, s, block)
	}
	if e.validated && t.networks != nil {
		t.networks[block.Subnet]++
	}
}

// uncount undoes count.
func (t *Table[S]) uncount(e *Entry) {
	if e.place != nil {
		t.queueOf(e).Remove(e.place)
		e.place = nil
	}
	if !e.validated || t.networks == nil {
		return
	}
	subnet := e.Key().Block().Subnet
	if t.networks[subnet]--; t.networks[subnet] == 0 {
		delete(t.networks, subnet)
	}
}

// queueOf returns the queue of a session that may make room.
func (t *Table[S]) queueOf(e *Entry) *fair.LongestQueues[S] {
	if e.validated {
		return &t.shaking
	}
	return &t.halfOpen
}

// Network returns the number of sessions with the subnet of key. Validated is zero if
// those are not counted.
func (t *Table[S]) Network(key Key) Count {
	subnet := key.Block().Subnet
	return Count{t.networks[subnet], t.halfOpen.Of(subnet), t.shaking.Of(subnet)}
}

// HalfOpen returns the number of sessions of all networks that Count.Pending counts.
func (t *Table[S]) HalfOpen() int { return t.halfOpen.Len() }

// Shaking returns the number of sessions of all networks that Count.Shaking counts.
func (t *Table[S]) Shaking() int { return t.shaking.Len() }
