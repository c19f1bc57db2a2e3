package fuzz_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	kcp "github.com/arqnet/kcp"
)

// Streams under attack: what an attacker knows of them and forges (WIRE.md
// §5.9, written down here a second time), and what applications do with them.

// Commands, kinds and flags of stream segments, and the capability in INFO.
const (
	cmdStream      = 86
	cmdStreamPiece = 87

	streamData    = 0
	streamAbandon = 1
	streamFin     = 2
	streamReset   = 3
	streamStop    = 4
	streamCredit  = 5
	streamOpen    = 6

	streamEnd      = 0x08
	streamFragment = 0x10
	streamOptions  = 0x20

	capTLS      = 2
	capReasons  = 4
	capStreams  = 8
	capAckWaits = 32
)

// streamSeen is what one end has said of a stream.
type streamSeen struct{ id, mid, fsn, limit uint32 }

// maxStreamsSeen bounds how many streams of an end an attacker remembers.
const maxStreamsSeen = 16

// seesStream takes note of the payload of a stream segment.
func (s *speaker) seesStream(payload []byte) {
	if len(payload) < 5 {
		return
	}
	what := s.stream(le.Uint32(payload))
	first, rest := payload[4], payload[5:]
	if first&streamOptions != 0 {
		rest = rest[min(8, len(rest)):]
	}
	if len(rest) < 4 {
		return
	}
	switch first & 7 {
	case streamData, streamAbandon, streamFin:
		what.mid = le.Uint32(rest)
	case streamCredit:
		what.limit = le.Uint32(rest)
	}
	if first&streamFragment != 0 && len(rest) >= 8 {
		what.fsn = le.Uint32(rest[4:])
	}
}

// stream returns what is known of a stream.
func (s *speaker) stream(id uint32) *streamSeen {
	for _, known := range s.streams {
		if known.id == id {
			return known
		}
	}
	if len(s.streams) == maxStreamsSeen {
		s.streams = s.streams[1:]
	}
	s.streams = append(s.streams, &streamSeen{id: id, limit: 65536})
	return s.streams[len(s.streams)-1]
}

// stream makes g a stream segment, whole or a piece of one.
func (a *attacker) stream(g *segment, self, target *speaker) {
	g.cmd, g.payload = cmdStream, a.streamPayload(self, target)
	g.sn, g.ts = a.near(self.next, target.una, self.next, target.una+uint32(target.wnd)), a.near(self.ts)
	if a.random.IntN(8) > 0 {
		return
	}
	whole := g.payload
	unit := (len(whole) + 63) / 64
	at := unit * a.random.IntN(max(len(whole)/max(unit, 1), 1))
	end := min(len(whole), at+unit*(1+a.random.IntN(64)))
	g.cmd = cmdStreamPiece
	g.payload = le.AppendUint16(nil, uint16(at))
	g.payload = le.AppendUint16(g.payload, uint16(len(whole)))
	g.payload = append(g.payload, whole[at:end]...)
}

// streamPayload returns the payload of a stream segment that self might send.
func (a *attacker) streamPayload(self, target *speaker) []byte {
	known := append(append([]*streamSeen{}, self.streams...), target.streams...)
	known = append(known, &streamSeen{id: 1 + uint32(a.random.IntN(20)), limit: 65536})
	s := known[a.random.IntN(len(known))]
	id := s.id
	if a.random.IntN(6) == 0 {
		id = a.near(s.id, s.id+2, 0)
	}
	kind := byte([16]int{0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 5, 6, 7}[a.random.IntN(16)])
	if !a.lethal && (kind == streamReset || kind == streamStop) && a.random.IntN(8) > 0 {
		kind = streamData
	}
	first := kind
	part := kind == streamData && a.random.IntN(3) == 0
	if part {
		first |= streamFragment
	}
	if kind == streamData && (!part || a.random.IntN(3) == 0) {
		first |= streamEnd
	}
	if a.random.IntN(2) == 0 || kind == streamOpen {
		first |= streamOptions
	}
	if a.random.IntN(30) == 0 {
		first ^= 1 << a.random.IntN(8)
	}
	p := append(le.AppendUint32(nil, id), first)
	if first&streamOptions != 0 {
		p = append(p, byte(a.random.IntN(2)), byte(a.random.IntN(18)-9))
		p = le.AppendUint16(p, uint16(a.random.IntN(4)))
		p = le.AppendUint32(p, uint32(a.random.IntN(3))*uint32(a.random.IntN(2000)))
	}
	return a.streamFields(p, first, s)
}

// streamFields puts the fields of a kind, and data, behind p.
func (a *attacker) streamFields(p []byte, first byte, s *streamSeen) []byte {
	switch first & 7 {
	case streamData:
		p = le.AppendUint32(p, a.near(s.mid, s.mid+1, s.mid+1, s.mid+2, 0))
		if first&streamFragment != 0 {
			p = le.AppendUint32(p, a.near(s.fsn, s.fsn+1, 0))
		}
		return append(p, a.payload()...)
	case streamAbandon:
		p = le.AppendUint32(p, a.near(s.mid, s.mid+1, 0))
		p = le.AppendUint16(p, uint16(a.near(65535, 0, 100)))
	case streamFin:
		p = le.AppendUint32(p, a.near(s.mid, s.mid+1, 0))
	case streamReset, streamStop:
		p = le.AppendUint64(p, uint64(a.near(0, 7))<<a.random.IntN(40))
	case streamCredit:
		p = le.AppendUint32(p, a.near(s.limit, s.limit+65536, s.limit+1))
	}
	return p
}

// receipts are the receipts of all messages that applications have sent.
type receipts struct {
	mu  sync.Mutex
	all []*sentMessage
}

// sentMessage is one message with a receipt.
type sentMessage struct {
	name  string
	taken bool // SendMessage has returned nil
	calls atomic.Int32
	err   atomic.Pointer[error] // of the receipt, if it has one
}

// sendMessage sends a message that has to get one receipt if it is taken. Done may
// use the session: no lock is held.
func (x *application) sendMessage(s *kcp.Stream, b []byte, o kcp.MessageOptions) error {
	return x.noteMessage(func(done func(error)) error {
		o.Done = func(err error) {
			done(err)
			_ = s.Stats()
		}
		return s.SendMessage(b, &o)
	})
}

// writeMessage sends a message of the session itself, with a receipt or without.
func (x *application) writeMessage(b []byte, receipt bool) error {
	if !receipt {
		return x.c.WriteMessage(b)
	}
	var o kcp.MessageOptions
	if x.w.insider && len(b)%2 == 0 {
		o.Lifetime = 300 * time.Millisecond
	}
	return x.noteMessage(func(done func(error)) error {
		o.Done = done
		return x.c.SendMessage(b, &o)
	})
}

// noteMessage takes note of a message that send sends, and of its receipt.
func (x *application) noteMessage(send func(done func(error)) error) error {
	return x.w.receipts.note(x.name, func(done func(error)) error {
		return send(func(err error) {
			done(err)
			_ = x.c.Stats()
		})
	})
}

// note takes note of a message that send sends, and of its receipt.
func (r *receipts) note(name string, send func(done func(error)) error) error {
	m := &sentMessage{name: name}
	err := send(func(err error) {
		m.calls.Add(1)
		if err != nil {
			m.err.Store(&err)
		}
	})
	m.taken = err == nil
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, m)
	return err
}

// missing reports whether a message that an application has sent has no receipt.
func (r *receipts) missing(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.all, func(m *sentMessage) bool {
		return m.name == name && m.taken && m.calls.Load() == 0
	})
}

// check demands one receipt for each message that was taken, and none for others,
// of all messages of an application, or of all there are if name is empty. honest says
// that they have to have been delivered.
func (r *receipts) check(w *arena, name string, honest bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, m := range r.all {
		if name != "" && name != m.name {
			continue
		}
		if n := m.calls.Load(); n > 1 || m.taken != (n == 1) {
			w.t.Errorf("%s: message %d, taken: %v, has %d receipts", m.name, i, m.taken, n)
		}
		if err := m.err.Load(); err != nil && honest {
			w.t.Errorf("%s: message %d: %v", m.name, i, *err)
		}
	}
}

// useStreams opens some streams, and takes those of the peer, until the end.
func (x *application) useStreams(r *rand.Rand) {
	seed := r.Uint64()
	x.calls.Go(func() {
		for i := uint64(0); !x.closed.Load(); i++ {
			var s *kcp.Stream
			begin := time.Now()
			err := x.within(maxPause, "AcceptStream", func(ctx context.Context) (err error) {
				s, err = x.c.AcceptStream(ctx)
				return err
			})
			if err == nil {
				x.calls.Go(func() { x.useStream(s, rand.New(rand.NewPCG(seed, 2*i))) })
			} else if time.Since(begin) < maxPause {
				return // the session is over, and not the context
			}
		}
	})
	for i := range uint64(r.IntN(8)) {
		o := kcp.StreamOptions{
			Unordered: r.IntN(2) == 0, Priority: r.IntN(16) - 8, MaxRetransmits: r.IntN(4) - 1,
			MaxLifetime: time.Duration(r.IntN(2)*r.IntN(2000)) * time.Millisecond,
		}
		if r.IntN(2) == 0 {
			o = kcp.StreamOptions{Priority: o.Priority}
		}
		var s *kcp.Stream
		err := x.within(maxPause, "OpenStream", func(ctx context.Context) (err error) {
			s, err = x.c.OpenStream(ctx, &o)
			return err
		})
		if err == nil {
			x.calls.Go(func() { x.useStream(s, rand.New(rand.NewPCG(seed, 2*i+1))) })
		}
		if x.closed.Load() {
			return
		}
		time.Sleep(time.Duration(r.Int64N(int64(maxPause))))
	}
}

// within runs a call with a context that ends after d.
func (x *application) within(d time.Duration, what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return x.call(d, what, func() error { return f(ctx) })
}

// useStream uses one stream, and ends it in one of several ways.
func (x *application) useStream(s *kcp.Stream, r *rand.Rand) {
	var wg sync.WaitGroup
	r1, r2 := rand.New(rand.NewPCG(r.Uint64(), 1)), rand.New(rand.NewPCG(r.Uint64(), 2))
	if r.IntN(8) > 0 {
		wg.Go(func() { x.writeStream(s, r1) })
	}
	if r.IntN(8) > 0 {
		wg.Go(func() { x.readStream(s, r2) })
	}
	if r.IntN(4) == 0 {
		time.Sleep(time.Duration(r.Int64N(int64(maxPause))))
		_ = x.call(0, "Stream.Reset", func() error { return s.Reset(r.Uint64()) })
	}
	wg.Wait()
	_ = x.call(0, "Stream.Close", s.Close)
	if _, err := s.Write([]byte{1}); err == nil {
		x.w.t.Errorf("%s: Write after the end of a stream succeeds", x.name)
	}
}

// streamKey selects what one end writes on a stream. ofBytes says that it has no
// boundaries.
func (x *application) streamKey(s *kcp.Stream, dialled bool) (key uint64, ofBytes bool) {
	o := s.Options()
	return x.key(dialled) ^ uint64(s.ID())<<33, o.Priority < 0 && !o.Unordered && o.MaxLifetime == 0 && o.MaxRetransmits == 0
}

// writeStream writes bytes, or messages that begin with their number.
func (x *application) writeStream(s *kcp.Stream, r *rand.Rand) {
	key, ofBytes := x.streamKey(s, x.dialled)
	left, at := r.IntN(x.w.volume+1), uint64(0)
	for number := uint64(0); left > 0 && !x.closed.Load(); number++ {
		size := min(8+r.IntN(3000), left+8)
		if r.IntN(8) == 0 {
			size = min(8+r.IntN(50000), left+8)
		}
		left -= size
		p := make([]byte, size)
		err := x.timed(r, s.SetWriteDeadline, "Stream.Write", func() error {
			if ofBytes {
				fill(p, key, at)
				n, err := s.Write(p)
				at += uint64(n)
				return err
			}
			le.PutUint64(p, number)
			fill(p[8:], key+number<<8, 0)
			return x.sendMessage(s, p, kcp.MessageOptions{
				MaxRetransmits: r.IntN(4) - 1, Lifetime: time.Duration(r.IntN(2)*r.IntN(1000)) * time.Millisecond,
			})
		})
		if over(err) {
			return
		}
		_ = s.Stats()
		time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
	}
	if r.IntN(2) == 0 {
		_ = s.CloseWrite()
	}
}

// readStream reads until the end, or stops early. Without a key in the attacker's
// hand, what it reads has to be what was written, each message once.
func (x *application) readStream(s *kcp.Stream, r *rand.Rand) {
	key, ofBytes := x.streamKey(s, !x.dialled)
	at, last, got := uint64(0), int64(-1), make(map[uint64]bool)
	p := make([]byte, 1<<16)
	for stop := r.IntN(100); stop > 0 && !x.closed.Load(); stop-- {
		n := 0
		err := x.timed(r, s.SetReadDeadline, "Stream.Read", func() (err error) {
			if n, err = s.ReadMessage(p); errors.Is(err, io.ErrShortBuffer) {
				n, err = s.Read(p)
			}
			return err
		})
		if n > 0 && x.w.keyless {
			b := p[:n]
			if ofBytes {
				if wrong := differs(b, key, at); wrong >= 0 {
					x.w.t.Errorf("%s: byte %d of stream %d is wrong", x.name, at+uint64(wrong), s.ID())
				}
				at += uint64(n)
			} else {
				last = x.checkMessage(s, b, key, last, got)
			}
		}
		if over(err) {
			return
		}
		if r.IntN(4) == 0 {
			time.Sleep(time.Duration(r.Int64N(int64(maxPause))))
		}
	}
}

// checkMessage holds a message against what was written. It returns its number.
func (x *application) checkMessage(s *kcp.Stream, b []byte, key uint64, last int64, got map[uint64]bool) int64 {
	if len(b) < 8 {
		x.w.t.Errorf("%s: a message of %d bytes on stream %d", x.name, len(b), s.ID())
		return last
	}
	number := le.Uint64(b)
	if got[number] || !s.Options().Unordered && int64(number) <= last || differs(b[8:], key+number<<8, 0) >= 0 {
		x.w.t.Errorf("%s: message %d of stream %d after %d, again: %v, of %d bytes", x.name, number, s.ID(), last, got[number], len(b))
	}
	got[number] = true
	return int64(number)
}
