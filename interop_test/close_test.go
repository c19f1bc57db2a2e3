package interop

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// closeBytes are written right before Close, and far exceed what is in flight.
const closeBytes = 1 * mB

// TestWriteThenClose closes our end right after a large write, through the
// lossy path: Close must wait until everything is delivered, and say so.
func TestWriteThenClose(t *testing.T) {
	u := tuning{512, 1400, nodelay | resend | nc}
	us, them := party{ours{}, u}, party{theirs{}, u}

	t.Run("before the peer has answered", func(t *testing.T) {
		t.Parallel()
		n := newService(t, plan{dialler: us, listener: them, path: lossy}).dial()
		n.check(n.writeThenClose(n.acceptAll))
	})
	for _, p := range bothWays(us, them, lossy) {
		t.Run(p.name(), func(t *testing.T) {
			t.Parallel()
			n := open(t, p)
			n.check(n.writeThenClose(nil))
		})
		t.Run(p.name()+"/while the peer sends", func(t *testing.T) {
			t.Parallel()
			n := open(t, p)
			sent := make(chan error, 1)
			go func() {
				_, err := send(n.theirs(), n.seed+1, 32*mB) // more than fits anywhere
				sent <- err
			}()
			n.check(n.writeThenClose(nil))
			_ = n.theirs().Close() // ends send
			if err := <-sent; err == nil {
				n.check(errors.New("kcp-go has written more than there was room for"))
			}
		})
	}
}

// writeThenClose writes and closes at our end, while kcp-go reads. before, if
// not nil, is what has to be done before kcp-go can.
func (n *session) writeThenClose(before func() error) error {
	type result struct {
		sum  digest
		took time.Duration
		err  error
	}
	written := make(chan result, 1)
	go func() {
		var r result
		if r.sum, r.err = send(n.ours(), n.seed, closeBytes); r.err == nil {
			start := time.Now()
			r.err = closeOurs(n.ours())
			r.took = time.Since(start)
		}
		written <- r
	}()
	var err error
	if before != nil {
		err = before()
	}
	var got digest
	if err == nil {
		got, err = receive(n.theirs(), closeBytes)
	}
	w := <-written
	if w.err != nil {
		err = errors.Join(err, fmt.Errorf("write then close, after %v: %w", w.took, w.err))
	}
	if err == nil && got != w.sum {
		err = fmt.Errorf("what was written has changed: SHA-256 %x, want %x", got, w.sum)
	}
	return err
}
