package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/arqnet/kcp"
)

const (
	// defaultQuiet is the silence that ends a session with a legacy peer.
	defaultQuiet = 3 * time.Second
	// defaultPatience and defaultLinger are those of a kcp.Config.
	defaultPatience = 30 * time.Second
	defaultLinger   = 5 * time.Second
	// forEver is a time to linger for a peer that is alive but slow. One that
	// is gone ends the session sooner, by -peer-timeout.
	forEver = 1000 * time.Hour
)

// unacknowledged returns how many segments the peer does not have yet.
func (p *pipe) unacknowledged() int {
	s := p.conn.Stats()
	return s.InFlight + s.Queued
}

// tellsItsEnd reports whether the peer is of those that do.
func (p *pipe) tellsItsEnd() bool {
	peer := p.conn.Peer()
	return peer.Known && !peer.Legacy
}

// close closes a session whose both ends have come, when the peer has all that
// was sent. A slow peer may take its time until ctx is done.
func (p *pipe) close(ctx context.Context) error {
	_ = p.conn.SetLinger(forEver) // fails only where the session is closed
	closed := make(chan error, 1)
	go func() { closed <- p.conn.Close() }()
	var err error
	select {
	case err = <-closed:
	case <-ctx.Done():
		select {
		case err = <-closed:
		case <-time.After(p.linger):
			_ = p.conn.Abort()
			<-closed
			err = kcp.ErrNotDelivered
			if p.unacknowledged() == 0 {
				err = nil
			}
		}
	}
	var lost *kcp.PeerLostError
	if errors.As(err, &lost) && p.unacknowledged() == 0 {
		// It has everything, and was done itself: it may have gone before its
		// answer to our end came through.
		return nil
	}
	return err
}

// breakOff ends a session in the middle. What was read from stdin is delivered;
// the peer then learns that there should have been more.
func (p *pipe) breakOff(sending <-chan struct{}, err error) error {
	limit, cancel := context.WithTimeout(context.Background(), p.linger)
	defer cancel()
	select {
	case <-sending:
	case <-limit.Done(): // Abort ends a Write that waits for room
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for p.unacknowledged() > 0 {
		select {
		case <-tick.C:
			continue
		case <-limit.Done():
			if err == nil {
				err = kcp.ErrNotDelivered
			}
		}
		break
	}
	_ = p.conn.Abort()
	return err
}

// silence is for how long nothing has happened in a session.
type silence struct {
	last struct {
		packets, written uint64
		unacknowledged   int
	}
	since time.Time
}

// over decides whether the silence of a peer that cannot tell its end is that.
// One that still has something unacknowledged repeats it, so it is not silent.
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
	case now.unacknowledged > 0: // the session itself looks for a lost peer
		return false, nil
	case silence < p.quiet:
		return false, nil
	case now.written == stats.BytesReceived:
		return true, nil
	case p.patience < 0 || silence < p.patience:
		return false, nil
	}
	return true, fmt.Errorf("peer lost: data is missing after the first %d bytes; nothing received for %v", now.written, formatTime(silence))
}

// hold waits, before the process ends, as long as the peer may ask once more
// for what was the last thing said to it, which may have been lost. The package
// keeps the socket for as long.
func (p *pipe) hold(ctx context.Context) {
	s := p.conn.Stats()
	wait := 200 * time.Millisecond
	if s.Retransmits()+s.Duplicates > 0 {
		wait = 1500 * time.Millisecond
	}
	wait = max(wait, min(4*s.RTO, 3*time.Second))
	if !p.tellsItsEnd() {
		wait = time.Second - max(p.quiet, 0) // silence was the proof already
	}
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	}
}

// explain puts the errors of a session into words for who uses the command.
func explain(err error) error {
	var lost *kcp.PeerLostError
	switch {
	case errors.As(err, &lost):
		return fmt.Errorf("peer lost: nothing received for %v (-peer-timeout)", formatTime(lost.Silence))
	case errors.Is(err, kcp.ErrNotDelivered):
		return errors.New("the peer did not acknowledge all that was sent")
	case errors.Is(err, kcp.ErrReset):
		return errors.New("the peer aborted the session: data is missing in one direction or both")
	case errors.Is(err, kcp.ErrPeerClosed):
		return errors.New("the peer closed the session and reads no more")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the peer ended in the middle of a message")
	}
	return err
}
