package main

import (
	"context"
	"errors"
	"io"

	"github.com/arqnet/kcp"
)

// groupServer has all its sessions in one group. Answers to the events of one call
// leave together.
type groupServer struct {
	*serverProcess
	sessions map[*kcp.Conn]*groupSession
	out      []kcp.Outgoing
	waiting  []byte // the data of out
}

// groupSession is a session of groupServer.
type groupSession struct {
	tally   *tally
	greeted bool
	upload  bool
	part    []byte // of a message
}

func listenGroup(p *serverProcess) (at Address, err error) {
	l, err := kcp.Listen("udp4", loopback, nil)
	if err != nil {
		return at, err
	}
	g := kcp.NewGroup()
	if err := l.AcceptInto(g); err != nil {
		return at, err
	}
	e := &groupServer{serverProcess: p, sessions: make(map[*kcp.Conn]*groupSession)}
	go func() { p.fail(e.serve(g)) }()
	return Address{Addr: l.Addr().String()}, nil
}

func (e *groupServer) serve(g *kcp.Group) error {
	events := make([]kcp.Event, 256)
	for {
		n, err := g.Wait(context.Background(), events)
		if err != nil {
			return err
		}
		for i := range events[:n] {
			if err := e.handle(&events[i]); err != nil {
				return err
			}
		}
		if g.Send(e.out) < len(e.out) {
			for i := range e.out {
				// A client has one message underway, so there is always room.
				if err := e.out[i].Err; err != nil {
					return err
				}
			}
		}
		e.out, e.waiting = e.out[:0], e.waiting[:0]
	}
}

// handle does what an event asks for.
func (e *groupServer) handle(event *kcp.Event) error {
	switch event.Kind {
	case kcp.EventAccepted:
		e.sessions[event.Conn] = &groupSession{tally: e.begin()}
	case kcp.EventData:
		e.read(event.Conn, e.sessions[event.Conn], event.Data)
	case kcp.EventEOF, kcp.EventEnded:
		return errors.Join(event.Err, io.ErrUnexpectedEOF)
	}
	return nil
}

// read takes what has arrived, and answers whole messages.
func (e *groupServer) read(c *kcp.Conn, s *groupSession, b []byte) {
	if !s.greeted {
		s.greeted, s.upload = true, b[0] == greetingUpload
		e.answer(c, []byte{greeting})
		b = b[1:]
	}
	if s.upload {
		s.tally.received.Add(uint64(len(b)))
		return
	}
	for s.part = append(s.part, b...); len(s.part) >= messageSize; s.part = append(s.part[:0], s.part[messageSize:]...) {
		e.answer(c, s.part[:messageSize])
		e.answered(s.tally)
	}
}

// answer sends b, once all events are handled.
func (e *groupServer) answer(c *kcp.Conn, b []byte) {
	at := len(e.waiting)
	e.waiting = append(e.waiting, b...)
	e.out = append(e.out, kcp.Outgoing{Conn: c, Data: e.waiting[at:len(e.waiting):len(e.waiting)]})
}
