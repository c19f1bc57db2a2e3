package ends

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
)

// Group is a kcp.Group, and what takes its events.
type Group struct {
	*kcp.Group
	// Accept returns the application of a session that AcceptInto has put into the
	// group; nil: none is put there.
	Accept func(c *kcp.Conn) *App
	// Meanwhile is called before each event, if it is not nil, unless a handler of
	// Group.Handle takes it.
	Meanwhile func()

	taking sync.WaitGroup
	closed atomic.Bool
	busy   atomic.Int32 // batches of events that are handled

	mu   sync.Mutex
	apps map[*kcp.Conn]*App
}

// Way is how events are taken.
type Way int

// The ways.
const (
	ByWait Way = iota
	ByHandle
	Ways
)

// NewGroup returns a group that reports streams.
func NewGroup(way Way, accept func(c *kcp.Conn) *App) *Group {
	g := &Group{Group: kcp.NewGroup(), Accept: accept, apps: make(map[*kcp.Conn]*App)}
	g.ReportStreams()
	switch way {
	case ByHandle:
		if err := g.Handle(func(events []kcp.Event) { g.handle(events, false) }); err != nil {
			panic(err)
		}
	case ByWait:
		g.taking.Go(g.take)
	}
	return g
}

// take takes events until the group is closed.
func (g *Group) take() {
	events := make([]kcp.Event, 16)
	for !g.closed.Load() {
		if n, err := g.Wait(context.Background(), events); err == nil {
			g.handle(events[:n], true)
		}
	}
}

func (g *Group) handle(events []kcp.Event, mayWait bool) {
	g.busy.Add(1)
	defer g.busy.Add(-1)
	for _, e := range events {
		if mayWait && g.Meanwhile != nil {
			g.Meanwhile()
		}
		if e.Kind == kcp.EventAccepted {
			a := g.Accept(e.Conn)
			a.amu.Lock()
			a.group = g
			a.amu.Unlock()
			g.has(a)
			a.Begin()
			continue
		}
		g.mu.Lock()
		a := g.apps[e.Conn]
		g.mu.Unlock()
		if a == nil {
			panic(e.Kind.String() + " before the session was accepted")
		}
		a.event(e, g)
	}
}

func (g *Group) has(a *App) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.apps[a.Conn] = a
}

func (g *Group) isClosed() bool { return g.closed.Load() }

// quiet waits until the events are handled that were taken before.
func (g *Group) quiet() {
	time.Sleep(time.Microsecond)
	for g.busy.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
}

// End closes the group. Its sessions go on by plain calls.
func (g *Group) End() {
	if g.closed.Swap(true) {
		return
	}
	_ = g.Close()
	g.taking.Wait()
	g.quiet()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range g.apps {
		a.leaves(g)
	}
}
