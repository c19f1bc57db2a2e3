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
	a.Go = func(call func()) { a.running.Go(call) }
	a.Opened = func(id uint32) { a.running.Go(func() { a.read(id) }) }
	a.Blocked = a.isBlocked
	return a
}

// Begin begins to read.
func (a *App) Begin() {
	a.running.Go(func() { a.read(0) })
	a.running.Go(func() {
		a.plain(func() bool {
			s, err := a.Conn.AcceptStream(context.Background())
			if err == nil {
				a.Accepted(a.Party, s)
			}
			return a.goesOn(err)
		})
	})
	a.running.Go(func() {
		a.plain(func() bool {
			b, err := a.Conn.ReceiveDatagram(context.Background())
			return a.Takes(life.Datagrams, b, err)
		})
	})
}

// Wait returns when no call reads or waits any more.
func (a *App) Wait() { a.running.Wait() }

// goesOn reports whether a call that has returned err is to be repeated.
func (a *App) goesOn(err error) bool {
	if err == nil {
		return true
	}
	is, _ := Class(err)
	return is == life.InGroup || is == life.Timeout
}

// read reads a stream, or the session itself.
func (a *App) read(id uint32) {
	b := make([]byte, 1<<18)
	a.plain(func() bool { return a.ReadOnce(id, b) })
}

// plain makes a call again and again that reads, whenever the session is in no group.
func (a *App) plain(call func() bool) {
	for goesOn := true; goesOn; {
		a.amu.Lock()
		may := a.group == nil && !a.rests
		if may {
			a.reads++
		}
		a.amu.Unlock()
		if !may {
			if a.over() {
				return
			}
			time.Sleep(20 * time.Millisecond)
			continue
		}
		goesOn = call()
		a.amu.Lock()
		a.reads--
		a.amu.Unlock()
		if goesOn && a.Conn.Err() == nil {
			time.Sleep(time.Microsecond) // a deadline that has passed
		}
	}
}

// over reports whether a Group has told the end of the session.
func (a *App) over() bool {
	a.amu.Lock()
	defer a.amu.Unlock()
	return a.ended
}

// Rest lets plain calls read nothing, or go on.
func (a *App) Rest(is bool) {
	a.amu.Lock()
	defer a.amu.Unlock()
	a.rests = is
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
	if a.blocked[0] && a.Conn.WriteAvailable() > 0 && a.Conn.Err() == nil {
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
