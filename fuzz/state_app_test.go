package fuzz_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	kcp "github.com/arqnet/kcp"
)

// application uses one session under attack. What it reads may be anything,
// unless the attacker has no key, and any call may fail; but all return.
type application struct {
	w       *arena
	c       *kcp.Conn
	name    string
	dialled bool
	waits   bool // reads until the session ends, and closes it only then
	random  *rand.Rand

	closed atomic.Bool // before the calls in progress return
	calls  sync.WaitGroup
}

// maxPause is the longest that an application sleeps between two calls.
const maxPause = 500 * time.Millisecond

// call runs one call, that has to return within the limit.
func (x *application) call(limit time.Duration, what string, f func() error) (err error) {
	x.w.within(limit, x.name+": "+what, func() { err = f() })
	return err
}

// run uses the session until its end, which comes within some seconds.
func (x *application) run() {
	r := x.random
	seeds := [3]uint64{r.Uint64(), r.Uint64(), r.Uint64()}
	source := func(i int) *rand.Rand { return rand.New(rand.NewPCG(seeds[i], 0)) }
	if r.IntN(8) > 0 {
		x.calls.Go(func() { x.write(source(0)) })
	}
	switch {
	case x.waits:
		_ = x.call(patience, "Read until the end", x.readAll)
	case r.IntN(8) > 0:
		x.calls.Go(func() { x.read(source(1)) })
	}
	if r.IntN(3) == 0 {
		x.calls.Go(func() { x.datagrams(source(2)) })
	}
	if x.w.streams {
		x.calls.Go(func() { x.useStreams(rand.New(rand.NewPCG(seeds[0], 1))) })
	}
	x.linger(time.Duration(r.IntN(10000)) * time.Millisecond)
	if r.IntN(3) == 0 {
		_ = x.c.CloseWrite()
		x.linger(time.Duration(r.IntN(5000)) * time.Millisecond)
	}
	x.closed.Store(true)
	switch r.IntN(6) {
	case 0:
		_ = x.call(0, "Abort", x.c.Abort)
	case 2:
		_ = x.call(patience, "CloseWithError", func() error { return x.c.CloseWithError(r.Uint64(), "over") })
	case 1: // breaks off a Close
		x.calls.Go(func() { _ = x.call(patience, "Close", x.c.Close) })
		time.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond)
		_ = x.call(0, "Abort", x.c.Abort)
	default:
		_ = x.call(patience, "Close", x.c.Close)
	}
	_ = x.call(maxPause, "what was called before the end", func() error { x.calls.Wait(); return nil })
	_ = x.call(patience, "Done", func() error { <-x.c.Done(); return nil })
	time.Sleep(receiptTime)
	x.w.receipts.check(x.w, x.name, false)
	if _, err := x.c.Write([]byte{1}); err == nil {
		x.w.t.Errorf("%s: Write after the end succeeds", x.name)
	}
	if _, err := x.c.Read(make([]byte, 1)); err == nil {
		x.w.t.Errorf("%s: Read after the end succeeds", x.name)
	}
}

// linger lets time pass and asks what can be asked.
func (x *application) linger(d time.Duration) {
	for range 3 {
		time.Sleep(d / 3)
		_ = x.c.Stats()
		_, _, _ = x.c.Peer(), x.c.RemoteAddr(), x.c.MaxDatagramSize()
	}
}

// key selects what the dialling or the accepting end of the session writes.
func (x *application) key(dialled bool) uint64 {
	if dialled {
		return uint64(x.c.Conv()) << 1
	}
	return uint64(x.c.Conv())<<1 | 1
}

// write writes until the volume is used up, or the session is over.
func (x *application) write(r *rand.Rand) {
	slow := r.IntN(2) == 0
	written := 0
	for left := r.IntN(x.w.volume + 1); left > 0 && !x.closed.Load(); {
		p := make([]byte, min(left, 1+r.IntN(3000)))
		left -= len(p)
		fill(p, x.key(x.dialled), uint64(written))
		err := x.timed(r, x.c.SetWriteDeadline, "Write", func() error {
			if r.IntN(4) == 0 {
				err := x.writeMessage(p, r.IntN(2) == 0)
				if err == nil {
					written += len(p)
				}
				if !errors.Is(err, kcp.ErrNotMessageMode) && !errors.Is(err, kcp.ErrMessageTooLarge) {
					return err
				}
			}
			n, err := x.c.Write(p)
			written += n
			return err
		})
		if over(err) {
			return
		}
		if slow {
			time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
		}
	}
}

// readAll reads until the session ends, be it because the peer is gone.
func (x *application) readAll() error {
	p := make([]byte, 3000)
	for {
		if _, err := x.c.Read(p); err != nil {
			return err
		}
	}
}

// read reads until the session is over; some take their time.
func (x *application) read(r *rand.Rand) {
	slow := r.IntN(2) == 0
	p := make([]byte, 1+r.IntN(5000))
	at := 0
	for !x.closed.Load() {
		n := 0
		err := x.timed(r, x.c.SetReadDeadline, "Read", func() (err error) {
			if r.IntN(4) == 0 {
				if n, err = x.c.ReadMessage(p); !errors.Is(err, io.ErrShortBuffer) {
					return err
				}
			}
			n, err = x.c.Read(p)
			return err
		})
		if wrong := differs(p[:n], x.key(!x.dialled), uint64(at)); wrong >= 0 && x.w.keyless {
			x.w.t.Errorf("%s: byte %d is wrong", x.name, at+wrong)
		}
		if n > 0 && !x.dialled && x.w.keyless {
			x.checkOnce()
		}
		at += n
		if over(err) {
			return
		}
		if slow {
			time.Sleep(time.Duration(r.Int64N(int64(maxPause))))
		}
	}
}

// checkOnce demands that no other session has read what the dialling end of
// this one has written.
func (x *application) checkOnce() {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	if first := x.w.readers[x.c.Conv()]; first != nil && first != x {
		x.w.t.Errorf("%s reads again what %s has read", x.name, first.name)
	}
	x.w.readers[x.c.Conv()] = x
}

// timed runs a call with a deadline, mostly, which it may not exceed.
func (x *application) timed(r *rand.Rand, deadline func(time.Time) error, what string, f func() error) error {
	limit, at := 2*patience, time.Time{}
	if r.IntN(3) > 0 {
		limit = time.Duration(r.IntN(3000)) * time.Millisecond
		at = time.Now().Add(limit)
	}
	if err := deadline(at); err != nil {
		return err
	}
	return x.call(limit, what, f)
}

// over reports whether err says that a session has ended.
func over(err error) bool {
	var timeout net.Error
	if err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		var lost *kcp.PeerLostError
		return errors.As(err, &lost)
	}
	return true
}

// datagrams sends some and takes what comes.
func (x *application) datagrams(r *rand.Rand) {
	for !x.closed.Load() {
		p := make([]byte, r.IntN(max(1, x.c.MaxDatagramSize()+2)))
		if err := x.c.SendDatagram(p); over(err) && !errors.Is(err, kcp.ErrDatagramTooLarge) {
			return
		}
		wait := time.Duration(1+r.IntN(500)) * time.Millisecond
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		_ = x.call(wait, "ReceiveDatagram", func() error {
			_, err := x.c.ReceiveDatagram(ctx)
			return err
		})
		cancel()
		time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
	}
}
