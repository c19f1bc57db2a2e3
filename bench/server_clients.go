package main

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	paceInterval = 50 * time.Millisecond
	dialsAtOnce  = 32 // quic-go refuses more than have room in its backlog
)

// clientsProcess is the clients' process.
type clientsProcess struct {
	job     serverJob
	rope    *rope
	streams []clientStream
	clients []*client

	begin    time.Time // when the clients began to send
	from     time.Time // when the measured time began
	before   Done      // what was sent before it
	measured chan struct{}
	stopped  atomic.Bool   // nothing more is to be sent
	written  atomic.Uint64 // bytes of bulk

	mu  sync.Mutex
	err error // of clients
}

// client is one session's end, and the echoes that it has received.
type client struct {
	clientStream
	number int

	mu    sync.Mutex
	times []float64 // of echoes since the measured time began, in µs
}

// Target is a server to dial.
type Target struct {
	Job serverJob
	At  Address
}

// Done is what the clients have done in the measured time.
type Done struct {
	Rate, P50, P99 float64 // echoes a second, and their times in µs
	Sent, Resent   uint64  // segments, retransmissions included, and of those
}

// Connect opens all sessions, some at a time. A byte goes each way over each,
// without which not every server knows of the session.
func (p *clientsProcess) Connect(to Target, _ *int) error {
	p.job, p.rope = to.Job, newRope()
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit/2)
	defer cancel()
	dial, err := serverEnds[p.job.Impl].dialer(to)
	if err != nil {
		return err
	}
	p.streams = make([]clientStream, p.job.sessions())
	return inParallel(len(p.streams), dialsAtOnce, func(i int) error {
		c, err := dial(ctx)
		if err != nil {
			return err
		}
		p.streams[i] = c
		deadline, _ := ctx.Deadline()
		role := byte(greeting)
		if p.job.uploads(i) {
			role = greetingUpload
		}
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
		if _, err := c.Write([]byte{role}); err != nil {
			return err
		}
		return errors.Join(wantGreeting(c), c.SetDeadline(time.Time{}))
	})
}

// inParallel calls f for the numbers below n, of which so many at a time. It
// returns the errors, after the first of which it begins no further calls.
func inParallel(n, atOnce int, f func(i int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, n)
	for range min(n, atOnce) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if errs[i] = f(i); errs[i] != nil {
					next.Store(int64(n))
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Start has all clients begin to send.
func (p *clientsProcess) Start(int, *int) error {
	p.begin = time.Now()
	for i, s := range p.streams {
		c := &client{clientStream: s, number: i}
		p.clients = append(p.clients, c)
		work := p.pace
		switch {
		case p.job.uploads(i):
			work = p.pour
		case p.job.Kind == serverEcho:
			work = p.exchange
		}
		go func() { p.fail(work(c)) }()
	}
	return nil
}

// fail keeps errors.
func (p *clientsProcess) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, err)
}

// failure returns what fail has kept.
func (p *clientsProcess) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// write sends a client's n-th message.
func (p *clientsProcess) write(c *client, n uint64) error {
	var m [messageSize]byte
	binary.LittleEndian.PutUint64(m[:], n)
	binary.LittleEndian.PutUint64(m[8:], uint64(c.number))
	binary.LittleEndian.PutUint64(m[16:], uint64(time.Since(p.begin)))
	_, err := c.Write(m[:])
	return err
}

// read takes the echo of the n-th.
func (p *clientsProcess) read(c *client, n uint64) error {
	var m [messageSize]byte
	if _, err := io.ReadFull(c, m[:]); err != nil {
		return err
	}
	took := time.Since(p.begin) - time.Duration(binary.LittleEndian.Uint64(m[16:]))
	if binary.LittleEndian.Uint64(m[:]) != n || binary.LittleEndian.Uint64(m[8:]) != uint64(c.number) || took < 0 {
		return errContent
	}
	c.mu.Lock()
	c.times = append(c.times, float64(took)/float64(time.Microsecond))
	c.mu.Unlock()
	return nil
}

// pace sends messages at their times, whether the echo of the one before is
// there or not. Where a client is so late that the next message is due, it
// leaves one out.
func (p *clientsProcess) pace(c *client) error {
	go func() {
		for n := uint64(1); ; n++ {
			if err := p.read(c, n); err != nil {
				p.fail(err)
				return
			}
		}
	}()
	due := p.begin.Add(paceInterval * time.Duration(c.number) / time.Duration(p.job.Clients))
	for n := uint64(1); !p.stopped.Load(); n++ {
		time.Sleep(time.Until(due))
		due = due.Add(time.Since(due).Truncate(paceInterval) + paceInterval)
		if err := p.write(c, n); err != nil {
			return err
		}
	}
	return nil
}

// exchange sends messages one after the other.
func (p *clientsProcess) exchange(c *client) error {
	for n := uint64(1); !p.stopped.Load(); n++ {
		if err := errors.Join(p.write(c, n), p.read(c, n)); err != nil {
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

// Written returns the bytes of bulk since the beginning.
func (p *clientsProcess) Written(_ int, n *int64) error {
	*n = int64(p.written.Load())
	return p.failure()
}

// Begin begins the measured time. It forgets the echoes so far. It does not wait for
// the counts of segments, which may take long.
func (p *clientsProcess) Begin(int, *int) error {
	p.from, p.measured = time.Now(), make(chan struct{})
	for _, c := range p.clients {
		c.mu.Lock()
		c.times = c.times[:0]
		c.mu.Unlock()
	}
	go func() {
		p.before.count(p)
		close(p.measured)
	}()
	return p.failure()
}

// count notes the segments sent so far.
func (d *Done) count(p *clientsProcess) {
	if sent := serverEnds[p.job.Impl].sent; sent != nil {
		d.Sent, d.Resent = sent(p.streams)
	}
}

// Report stops the clients and returns what they have done in the measured time. It
// fails if a client has.
func (p *clientsProcess) Report(_ int, d *Done) error {
	var times []float64
	took := time.Duration(0)
	for end := time.Now().Add(answerLimit / 2); ; time.Sleep(time.Millisecond) {
		times, took = times[:0], time.Since(p.from)
		for _, c := range p.clients {
			c.mu.Lock()
			times = append(times, c.times...)
			c.mu.Unlock()
		}
		if len(times) > 0 || p.job.Kind == serverBulk {
			break
		}
		if time.Now().After(end) {
			return errors.New("no echo")
		}
	}
	p.stopped.Store(true)
	<-p.measured
	d.count(p)
	d.Sent, d.Resent = d.Sent-p.before.Sent, d.Resent-p.before.Resent
	if slices.Sort(times); len(times) > 0 {
		d.Rate, d.P50, d.P99 = float64(len(times))/took.Seconds(), quantile(times, 0.5), quantile(times, 0.99)
	}
	return p.failure()
}
