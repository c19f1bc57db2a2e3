package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// A server that serves its sessions by a Group. It echoes what they send, and
// closes them at the end of it.

// groupServer is the state of such a server.
type groupServer struct {
	s       *server
	group   *kcp.Group
	stop    context.CancelFunc
	running sync.WaitGroup // what takes the events

	mu       sync.Mutex
	sessions map[*kcp.Conn]*groupSession
}

// groupSession is a session of the group. Only the function that handles its
// events uses it, one event at a time, but for terminated.
type groupSession struct {
	conn       *kcp.Conn
	got        []byte
	sizes      []int    // of messages
	pending    [][]byte // what Send has not taken
	rec        record
	finished   bool // io.EOF has come, so the session is closed behind pending
	closed     bool // it was: EventWritable of the same call of Wait may follow
	ended      bool
	terminated bool // guarded by groupServer.mu
}

// serveGroup makes the listener's sessions go into a group, and takes its events
// in the way of the plan.
func (s *server) serveGroup() error {
	ctx, cancel := context.WithCancel(context.Background())
	g := &groupServer{s: s, group: kcp.NewGroup(), stop: cancel, sessions: make(map[*kcp.Conn]*groupSession)}
	s.grouped = g
	if s.plan.Group == "handle" {
		err := g.group.Handle(func(events []kcp.Event) {
			for _, e := range events {
				g.handle(e)
			}
		})
		if err != nil {
			return err
		}
	}
	if err := s.l.AcceptInto(g.group); err != nil {
		return err
	}
	switch s.plan.Group {
	case "wait":
		g.running.Go(func() { g.wait(ctx) })
	case "serve":
		for range 3 {
			g.running.Go(func() { _ = g.group.Serve(ctx, g.handle) }) // until the server quits
		}
	}
	return nil
}

func (g *groupServer) wait(ctx context.Context) {
	events := make([]kcp.Event, 16)
	for {
		n, err := g.group.Wait(ctx, events)
		if err != nil {
			return
		}
		for _, e := range events[:n] {
			g.handle(e)
		}
	}
}

// handle takes one event.
func (g *groupServer) handle(e kcp.Event) {
	g.mu.Lock()
	c := g.sessions[e.Conn]
	if c == nil {
		c = &groupSession{conn: e.Conn}
		c.rec = record{Server: true, Life: g.s.life, Conv: e.Conn.Conv(), BadAt: -1, FlushErr: "none", Background: true}
		g.sessions[e.Conn] = c
	}
	g.mu.Unlock()
	first := e.Kind == kcp.EventAccepted
	switch {
	case first != (c.rec.CloseFrom.IsZero()):
		g.wrong(c, "event %v at the wrong time", e.Kind)
	case c.ended:
		g.wrong(c, "event %v after the end", e.Kind)
	}
	switch e.Kind {
	case kcp.EventAccepted:
		c.rec.CloseFrom = time.Now() // the judge compares it with the event of the plan
		g.s.log("  server %d: the group has %08x", g.s.life, c.rec.Conv)
	case kcp.EventData, kcp.EventMessage:
		if c.finished {
			g.wrong(c, "event %v after the end of the data", e.Kind)
		}
		c.got, c.sizes = append(c.got, e.Data...), append(c.sizes, len(e.Data))
		c.pending = append(c.pending, slices.Clone(e.Data))
		g.echo(c)
	case kcp.EventWritable:
		g.echo(c)
	case kcp.EventEOF:
		c.finished, c.rec.ReadErr = true, readEnd(e.Err)
		g.echo(c)
	case kcp.EventEnded:
		g.ended(c, e.Err)
	}
}

func (g *groupServer) wrong(c *groupSession, format string, args ...any) {
	if c.rec.BadSize == "" {
		c.rec.BadSize = fmt.Sprintf(format, args...)
	}
}

// echo sends what is pending, and closes the session after the last of it.
func (g *groupServer) echo(c *groupSession) {
	for len(c.pending) > 0 {
		out := []kcp.Outgoing{{Conn: c.conn, Data: c.pending[0]}}
		g.group.Send(out)
		c.rec.Wrote += int64(out[0].N)
		if c.pending[0] = c.pending[0][out[0].N:]; out[0].Err != nil {
			if errors.Is(out[0].Err, kcp.ErrWouldBlock) {
				return
			}
			c.rec.WriteErr, c.pending = class(out[0].Err), nil
			break
		}
		c.pending = c.pending[1:]
	}
	if c.finished && !c.closed {
		c.closed = true
		g.close(c)
	}
}

func (g *groupServer) close(c *groupSession) {
	if err := c.conn.Close(); err != nil {
		c.rec.CloseErr = class(err)
	}
}

// readEnd is class of the error of EventEOF or EventEnded, which is no
// *net.OpError only if it is io.EOF.
func readEnd(err error) string {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return "the end within a message"
	}
	return class(err)
}

// ended compares what a session has sent, and reports it.
func (g *groupServer) ended(c *groupSession, err error) {
	c.ended, c.rec.Closed, c.rec.CloseTo = true, true, time.Now()
	if c.rec.ReadErr == "" {
		c.rec.ReadErr = readEnd(err)
	}
	if !c.finished {
		g.close(c)
	}
	g.s.log("  server %d: %08x has ended: %v; %d bytes read", g.s.life, c.rec.Conv, err, len(c.got))
	g.mu.Lock()
	c.rec.Terminated = c.terminated
	delete(g.sessions, c.conn)
	g.mu.Unlock()
	g.s.running.Go(func() { g.report(c) })
}

// report waits until it is known which session it is, and tells the client's process.
func (g *groupServer) report(c *groupSession) {
	s := g.s
	s.mu.Lock()
	defer s.mu.Unlock()
	session, known := s.sessions[c.rec.Conv]
	for !known && !s.over {
		s.changed.Wait()
		session, known = s.sessions[c.rec.Conv]
	}
	r := &c.rec
	if r.Session = session; !known {
		r.Session = -1
	}
	r.Read = int64(len(c.got))
	if known {
		want := newContent(s.plan.Seed, session, false, 0).next(len(c.got))
		for i := range want {
			if want[i] != c.got[i] {
				r.BadAt = int64(i)
				break
			}
		}
		sizes := s.plan.messages(session, s.plan.Sessions[session].Client, s.plan.Client)
		if sizes != nil && !slices.Equal(c.sizes, sizes[:min(len(sizes), len(c.sizes))]) {
			r.BadSize = fmt.Sprintf("messages of %d bytes, want %d", c.sizes, sizes)
		}
	}
	if !s.quitting {
		_ = s.out.Encode(report{Record: r})
	}
}

// active returns how many sessions have not ended.
func (g *groupServer) active() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.sessions)
}

// terminate closes all sessions and waits for their end.
func (g *groupServer) terminate() {
	g.mu.Lock()
	for conn, c := range g.sessions {
		c.terminated = true
		_ = conn.Close() // it may have ended
	}
	g.mu.Unlock()
	for end := time.Now().Add(g.s.plan.idleBound()); g.active() > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

// quit ends the group and what takes its events.
func (g *groupServer) quit() {
	g.stop()
	_ = g.group.Close() // cannot be closed yet
	g.running.Wait()
}
