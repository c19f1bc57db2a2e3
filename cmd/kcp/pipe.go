package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
)

const (
	// defaultQuiet is how long both ends wait for more when stdin has ended.
	defaultQuiet = 3 * time.Second
	// defaultPatience is the silence after which bytes that are missing in the
	// middle are taken for lost, where no time-out of the peer is set.
	defaultPatience = 30 * time.Second
	// settleTime is how long a session goes on to acknowledge what the peer
	// repeats. One that has been silent for so long has nothing to repeat.
	settleTime = time.Second
	// stuckOutput is how long an interrupted pipe waits for a write to stdout.
	stuckOutput = time.Second
)

// pipe joins a session to stdin and stdout.
//
// KCP has no way to tell the peer that a side is done. So a pipe ends when
// there is no sign of more to come: stdin has ended, all of it is acknowledged,
// all that has arrived is written to stdout, and then nothing comes from the
// peer for a while. A peer that still has something unacknowledged repeats it,
// so it is not silent.
type pipe struct {
	conn *kcp.Conn
	in   *input // nil: there is nothing to send
	out  io.Writer

	quiet     time.Duration // the while; negative: for ever
	patience  time.Duration // negative: for ever
	needFirst bool          // the while does not begin before the first byte has come

	written  atomic.Uint64 // bytes from the peer, in stdout
	writing  atomic.Bool   // stdout takes its time
	sendDone atomic.Bool   // stdin has ended and all of it is in the session
}

// run moves data until there is no more, the session fails or ctx is done,
// which is not an error. Then it closes the session, and waits for what was
// read from stdin to be acknowledged.
func (p *pipe) run(ctx context.Context) error {
	sendCtx, stopSending := context.WithCancel(ctx)
	failed := make(chan error, 2)
	sent, received := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sent)
		if err := p.send(sendCtx); err != nil {
			failed <- err
		}
	}()
	go func() {
		defer close(received)
		if err := p.receive(); err != nil {
			failed <- err
		}
	}()
	err := p.watch(ctx, failed)
	stopSending()
	if closeErr := p.conn.Close(); err == nil && closeErr != nil {
		err = explain(closeErr)
	}
	<-sent
	select {
	case <-received:
	case <-time.After(stuckOutput):
	}
	return err
}

// send moves stdin to the session.
func (p *pipe) send(ctx context.Context) error {
	for p.in != nil {
		chunk, err := p.in.next(ctx)
		if err == io.EOF {
			break
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading standard input: %w", err)
		}
		if _, err := p.conn.Write(chunk); err != nil {
			return p.unlessClosed(err)
		}
	}
	p.sendDone.Store(true)
	return nil
}

// receive moves the session to stdout.
func (p *pipe) receive() error {
	buf := make([]byte, 64<<10)
	for {
		n, err := p.conn.Read(buf)
		if err != nil {
			return p.unlessClosed(err)
		}
		p.writing.Store(true)
		if _, err := p.out.Write(buf[:n]); err != nil {
			return &outputError{err}
		}
		p.written.Add(uint64(n))
		p.writing.Store(false)
	}
}

// outputError means that stdout takes no more, from no session.
type outputError struct{ err error }

func (e *outputError) Error() string { return "writing standard output: " + e.err.Error() }
func (e *outputError) Unwrap() error { return e.err }

// unlessClosed drops the error of a session that this side has closed.
func (p *pipe) unlessClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return explain(err)
}

// explain puts the errors of a session into words for who uses the command.
func explain(err error) error {
	var lost *kcp.PeerLostError
	switch {
	case errors.As(err, &lost):
		return fmt.Errorf("peer lost: it does not answer (-peer-timeout); nothing heard for %v", formatTime(lost.Silence))
	case errors.Is(err, kcp.ErrNotDelivered):
		return errors.New("the peer did not acknowledge all that was sent within the time of -linger")
	}
	return err
}

// sign is what changes as long as there is life in a session.
type sign struct {
	packets, written uint64
	unacknowledged   int
	sendDone         bool
}

// watch waits for the end: quiet, a failure, or ctx.
func (p *pipe) watch(ctx context.Context, failed <-chan error) error {
	var look <-chan time.Time
	if p.quiet >= 0 {
		tick := time.NewTicker(min(max(p.quiet/8, 10*time.Millisecond), 100*time.Millisecond))
		defer tick.Stop()
		look = tick.C
	}
	var last sign
	since := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-look:
		}
		stats := p.conn.Stats()
		now := sign{stats.PacketsReceived, p.written.Load(), stats.InFlight + stats.Queued, p.sendDone.Load()}
		if now != last || p.writing.Load() {
			last, since = now, time.Now()
		}
		over, err := p.over(now, stats.BytesReceived, time.Since(since))
		if over {
			return err
		}
	}
}

// over decides whether a silence ends the pipe.
func (p *pipe) over(s sign, arrived uint64, silence time.Duration) (bool, error) {
	switch {
	case !s.sendDone || s.unacknowledged > 0: // the session itself looks for a lost peer
		return false, nil
	case silence < p.quiet:
		return false, nil
	case p.needFirst && arrived == 0:
		return false, nil
	case s.written == arrived:
		return true, nil
	case p.patience < 0 || silence < p.patience:
		return false, nil
	}
	return true, fmt.Errorf("peer lost: bytes are missing behind the first %d; nothing heard for %v", s.written, formatTime(silence))
}

// settle waits until the sessions of an endpoint have answered the last
// repetitions of their peers, unless the silence of quiet was the proof that
// there are none.
func settle(ctx context.Context, e *kcp.Endpoint, quiet time.Duration) {
	if quiet < 0 || quiet >= settleTime {
		return
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for e.Stats().Sessions > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
