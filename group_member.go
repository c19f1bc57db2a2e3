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
	taking    bool // take looks for what has happened meanwhile
	wantsRoom bool // EventWritable is due once there is room
	refused   bool // and once the call that holds Conn.writing is done
	peerDone  bool // EventEOF was delivered
	datagram  bool // the last event was a datagram: data of the stream comes first
	ofStream  bool // the last event was of a Stream: the session's come first
}

// groupPlace returns the place of m in Group.set.
func (m *groupMember) groupPlace() *wakeup.PollPlace[groupMember] { return &m.place }

// wake puts m into the ready list, unless it is there or its event is being taken.
// The lock of its session or listener is held.
func (m *groupMember) wake() {
	if !m.ready && !m.taking {
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

// take fills in the next event of m, which was just taken out of the ready list.
func (m *groupMember) take(memory *groupMemory, e *Event) (got gotWhat) {
	if m.listener != nil {
		c := m.accept()
		if c == nil {
			return gotNothing
		}
		*e = Event{Kind: EventAccepted, Conn: c}
		return gotEvent
	}
	c := m.conn
	c.mu.Lock()
	defer c.unlock()
	m.ready = false
	if c.io.member != m {
		return gotNothing
	}
	m.taking = true // takeEvent releases Conn.mu now and then
	got = c.takeEvent(m, memory, e)
	m.taking = false
	switch {
	case c.io.member != m:
	case got == gotNoMemory:
		m.ready = true
		m.group.push(m, true)
	case c.hasEvent(m):
		m.wake()
	}
	return got
}

// accept takes the next session out of the backlog of the listener, and puts it
// into the group. It returns nil if there is none.
func (m *groupMember) accept() *Conn {
	c := m.listener.acceptFor(m)
	if c == nil || m.group.adopt(c) {
		return c
	}
	if !m.listener.putBack(c) {
		c.endFor(session.CauseDiscarded, net.ErrClosed)
	}
	return nil
}

// adopt makes an accepted session a member. It reports false if the group is closed.
func (g *Group) adopt(c *Conn) bool {
	c.mu.Lock()
	defer c.unlock()
	of := &groupMember{group: g, conn: c, streams: g.streams.Load()}
	if !g.attach(of) {
		return false
	}
	c.joinGroup(of)
	if c.hasEvent(of) {
		of.wake()
	}
	return true
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
