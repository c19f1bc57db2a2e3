package kcp

import (
	"net"

	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wakeup"
)

// groupMember is the place of a session, or of a listener, in a group.
type groupMember struct {
	group    *Group    // immutable
	conn     *Conn     // immutable; nil: a listener
	listener *Listener // immutable; nil: a session
	streams  bool      // the events of streams are had, too; immutable

	place wakeup.PollPlace[groupMember] // in Group.set, which alone uses it

	// Conn.mu, or Listener.mu, guards the fields below.
	ready     bool // in Group.set's queue, or just taken out of it
	handled   bool // a handler runs: release looks for what has happened meanwhile
	wantsRoom bool // EventWritable is due once there is room
	refused   bool // and once the call that holds Conn.writing is done
	peerDone  bool // EventEOF was delivered
	datagram  bool // the last event was a datagram: data of the stream comes first
	ofStream  bool // the last event was of a Stream: the session's come first
}

// groupPlace returns the place of m in Group.set.
func (m *groupMember) groupPlace() *wakeup.PollPlace[groupMember] { return &m.place }

// wake puts m into the ready list, unless it is there or a handler runs for it.
// The lock of its session or listener is held.
func (m *groupMember) wake() {
	if !m.ready && !m.handled {
		m.ready = true
		m.group.push(m, false)
	}
}

// endpoint returns the endpoint of the session or listener.
func (m *groupMember) endpoint() *Endpoint {
	if m.listener != nil {
		return m.listener.ep
	}
	return m.conn.ep
}

// forget makes the session or listener forget that it is m.
func (m *groupMember) forget() {
	if l := m.listener; l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.member == m {
			l.member = nil
			l.changed.Broadcast()
		}
		return
	}
	c := m.conn
	c.mu.Lock()
	defer c.unlock()
	if c.io.member == m {
		c.leaveGroup()
	}
}

// gotWhat is the result of groupMember.take.
type gotWhat uint8

const (
	gotNothing  gotWhat = iota
	gotEvent            // an event
	gotNoMemory         // nothing, as the memory is full of earlier events
)

// take fills in the next event of m, which was just taken out of the ready
// list. If hold is set, the session has no further event before release is
// called for its member, which take returns.
func (m *groupMember) take(memory *groupMemory, e *Event, hold bool) (of *groupMember, got gotWhat) {
	if m.listener != nil {
		if of = m.accept(hold); of == nil {
			return nil, gotNothing
		}
		*e = Event{Kind: EventAccepted, Conn: of.conn}
		return of, gotEvent
	}
	c := m.conn
	c.mu.Lock()
	defer c.unlock()
	m.ready = false
	if c.io.member != m {
		return nil, gotNothing
	}
	m.handled = true // afterRead releases Conn.mu
	got = c.takeEvent(m, memory, e)
	if m.handled = hold && got == gotEvent; m.handled || c.io.member != m {
		return m, got
	}
	if got == gotNoMemory {
		m.ready = true
		m.group.push(m, true)
	} else if c.hasEvent(m) {
		m.wake()
	}
	return m, got
}

// accept takes the next session out of the backlog of the listener, and puts it
// into the group. It returns nil if there is none.
func (m *groupMember) accept(hold bool) *groupMember {
	c := m.listener.acceptFor(m)
	if c == nil {
		return nil
	}
	of := m.group.adopt(c, hold)
	if of == nil && !m.listener.putBack(c) {
		c.endFor(session.CauseDiscarded, net.ErrClosed)
	}
	return of
}

// adopt makes an accepted session a member. It returns nil if the group is
// closed.
func (g *Group) adopt(c *Conn, hold bool) *groupMember {
	c.mu.Lock()
	defer c.unlock()
	of := &groupMember{group: g, conn: c, streams: g.streams.Load(), handled: hold}
	if !g.attach(of) {
		return nil
	}
	c.joinGroup(of)
	if !hold && c.hasEvent(of) {
		of.wake()
	}
	return of
}

// release ends the handling of an event that take has returned with hold.
func (m *groupMember) release() {
	c := m.conn
	c.mu.Lock()
	defer c.unlock()
	m.handled = false
	if c.io.member == m && c.hasEvent(m) {
		m.wake()
	}
}

// handle calls handler for the next event of m, if it has one.
func (m *groupMember) handle(memory *groupMemory, handler func(Event)) {
	memory.used = 0
	var e Event
	of, got := m.take(memory, &e, true)
	if got != gotEvent {
		return
	}
	defer of.release() // even if handler panics
	handler(e)
}

const (
	// groupMemorySize is the memory for the data of the events of one call, in
	// bytes. A larger message makes it grow.
	groupMemorySize = 128 << 10
	// groupRun is the most bytes of a stream in one event.
	groupRun = 64 << 10
	// leastRun is the least free memory that a run of a stream is put into, so
	// that runs do not get short.
	leastRun = 4 << 10
)

// groupMemory is the memory of the data of events.
type groupMemory struct {
	b    []byte // nil until the first use
	used int
}

// free returns at most n bytes of free memory, but at least the given number.
// It returns nil if there are less, as earlier events use it.
func (m *groupMemory) free(least, n int) []byte {
	if m.b == nil || m.used == 0 && len(m.b) < least {
		m.b = make([]byte, max(groupMemorySize, least))
	}
	if len(m.b)-m.used < least {
		return nil
	}
	return m.b[m.used:min(m.used+n, len(m.b))]
}

// take returns the first n bytes of free memory, which the event has.
func (m *groupMemory) take(n int) []byte {
	m.used += n
	return m.b[m.used-n : m.used : m.used]
}

// takeMemory returns memory for a call of Serve.
func (g *Group) takeMemory() *groupMemory {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.spare); n > 0 {
		m := g.spare[n-1]
		g.spare = g.spare[:n-1]
		return m
	}
	return new(groupMemory)
}

// returnMemory takes back what takeMemory has returned.
func (g *Group) returnMemory(m *groupMemory) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.set.Closed() {
		g.spare = append(g.spare, m)
	}
}
