package life

import (
	"slices"
	"strings"
	"sync"
)

// End is the calls of one end of a session. ID 0 is the session itself. Calls that wait
// only do so if they are told to; else they return an error of class WouldBlock.
type End interface {
	Write(id uint32, b []byte, waits bool) (n int, err error)
	SendMessage(id uint32, b []byte, o Options, waits bool) error
	SendDatagram(b []byte) error
	OpenStream(o StreamOptions, waits bool) (id uint32, err error)
	// EndStream ends a stream, or one of its directions: Fin, StopRead, StopWrite,
	// Reset, EndStream. Of the session itself it is Fin.
	EndStream(id uint32, how Op, code uint64) error
	Close(how Op) error
	// Read reads bytes, or a message. If it does not wait, and there is nothing yet, it
	// returns an error of class WouldBlock.
	Read(id uint32, b []byte, messages bool) (n int, err error)
	// Set makes any other call.
	Set(s Step) error
	Class(err error) (is Class, code uint64)
}

// Options are MessageOptions.
type Options struct {
	Step Step
	Done func(err error) // nil: none
}

// Party is the application at one end. It performs steps, and takes note of all that it
// writes and reads, and of what calls return.
type Party struct {
	*Session
	Side int
	End  End

	// Go runs a call that may wait; nil: all calls wait, and Do with them.
	Go func(call func())
	// Opened is called when the party has a stream; nil: it is not.
	Opened func(id uint32)
	// Blocked is called when a call has returned WouldBlock; nil: it is not.
	Blocked func(id uint32)
	// Most is how many bytes are written to a flow; 0: as many as there are.
	Most int

	mu  sync.Mutex // guards what follows; nothing is called with it
	ids []uint32   // of streams
	buf []byte     // of calls that read, one at a time
}

// NewParty returns the application of one end.
func NewParty(s *Session, side int, end End) *Party {
	s.Note(side, func(e *Seen) { e.There = true })
	return &Party{Session: s, Side: side, End: end}
}

// Out returns what the party writes to a stream, and In what it reads.
func (p *Party) Out(id uint32) *Flow { return p.Flow(p.Side, id) }

// In returns what the party reads from a stream.
func (p *Party) In(id uint32) *Flow { return p.Flow(1-p.Side, id) }

// Streams returns the IDs of the party's streams.
func (p *Party) Streams() []uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.ids)
}

// Has takes a stream, whoever has opened it.
func (p *Party) Has(id uint32, o StreamOptions) {
	p.Add(id, o)
	p.mu.Lock()
	if slices.Contains(p.ids, id) {
		p.failAt(p.Name, "end %c has got stream %d twice", 'a'+p.Side, id)
	}
	p.ids = append(p.ids, id)
	p.mu.Unlock()
	if p.Opened != nil {
		p.Opened(id)
	}
}

// Pick returns the stream that a step means: the one of its ID, or any; 0 is the session
// itself, and also meant if there are no streams.
func (p *Party) Pick(id uint32) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ids) == 0 || id == 0 || slices.Contains(p.ids, id) {
		return id * uint32(min(1, len(p.ids)))
	}
	return p.ids[int(id)%len(p.ids)]
}

// Do performs a step, and reports false if it is none of an application.
func (p *Party) Do(s Step) bool {
	switch s.Op {
	case Write:
		p.write(s)
	case Open:
		p.call(s.How&128 > 0, func(waits bool) {
			if id, err := p.End.OpenStream(s.Stream(), waits); err == nil {
				p.Has(id, s.Stream())
			}
		})
	case Fin, StopRead, StopWrite, Reset, EndStream:
		p.endSome(s)
	case Datagram:
		p.datagram(s.N)
	case Close, Background, Reason, Abort:
		p.close(s.Op)
	case Read, ReadAll:
		p.read(s)
	case Rate, Window, MTU, Buffer, Deadline, Look, Ping, Flush:
		p.call(s.Op == Ping || s.Op == Flush, func(bool) { p.knows(p.End.Set(s)) })
	default:
		return false
	}
	return true
}

// call makes a call, beside others if it waits.
func (p *Party) call(waits bool, f func(waits bool)) {
	if waits && p.Go != nil {
		p.Go(func() { f(true) })
		return
	}
	f(waits || p.Go == nil)
}

// knows returns the class of an error, which has to be one that calls return.
func (p *Party) knows(err error) Class {
	if err == nil {
		return ""
	}
	is, _ := p.End.Class(err)
	if strings.HasPrefix(string(is), unknown) {
		p.failAt(p.Name, "end %c: an error that no call returns: %v", 'a'+p.Side, err)
	}
	return is
}

// writes takes note of the error of a call that writes.
func (p *Party) writes(id uint32, err error) {
	is := p.knows(err)
	switch {
	case is == WouldBlock && p.Blocked != nil:
		p.Blocked(id)
	case id == 0 && is != "" && !slices.Contains(passing, is) && !p.Out(0).fin():
		p.Note(p.Side, func(e *Seen) {
			if e.Write == "" {
				e.Write = is
			}
		})
	}
}

// fin reports whether CloseWrite was called.
func (f *Flow) fin() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Written.Fin
}

func (p *Party) write(s Step) {
	id := p.Pick(s.ID)
	f := p.Out(id)
	waits := s.How&Waits > 0 || p.Go == nil
	if !f.claim(waits) {
		return
	}
	p.call(waits, func(waits bool) {
		defer f.release(waits)
		if f.Messages || id != 0 && s.How&(Receipt|Never) == Receipt|Never {
			p.message(id, f, s, waits)
			return
		}
		n := s.N
		if p.Most > 0 {
			n = min(n, p.Most-min(p.Most, f.wrote()))
		}
		if n == 0 {
			return
		}
		n, err := p.End.Write(id, f.Next(n), waits)
		f.Wrote(n)
		p.writes(id, err)
	})
}

func (f *Flow) wrote() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Written.Bytes
}

// message writes a message, or bytes with a receipt.
func (p *Party) message(id uint32, f *Flow, s Step, waits bool) {
	if !f.Messages {
		s.How &^= Never | Short
	}
	m := Message{May: s.How&(Never|Short) > 0 || id != 0 && f.may, Lifetime: s.Lifetime(), Wants: s.How&Receipt > 0}
	number, b := f.Begin(s.N, m)
	o := Options{Step: s}
	if m.Wants {
		o.Done = func(err error) { f.Receipt(number, p.knows(err)) }
	}
	err := p.End.SendMessage(id, b, o, waits)
	f.End(number, err == nil)
	p.writes(id, err)
}

func (p *Party) datagram(size int) {
	f := p.Out(Datagrams)
	number, b := f.Begin(size, Message{May: true})
	err := p.End.SendDatagram(b)
	f.End(number, err == nil)
	p.knows(err)
}

// endSome ends a stream, or one of its directions.
func (p *Party) endSome(s Step) {
	id := p.Pick(s.ID)
	if id == 0 && s.Op != Fin {
		return
	}
	code := 1 + uint64(s.N)*256 + uint64(s.How)
	out, in := p.Out(id), p.In(id)
	if s.Op == Reset || s.Op == StopWrite || s.Op == StopRead {
		out.note(func(w *Written, _ *Got) {
			w.Codes = append(w.Codes, code)
			w.Dropped = w.Dropped || s.Op != StopRead
		})
	}
	if s.Op == Reset || s.Op == StopRead || s.Op == EndStream {
		in.note(func(_ *Written, g *Got) { g.Dropped = true })
	}
	p.call(s.Op == Fin && id == 0, func(bool) {
		err := p.End.EndStream(id, s.Op, code)
		is := p.knows(err)
		switch {
		case s.Op == Fin && err == nil:
			out.note(func(w *Written, _ *Got) { w.Fin = true })
		case s.Op == Fin && id == 0 && !slices.Contains(passing, is):
			p.Note(p.Side, func(e *Seen) { e.Fin = is })
		}
	})
}

// close ends the session.
func (p *Party) close(how Op) {
	_, ended := p.In(0).Read()
	first := false
	p.Note(p.Side, func(e *Seen) {
		e.Calls++
		e.Gives = e.Gives || how == Reason
		if first = e.Called == ""; first {
			e.Called, e.Early = how, ended != EOF
		} else if how == Abort {
			e.Called = how
		}
	})
	p.call(how == Close || how == Reason, func(bool) {
		is := p.knows(p.End.Close(how))
		p.Note(p.Side, func(e *Seen) {
			e.Ended = true
			if first {
				e.Close = is
			}
		})
	})
}

// read reads until there is enough, or the end.
func (p *Party) read(s Step) {
	id := s.ID
	p.call(true, func(bool) {
		b := make([]byte, mostNoise)
		for {
			n, _ := p.In(id).Read()
			if s.Op == Read && n >= s.N {
				return
			}
			if s.Op == Read && !p.In(id).Messages {
				b = b[:min(len(b), s.N-n)]
			}
			if !p.ReadOnce(id, b) {
				return
			}
		}
	})
}

// CheckEnds checks that the ends of all that the peer has ended have come, when there was
// time enough.
func (p *Party) CheckEnds() {
	for _, id := range append(p.Streams(), 0) {
		f := p.In(id)
		f.note(func(w *Written, g *Got) {
			if w.Fin && !w.Dropped && !g.Dropped && g.Ended == "" {
				f.fail("the end has not come")
			}
		})
	}
}

// ReadOnce makes one call that reads, and reports whether the next one may read more.
func (p *Party) ReadOnce(id uint32, b []byte) bool {
	f := p.In(id)
	n, err := p.End.Read(id, b, f.Messages)
	return p.Takes(id, b[:n], err)
}

// Drain reads all that there is, by calls that do not wait.
func (p *Party) Drain(id uint32) {
	if p.buf == nil {
		p.buf = make([]byte, mostNoise)
	}
	f := p.In(id)
	for {
		n, err := p.End.Read(id, p.buf, f.Messages)
		if err != nil {
			if is, _ := p.End.Class(err); slices.Contains(passing, is) {
				return
			}
		}
		if !p.Takes(id, p.buf[:n], err) {
			return
		}
	}
}

// Takes takes what a call that reads, or an event, has brought, and reports whether more
// may come.
func (p *Party) Takes(id uint32, b []byte, err error) bool {
	f := p.In(id)
	if err == nil || len(b) > 0 {
		f.Takes(b)
	}
	if err == nil {
		return true
	}
	is, code := p.End.Class(err)
	if p.knows(err); slices.Contains(passing, is) && is != TooLarge {
		return true
	}
	if is == Told && id == 0 {
		p.Note(p.Side, func(e *Seen) { e.Told = true })
		is = EOF
	}
	f.Ends(is, code)
	return false
}

// Prepare returns what to write next to a stream, for a call that others make. It is not
// ok if nothing may be written now; else after follows the call, which does not wait.
func (p *Party) Prepare(id uint32, size int) (b []byte, after func(n int, err error), ok bool) {
	f := p.Out(id)
	if !f.claim(false) {
		return nil, nil, false
	}
	if !f.Messages {
		return f.Next(1 + size), func(n int, err error) {
			f.Wrote(n)
			f.release(false)
			p.writes(id, err)
		}, true
	}
	number, b := f.Begin(size, Message{May: f.may})
	return b, func(_ int, err error) {
		f.End(number, err == nil)
		f.release(false)
		p.writes(id, err)
	}, true
}
