package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	paceInterval  = 50 * time.Millisecond
	dialsAtOnce   = 32 // quic-go refuses more than have room in its backlog
	triesAtOnce   = 256
	datagramLimit = time.Second // after which a datagram counts as lost
)

// clientStream is one end of a session.
type clientStream interface {
	io.ReadWriteCloser
	SetDeadline(time.Time) error
}

// clientsProcess is the clients' process.
type clientsProcess struct {
	job     serverJob
	rope    *rope
	streams []clientStream
	clients []*client

	begin    time.Time     // when the clients began to send
	before   answer        // what was used and sent before the measured time
	measured chan struct{} // closed when before is complete
	stopped  atomic.Bool   // nothing more is to be sent
	written  atomic.Uint64 // bytes of bulk

	mu       sync.Mutex
	firstErr error // of a client
}

// client is one session's end, and the echoes that it has received.
type client struct {
	clientStream
	number int

	mu    sync.Mutex
	times []time.Duration // of echoes since doBegin
}

// do carries out an order.
func (p *clientsProcess) do(o order) (answer, error) {
	switch o.Do {
	case doPrepare:
		return answer{}, p.prepare(o)
	case doStart:
		p.start()
		return answer{}, nil
	case doBegin:
		return answer{}, p.measure()
	case doMark:
		return p.report()
	case doCount:
		return answer{Written: p.written.Load()}, nil
	case doTry:
		return p.try(o.Limit)
	case doClose:
		return answer{}, p.closeAll()
	}
	return answer{}, errOrder
}

// prepare opens all sessions, some at a time.
func (p *clientsProcess) prepare(o order) error {
	p.job, p.rope = *o.Job, newRope()
	ctx, cancel := context.WithTimeout(context.Background(), o.Limit)
	defer cancel()
	dial, err := serverImpls[p.job.Impl].dialer(&o)
	if err != nil {
		return err
	}
	p.streams = make([]clientStream, p.job.sessions())
	var opened atomic.Int64
	err = inParallel(len(p.streams), dialsAtOnce, func(i int) error {
		c, err := dial(ctx, i)
		if err == nil && p.job.Kind != serverOpen {
			err = greet(ctx, c, p.role(i))
		}
		p.streams[i] = c
		opened.Add(1)
		return err
	})
	if err != nil {
		return fmt.Errorf("%d sessions of %d opened, then: %w", opened.Load(), len(p.streams), err)
	}
	return nil
}

// role returns the greeting of the i-th session, which tells the server what it is
// for.
func (p *clientsProcess) role(i int) byte {
	if p.job.Kind == serverBulk || p.job.Kind == serverChat && i == p.job.Clients {
		return greetingUpload
	}
	return greeting
}

// greet has a byte go each way, without which not every server knows of the
// session.
func greet(ctx context.Context, c clientStream, role byte) error {
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := c.Write([]byte{role}); err != nil {
		return err
	}
	if err := wantGreeting(c); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}

// inParallel calls f for the numbers below n, of which so many at a time. It
// returns the first error, after which it begins no further calls.
func inParallel(n, atOnce int, f func(i int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	for range min(n, atOnce) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(i); err != nil {
					once.Do(func() { first = err })
					next.Store(int64(n))
				}
			}
		})
	}
	wg.Wait()
	return first
}

// start has all clients begin to send.
func (p *clientsProcess) start() {
	p.begin = time.Now()
	for i, s := range p.streams {
		c := &client{clientStream: s, number: i}
		p.clients = append(p.clients, c)
		go func() {
			var err error
			switch {
			case p.role(i) == greetingUpload:
				err = p.pour(c)
			case p.job.Kind == serverEcho:
				err = p.pingPong(c)
			default:
				err = p.pace(c)
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.firstErr == nil {
				p.firstErr = err
			}
		}()
	}
}

// pace sends messages at their times, whether the echo of the one before is
// there or not. Where a client is so late that the next message is due, it
// leaves one out.
func (p *clientsProcess) pace(c *client) error {
	failed := make(chan error, 1)
	go func() { failed <- p.readEchoes(c) }()
	var m [messageSize]byte
	due := p.begin.Add(paceInterval * time.Duration(c.number) / time.Duration(p.job.Clients))
	for n := uint64(1); !p.stopped.Load(); n++ {
		time.Sleep(time.Until(due))
		due = due.Add(time.Since(due).Truncate(paceInterval) + paceInterval)
		select {
		case err := <-failed:
			return err
		default:
		}
		binary.LittleEndian.PutUint64(m[:], n)
		binary.LittleEndian.PutUint64(m[8:], uint64(c.number))
		binary.LittleEndian.PutUint64(m[16:], uint64(time.Since(p.begin)))
		if _, err := c.Write(m[:]); err != nil {
			return err
		}
	}
	return nil
}

// readEchoes reads the echoes of what pace sends. Datagrams may be missing.
func (p *clientsProcess) readEchoes(c *client) error {
	_, lossy := c.clientStream.(datagramStream)
	var m [messageSize]byte
	for last := uint64(0); ; {
		if _, err := io.ReadFull(c, m[:]); err != nil {
			return err
		}
		sent := time.Duration(binary.LittleEndian.Uint64(m[16:]))
		now := time.Since(p.begin)
		n := binary.LittleEndian.Uint64(m[:])
		known := n == last+1 || lossy && n > last
		if !known || binary.LittleEndian.Uint64(m[8:]) != uint64(c.number) || sent > now {
			return errContent
		}
		last = n
		c.add(now - sent)
	}
}

// pingPong exchanges messages one after the other.
func (p *clientsProcess) pingPong(c *client) error {
	var m echoed
	for !p.stopped.Load() {
		at := time.Now()
		switch err := c.exchange(&m); err {
		case nil:
			c.add(time.Since(at))
		case errLost:
		default:
			return err
		}
	}
	return nil
}

// pour writes as fast as it can.
func (p *clientsProcess) pour(c *client) error {
	b := p.rope.at(uint64(c.number), writeSize)
	for !p.stopped.Load() {
		if _, err := c.Write(b); err != nil {
			return err
		}
		p.written.Add(writeSize)
	}
	return nil
}

// echoed is a message: what goes to the server, and what comes back.
type echoed struct {
	n         uint64
	out, back [messageSize]byte
}

var errLost = errors.New("no echo")

// exchange sends the next message and waits for its echo. errLost means that a
// datagram was lost.
func (c *client) exchange(m *echoed) error {
	m.n++
	binary.LittleEndian.PutUint64(m.out[:], m.n)
	binary.LittleEndian.PutUint64(m.out[8:], uint64(c.number))
	if _, err := c.Write(m.out[:]); err != nil {
		return err
	}
	if d, ok := c.clientStream.(datagramStream); ok {
		return d.await(m)
	}
	if _, err := io.ReadFull(c, m.back[:]); err != nil {
		return err
	}
	if m.back != m.out {
		return errContent
	}
	return nil
}

// await waits for the echo of a datagram. An echo that was given up may come
// before it.
func (d datagramStream) await(m *echoed) error {
	if err := d.SetReadDeadline(time.Now().Add(datagramLimit)); err != nil {
		return err
	}
	for {
		n, err := d.Read(m.back[:])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errLost
		case err != nil:
			return err
		case bytes.Equal(m.back[:n], m.out[:]):
			return nil
		}
	}
}

// add counts an echo.
func (c *client) add(t time.Duration) {
	c.mu.Lock()
	c.times = append(c.times, t)
	c.mu.Unlock()
}

// measure begins the measured time. It forgets the echoes so far. It does not
// wait for the counts of segments, which may take long.
func (p *clientsProcess) measure() error {
	p.before, p.measured = usedSoFar(), make(chan struct{})
	for _, c := range p.clients {
		c.mu.Lock()
		c.times = c.times[:0]
		c.mu.Unlock()
	}
	go func() {
		p.countSent(&p.before)
		close(p.measured)
	}()
	return p.failure()
}

// failure returns the first error of a client.
func (p *clientsProcess) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.firstErr
}

// countSent adds the segments sent so far to an answer.
func (p *clientsProcess) countSent(a *answer) {
	if sent := serverImpls[p.job.Impl].sent; sent != nil {
		a.Sent, a.Resent = sent(p.streams)
	}
}

// report stops the clients and returns what the process has used and done in the
// measured time. It fails if a client has.
func (p *clientsProcess) report() (answer, error) {
	for end := time.Now().Add(answerLimit / 2); p.job.Kind != serverBulk && p.echoes() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return answer{}, errLost
		}
	}
	a := usedSoFar()
	p.stopped.Store(true)
	var times []time.Duration
	for _, c := range p.clients {
		c.mu.Lock()
		times = append(times, c.times...)
		c.mu.Unlock()
	}
	<-p.measured
	p.countSent(&a)
	a.subtract(p.before)
	if len(times) > 0 {
		slices.Sort(times)
		at := func(quantile float64) float64 {
			i := min(int(quantile*float64(len(times))), len(times)-1)
			return float64(times[i].Nanoseconds()) / 1e3
		}
		a.Echoes, a.P50, a.P99 = len(times), at(0.5), at(0.99)
	}
	return a, p.failure()
}

// echoes returns how many echoes there were in the measured time.
func (p *clientsProcess) echoes() (n int) {
	for _, c := range p.clients {
		c.mu.Lock()
		n += len(c.times)
		c.mu.Unlock()
	}
	return n
}

// try wants an echo on every session and counts those that have one in time.
func (p *clientsProcess) try(limit time.Duration) (answer, error) {
	deadline := time.Now().Add(limit)
	var alive atomic.Int64
	err := inParallel(len(p.streams), triesAtOnce, func(i int) error {
		c := &client{clientStream: p.streams[i], number: i}
		if err := c.SetDeadline(deadline); err != nil {
			return nil // the session is dead
		}
		if c.exchange(new(echoed)) == nil {
			alive.Add(1)
		}
		return nil
	})
	return answer{Alive: int(alive.Load())}, err
}

// closeAll closes all sessions.
func (p *clientsProcess) closeAll() error {
	return inParallel(len(p.streams), triesAtOnce, func(i int) error { return p.streams[i].Close() })
}
