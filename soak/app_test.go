package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// record is what one side has seen of a session.
type record struct {
	Server  bool // it is of the server's side
	Session int  // -1: of a client that did not get to know of it
	Life    int  // of the server's process; on the client's side as the content shows, -1 without any

	Conv             uint32
	Wrote, Read      int64 // bytes taken by Write, and given by Read
	WriteErr, FinErr string
	ReadErr          string
	Closed           bool // Close or Abort has returned
	CloseErr         string
	Terminated       bool  // Close because of SIGTERM, in the middle of the script
	BadAt            int64 // the first wrong byte; -1: none
	BadSize          string
	Told             bool   // the peer's reason to close has arrived
	FlushErr         string // "none" without a Flush
	Streams          map[int]streamSeen
	Sent             int // messages of the session with receipts
	Receipts         receipts
	Background       bool // Close does not wait
	CloseFrom        time.Time
	CloseTo          time.Time
	Slowest          time.Duration // of the calls
	SlowestOp        op
	Blocked          op // the call that has not returned
}

// receipts counts those of messages: without an error, with one, and those that
// came twice.
type receipts struct{ Nil, Failed, Twice int }

// app is the application on one side of a session.
type app struct {
	plan *plan
	conn *kcp.Conn
	log  func(format string, args ...any)

	streams *streams

	out, in           *content
	inSizes, outSizes []int // of messages; nil: bytes are written and read

	leaving sync.WaitGroup // terminate

	mu    sync.Mutex
	rec   record
	calls map[op]time.Time // in progress
}

// content is a stream of bytes that can be made again.
type content struct{ source *rand.ChaCha8 }

func newContent(seed uint64, session int, server bool, life int) *content {
	key := [32]byte{}
	copy(key[:], fmt.Sprintf("%d %d %t %d", seed, session, server, life))
	return &content{rand.NewChaCha8(key)}
}

func (c *content) next(n int) []byte {
	b := make([]byte, n)
	_, _ = c.source.Read(b) // cannot fail
	return b
}

// newApp returns the application of one side. The content of a server names its
// process in the first byte.
func newApp(p *plan, server bool, session, life int, conn *kcp.Conn, log func(string, ...any)) *app {
	a := &app{plan: p, conn: conn, log: log, calls: make(map[op]time.Time)}
	a.rec = record{Server: server, Session: session, Life: life, Conv: conn.Conv(), BadAt: -1, FlushErr: "none"}
	a.streams = &streams{app: a, seen: make(map[int]*streamSeen)}
	if session < 0 {
		return a
	}
	s := p.Sessions[session]
	if a.out = newContent(p.Seed, session, server, life); server {
		a.in = newContent(p.Seed, session, false, 0)
		a.inSizes, a.outSizes = p.messages(session, s.Client, p.Client), p.messages(session, s.Server, p.Server)
	} else {
		a.out, a.rec.Life = newContent(p.Seed, session, false, 0), -1
		a.inSizes, a.outSizes = p.messages(session, s.Server, p.Server), p.messages(session, s.Client, p.Client)
	}
	if p.Group != "" { // the server sends back what it gets
		a.in, a.inSizes = newContent(p.Seed, session, false, 0), slices.Clone(a.outSizes)
	}
	return a
}

// messages returns the sizes of the messages that steps write, or nil if bytes
// are written.
func (p *plan) messages(session int, steps []step, from settings) (sizes []int) {
	if !p.Client.MessageMode || !p.Server.MessageMode || p.Seed%2 == 0 {
		return nil
	}
	most := 1000
	if from.MTU > 0 {
		most = max(from.MTU-100, 50) * 6
	}
	r := rand.New(rand.NewPCG(p.Seed, uint64(session)))
	sizes = []int{}
	for _, s := range steps {
		if s.Op != write && s.Op != writeAside {
			continue
		}
		for left := s.Bytes; left > 0; left -= sizes[len(sizes)-1] {
			sizes = append(sizes, min(left, 1+r.IntN(most)))
		}
	}
	return sizes
}

// call calls f and notes how long it took.
func (a *app) call(o op, f func() error) error {
	began := time.Now()
	a.mu.Lock()
	a.calls[o] = began
	a.mu.Unlock()
	defer a.watch(o)()
	err := f()
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.calls, o)
	if took := time.Since(began); took > a.rec.Slowest {
		a.rec.Slowest, a.rec.SlowestOp = took, o
	}
	return err
}

// watch logs the session's figures while a call takes long, until the returned
// function is called.
func (a *app) watch(o op) (stop func()) {
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(5 * time.Second):
				a.log("%s takes long: %+v", o, a.conn.Stats())
			}
		}
	}()
	return func() { close(done) }
}

// record returns what has been seen so far.
func (a *app) record() record {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.rec
	r.Streams = a.streams.result()
	for o := range a.calls {
		r.Blocked = o
	}
	return r
}

// set changes the record.
func (a *app) set(f func(r *record)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(&a.rec)
}

// run takes the steps to the last one, whatever happens.
func (a *app) run(steps []step) {
	var aside sync.WaitGroup
	defer aside.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // ends the streams' accepting
	for _, s := range steps {
		r := a.record()
		switch s.Op {
		case write:
			if r.WriteErr == "" {
				a.write(s.Bytes)
			}
		case writeAside:
			aside.Go(func() {
				if a.write(s.Bytes) {
					a.closeWrite()
				}
			})
		case read, readAll, readAny:
			if r.ReadErr == "" {
				a.read(s)
			}
		case closeWrite:
			if r.WriteErr == "" {
				a.closeWrite()
			}
		case pause:
			if r.WriteErr == "" && r.ReadErr == "" {
				time.Sleep(s.Pause)
			}
		case openStreams:
			a.streams.open(a.plan.streamPlans(a.rec.Session, s.Bytes))
		case streamsAside:
			aside.Go(func() { a.streams.open(a.plan.streamPlans(a.rec.Session, s.Bytes)) })
		case echoStreams:
			aside.Go(func() { a.streams.accept(ctx) })
		case join:
			aside.Wait()
		case flush:
			if r.WriteErr == "" {
				a.flush()
			}
		case closing, closeExit, closeReason, abort:
			if s.Op != abort {
				cancel()
				aside.Wait() // Close drops what Write has not queued
			}
			a.close(s.Op)
		}
	}
}

// write writes n bytes and reports whether that succeeded.
func (a *app) write(n int) bool {
	for n > 0 {
		size := min(n, 16<<10)
		if a.outSizes != nil {
			size, a.outSizes = a.outSizes[0], a.outSizes[1:]
		}
		b := a.out.next(size)
		if a.rec.Server && a.record().Wrote == 0 {
			b[0] = byte(a.rec.Life)
		}
		var m int
		err := a.call(write, func() (err error) {
			if a.outSizes == nil {
				m, err = a.conn.Write(b)
			} else if err = a.conn.SendMessage(b, &kcp.MessageOptions{Done: a.receipt()}); err == nil {
				m = size
			}
			return err
		})
		a.set(func(r *record) {
			r.Wrote += int64(m)
			r.WriteErr = class(err)
			if a.outSizes != nil && err == nil {
				r.Sent++
			}
		})
		if err != nil {
			a.log("wrote, then: %v", err)
			return false
		}
		n -= size
	}
	return true
}

// receipt returns the function that takes the receipt of one message.
func (a *app) receipt() func(error) {
	var calls int // guarded by a.mu
	return func(err error) {
		a.set(func(r *record) {
			switch calls++; {
			case calls > 1:
				r.Receipts.Twice++
			case err == nil:
				r.Receipts.Nil++
			default:
				r.Receipts.Failed++
			}
		})
	}
}

// awaitReceipts waits for those that are missing after the session's end.
func (a *app) awaitReceipts(limit time.Duration) {
	a.streams.awaitReceipts(limit)
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if r := a.record(); r.Sent == r.Receipts.Nil+r.Receipts.Failed {
			return
		}
	}
}

func (a *app) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), a.plan.idleBound())
	defer cancel()
	err := a.call(flush, func() error { return a.conn.Flush(ctx) })
	a.set(func(r *record) { r.FlushErr = class(err) })
	a.log("Flush: %v", err)
}

func (a *app) closeWrite() {
	err := a.call(closeWrite, a.conn.CloseWrite)
	a.set(func(r *record) { r.FinErr = class(err) })
	a.log("CloseWrite: %v", err)
}

// read reads as the step says and compares what comes.
func (a *app) read(s step) {
	buf := make([]byte, 32<<10)
	for n := 0; s.Op != read || n < s.Bytes; {
		room := buf
		if s.Op == read && a.inSizes == nil {
			room = buf[:min(len(buf), s.Bytes-n)]
		}
		var m int
		err := a.call(s.Op, func() (err error) {
			if a.inSizes == nil {
				m, err = a.conn.Read(room)
			} else {
				m, err = a.conn.ReadMessage(room)
			}
			return err
		})
		a.check(room[:m], err)
		n += m
		if err != nil {
			a.log("read %d bytes, then: %v", a.record().Read, err)
			return
		}
	}
}

// check compares what was read with what the peer writes.
func (a *app) check(b []byte, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &a.rec
	r.ReadErr = class(err)
	var reason *kcp.PeerCloseError
	if errors.As(err, &reason) && reason.Code == closeCode && reason.Text == closeText {
		r.ReadErr, r.Told = eof, true
	}
	if len(b) == 0 || r.Session < 0 || r.BadAt >= 0 {
		r.Read += int64(len(b))
		return
	}
	if a.inSizes != nil && err == nil {
		if len(a.inSizes) == 0 || a.inSizes[0] != len(b) {
			r.BadSize = fmt.Sprintf("a message of %d bytes at %d, want %v", len(b), r.Read, a.inSizes[:min(1, len(a.inSizes))])
		} else {
			a.inSizes = a.inSizes[1:]
		}
	}
	first := !r.Server && r.Read == 0 && a.plan.Group == ""
	if first {
		r.Life = int(b[0])
		a.in = newContent(a.plan.Seed, r.Session, true, r.Life)
	}
	want := a.in.next(len(b))
	if first {
		want[0] = b[0]
	}
	if !bytes.Equal(b, want) {
		at := 0
		for b[at] == want[at] {
			at++
		}
		r.BadAt = r.Read + int64(at)
	}
	r.Read += int64(len(b))
}

// close ends the session.
func (a *app) close(o op) {
	a.set(func(r *record) { r.CloseFrom = time.Now() })
	end := a.conn.Close
	switch o {
	case abort:
		end = a.conn.Abort
	case closeReason:
		end = func() error { return a.conn.CloseWithError(closeCode, closeText) }
	}
	err := a.call(o, end)
	a.log("%s: %v", o, err)
	a.set(func(r *record) {
		r.Closed, r.CloseTo = true, time.Now()
		if !r.Terminated {
			r.CloseErr = class(err)
		}
	})
}

// terminate closes the session in the middle of the script.
func (a *app) terminate() {
	a.set(func(r *record) {
		if r.Terminated = !r.Closed && r.CloseFrom.IsZero(); r.Terminated {
			r.CloseFrom = time.Now()
			a.leaving.Add(1)
		}
	})
	if !a.record().Terminated {
		return
	}
	defer a.leaving.Done()
	err := a.call(closing, a.conn.Close)
	a.log("Close on SIGTERM: %v", err)
	a.set(func(r *record) { r.Closed, r.CloseTo, r.CloseErr = true, time.Now(), class(err) })
}

// Classes of errors.
const (
	eof          = "EOF"
	reset        = "reset"
	refused      = "refused"
	lost         = "lost"
	peerClosed   = "peer closed"
	notDelivered = "not delivered"
	noAnswer     = "no answer"
	cancelled    = "cancelled"
	closedHere   = "closed here"
	legacyPeer   = "legacy peer"
)

// class returns which of the package's errors err is, or its text if it is none.
func class(err error) string {
	if err == nil {
		return ""
	}
	if err == io.EOF {
		return eof
	}
	if _, ok := err.(*net.OpError); !ok {
		return fmt.Sprintf("not a *net.OpError: %v", err)
	}
	return known(err)
}

// known is class of an error that need not be a *net.OpError.
func known(err error) string {
	var silent *kcp.PeerLostError
	var unanswered *kcp.NoAnswerError
	switch {
	case errors.As(err, &silent):
		return lost
	case errors.As(err, &unanswered):
		return noAnswer
	}
	for _, known := range []struct {
		err  error
		name string
	}{
		{kcp.ErrReset, reset}, {kcp.ErrRefused, refused}, {kcp.ErrPeerClosed, peerClosed},
		{kcp.ErrNotDelivered, notDelivered}, {net.ErrClosed, closedHere}, {kcp.ErrLegacyPeer, legacyPeer},
		{context.Canceled, cancelled}, {os.ErrDeadlineExceeded, cancelled}, {context.DeadlineExceeded, cancelled},
	} {
		if errors.Is(err, known.err) {
			return known.name
		}
	}
	return fmt.Sprintf("unknown: %v", err)
}
