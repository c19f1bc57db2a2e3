package fuzz_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	kcp "github.com/arqnet/kcp"

	"github.com/arqnet/kcp/congestion"
)

// What the first byte of a session asks of its other end.
const asksEcho, asksChaos = 1, 2

// serve uses a session that was accepted, as its first byte asks.
func (w *hostile) serve(i int, c *kcp.Conn) {
	w.note(i, c)
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	first := make([]byte, 1)
	var err error
	w.call(i, time.Minute, "first Read", func() { _, err = io.ReadFull(c, first) })
	echoes := w.intact || c.RemoteAddr().String() == hostileEnds[2]
	switch {
	case err == nil && first[0] == asksEcho && echoes:
		w.echo(i, c)
	default:
		w.use(i, c, 1, w.intact && err == nil)
	}
}

// echo returns what comes, to its end.
func (w *hostile) echo(i int, c *kcp.Conn) {
	_ = c.SetReadDeadline(time.Time{})
	w.apps.Go(func() {
		for {
			s, err := c.AcceptStream(context.Background())
			if err != nil {
				return
			}
			w.apps.Go(func() {
				w.call(i, patience, "echo of a stream", func() { _, _ = io.Copy(s, s); _ = s.CloseWrite() })
			})
		}
	})
	_, err := c.Write([]byte{asksEcho})
	if err == nil {
		w.call(i, patience, "echo", func() { _, err = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) })
	}
	if err == nil {
		w.call(i, patience, "CloseWrite", func() { err = c.CloseWrite() })
	}
	if err != nil {
		w.t.Errorf("echo: %v", err)
		_ = c.Abort()
		return
	}
	<-c.Done()
	w.call(i, 0, "Close", func() { _ = c.Close() })
}

// honest opens a session with an end, which echoes what it gets, and demands that all of
// it comes back, in the session and in a stream. With TLS, who is on the path may keep a
// session from opening, as it may cut the path.
func (w *hostile) honest(from, to, size int) {
	var c *kcp.Conn
	var err error
	first := make([]byte, 1)
	for try := 0; ; try++ {
		w.call(from, 2*time.Minute, "honest Dial", func() {
			if c, err = w.ends[from].Dial(context.Background(), net.UDPAddrFromAddrPort(w.addrs[to])); err != nil {
				return
			}
			w.note(from, c)
			if _, err = c.Write([]byte{asksEcho}); err == nil {
				_, err = io.ReadFull(c, first)
			}
		})
		if err == nil {
			break
		}
		if try == 3 {
			if from == 2 || w.reachable {
				w.t.Errorf("no session of %d comes about: %v; %+v", from, err, w.ends[to].Stats())
			}
			return
		}
	}
	if from != 2 {
		w.opened.Add(1)
	}
	must := func(name string, f func() error) {
		var err error
		w.call(from, patience, name, func() { err = f() })
		if err != nil {
			w.t.Errorf("honest %s of %d: %v", name, from, err)
		}
	}
	w.roundTrip(from, c, must, size)
	var s *kcp.Stream
	must("OpenStream", func() (err error) { s, err = c.OpenStream(context.Background(), nil); return err })
	if s != nil {
		w.roundTrip(from, s, must, 3000)
		must("stream's Close", s.Close)
	}
	must("Ping", func() error { _, err := c.Ping(context.Background()); return err })
	must("CloseWrite", c.CloseWrite)
	must("Read of the end", func() error {
		if n, err := c.Read(first); n > 0 || err != io.EOF {
			return errors.Join(errors.New("not the end"), err)
		}
		return nil
	})
	must("Close", c.Close)
}

// roundTrip writes bytes and reads them again.
func (w *hostile) roundTrip(i int, f io.ReadWriter, must func(string, func() error), size int) {
	const key = 5
	random := w.source()
	for at := 0; at < size && !w.t.Failed(); at += 1000 {
		p := make([]byte, 1000)
		fill(p, key, uint64(at))
		must("Write", func() error { _, err := f.Write(p); return err })
		if c, ok := f.(*kcp.Conn); ok && i != 2 {
			w.set(i, c, random)
		}
		must("Read", func() error { _, err := io.ReadFull(f, p); return err })
		if wrong := differs(p, key, uint64(at)); wrong >= 0 && !w.t.Failed() {
			w.t.Errorf("byte %d of %d is wrong", at+wrong, size)
		}
	}
}

// application uses one session under attack.
type application struct {
	w       *hostile
	i       int // end
	c       *kcp.Conn
	dialled bool
	begun   uint64 // bytes that were read before
	intact  bool   // what is read is what was written
	over    atomic.Bool
	uses    sync.WaitGroup
	due     atomic.Int32 // receipts
}

// maxPause is the longest that a call of an application waits for its end.
const maxPause = 500 * time.Millisecond

// use calls anything of a session, and ends it in some way.
func (w *hostile) use(i int, c *kcp.Conn, begun uint64, intact bool) {
	w.note(i, c)
	x := &application{w: w, i: i, c: c, dialled: c.Dialled(), begun: begun, intact: intact}
	r := w.source()
	for _, use := range []func(*rand.Rand){x.write, x.read, x.streams, x.others} {
		random := w.source()
		if r.IntN(6) > 0 {
			x.uses.Go(func() { use(random) })
		}
	}
	time.Sleep(time.Duration(r.IntN(6000)) * time.Millisecond)
	if r.IntN(3) == 0 {
		x.call(patience, "CloseWrite", func() { _ = c.CloseWrite() })
		time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
	}
	x.over.Store(true)
	switch r.IntN(6) {
	case 0:
		x.call(0, "Abort", func() { _ = c.Abort() })
	case 1: // breaks off a Close
		x.uses.Go(func() { x.call(patience, "Close", func() { _ = c.Close() }) })
		time.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond)
		x.call(0, "Abort", func() { _ = c.Abort() })
	case 2:
		x.call(patience, "CloseWithError", func() { _ = c.CloseWithError(r.Uint64(), "over") })
	default:
		x.call(patience, "Close", func() { _ = c.Close() })
	}
	x.call(maxPause, "what was called before the end", x.uses.Wait)
	x.call(patience, "Done", func() { <-c.Done() })
	time.Sleep(5 * time.Second)
	if n := x.due.Load(); n != 0 {
		w.t.Errorf("%d receipts are missing", n)
	}
	if n, err := c.Write([]byte{1}); err == nil {
		w.t.Errorf("Write after the end: %d", n)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil {
		w.t.Errorf("Read after the end: %d", n)
	}
}

// ofBoth reports whether the session is one of both ends, which nobody disturbs.
func (x *application) ofBoth() bool {
	conv := x.c.Conv()
	x.w.mu.Lock() // hooks with a session's lock wait for it
	others := x.w.conns[1-x.i]
	x.w.mu.Unlock()
	return x.intact && conv != 0 && conv != hostileConv && (x.dialled || slices.ContainsFunc(others, func(c *kcp.Conn) bool {
		return c.Dialled() && c.Conv() == conv
	}))
}

func (x *application) call(limit time.Duration, name string, f func()) { x.w.call(x.i, limit, name, f) }

// timed runs a call with a deadline, mostly, and reports whether the session goes on.
func (x *application) timed(r *rand.Rand, deadline func(time.Time) error, name string, f func() error) (goesOn bool) {
	limit, at := patience, time.Time{}
	if r.IntN(3) > 0 {
		limit = time.Duration(r.IntN(3000)) * time.Millisecond
		at = time.Now().Add(limit)
	}
	err := deadline(at)
	if err == nil {
		x.call(limit, name, func() { err = f() })
	}
	var timeout net.Error
	var lost *kcp.PeerLostError
	return err == nil || errors.As(err, &timeout) && timeout.Timeout() && !errors.As(err, &lost)
}

// key selects what the dialling or the accepting end of the session writes.
func (x *application) key(dialled bool) uint64 {
	key := uint64(x.c.Conv()) << 1
	if dialled {
		return key
	}
	return key | 1
}

// receipt returns options of a message, which gets one receipt if it is taken. Done may
// use the session: no lock is held.
func (x *application) receipt(o kcp.MessageOptions) *kcp.MessageOptions {
	var calls atomic.Int32
	o.Done = func(error) {
		_ = x.c.Stats()
		if x.due.Add(-1); calls.Add(1) > 1 {
			x.w.t.Error("a message has two receipts")
		}
	}
	return &o
}

// write writes until the session is over. The first byte says what for.
func (x *application) write(r *rand.Rand) {
	at := uint64(0)
	for goesOn := true; goesOn && !x.over.Load(); {
		p := make([]byte, 1+r.IntN(3000))
		if fill(p, x.key(x.dialled), at); at == 0 {
			p[0] = asksChaos
		}
		goesOn = x.timed(r, x.c.SetWriteDeadline, "Write", func() error {
			if r.IntN(3) == 0 {
				x.due.Add(1)
				err := x.c.SendMessage(p, x.receipt(kcp.MessageOptions{}))
				if err == nil {
					at += uint64(len(p))
					return nil
				}
				if x.due.Add(-1); !errors.Is(err, kcp.ErrNotMessageMode) && !errors.Is(err, kcp.ErrMessageTooLarge) {
					return err
				}
			}
			n, err := x.c.Write(p)
			at += uint64(n)
			return err
		})
		time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
	}
}

// read reads until the session is over.
func (x *application) read(r *rand.Rand) {
	p, at := make([]byte, 1+r.IntN(5000)), x.begun
	for goesOn := true; goesOn && !x.over.Load(); {
		n := 0
		goesOn = x.timed(r, x.c.SetReadDeadline, "Read", func() (err error) {
			if r.IntN(4) == 0 {
				if n, err = x.c.ReadMessage(p); !errors.Is(err, io.ErrShortBuffer) {
					return err
				}
			}
			n, err = x.c.Read(p)
			return err
		})
		if n > 0 && at == 0 {
			p[0] = contentAt(x.key(!x.dialled), 0)
		}
		if wrong := differs(p[:n], x.key(!x.dialled), at); wrong >= 0 && x.ofBoth() {
			x.w.t.Errorf("session %x, dialled here: %v: byte %d is wrong: %x", x.c.Conv(), x.dialled, at+uint64(wrong), p[:min(n, 20)])
		}
		at += uint64(n)
		time.Sleep(time.Duration(r.Int64N(int64(maxPause))))
	}
}

// others calls what is neither Read nor Write.
func (x *application) others(r *rand.Rand) {
	if r.IntN(4) == 0 {
		x.call(0, "HandleDatagrams", func() { x.c.HandleDatagrams(func([]byte) { x.w.step(x.i, true) }) })
	}
	for !x.over.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), maxPause)
		switch r.IntN(6) {
		case 0:
			x.call(maxPause, "a group", func() { x.inGroup(ctx, r) })
		case 1:
			x.call(maxPause, "ReceiveDatagram", func() { _, _ = x.c.ReceiveDatagram(ctx) })
		default:
			x.w.set(x.i, x.c, r)
		}
		cancel()
		time.Sleep(time.Duration(r.Int64N(int64(maxPause))))
	}
}

// set changes or asks something of a session.
func (w *hostile) set(i int, c *kcp.Conn, r *rand.Rand) {
	name := one(r, "SetMTU", "SetWindow", "SetNoDelay", "SetWriteBuffer", "SetMaxRate", "SetCongestionControl", "SetLinger", "Stats", "Flush", "Ping", "SendDatagram")
	w.call(i, maxPause, name, func() {
		ctx, cancel := context.WithTimeout(context.Background(), maxPause)
		defer cancel()
		switch name {
		case "SetMTU":
			_ = c.SetMTU(400 + r.IntN(1000))
		case "SetWindow":
			_ = c.SetWindow(1+r.IntN(500), 1+r.IntN(500))
		case "SetNoDelay":
			_ = c.SetNoDelay(kcp.NoDelay(r.IntN(4)), 10*time.Millisecond, r.IntN(3))
		case "SetWriteBuffer":
			_ = c.SetWriteBuffer(4096 + r.IntN(1<<16))
		case "SetMaxRate":
			_ = c.SetMaxRate(one(r, 0, 50000+r.IntN(1<<20)))
		case "SetCongestionControl":
			_ = c.SetCongestionControl(func() congestion.Control { w.step(i, false); return congestion.NewCubic() })
		case "SetLinger":
			_ = c.SetLinger(5 * time.Second)
		case "Stats":
			_, _, _ = c.Stats(), c.Peer(), c.ConnectionState()
			_, _ = c.Endpoint().Stats(), c.Endpoint().Totals()
		case "Flush":
			_ = c.Flush(ctx)
		case "Ping":
			_, _ = c.Ping(ctx)
		case "SendDatagram":
			_ = c.SendDatagram(make([]byte, r.IntN(max(1, c.MaxDatagramSize()+2))))
		}
	})
}

// inGroup has a session in a group for a while.
func (x *application) inGroup(ctx context.Context, r *rand.Rand) {
	g := kcp.NewGroup()
	handles := r.IntN(2) == 0
	if handles {
		_ = g.Handle(func([]kcp.Event) { x.w.step(x.i, true) })
	}
	if _ = g.Add(x.c); handles {
		<-ctx.Done()
	} else {
		_ = g.Serve(ctx, func(kcp.Event) { x.w.step(x.i, true) })
	}
	_, _ = g.Remove(x.c), g.Close()
}

// streams opens some streams, and takes those of the peer, until the end.
func (x *application) streams(r *rand.Rand) {
	for !x.over.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), maxPause)
		var s *kcp.Stream
		var err error
		if r.IntN(2) == 0 {
			x.call(maxPause, "AcceptStream", func() { s, err = x.c.AcceptStream(ctx) })
		} else {
			o := kcp.StreamOptions{Priority: r.IntN(16) - 8, Unordered: r.IntN(2) == 0, MaxRetransmits: r.IntN(4) - 1}
			x.call(maxPause, "OpenStream", func() { s, err = x.c.OpenStream(ctx, &o) })
		}
		cancel()
		if err == nil {
			first, second := rand.New(rand.NewPCG(r.Uint64(), 1)), rand.New(rand.NewPCG(r.Uint64(), 2))
			x.uses.Go(func() { x.writeStream(s, first) })
			x.uses.Go(func() { x.readStream(s, second) })
		}
		time.Sleep(time.Duration(r.Int64N(int64(maxPause))))
	}
}

// writeStream writes messages that begin with their number, and ends the stream.
func (x *application) writeStream(s *kcp.Stream, r *rand.Rand) {
	for number := range 1 + r.Uint64N(20) {
		p := make([]byte, 8+one(r, r.IntN(3000), r.IntN(3000), r.IntN(50000)))
		le.PutUint64(p, number)
		fill(p[8:], x.key(x.dialled)^uint64(s.ID())<<33+number<<8, 0)
		o := kcp.MessageOptions{MaxRetransmits: r.IntN(4) - 1, Lifetime: time.Duration(r.IntN(2)*r.IntN(1000)) * time.Millisecond}
		if x.over.Load() || !x.timed(r, s.SetWriteDeadline, "Stream.SendMessage", func() error {
			x.due.Add(1)
			err := s.SendMessage(p, x.receipt(o))
			if err != nil {
				x.due.Add(-1)
			}
			return err
		}) {
			break
		}
		_ = s.Stats()
		time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
	}
	switch r.IntN(4) {
	case 0:
		x.call(0, "Stream.Reset", func() { _ = s.Reset(3) })
	case 1:
		x.call(patience, "Stream.CloseWrite", func() { _ = s.CloseWrite() })
	}
	if r.IntN(2) == 0 {
		x.call(patience, "Stream.Close", func() { _ = s.Close() })
	}
}

// readStream reads until the end, or stops early. Each message comes once, in order if
// the stream is.
func (x *application) readStream(s *kcp.Stream, r *rand.Rand) {
	last, got, p := int64(-1), make(map[uint64]bool), make([]byte, 1<<16)
	for goesOn, stop := true, r.IntN(100); goesOn && stop > 0 && !x.over.Load(); stop-- {
		n := 0
		goesOn = x.timed(r, s.SetReadDeadline, "Stream.ReadMessage", func() (err error) { n, err = s.ReadMessage(p); return err })
		if n < 8 || !x.ofBoth() {
			continue
		}
		number := le.Uint64(p)
		if got[number] || !s.Options().Unordered && int64(number) <= last || differs(p[8:n], x.key(!x.dialled)^uint64(s.ID())<<33+number<<8, 0) >= 0 {
			x.w.t.Errorf("message %d of stream %d after %d, again: %v, of %d bytes", number, s.ID(), last, got[number], n)
		}
		last, got[number] = int64(number), true
	}
	if r.IntN(2) == 0 {
		x.call(0, "Stream.CancelRead", func() { _ = s.CancelRead(4) })
	}
}
