package ends

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv/life"
)

// App is an application that reads all that comes, by plain calls, or by the events of a
// Group while its session is in one.
type App struct {
	*life.Party
	*End

	running sync.WaitGroup // calls that read, or wait

	amu     sync.Mutex // guards what follows
	changed sync.Cond
	group   *Group
	left    bool // it was taken out of group, whose last events are under way
	reads   int  // plain calls that may read
	rests   bool
	blocked map[uint32]bool // EventWritable is due
	ended   bool            // EventEnded has come
}

// NewApp returns the application of one end of a session.
func NewApp(s *life.Session, side int, c *kcp.Conn) *App {
	e := &End{Conn: c}
	a := &App{Party: life.NewParty(s, side, e), End: e, blocked: make(map[uint32]bool)}
	a.changed.L = &a.amu
	a.Go = func(call func()) { a.running.Go(call) }
	a.Opened = func(id uint32) { a.running.Go(func() { a.read(id) }) }
	a.Blocked = a.isBlocked
	return a
}

// Begin begins to read.
func (a *App) Begin() {
	a.running.Go(func() { a.read(0) })
	a.running.Go(func() {
		a.plain(func() error {
			s, err := a.Conn.AcceptStream(context.Background())
			if err == nil {
				a.Accepted(a.Party, s)
			}
			return err
		})
	})
	a.running.Go(func() {
		a.plain(func() error {
			b, err := a.Conn.ReceiveDatagram(context.Background())
			if a.Takes(life.Datagrams, b, err); a.knows(err) == life.Timeout {
				a.extend(0)
			}
			return err
		})
	})
}

// Wait returns when no call reads or waits any more.
func (a *App) Wait() { a.running.Wait() }

// read reads a stream, or the session itself.
func (a *App) read(id uint32) {
	b := make([]byte, 1<<16)
	a.plain(func() error {
		n, err := a.End.Read(id, b, a.In(id).Messages)
		if is := a.knows(err); is == life.Timeout {
			a.extend(id)
		}
		a.Takes(id, b[:n], err)
		return err
	})
}

func (a *App) knows(err error) (is life.Class) {
	if err != nil {
		is, _ = Class(err)
	}
	return is
}

// extend removes a deadline that has passed.
func (a *App) extend(id uint32) {
	if s := a.Stream(id); s != nil {
		_ = s.SetReadDeadline(time.Time{})
		return
	}
	_ = a.Conn.SetReadDeadline(time.Time{}) // the session may have ended
}

// plain makes a call again and again that reads, whenever the session is in no group.
func (a *App) plain(call func() error) {
	for {
		a.amu.Lock()
		for (a.group != nil || a.rests) && !a.ended {
			a.changed.Wait()
		}
		a.reads++
		a.amu.Unlock()
		is := a.knows(call())
		a.amu.Lock()
		a.reads--
		a.amu.Unlock()
		if is != "" && is != life.InGroup && is != life.Timeout {
			return
		}
	}
}

// Rest lets plain calls read nothing, or go on.
func (a *App) Rest(is bool) {
	a.amu.Lock()
	defer a.amu.Unlock()
	a.rests = is
	a.changed.Broadcast()
}

// isBlocked takes note that there was no room. In a group EventWritable follows.
func (a *App) isBlocked(id uint32) {
	a.amu.Lock()
	defer a.amu.Unlock()
	if a.group != nil && !a.left {
		a.blocked[id] = true
	}
}

// CheckRoom checks that EventWritable has followed wherever there is room again, when
// nothing has happened for a while.
func (a *App) CheckRoom() {
	a.amu.Lock()
	defer a.amu.Unlock()
	if a.blocked[0] && a.Conn.Err() == nil && isClosed(a.Conn.WriteReady()) && a.Conn.Err() == nil {
		a.Fail("no EventWritable, though there is room")
	}
}

// Join puts the session into a group.
func (a *App) Join(g *Group) {
	a.amu.Lock()
	if a.ended || a.group != nil || a.Seen(a.Side).Called != "" {
		a.amu.Unlock()
		return
	}
	a.group, a.left = g, false
	a.amu.Unlock()
	g.has(a)
	if err := g.Add(a.Conn); err != nil {
		a.leaves(g)
	}
}

// Leave takes the session out of its group.
func (a *App) Leave() {
	a.amu.Lock()
	g := a.group
	a.amu.Unlock()
	if g == nil || g.Remove(a.Conn) != nil {
		return // closed, or the session has ended
	}
	a.amu.Lock()
	a.left = true
	a.amu.Unlock()
	g.quiet()
	a.leaves(g)
}

func (a *App) leaves(g *Group) {
	a.amu.Lock()
	defer a.amu.Unlock()
	if a.group == g {
		a.group = nil
		a.changed.Broadcast()
		clear(a.blocked)
	}
}

// event takes an event of a group.
func (a *App) event(e kcp.Event, g *Group) {
	a.awaitReads()
	id := uint32(0)
	if e.Stream != nil {
		id = e.Stream.ID()
	}
	a.amu.Lock()
	known := id == 0 || e.Kind == kcp.EventStream || slices.Contains(a.Streams(), id)
	if a.ended || a.group != g && !g.isClosed() || !known {
		a.Fail(e.Kind.String() + ": after the end, of another group, or of an unknown stream")
	}
	a.amu.Unlock()
	if !known {
		return
	}
	switch e.Kind {
	case kcp.EventStream:
		a.Accepted(a.Party, e.Stream)
	case kcp.EventData, kcp.EventMessage:
		if a.In(id).Messages != (e.Kind == kcp.EventMessage) {
			a.Fail(e.Kind.String() + " in a wrong mode")
		}
		a.Takes(id, e.Data, nil)
	case kcp.EventDatagram:
		a.Takes(life.Datagrams, e.Data, nil)
	case kcp.EventEOF:
		a.Takes(id, nil, e.Err)
	case kcp.EventWritable:
		a.amu.Lock()
		delete(a.blocked, id)
		a.amu.Unlock()
		a.Do(life.Step{End: a.Side, Op: life.Write, ID: id, N: 500, How: life.Receipt})
	case kcp.EventEnded:
		a.amu.Lock()
		a.ended, a.group = true, nil
		a.changed.Broadcast()
		a.amu.Unlock()
		a.Takes(0, nil, e.Err)
	}
}

// awaitReads waits for plain calls that were blocked when the session joined the group:
// they return at once, but may have received something.
func (a *App) awaitReads() {
	for {
		a.amu.Lock()
		n := a.reads
		a.amu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(time.Microsecond)
	}
}

// isClosed reports whether a channel is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
