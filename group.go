package kcp

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wakeup"
)

// Group is a set of sessions whose events one call returns: a poll group. Add puts a
// session into it, and Listener.AcceptInto all that a listener accepts. Wait returns the
// next events; or Handle sets a function that the goroutine that reads the socket calls
// with them.
//
// A session is in one group at most. Meanwhile Read, ReadMessage and ReceiveDatagram
// return ErrInUse at once. Writing works as ever. Close does not wait: delivery goes on
// in the background, as with a negative Config.Linger.
//
// What is not taken stays in its session, and fills the receive window. Sessions with
// events take turns, one event each. All methods are safe for concurrent use.
type Group struct {
	set     wakeup.PollSet[groupMember]
	streams atomic.Bool   // by ReportStreams
	handler func([]Event) // of Handle; set under mu, before a goroutine may call it

	mu      sync.Mutex // guards the fields below; of the other locks only set's is taken under it
	touched []*Conn    // for Send; nil while a Send uses it

	// The goroutine of Wait, or the one that calls handler, uses these.
	memory groupMemory
	events [handlerBatch]Event
}

// handlerBatch is the most events of one call of a handler.
const handlerBatch = 64

// EventKind is the kind of an Event.
type EventKind uint8

const (
	// EventAccepted is the first event of a session of Listener.AcceptInto.
	EventAccepted EventKind = iota + 1
	// EventData is the next bytes of a session's stream, at least one. A session with
	// Config.MessageMode has EventMessage instead.
	EventData
	// EventMessage is a whole message, which may be empty.
	EventMessage
	// EventDatagram is a datagram, as from Conn.ReceiveDatagram.
	EventDatagram
	// EventWritable follows, once, a Send that returned ErrWouldBlock for the session or
	// stream, and a call such as TryWrite that did.
	EventWritable
	// EventEOF is the end of the peer's data, after CloseWrite at the peer. Err is
	// io.EOF, or io.ErrUnexpectedEOF within a message. Datagrams may follow, and the
	// session can still be written to.
	EventEOF
	// EventEnded is the last event of a session, which is no longer in the group and
	// should be closed. Err is what Read returns after the last byte or, if EventEOF came
	// before, the error with which the session ended. It is the end of all its streams,
	// too.
	EventEnded
	// EventStream is the first event of a stream that the peer has opened, after
	// ReportStreams. Further ones have the kinds above, and Event.Stream. Err of EventEOF
	// is io.EOF after the peer's last byte, a *StreamError if the stream was reset, or
	// why what had arrived was dropped. The stream may still be written to, and is to be
	// closed.
	EventStream
)

// String returns the name of the kind, such as "data".
func (k EventKind) String() string {
	switch k {
	case EventAccepted:
		return "accepted"
	case EventData:
		return "data"
	case EventMessage:
		return "message"
	case EventDatagram:
		return "datagram"
	case EventWritable:
		return "writable"
	case EventEOF:
		return "EOF"
	case EventEnded:
		return "ended"
	case EventStream:
		return "stream"
	}
	return "none"
}

// Event is what has happened to a session of a Group.
type Event struct {
	Kind EventKind // what has happened
	Conn *Conn     // to which session
	// Stream is the stream of the session to which it has happened; nil: the session
	// itself.
	Stream *Stream
	// Data is what has arrived: of EventData, EventMessage and EventDatagram. It is valid
	// until the next call of Wait, or until the handler returns.
	Data []byte
	// Err is why the session, or the peer's data, has ended: of EventEOF and EventEnded.
	Err error
}

// NewGroup returns an empty group.
func NewGroup() *Group {
	g := new(Group)
	g.set.Init((*groupMember).groupPlace)
	return g
}

// Add puts a session into the group. What has arrived and was not read is for the group;
// calls of Read that wait return ErrInUse. It fails with ErrInUse if the session is in a
// group, and with net.ErrClosed if the group or the session is closed.
func (g *Group) Add(c *Conn) error {
	c.mu.Lock()
	defer c.unlock()
	if c.session.State().Left {
		return c.opError("add", net.ErrClosed)
	}
	if c.io.member != nil {
		return c.opError("add", errGroupedBefore)
	}
	m := &groupMember{group: g, conn: c, streams: g.streams.Load()}
	if !g.attach(m) {
		return c.opError("add", net.ErrClosed)
	}
	c.joinGroup(m)
	c.io.canRead.Broadcast() // for blocked calls, and for what is there already
	return nil
}

// ReportStreams makes the group have the events of streams, too, of all sessions that
// join it afterwards. Read, ReadMessage and AcceptStream of those return ErrInUse. What
// arrives on a stream is EventMessage if the stream is unordered or not reliable, or the
// session has Config.MessageMode, else EventData. A stream that this end has opened has
// events until it is closed or reset here.
func (g *Group) ReportStreams() { g.streams.Store(true) }

// Remove takes a session out of the group: what was not taken is for Read, or for the
// next group. A call of Wait that runs may still return events of it. It fails with
// ErrInUse if the session is not in this group.
func (g *Group) Remove(c *Conn) error {
	c.mu.Lock()
	defer c.unlock()
	m := c.io.member
	if m == nil || m.group != g {
		return c.opError("remove", errNotGrouped)
	}
	c.leaveGroup()
	g.set.Remove(m)
	return nil
}

// Len returns the number of sessions in the group.
func (g *Group) Len() int { return g.set.Len() }

// Close closes the group: Wait returns net.ErrClosed, and no handler is called any more;
// one that runs goes on. Sessions and listeners go on by themselves.
func (g *Group) Close() error {
	members, err := g.set.Close()
	if err != nil {
		return g.opError("close", err)
	}
	for _, m := range members {
		m.forget()
	}
	return nil
}

func (g *Group) opError(op string, err error) error { return opError(op, nil, nil, err) }

// Wait waits for events of the group's sessions, and fills in at most len(events) of
// them. It returns how many; that is 0 only with an error, or if events is empty. Events
// of one session are in order. Events that are there are returned even if ctx is done;
// without any the errors are ctx.Err() itself, and net.ErrClosed when the group is
// closed. While another call of Wait runs, and after Handle, it is ErrInUse.
func (g *Group) Wait(ctx context.Context, events []Event) (n int, err error) {
	if err := g.enter("wait", wakeup.Waits); err != nil {
		return 0, err
	}
	defer g.set.Leave()
	for len(events) > 0 {
		if n := g.fill(events); n > 0 {
			return n, nil
		}
		if err := g.sleep(ctx); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// fill fills in the events that are there, and returns how many.
func (g *Group) fill(events []Event) (n int) {
	g.memory.used = 0
	for n < len(events) {
		m := g.set.Next()
		if m == nil {
			break
		}
		switch m.take(&g.memory, &events[n]) {
		case gotNoMemory:
			return n
		case gotEvent:
			n++
		}
	}
	return n
}

// Handle makes handler be called with the events of the group's sessions, at most 64. A
// batch of packets is first fed to all of its sessions; then the goroutine that has read
// it calls handler. Other events are handled on a goroutine of the group. Calls do not
// overlap. The events, and their data, are valid until it returns.
//
// While handler runs, nothing is read from the socket. It must not block, nor call what
// may wait: Write, CloseWrite right after EventAccepted, Dial on the same endpoint, and
// Shutdown. Send, SendDatagram, Close and Abort do not wait. If it panics, the program
// ends. Handle fails with ErrInUse while a call of Wait runs, or if the group has a
// handler, with net.ErrClosed if the group is closed, and with syscall.EINVAL if handler
// is nil.
func (g *Group) Handle(handler func(events []Event)) error {
	if handler == nil {
		return g.opError("handle", errNoHandler)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	first := g.handler == nil
	if first {
		g.handler = handler // before others may call it
	}
	if err := g.enter("handle", wakeup.Handles); err != nil {
		if first {
			g.handler = nil
		}
		return err
	}
	go g.dispatchInTurn() // what is there already
	return nil
}

// dispatch calls the handler for all events that are there, unless another
// goroutine does. It is called without any lock.
func (g *Group) dispatch() {
	for goesOn := false; g.set.Handling(goesOn); goesOn = true {
		if n := g.fill(g.events[:]); n > 0 {
			g.handler(g.events[:n])
			clear(g.events[:n])
		}
	}
}

// enter begins to take events in a way.
func (g *Group) enter(op string, mode wakeup.PollMode) error {
	err := g.set.Enter(mode)
	if err == wakeup.ErrInUse {
		err = errGroupInUse
	}
	if err != nil {
		return g.opError(op, err)
	}
	return nil
}

// sleep waits until a member may have an event. It returns nil, or why no call may wait.
func (g *Group) sleep(ctx context.Context) error {
	err := g.set.Sleep(ctx, g.waitTurn)
	if err == net.ErrClosed {
		return g.opError("wait", err)
	}
	return err
}

// push puts m into the ready list, unless it is not in the group any more: at
// the end, or as the next. The lock of its session or listener is held.
func (g *Group) push(m *groupMember, first bool) {
	if g.set.Push(m, first) && !m.endpoint().feeding.Defers(g) {
		g.attend(true)
	}
}

// attend has the events in the ready list taken: it wakes a call in sleep, or
// calls the handler, on a goroutine of its own if spawn is set.
func (g *Group) attend(spawn bool) {
	switch handles := g.set.Attend(); {
	case handles && spawn:
		go g.dispatchInTurn()
	case handles:
		g.dispatch()
	}
}

// attendGroup has the events of a group taken after a batch of packets.
func attendGroup(g *Group) { g.attend(false) }

// dispatchInTurn is dispatch on a goroutine of its own.
func (g *Group) dispatchInTurn() {
	g.waitTurn()
	g.dispatch()
}

// waitTurn waits for the turn of who takes events.
func (g *Group) waitTurn() {
	if m := g.set.First(); m != nil {
		m.endpoint().shared.Env.Woken(nil, 0, wakeup.AtGroup)
	}
}

// attach makes m a member. It reports false if the group is closed.
func (g *Group) attach(m *groupMember) bool {
	m.endpoint().feeding.Used.Store(true)
	m.place.Uncounted = m.conn == nil
	return g.set.Add(m)
}

// groupMember is the place of a session, or of a listener, in a group.
type groupMember struct {
	group    *Group    // immutable
	conn     *Conn     // immutable; nil: a listener
	listener *Listener // immutable; nil: a session
	streams  bool      // the events of streams are had, too; immutable

	place wakeup.PollPlace[groupMember] // in Group.set, which alone uses it

	// Conn.mu, or Listener.mu, guards the fields below.
	ready     bool // in Group.set's queue, or just taken out of it
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
	if !m.ready {
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
	if c.io.member != m {
		return gotNothing
	}
	got = c.takeEvent(m, memory, e) // may release Conn.mu for a moment
	m.ready = false
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
