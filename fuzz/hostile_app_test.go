package fuzz_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	kcp "github.com/arqnet/kcp"
	"github.com/arqnet/kcp/compat"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/internal/testenv/life/ends"
)

func addrOf(a net.Addr) netip.AddrPort {
	ap := a.(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// serve uses a session that was accepted. Those of honest are echoes.
func (w *hostile) serve(i int, c *kcp.Conn) {
	w.note(i, c)
	w.mu.Lock()
	echoes := w.echoes[c.Conv()] == addrOf(c.RemoteAddr())
	w.mu.Unlock()
	if echoes {
		w.echo(i, c)
	} else {
		w.use(i, c)
	}
}

// echo returns what comes, to its end.
func (w *hostile) echo(i int, c *kcp.Conn) {
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
	var n int64
	var err error
	w.call(i, patience, "echo", func() { n, err = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) })
	if err == nil {
		w.call(i, patience, "CloseWrite", func() { err = c.CloseWrite() })
	}
	if err != nil {
		if _ = c.Abort(0, ""); n > 0 {
			w.t.Errorf("echo, after %d bytes: %v", n, err)
		}
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
	random := w.source()
	for try := 0; ; try++ {
		conv := random.Uint32()
		w.mu.Lock()
		w.echoes[conv] = w.addrs[from]
		w.mu.Unlock()
		w.call(from, 2*time.Minute, "honest Dial", func() {
			to := net.UDPAddrFromAddrPort(w.addrs[to])
			if c, err = w.ends[from].Dial(context.Background(), to, &kcp.DialOptions{Conv: &conv}); err != nil {
				return
			}
			w.note(from, c)
			if _, err = c.Write(first); err == nil {
				_, err = io.ReadFull(c, first)
			}
			if err != nil {
				_ = c.Abort(0, "")
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

// hostileSteps are what the script of a session under attack is drawn of.
var hostileSteps = life.Weighted(`write 40 open 8 fin 3 stopread 1 stopwrite 1 reset 1 endstream 2 datagram 4
	deadline 2 look 3 wait 25 rest 2 join 3 leave 3 set 10`)

// session returns the judge of a session, which both ends share if nobody disturbs it: if
// one has dialled it, and the other has it. Else only receipts are judged.
func (w *hostile) session(i, side int, c *kcp.Conn) *life.Session {
	conv := c.Conv()
	intact := w.intact && conv != 0 && conv != hostileConv && addrOf(c.RemoteAddr()) == w.addrs[1-i]
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.sessions[conv]
	twice := intact && s != nil && s.Seen(side).There
	if twice {
		w.failures[conv] = append(w.failures[conv], fmt.Sprintf("end %d has it twice", side))
	}
	if s == nil || !intact || twice {
		s = &life.Session{
			Name: fmt.Sprint(w.seed, conv), Whole: intact, Mode: w.config.MessageMode, Broken: true, Codes: ends.Codes, Copies: 1 << 20,
			Fail: func(text string) {
				if intact && !twice {
					w.fail(conv, text)
				}
			},
		}
		s.Begin()
	}
	if intact && !twice {
		w.sessions[conv] = s
	}
	return s
}

// fail keeps what is wrong with a session until it is known whether it is one of both ends.
func (w *hostile) fail(conv uint32, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures[conv] = append(w.failures[conv], text)
}

// use calls anything of a session for some seconds, and ends it in some way.
func (w *hostile) use(i int, c *kcp.Conn) {
	w.note(i, c)
	r, side := w.source(), 1
	if c.Dialled() {
		side = 0
	}
	a := ends.NewApp(w.session(i, side, c), side, c)
	g := ends.NewGroup(ends.Way(r.IntN(int(ends.Ways))), nil)
	g.Meanwhile = func() { w.step(i, true) }
	a.Begin()
	if r.IntN(4) == 0 {
		w.call(i, 0, "HandleDatagrams", func() { compat.HandleDatagrams(c, func([]byte) { w.step(i, true) }) })
	}
	until := time.Now().Add(time.Duration(r.IntN(6000)) * time.Millisecond)
	for _, s := range hostileSteps.Of(hostileSteps.Random(r, 10+r.IntN(100))).Steps {
		switch s.End = side; {
		case c.Err() != nil || time.Now().After(until):
		case s.Op == life.Wait:
			time.Sleep(time.Duration(min(s.N, 300)) * time.Millisecond)
		case s.Op == life.Rest:
			a.Rest(true)
			time.Sleep(time.Duration(min(s.N, 2000)) * time.Millisecond)
			a.Rest(false)
		case s.Op == life.Join:
			a.Join(g)
		case s.Op == life.Leave:
			a.Leave()
		case s.Op == "set":
			w.set(i, c, r)
		default:
			w.call(i, 0, string(s.Op), func() { a.Do(s) })
		}
	}
	if r.IntN(3) == 0 {
		a.Do(life.Step{End: side, Op: life.Fin})
		time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
	}
	how := one(r, life.Close, life.Close, life.Close, life.Reason, life.Abort)
	w.call(i, 0, string(how), func() { a.Do(life.Step{End: side, Op: how}) })
	if time.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond); r.IntN(4) == 0 { // breaks it off
		w.call(i, 0, "Abort", func() { a.Do(life.Step{End: side, Op: life.Abort}) })
	}
	w.call(i, patience, "Done", func() { <-c.Done() })
	g.End()
	w.call(i, maxPause, "what was called before the end", a.Wait)
	time.Sleep(5 * time.Second)
	w.checkEnded(a)
}

// checkEnded demands one receipt for each message of a session that has ended, and that
// calls say that it has.
func (w *hostile) checkEnded(a *ends.App) {
	for _, id := range append(a.Streams(), 0) {
		for number, m := range a.Out(id).Written.Sent {
			if m.Wants && m.Taken > 0 && len(m.Receipts) != 1 {
				w.t.Errorf("message %d of stream %d has the receipts %q", number, id, m.Receipts)
			}
		}
	}
	if n, err := a.Conn.Write([]byte{1}); err == nil {
		w.t.Errorf("Write after the end: %d", n)
	}
	if n, err := a.Conn.Read(make([]byte, 1)); err == nil {
		w.t.Errorf("Read after the end: %d", n)
	}
}

// maxPause is the longest that a call of an application waits for its end.
const maxPause = 500 * time.Millisecond

// set changes or asks something of a session.
func (w *hostile) set(i int, c *kcp.Conn, r *rand.Rand) {
	name := one(r, "SetMTU", "SetWindow", "SetNoDelay", "SetWriteBuffer", "SetMaxRate", "SetCongestionControl", "SetLinger", "SetKeepAlive", "SetPeerTimeout", "SetTrace", "Stats", "Flush", "Ping")
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
		case "SetKeepAlive":
			_ = c.SetKeepAlive(one(r, -1, 0, time.Second))
		case "SetPeerTimeout":
			_ = c.SetPeerTimeout(one(r, -1, 0, time.Minute))
		case "SetTrace":
			c.SetTrace(one(r, nil, &kcp.Trace{Sent: func(uint32, int, int, uint32) { w.step(i, false) }}))
		case "Stats":
			_, _ = c.Stats(), c.Peer()
			_, _ = c.Endpoint().Stats(), c.Endpoint().Totals()
		case "Flush":
			_ = c.Flush(ctx)
		case "Ping":
			_, _ = c.Ping(ctx)
		}
	})
}
