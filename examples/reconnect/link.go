package main

import (
	"context"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// The pause between two attempts grows from the shortest to the longest. It starts over
// after a session that has lasted longer than it: a server that takes sessions and ends
// them at once is not asked without a pause.
const (
	shortestPause = 200 * time.Millisecond
	longestPause  = 30 * time.Second
)

// wakeTimeout is how long the server may take to answer when the device wakes.
const wakeTimeout = 2 * time.Second

// link keeps a session with a server. When one has ended it dials again, until the context
// of run is done, or an error comes that will come again.
type link struct {
	dial func(ctx context.Context) (*kcp.Conn, error)    // from a new socket each time
	use  func(ctx context.Context, conn *kcp.Conn) error // until the session ends
	log  *log.Logger

	woken chan struct{} // of one: ends a pause
	mu    sync.Mutex
	conn  *kcp.Conn // the session; nil: there is none
}

// run keeps a session until ctx is done, or it is of no use to dial again.
func (l *link) run(ctx context.Context) error {
	for pause := shortestPause; ; pause = min(2*pause, longestPause) {
		lasted, err := l.session(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if hopeless(err) {
			return err
		}
		if lasted > pause {
			pause = shortestPause
		}
		wait := pause/2 + rand.N(pause) // so that the clients of a server do not return at once
		l.log.Printf("%v; again in %v", err, wait.Round(time.Millisecond))
		select {
		case <-time.After(wait):
		case <-l.woken:
			pause = shortestPause
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// session dials, and uses the session until it ends. lasted is how long it was open.
func (l *link) session(ctx context.Context) (lasted time.Duration, err error) {
	conn, err := l.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Abort(0, "") // after Close it does nothing
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	begin := time.Now()
	l.set(conn)
	defer l.set(nil)
	l.log.Printf("session with %v", conn.RemoteAddr())
	if err = l.use(ctx, conn); err == nil || errors.Is(err, io.EOF) {
		err = errors.New("the server has closed the session")
	}
	return time.Since(begin), err
}

func (l *link) set(conn *kcp.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
}

// wake is to be called when the device wakes, or the system reports another network. A
// session that has not outlived that ends now, and not when the next keep-alive shows it.
// Without a session the link dials at once.
func (l *link) wake(ctx context.Context) {
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn == nil {
		select {
		case l.woken <- struct{}{}:
		default:
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	if _, err := conn.Ping(ctx); err != nil {
		_ = conn.Abort(0, "")
	}
}

// hopeless reports whether dialling again meets the same error.
func hopeless(err error) bool {
	var closed *kcp.PeerCloseError
	var handshake *kcp.HandshakeError
	var setting *kcp.ConfigError
	if errors.As(err, &closed) {
		return closed.Code == codeTakenOver
	}
	return errors.As(err, &handshake) || errors.As(err, &setting) ||
		errors.Is(err, kcp.ErrNoTLS) || errors.Is(err, kcp.ErrTLSRequired)
}
