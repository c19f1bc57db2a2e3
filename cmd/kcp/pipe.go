package main

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
)

// pipe joins a session to stdin and stdout. The end of stdin is the end of what
// the peer gets; a pipe is done when the peer has got that, and its own end has
// come. Peers that cannot tell their end are done when they are silent.
type pipe struct {
	conn *kcp.Conn
	in   *input // nil: there is nothing to send
	out  io.Writer

	linger   time.Duration // for what was sent, once the pipe is given up
	quiet    time.Duration // the silence of a peer that cannot tell its end; negative: for ever
	patience time.Duration // the same where bytes are missing

	written atomic.Uint64 // bytes from the peer, in stdout
	writing atomic.Bool   // stdout takes its time
}

// localError means that stdin or stdout has failed, not the session.
type localError struct {
	doing string
	err   error
}

func (e *localError) Error() string { return e.doing + ": " + e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// stuckOutput is how long a pipe that is given up waits for a write to stdout.
const stuckOutput = time.Second

// run moves data until both directions have come to their ends, the session or
// a stream fails, or ctx is done, which is not an error. Then it closes the
// session, or breaks it off, so that the peer takes no part for the whole.
func (p *pipe) run(ctx context.Context) error {
	sendCtx, stopSending := context.WithCancel(ctx)
	defer stopSending()
	sent, received := make(chan error, 1), make(chan error, 1)
	sending, receiving := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sending)
		sent <- p.send(sendCtx)
	}()
	go func() {
		defer close(receiving)
		received <- p.receive()
	}()
	err := p.wait(ctx, sent, received)
	stopSending()
	var local *localError
	switch {
	case ctx.Err() != nil || errors.As(err, &local):
		err = p.breakOff(sending, err)
	case err != nil:
		_ = p.conn.Close() // it has failed
	default:
		err = p.close(ctx)
	}
	<-sending
	select {
	case <-receiving:
	case <-time.After(stuckOutput):
	}
	return explain(err)
}

// wait waits for both ends, for ctx, or for what makes going on useless.
func (p *pipe) wait(ctx context.Context, sent, received <-chan error) error {
	tick := time.NewTicker(min(max(p.quiet/8, 10*time.Millisecond), 100*time.Millisecond))
	defer tick.Stop()
	var silence silence
	var sendErr error
	for sent != nil || received != nil {
		var local *localError
		select {
		case sendErr = <-sent:
			sent = nil
			if errors.As(sendErr, &local) {
				return sendErr
			}
			// Otherwise the session tells the reader too, after what has come.
		case err := <-received:
			received = nil
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if sent != nil || p.quiet < 0 || p.tellsItsEnd() {
				continue
			}
			if over, err := p.over(&silence); over {
				return err
			}
		}
	}
	return sendErr
}

// send moves stdin to the session, and then tells the peer that this was all.
func (p *pipe) send(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for p.in != nil {
		chunk, err := p.in.next(ctx, tick.C)
		if err == io.EOF {
			break
		}
		if err != nil && err != ctx.Err() {
			return &localError{"reading standard input", err}
		}
		// At a tick it is empty, and shows whether the session still takes
		// anything: the peer may be gone that has said all it had to say.
		if _, err := p.conn.Write(chunk); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	err := p.conn.CloseWrite()
	if errors.Is(err, kcp.ErrLegacyPeer) || errors.Is(err, kcp.ErrPeerClosed) {
		return nil // which there is no way to do, and no need to
	}
	return err
}

// receive moves the session to stdout.
func (p *pipe) receive() error {
	buf := make([]byte, 64<<10)
	for {
		n, err := p.conn.Read(buf)
		if err == io.EOF || errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		p.writing.Store(true)
		if _, err := p.out.Write(buf[:n]); err != nil {
			return &localError{"writing standard output", err}
		}
		p.written.Add(uint64(n))
		p.writing.Store(false)
	}
}
