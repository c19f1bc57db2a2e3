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

const tick = time.Second / 60

// server is the game. Its loop is one goroutine, so nothing needs a lock.
type server struct {
	log     io.Writer
	group   *kcp.Group
	players map[*kcp.Conn]*player
	lastID  uint16
	ticks   uint32

	batch  []kcp.Outgoing // what the current tick sends
	chat   [][]byte       // lines of the current tick
	memory [][]byte       // for the datagrams of snapshots
}

// player is a session, and one that plays once it has a name.
type player struct {
	id   uint16
	name string
	seq  uint32 // of the newest position
	at   position
}

func newServer(log io.Writer) *server {
	return &server{log: log, group: kcp.NewGroup(), players: make(map[*kcp.Conn]*player)}
}

// run serves the sessions of l until ctx is done. Then it tells the players, and
// waits until they have been told.
func (s *server) run(ctx context.Context, l *kcp.Listener) error {
	defer l.Close()
	defer s.group.Close()
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
		s.lastID++
		s.players[e.Conn] = &player{id: s.lastID}
	case kcp.EventMessage:
		s.message(e.Conn, p, e.Data)
	case kcp.EventDatagram:
		// A datagram may come before the name, twice, or late.
		if seq, at, ok := parsePosition(e.Data); ok && int32(seq-p.seq) > 0 {
			p.seq, p.at = seq, at
		}
	case kcp.EventEOF:
		_ = e.Conn.Close() // EventEnded follows
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

// message takes a name, or a line of chat.
func (s *server) message(c *kcp.Conn, p *player, text []byte) {
	switch {
	case p.name == "" && (len(text) == 0 || len(text) > maxName), len(text) > maxChat:
		_ = c.Abort() // no client of ours
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
	fmt.Fprintf(s.log, "%s\n", line)
	s.chat = append(s.chat, line)
}

// tick sends what has changed to all players, in one batch.
func (s *server) tick() {
	s.ticks++
	parts := s.snapshot()
	s.batch = s.batch[:0]
	for c, p := range s.players {
		if p.name == "" {
			continue
		}
		for _, line := range s.chat {
			s.batch = append(s.batch, kcp.Outgoing{Conn: c, Data: line})
		}
		for _, part := range parts {
			s.batch = append(s.batch, kcp.Outgoing{Conn: c, Data: part, Datagram: true})
		}
	}
	s.chat = s.chat[:0]
	if s.group.Send(s.batch) == len(s.batch) {
		return
	}
	for i := range s.batch {
		if errors.Is(s.batch[i].Err, kcp.ErrWouldBlock) {
			_ = s.batch[i].Conn.Abort() // so far behind that it will not catch up
		}
	}
}

// snapshot returns the datagrams that say where all players are. They are valid
// until the next call.
func (s *server) snapshot() (parts [][]byte) {
	parts = s.memory[:0]
	n := 0
	for _, p := range s.players {
		if p.name == "" {
			continue
		}
		if n%snapshotPlayers == 0 {
			var b []byte
			if len(parts) < cap(parts) {
				b = parts[:len(parts)+1][len(parts)][:0]
			}
			parts = append(parts, binary.LittleEndian.AppendUint32(b, s.ticks))
		}
		last := &parts[len(parts)-1]
		*last = appendPlayer(*last, p.id, p.at)
		n++
	}
	s.memory = parts
	return parts
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
