package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/arqnet/kcp"
)

const (
	// defaultQuiet is how long a legacy peer has to be silent for the session
	// to end.
	defaultQuiet = 3 * time.Second
	// defaultPatience and defaultLinger are the defaults of PeerTimeout and
	// Linger in a kcp.Config.
	defaultPatience = 30 * time.Second
	defaultLinger   = 5 * time.Second
	// forEver is a time to linger for a peer that is alive but slow. A peer
	// that is gone ends the session sooner, by -peer-timeout.
	forEver = 1000 * time.Hour
)

// unacknowledged returns how many segments the peer has not acknowledged yet.
func (p *pipe) unacknowledged() int {
	s := p.conn.Stats()
	return s.InFlight + s.Queued
}

// tellsItsEnd reports whether the peer signals the end of its data: it is known
// not to be a legacy peer.
func (p *pipe) tellsItsEnd() bool {
	peer := p.conn.Peer()
	return peer.Known && !peer.Legacy
}

// close closes a session of which both directions have ended, once the peer has
// acknowledged all that was sent. Until ctx is done, the peer may be slow.
func (p *pipe) close(ctx context.Context) error {
	_ = p.conn.SetLinger(forEver) // fails only if the session is closed
	closed := make(chan error, 1)
	go func() { closed <- p.conn.Close() }()
	var err error
	select {
	case err = <-closed:
	case <-ctx.Done():
		select {
		case err = <-closed:
		case <-time.After(p.linger):
			_ = p.conn.Abort(0, "")
			<-closed
			err = kcp.ErrNotDelivered
			if p.unacknowledged() == 0 {
				err = nil
			}
		}
	}
	var lost *kcp.PeerLostError
	if errors.As(err, &lost) && p.unacknowledged() == 0 {
		// It has everything, and its own direction had ended. It may be gone
		// before its answer to our end has arrived.
		return nil
	}
	return err
}

// Codes with which this command closes a session before its end, by
// kcp.Conn.CloseWithError.
const (
	codeInterrupted = 1 // by a signal
	codeLocal       = 2 // stdin or stdout has failed; the text says how
)

// breakOff closes a session in the middle of the data, because of err: an
// interrupt or a *localError. What was read from stdin is delivered first, if it
// can be within p.linger. The peer then learns that there should have been more,
// and why there is not. It returns err, and what is lost on top of an interrupt.
func (p *pipe) breakOff(sending <-chan struct{}, err error) error {
	code, text := uint64(codeInterrupted), "interrupted"
	var local *localError
	if errors.As(err, &local) {
		code, text = codeLocal, local.doing+" failed"
	}
	limit := time.NewTimer(p.linger)
	defer limit.Stop()
	closed := make(chan error, 1)
	go func() {
		<-sending // Abort ends a Write that waits for buffer space
		closed <- p.conn.CloseWithError(code, text)
	}()
	var lost error
	select {
	case lost = <-closed:
	case <-limit.C:
		_ = p.conn.Abort(0, "")
		<-closed
	}
	if local == nil && p.unacknowledged() > 0 {
		return fmt.Errorf("%w: %w", err, explain(cmp.Or(lost, kcp.ErrNotDelivered)))
	}
	return err
}

// silence measures how long nothing has happened in a session.
type silence struct {
	last struct {
		packets, written uint64
		unacknowledged   int
	}
	since time.Time
}

// over decides whether the silence of a peer that cannot signal its end is that
// end. A peer that has unacknowledged data retransmits it, so it is not silent.
func (p *pipe) over(s *silence) (bool, error) {
	stats := p.conn.Stats()
	now := s.last
	now.packets, now.written = stats.PacketsReceived, p.written.Load()
	now.unacknowledged = stats.InFlight + stats.Queued
	if now != s.last || s.since.IsZero() || p.writing.Load() {
		s.last, s.since = now, time.Now()
	}
	silence := time.Since(s.since)
	switch {
	case now.unacknowledged > 0: // the session itself detects a lost peer
		return false, nil
	case silence < p.quiet:
		return false, nil
	case now.written == stats.BytesReceived:
		return true, nil
	case p.patience < 0 || silence < p.patience:
		return false, nil
	}
	return true, fmt.Errorf("peer lost: data is missing after %s; nothing received for %v", plural(now.written, "byte"), formatTime(silence))
}

// hold waits, before the process ends, for as long as the peer may retransmit
// because our last acknowledgement was lost. The package keeps the socket open
// for as long.
func (p *pipe) hold(ctx context.Context) {
	s := p.conn.Stats()
	wait := 200 * time.Millisecond
	if s.Retransmits()+s.Duplicates > 0 {
		wait = 1500 * time.Millisecond
	}
	wait = max(wait, min(4*s.RTO, 3*time.Second))
	if !p.tellsItsEnd() {
		wait = time.Second - max(p.quiet, 0) // it has been silent for p.quiet already
	}
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	}
}

// explain describes the errors of a session to the user of the command.
func explain(err error) error {
	var lost *kcp.PeerLostError
	var closed *kcp.PeerCloseError
	switch {
	case errors.Is(err, errInterrupted):
	case errors.As(err, &closed):
		return explainClose(closed)
	case errors.As(err, &lost):
		return fmt.Errorf("peer lost: nothing received for %v (-peer-timeout)", formatTime(lost.Silence))
	case errors.Is(err, kcp.ErrNotDelivered):
		return errors.New("the peer did not acknowledge all that was sent")
	case errors.Is(err, kcp.ErrReset):
		return errors.New("the peer broke off or was restarted, or an address has changed on the way: data is missing in one direction or both")
	case errors.Is(err, kcp.ErrPeerClosed):
		return errors.New("the peer closed the session and reads no more")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the peer ended in the middle of a message")
	}
	return err
}

// explainClose describes why the peer has closed the session before its end.
func explainClose(e *kcp.PeerCloseError) error {
	switch e.Code {
	case codeInterrupted:
		return errors.New("the peer was interrupted: data is missing in one direction or both")
	case codeLocal:
		return fmt.Errorf("the peer has failed (%.100q): data is missing in one direction or both", e.Text)
	}
	return fmt.Errorf("the peer closed the session with code %d (%.100q)", e.Code, e.Text)
}
