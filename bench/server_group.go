package main

import (
	"context"
	"errors"
	"io"

	"github.com/arqnet/kcp"
)

// groupEnd is a listening end whose sessions are in one group. Answers to the
// events of one call leave together.
type groupEnd struct {
	*kcp.Listener
	onReader bool // the goroutine that reads the socket handles the events
	sessions map[*kcp.Conn]*groupSession
	out      []kcp.Outgoing
	waiting  []byte // the data of out
}

// groupSession is a session of groupEnd.
type groupSession struct {
	tally   *tally
	greeted bool
	upload  bool
	part    []byte // of a message
}

func listenGroup(job *serverJob) (serverEnd, error) {
	l, err := newKCPListener(job)
	if err != nil {
		return nil, err
	}
	return &groupEnd{Listener: l, sessions: make(map[*kcp.Conn]*groupSession)}, nil
}

func listenHandler(job *serverJob) (serverEnd, error) {
	e, err := listenGroup(job)
	if err != nil {
		return nil, err
	}
	e.(*groupEnd).onReader = true
	return e, nil
}

func (e *groupEnd) serve(p *serverProcess) error {
	g := kcp.NewGroup()
	if err := e.AcceptInto(g); err != nil {
		return err
	}
	if e.onReader {
		err := g.Handle(func(events []kcp.Event) {
			if err := e.handleAll(p, g, events); err != nil {
				p.fail(err)
			}
		})
		if err != nil {
			return err
		}
		select {} // until the process is ended
	}
	events := make([]kcp.Event, 256)
	for {
		n, err := g.Wait(context.Background(), events)
		if err != nil {
			return err
		}
		if err := e.handleAll(p, g, events[:n]); err != nil {
			return err
		}
	}
}

// handleAll does what events ask for, and sends all answers.
func (e *groupEnd) handleAll(p *serverProcess, g *kcp.Group, events []kcp.Event) error {
	for i := range events {
		if err := e.handle(p, &events[i]); err != nil {
			return err
		}
	}
	if g.Send(e.out) < len(e.out) {
		for i := range e.out {
			// A client has one message underway, so there is always room.
			if err := e.out[i].Err; err != nil && p.job.Kind != serverOpen {
				return err
			}
		}
	}
	e.out, e.waiting = e.out[:0], e.waiting[:0]
	return nil
}

// handle does what an event asks for.
func (e *groupEnd) handle(p *serverProcess, event *kcp.Event) error {
	c := event.Conn
	s := e.sessions[c]
	switch event.Kind {
	case kcp.EventAccepted:
		e.sessions[c] = &groupSession{tally: p.begin(), greeted: p.job.Kind == serverOpen}
	case kcp.EventData:
		e.read(p, c, s, event.Data)
	case kcp.EventEOF, kcp.EventEnded:
		_ = c.Close() // what matters is the error
		if event.Kind == kcp.EventEOF {
			break // its end follows
		}
		delete(e.sessions, c)
		p.mu.Lock()
		p.ended++
		p.mu.Unlock()
		if p.job.Kind != serverOpen {
			return errors.Join(event.Err, io.ErrUnexpectedEOF)
		}
	}
	return nil
}

// read takes what has arrived, and answers whole messages.
func (e *groupEnd) read(p *serverProcess, c *kcp.Conn, s *groupSession, b []byte) {
	if !s.greeted {
		s.greeted = true
		s.upload = b[0] == greetingUpload
		e.answer(c, []byte{greeting})
		b = b[1:]
	}
	if s.upload {
		s.tally.received.Add(uint64(len(b)))
		return
	}
	for len(b) > 0 {
		n := min(messageSize-len(s.part), len(b))
		message := b[:n]
		if n < messageSize {
			s.part = append(s.part, message...)
			message = s.part
		}
		if b = b[n:]; len(message) == messageSize {
			e.answer(c, message)
			s.part = s.part[:0]
			p.answered(s.tally)
		}
	}
}

// answer sends b, once all events are handled.
func (e *groupEnd) answer(c *kcp.Conn, b []byte) {
	at := len(e.waiting)
	e.waiting = append(e.waiting, b...)
	e.out = append(e.out, kcp.Outgoing{Conn: c, Data: e.waiting[at:len(e.waiting):len(e.waiting)]})
}
