package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net"
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

// patience is how long the server may take to answer when the device wakes, and each of
// its addresses when it has several.
const patience = 2 * time.Second

// unanswered is how many dials in a row nobody answers before the link dials from another
// port. A NAT on the way may send what comes from the old one to a host that is gone, and
// each packet keeps it from forgetting that (RFC 4787 §4.3).
const unanswered = 2

// link keeps a session with a server. When one has ended it dials again, from the same
// endpoint: a firewall knows its port, and who is asked about the old session gets an
// answer from where it was. It dials until the context of run is done, or an error comes
// that will come again.
type link struct {
	open    func() (net.PacketConn, error)                  // opens the socket of the endpoint
	config  *kcp.Config                                     // of the endpoint
	resolve func(ctx context.Context) ([]net.Addr, error)   // addresses of the server, looked up for each attempt
	use     func(ctx context.Context, conn *kcp.Conn) error // what the application does with a session
	log     *log.Logger

	// Only run uses these.
	endpoint *kcp.Endpoint // nil: none is open
	socket   net.PacketConn
	failed   int // dials in a row that nobody has answered

	mu      sync.Mutex
	conn    *kcp.Conn     // the session; nil: there is none
	ended   error         // what run has returned
	changed chan struct{} // closed when conn or ended changes
	woken   chan struct{} // ends a pause
}

// run keeps a session until ctx is done, or it is of no use to dial again.
func (l *link) run(ctx context.Context) (err error) {
	defer func() {
		l.closeEndpoint()
		l.set(nil, err)
	}()
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
		l.renew(err)
		return 0, err
	}
	l.failed = 0
	defer conn.Abort() // after Close it does nothing
	begin := time.Now()
	l.set(conn, nil)
	defer l.set(nil, nil)
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	l.log.Printf("session %08x with %v", conn.Conv(), conn.RemoteAddr())
	err = l.use(ctx, conn)
	if err == nil || errors.Is(err, io.EOF) {
		err = errEnded
	}
	return time.Since(begin), err
}

var errEnded = errors.New("the server has closed the session")

// dial opens a session with the first address of the server that answers.
func (l *link) dial(ctx context.Context) (*kcp.Conn, error) {
	addrs, err := l.resolve(ctx)
	if err != nil {
		return nil, err
	}
	var failed error
	for i, addr := range addrs {
		conn, err := l.dialOne(ctx, addr, i < len(addrs)-1)
		if err == nil {
			return conn, nil
		}
		if failed == nil || hopeless(failed) {
			failed = err
		}
	}
	if failed == nil {
		failed = errors.New("the server has no address")
	}
	return nil, failed
}

// dialOne opens a session with the server at an address. If there are others it does not
// wait long. An endpoint whose socket has failed for good is replaced.
func (l *link) dialOne(ctx context.Context, addr net.Addr, others bool) (conn *kcp.Conn, err error) {
	if others {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	for range 2 {
		if err := l.openEndpoint(); err != nil {
			return nil, err
		}
		if conn, err = l.endpoint.Dial(ctx, addr); !errors.Is(err, net.ErrClosed) {
			return conn, err
		}
		l.closeEndpoint()
	}
	return nil, err
}

// renew gives the socket up if a dial has failed because nobody answers, as others have
// before.
func (l *link) renew(err error) {
	var none *kcp.NoAnswerError
	if !errors.As(err, &none) {
		return
	}
	if l.failed++; l.failed >= unanswered {
		l.failed = 0
		l.closeEndpoint()
	}
}

// openEndpoint opens the endpoint, unless it is open.
func (l *link) openEndpoint() (err error) {
	if l.endpoint != nil {
		return nil
	}
	if l.socket, err = l.open(); err != nil {
		return err
	}
	if l.endpoint, err = kcp.NewEndpoint(l.socket, l.config); err != nil {
		_ = l.socket.Close()
	}
	return err
}

func (l *link) closeEndpoint() {
	if l.endpoint != nil {
		_ = l.endpoint.Close()
		_ = l.socket.Close() // the endpoint does not own it
		l.endpoint = nil
	}
}

// set sets the session, or why there will be none.
func (l *link) set(conn *kcp.Conn, ended error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn, l.ended = conn, ended
	close(l.changed)
	l.changed = make(chan struct{})
}

// current returns the session, or nil and what is closed when that changes.
func (l *link) current() (*kcp.Conn, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn, l.changed
}

// err returns what run has returned.
func (l *link) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// await returns the session, or the next one. Once run has returned, await returns its
// error.
func (l *link) await(ctx context.Context) (*kcp.Conn, error) {
	for {
		conn, changed := l.current()
		if conn != nil && conn.Err() == nil {
			return conn, nil
		}
		if err := l.err(); err != nil {
			return nil, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// wake is to be called when the device wakes, or the system reports another network. A
// session that has not outlived that ends now, and not when the next keep-alive shows it.
// Without a session the link dials at once.
func (l *link) wake(ctx context.Context) {
	conn, _ := l.current()
	if conn == nil {
		select {
		case l.woken <- struct{}{}:
		default:
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := conn.Ping(ctx); err != nil {
		_ = conn.Abort()
	}
}

// hopeless reports whether dialling again meets the same error.
func hopeless(err error) bool {
	var closed *kcp.PeerCloseError
	var handshake *kcp.HandshakeError
	var alert tls.AlertError
	var setting *kcp.ConfigError
	var name *net.DNSError
	switch {
	case errors.As(err, &closed):
		return closed.Code == codeTakenOver
	case errors.As(err, &handshake): // the server may be in trouble, as while its certificate is replaced
		return !(handshake.Remote && errors.As(err, &alert) && alert == internalError)
	case errors.As(err, &name):
		return name.IsNotFound
	}
	return errors.Is(err, kcp.ErrNoTLS) || errors.Is(err, kcp.ErrTLSRequired) || errors.As(err, &setting) || errors.Is(err, errNumbers)
}

// internalError is an alert of TLS (RFC 8446 §6.2).
const internalError tls.AlertError = 80
