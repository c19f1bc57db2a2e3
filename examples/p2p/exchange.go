package main

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/arqnet/kcp"
)

const (
	shortestPause = 500 * time.Millisecond
	longestPause  = 10 * time.Second
	// maxFailures is how many times in a row no session comes about before the program
	// gives up.
	maxFailures = 4
)

// exchange meets the peer, and works over the session, in as many sessions as it takes:
// one that was lost is followed by another, for which both ends meet again.
func (n *node) exchange(ctx context.Context, meet func(context.Context) (*kcp.Conn, error), work func(context.Context, *kcp.Conn) error) error {
	pause := shortestPause
	for failures := 0; ; {
		conn, err := meet(ctx)
		if err == nil {
			failures = 0
			if err = work(ctx, conn); err == nil {
				return nil
			}
		} else {
			failures++
		}
		if ctx.Err() != nil || isFinal(err) || failures == maxFailures {
			return cause(ctx, err)
		}
		n.log.Printf("%s; again in %s", err, pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause = min(2*pause, longestPause)
	}
}

// isFinal reports whether another attempt would end with the same error.
func isFinal(err error) bool {
	var closed *kcp.PeerCloseError
	var handshake *kcp.HandshakeError
	var refused *refusal
	var nat *natError
	var file *fs.PathError
	switch {
	case errors.As(err, &closed):
		return closed.Code != codeBusy
	case errors.As(err, &handshake), errors.As(err, &refused), errors.As(err, &nat), errors.As(err, &file):
		return true
	}
	return errors.Is(err, errForged)
}
