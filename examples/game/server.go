package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

const tick = time.Second / 20

// server is the game. Its loop is one goroutine, so nothing needs a lock.
type server struct {
	log     io.Writer
	group   *kcp.Group
	players map[*kcp.Conn]*player
	lastID  uint16
	world   world

	lines [][]byte // of chat, of the current tick
}

// player is a session, and one that plays once it has a name.
type player struct {
	id     uint16
	name   string
	seq    uint32      // of the newest position
	chat   *kcp.Stream // nil until the player has opened it
	worlds *kcp.Stream
}

func newServer(log io.Writer) *server {
	return &server{log: log, group: kcp.NewGroup(), players: make(map[*kcp.Conn]*player)}
}

// run serves the sessions of l until ctx is done. Then it tells the players, and
// waits until they have been told.
func (s *server) run(ctx context.Context, l *kcp.Listener) error {
	defer l.Close()
	defer s.group.Close()
	s.group.ReportStreams() // before sessions join
	if err := l.AcceptInto(s.group); err != nil {
		return err
	}
	events := make([]kcp.Event, 256)
	for next := time.Now().Add(tick); ctx.Err() == nil; next = later(next) {
		if err := s.handleUntil(ctx, next, events); err != nil {
			return err
		}
		s.tick()
	}
	s.say("the server closes")
	s.tick()
	s.leave()
	return nil
}

// later returns the time of the next tick. Ticks that were missed are left out.
func later(last time.Time) time.Time {
	next := last.Add(tick)
	if now := time.Now(); next.Before(now) {
		return now
	}
	return next
}

// handleUntil handles events until a time, or until ctx is done.
func (s *server) handleUntil(ctx context.Context, end time.Time, events []kcp.Event) error {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	for {
		n, err := s.group.Wait(ctx, events)
		if err != nil && ctx.Err() == nil {
			return err
		}
		for i := range events[:n] {
			s.handle(&events[i])
		}
		// Wait returns events even if ctx is done: a tick comes first.
		if n == 0 || !time.Now().Before(end) {
			return nil
		}
	}
}

func (s *server) handle(e *kcp.Event) {
	p := s.players[e.Conn]
	switch e.Kind {
	case kcp.EventAccepted:
		s.accept(e.Conn)
	case kcp.EventStream:
		if p.chat != nil {
			_ = e.Stream.Reset(0) // a player has one
			return
		}
		p.chat = e.Stream
	case kcp.EventMessage:
		if e.Stream == nil || e.Stream != p.chat {
			_ = e.Conn.Abort(0, "") // no client of ours
			return
		}
		s.message(e.Conn, p, e.Data)
	case kcp.EventDatagram:
		// A datagram may come before the name, twice, or late.
		var at position
		if decode(e.Data, &at) && p.name != "" && int32(at.Seq-p.seq) > 0 && at.Cell < width*height {
			p.seq = at.Seq
			s.world.Cells[at.Cell] = p.id
		}
	case kcp.EventEOF:
		if e.Stream == nil { // the end of a stream does not end the session
			_ = e.Conn.Close() // EventEnded follows
		}
	case kcp.EventEnded:
		_ = e.Conn.Close() // nothing that it was to be told matters any more
		delete(s.players, e.Conn)
		if p.name == "" {
			return
		}
		if errors.Is(e.Err, io.EOF) {
			s.say("%s has left", p.name)
		} else {
			s.say("%s is gone", p.name)
		}
	}
}

// accept takes a new session, and opens the stream for the world. That does not wait,
// so it needs no goroutine.
func (s *server) accept(c *kcp.Conn) {
	worlds, err := c.TryOpenStream(worldOptions)
	if errors.Is(err, errors.ErrUnsupported) {
		_ = c.Abort(0, "") // no client of ours
	} // else, after an error, it has left already; what it has said follows
	s.lastID++
	s.players[c] = &player{id: s.lastID, worlds: worlds}
}

// message takes a name, or a line of chat.
func (s *server) message(c *kcp.Conn, p *player, text []byte) {
	switch {
	case p.name == "" && (len(text) == 0 || len(text) > maxName), len(text) > maxChat:
		_ = c.Abort(0, "") // no client of ours
	case p.name == "":
		p.name = string(text)
		s.say("%s is here as number %d", p.name, p.id)
	default:
		s.say("%s: %s", p.name, text)
	}
}

// say sends a line to all players, with the next tick.
func (s *server) say(format string, args ...any) {
	line := fmt.Appendf(nil, format, args...)
	fmt.Fprintf(s.log, "%q\n", line) // in quotes, as it may steer the terminal
	s.lines = append(s.lines, line)
}

// tick sends the world, and what was said, to all players, in one batch. Send does not
// wait: not even a player that gets nothing any more holds up the others.
func (s *server) tick() {
	s.world.Tick++
	now, err := binary.Append(nil, binary.LittleEndian, &s.world)
	if err != nil {
		panic(err) // it has a fixed size
	}
	var batch []kcp.Outgoing
	for _, p := range s.players {
		if p.name == "" {
			continue
		}
		for _, line := range s.lines {
			batch = append(batch, kcp.Outgoing{Stream: p.chat, Data: line})
		}
		if p.worlds != nil {
			batch = append(batch, kcp.Outgoing{Stream: p.worlds, Data: now, Lifetime: worldLifetime})
		}
	}
	s.lines = s.lines[:0]
	if s.group.Send(batch) == len(batch) {
		return
	}
	for i := range batch {
		// A player may miss a world, as the next one has all of it, but no line.
		if o := &batch[i]; o.Lifetime == 0 && errors.Is(o.Err, kcp.ErrWouldBlock) {
			_ = o.Stream.Conn().Abort(0, "") // so far behind that it will not catch up
		}
	}
}

// leave closes all sessions. Out of the group, Close waits until all has
// arrived.
func (s *server) leave() {
	var closing sync.WaitGroup
	for c := range s.players {
		_ = s.group.Remove(c) // one that has just ended need not be
		closing.Go(func() { _ = c.Close() })
	}
	closing.Wait()
}
