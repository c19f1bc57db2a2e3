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

// pipe connects a session to stdin and stdout. The end of stdin ends the data
// to the peer. A pipe is done when the peer has all of it, and has ended its
// own data. The end of a peer that cannot signal it is its silence.
type pipe struct {
	conn *kcp.Conn
	in   *input // nil: there is nothing to send
	out  io.Writer

	linger   time.Duration // for how long sent data may take to be delivered once the pipe is abandoned
	quiet    time.Duration // silence that ends the data of a peer that cannot signal the end; negative: never
	patience time.Duration // the same while bytes are missing

	sent    atomic.Int64  // bytes of stdin that the session has taken
	written atomic.Uint64 // bytes from the peer that stdout has taken
	writing atomic.Bool   // a write to stdout is in progress
}

// localError is an error of stdin or stdout, not of the session.
type localError struct {
	doing string
	err   error
}

func (e *localError) Error() string { return e.doing + ": " + e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// stuckOutput is how long an abandoned pipe waits for a write to stdout.
const stuckOutput = time.Second

// run moves data until both directions have ended, the session or a stream
// fails, or ctx is done, which is errInterrupted. Then it closes the session, with
// a reason if data is missing, so that the peer does not take a part for the whole.
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
	case errors.Is(err, errInterrupted) || errors.As(err, &local):
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

// wait waits for the end of both directions, for ctx, or for an error that
// makes continuing useless.
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
			// Otherwise reading fails too, after the data that has arrived.
		case err := <-received:
			received = nil
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return errInterrupted
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

// send copies stdin to the session, and then ends the data to the peer.
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
		// At a tick the chunk is empty. Writing it shows whether the session
		// can still be written to: the peer may have ended its data and be gone
		// since.
		n, err := p.conn.Write(chunk)
		p.sent.Add(int64(n))
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil // a legacy peer cannot be told, a closed one need not be
		}
	}
	err := p.conn.CloseWrite()
	if errors.Is(err, kcp.ErrLegacyPeer) || errors.Is(err, kcp.ErrPeerClosed) {
		return nil // which there is no way to do, and no need to
	}
	return err
}

// receive copies the session to stdout.
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
