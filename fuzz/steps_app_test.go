package fuzz_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"time"

	kcp "github.com/arqnet/kcp"

	"github.com/arqnet/kcp/congestion"
)

// dial opens a session from an end to the other, and does anything with it.
func (w *steps) dial(i int, o kcp.DialOptions) {
	random := w.source()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+random.IntN(8000))*time.Millisecond)
	defer cancel()
	var c *kcp.Conn
	w.call(i, "DialWith", func() { c, _ = w.ends[i].DialWith(ctx, net.UDPAddrFromAddrPort(w.addrs[1-i]), o) })
	if c != nil {
		w.chaos(i, c, random)
	}
}

// openBoth has both ends dial each other. If both have a session it is one, where that is
// promised.
func (w *steps) openBoth() {
	other, _ := net.ResolveUDPAddr("udp", stepsOther)
	var got [2]chan *kcp.Conn
	for i := range got {
		got[i] = make(chan *kcp.Conn, 1)
		random := w.source()
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+random.IntN(8000))*time.Millisecond)
			defer cancel()
			time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
			o := kcp.DialOptions{SimultaneousOpen: true}
			if random.IntN(2) == 0 {
				o.Candidates = []net.Addr{other, net.UDPAddrFromAddrPort(w.addrs[i])}
			}
			var c *kcp.Conn
			w.call(i, "DialWith, both", func() { c, _ = w.ends[i].DialWith(ctx, net.UDPAddrFromAddrPort(w.addrs[1-i]), o) })
			got[i] <- c
		}()
	}
	a, b := <-got[0], <-got[1]
	if w.promised && w.kind == "AEAD" && a != nil && b != nil {
		if a.Conv() != b.Conv() || a.Dialled() == b.Dialled() {
			w.t.Errorf("%x and %x, dialled %v and %v", a.Conv(), b.Conv(), a.Dialled(), b.Dialled())
		}
	}
	for i, c := range []*kcp.Conn{a, b} {
		if c != nil {
			w.chaos(i, c, w.source())
		}
	}
}

// serve uses a session that was accepted, as its first byte asks.
func (w *steps) serve(i int, c *kcp.Conn) {
	if !w.promised { // else it is of the other end, which writes, or ends it
		_ = c.SetReadDeadline(time.Now().Add(w.patience))
	}
	first := make([]byte, 1)
	var err error
	w.call(i, "first Read", func() { _, err = io.ReadFull(c, first) })
	if err == nil && first[0] == asksEcho && w.promised {
		w.echo(i, c)
		return
	}
	w.chaos(i, c, w.source())
}

// echo returns what comes, to its end.
func (w *steps) echo(i int, c *kcp.Conn) {
	_ = c.SetReadDeadline(time.Time{})
	w.apps.Go(func() {
		for {
			s, err := c.AcceptStream(context.Background())
			if err != nil {
				return
			}
			w.apps.Go(func() { w.call(i, "echo of a stream", func() { _, _ = io.Copy(s, s); _ = s.CloseWrite() }) })
		}
	})
	var n int64
	_, err := c.Write([]byte{asksEcho})
	if err != nil && w.kind == "AEAD" {
		w.t.Errorf("echo: %v", err)
	}
	w.call(i, "echo", func() { n, err = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) })
	if err != nil {
		if n > 0 || w.kind == "AEAD" {
			w.t.Errorf("echo, after %d bytes: %v", n, err)
		}
		w.call(i, "Abort", func() { _ = c.Abort() })
		return
	}
	w.call(i, "CloseWrite", func() { err = c.CloseWrite() })
	if err != nil {
		w.t.Errorf("echo: CloseWrite: %v", err)
	}
	<-c.Done()
	w.call(i, "Close", func() { _ = c.Close() })
}

// reach opens the session that honest uses, and gets a byte back by it. With TLS, who is
// on the path may spoil that, as it may cut the path; with an AEAD it cannot.
func (w *steps) reach(i int) (c *kcp.Conn) {
	var err error
	for range 4 {
		w.call(i, "Dial", func() { c, err = w.ends[i].Dial(context.Background(), net.UDPAddrFromAddrPort(w.addrs[1-i])) })
		if err != nil {
			continue
		}
		if !w.promised {
			_ = c.SetDeadline(time.Now().Add(w.patience))
		}
		w.call(i, "first exchange", func() {
			first := make([]byte, 1)
			if _, err = c.Write([]byte{asksEcho}); err == nil {
				_, err = io.ReadFull(c, first)
			}
			if err == nil && w.promised && first[0] != asksEcho {
				w.t.Errorf("read %d, not what was written", first[0])
			}
		})
		if err == nil || !w.promised {
			return c
		}
		w.call(i, "Abort", func() { _ = c.Abort() })
	}
	if w.kind == "AEAD" && w.promised {
		w.t.Errorf("no session comes about: %v", err)
	}
	return nil
}

// honest uses a session with the other end, which echoes what it gets. Where it is
// promised that has to come back, in the session and in a stream.
func (w *steps) honest(i int) {
	random := w.source()
	c := w.reach(i)
	if c == nil {
		return
	}
	if !w.promised {
		w.chaos(i, c, random)
		return
	}
	w.opened.Add(1)
	must := func(name string, f func() error) {
		var err error
		w.call(i, name, func() { err = f() })
		if err != nil {
			w.t.Errorf("honest %s: %v", name, err)
		}
	}
	w.roundTrip(i, c, random, must, 20000)
	var s *kcp.Stream
	must("OpenStream", func() (err error) { s, err = c.OpenStream(context.Background(), nil); return err })
	if s != nil {
		w.roundTrip(i, s, nil, must, 3000)
		must("stream's Close", s.Close)
	}
	must("Ping", func() error { _, err := c.Ping(context.Background()); return err })
	must("CloseWrite", c.CloseWrite)
	must("Read of the end", func() error {
		if n, err := c.Read(make([]byte, 1)); n > 0 || err != io.EOF {
			return err
		}
		return nil
	})
	must("Close", c.Close)
}

// roundTrip writes bytes and reads them again. Between two pieces it sets what random
// says; nil: nothing.
func (w *steps) roundTrip(i int, f flow, random *rand.Rand, must func(string, func() error), size int) {
	const key = 5
	var back []byte
	for at := 0; at < size && !w.t.Failed(); at += 1000 {
		p := make([]byte, 1000)
		fill(p, key, uint64(at))
		must("Write", func() error { _, err := f.Write(p); return err })
		if c, ok := f.(*kcp.Conn); ok && random != nil {
			w.set(i, c, random)
		}
		got := make([]byte, len(p))
		must("Read", func() error { _, err := io.ReadFull(f, got); return err })
		back = append(back, got...)
	}
	if at := differs(back, key, 0); at >= 0 && !w.t.Failed() {
		w.t.Errorf("byte %d of %d is wrong", at, len(back))
	}
}

// set changes a setting of a session.
func (w *steps) set(i int, c *kcp.Conn, r *rand.Rand) {
	name := one(r, "SetMTU", "SetWindow", "SetNoDelay", "SetWriteBuffer", "SetMaxRate", "SetCongestionControl", "SetLinger", "Stats", "Flush", "Ping", "SendDatagram")
	w.call(i, name, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
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
			_ = c.SendDatagram(make([]byte, r.IntN(300)))
		}
	})
}

// chaos calls anything of a session, and ends it in some way.
func (w *steps) chaos(i int, c *kcp.Conn, r *rand.Rand) {
	w.call(i, "SetDeadline", func() { _ = c.SetDeadline(time.Now().Add(w.patience/4 + time.Duration(r.Int64N(int64(w.patience))))) })
	w.call(i, "first Write", func() { _, _ = c.Write([]byte{asksChaos}) })
	if r.IntN(4) == 0 {
		w.call(i, "HandleDatagrams", func() { c.HandleDatagrams(func([]byte) { w.step(i, true) }) })
	}
	for range 3 + r.IntN(15) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+r.IntN(300))*time.Millisecond)
		name := one(r, "Write", "TryWrite", "Read", "ReceiveDatagram", "a stream", "AcceptStream", "SetMessageMode", "CloseWrite", "a group", "Set", "Set", "Set")
		w.call(i, name, func() {
			switch name {
			case "Write":
				_, _ = c.Write(make([]byte, r.IntN(5000)))
			case "TryWrite":
				_, _ = c.TryWrite(make([]byte, r.IntN(5000)))
			case "Read":
				_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				_, _ = c.Read(make([]byte, 3000))
			case "ReceiveDatagram":
				_, _ = c.ReceiveDatagram(ctx)
			case "a stream":
				if s, err := c.OpenStream(ctx, nil); err == nil {
					w.useStream(i, s, r)
				}
			case "AcceptStream":
				if s, err := c.AcceptStream(ctx); err == nil {
					w.useStream(i, s, r)
				}
			case "SetMessageMode":
				_ = c.SetMessageMode(r.IntN(2) == 0)
			case "CloseWrite":
				if r.IntN(4) == 0 {
					_ = c.CloseWrite()
				}
			case "a group":
				w.inGroup(i, c, r)
			case "Set":
				w.set(i, c, r)
			}
		})
		cancel()
	}
	switch r.IntN(4) {
	case 0:
		w.call(i, "Abort", func() { _ = c.Abort() })
	case 1:
		w.call(i, "CloseWithError", func() { _ = c.CloseWithError(7, "enough") })
	default:
		w.call(i, "Close", func() { _ = c.Close() })
	}
}

// inGroup has a session in a group for a while.
func (w *steps) inGroup(i int, c *kcp.Conn, r *rand.Rand) {
	g := kcp.NewGroup()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	handles := r.IntN(2) == 0
	if handles {
		_ = g.Handle(func([]kcp.Event) { w.step(i, true) })
	}
	w.call(i, "Group.Add", func() { _ = g.Add(c) })
	if handles {
		<-ctx.Done()
	} else {
		w.call(i, "Group.Serve", func() { _ = g.Serve(ctx, func(kcp.Event) { w.step(i, true) }) })
	}
	w.call(i, "Group.Remove", func() { _ = g.Remove(c) })
	w.call(i, "Group.Close", func() { _ = g.Close() })
}

// useStream calls anything of a stream, and ends it.
func (w *steps) useStream(i int, s *kcp.Stream, r *rand.Rand) {
	_ = s.SetDeadline(time.Now().Add(200 * time.Millisecond))
	w.call(i, "stream's Write", func() { _, _ = s.Write(make([]byte, r.IntN(3000))) })
	w.call(i, "stream's Read", func() { _, _ = s.Read(make([]byte, 3000)) })
	w.call(i, "stream's end", func() {
		switch r.IntN(4) {
		case 0:
			_ = s.Reset(3)
		case 1:
			_ = s.CancelRead(4)
		case 2:
			_ = s.CloseWrite()
		}
		_ = s.Close()
	})
}
