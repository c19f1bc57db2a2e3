package carrier

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
	"github.com/hashicorp/yamux"
)

const (
	// backlog is how many streams of the peer may wait until this end knows them.
	backlog = 256
	// window is how many bytes of a stream may be on their way, or wait to be read.
	window = 4 << 20
	// unreadShare is the part of Limits.MaxBuffered that the unread bytes of one Account
	// may have: the buffers that hold them may have twice their size.
	unreadShare = 4
	// defaultMaxBuffered is that of package kcp.
	defaultMaxBuffered = 1 << 30
	// maxRecords is how many bytes of records may wait for the peer to take them.
	maxRecords = 1 << 20
	// closeWait is how long a peer may take to send the beginning of a stream, and to take
	// the end of one.
	closeWait = 10 * time.Second
	// endWait is how long a peer may go on to send on a stream that has ended here.
	endWait = time.Minute
	// recordWait is how long a record may come after the end that it explains.
	recordWait = time.Second
	// defaultLinger is how long Close waits for the peer.
	defaultLinger = 2 * time.Second
	// defaultPeerTimeout is that of package kcp.
	defaultPeerTimeout = 30 * time.Second
	// maxText is how many bytes of the text of a close are sent.
	maxText = 256
)

const (
	recordReset = 0
	recordClose = 1
)

// Account counts what sessions hold because their peers have sent it.
type Account struct{ unread atomic.Int64 }

var (
	errUnread    = errors.New("more bytes wait to be read than a peer may send ahead")
	errRecords   = errors.New("the peer does not take what ends its streams")
	errViolation = errors.New("the peer does not keep to the protocol")
	errProtocol  = errors.New("the other end does not speak this protocol")
)

// TCP is a session over TLS over TCP. All methods are safe for concurrent use.
type TCP struct {
	config  *kcp.Config
	wire    *wire
	tls     *tls.Conn
	dialled bool
	account *Account // nil: nobody counts
	raw     *rawStream
	taken   atomic.Bool // raw was
	done    chan struct{}

	beginning sync.Once
	mux       *yamux.Session // nil before that, and if it has failed
	opening   sync.Mutex     // one stream at a time, so that their numbers come in order
	slots     chan struct{}  // has an element for each stream of the peer
	accepted  chan *stream
	wake      chan struct{} // has an element if there are records

	sent, received atomic.Uint64
	rtt, linger    atomic.Int64
	asked          atomic.Int64 // when a ping has left that is not answered; 0: none is

	mu      sync.Mutex
	err     error  // why the session has ended
	closing bool   // this end has said so
	records []byte // that wait to be sent
	streams map[uint32]*stream
	highest [2]uint32         // numbers of streams so far, even and odd
	early   map[uint32]uint64 // codes of resets of streams that are about to be known
	unread  int64             // bytes
}

// NewTCP returns the session over a connection, of which this end is the dialler or not.
// Of config it has TLS, the limit of streams and the times. The handshake is the first
// stream's.
func NewTCP(conn net.Conn, config *kcp.Config, dialled bool) *TCP {
	c := &TCP{
		config: config, dialled: dialled, done: make(chan struct{}),
		slots:    make(chan struct{}, max(config.Limits.MaxStreams, 1)),
		accepted: make(chan *stream), wake: make(chan struct{}, 1),
		streams: make(map[uint32]*stream), early: make(map[uint32]uint64),
	}
	if dialled {
		c.tls = tls.Client(conn, config.TLS)
	} else {
		c.tls = tls.Server(conn, config.TLS)
	}
	c.linger.Store(int64(defaultLinger))
	c.wire = &wire{Conn: c.tls, c: c, began: time.Now()}
	c.raw = &rawStream{c: c, closed: make(chan struct{})}
	return c
}

// CountFor has what the session holds counted for an account, from the second stream on.
func (c *TCP) CountFor(a *Account) { c.account = a }

// handshake carries out the handshake. Errors of the network are not a
// *kcp.HandshakeError.
func (c *TCP) handshake(ctx context.Context) error {
	err := c.tls.HandshakeContext(ctx)
	if err == nil && c.tls.ConnectionState().NegotiatedProtocol != c.config.TLS.NextProtos[0] {
		err = &kcp.HandshakeError{Err: errProtocol}
	}
	if err = handshakeError(err); err != nil {
		c.end(err)
	}
	return err
}

// handshakeError returns an error of package tls as package kcp has it.
func handshakeError(err error) error {
	var network net.Error
	var done *kcp.HandshakeError
	var op *net.OpError
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, context.Canceled), errors.As(err, &done):
		return err
	case errors.As(err, &op) && op.Op == "remote error":
		return &kcp.HandshakeError{Remote: true, Err: op.Err}
	case errors.As(err, &op), errors.As(err, &network):
		return err
	}
	return &kcp.HandshakeError{Err: err}
}

// begin waits until the first stream is closed, and has yamux begin.
func (c *TCP) begin(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return c.Err()
	case <-c.raw.closed:
	}
	c.beginning.Do(c.start)
	return c.Err()
}

// start has yamux begin.
func (c *TCP) start() {
	_ = c.tls.SetDeadline(time.Time{})
	config := &yamux.Config{
		AcceptBacklog: backlog, KeepAliveInterval: time.Second, ConnectionWriteTimeout: c.peerTimeout(),
		MaxStreamWindowSize: window, StreamCloseTimeout: endWait, LogOutput: io.Discard,
	}
	role := yamux.Server
	if c.dialled {
		role = yamux.Client
	}
	mux, err := role(c.wire, config)
	if err != nil {
		c.end(err)
		return
	}
	c.mu.Lock()
	c.mux = mux
	over := c.err != nil
	c.mu.Unlock()
	if over {
		_ = mux.Close()
		return
	}
	if c.dialled {
		control, err := mux.OpenStream()
		if err != nil {
			c.end(err)
			return
		}
		go c.control(control)
	}
	go c.accept()
	go c.watch()
}

// peerTimeout returns how long the peer may be silent when it is asked.
func (c *TCP) peerTimeout() time.Duration {
	switch d := c.config.PeerTimeout; {
	case d < 0:
		return 365 * 24 * time.Hour
	case d > 0:
		return d
	}
	return defaultPeerTimeout
}

// accept takes the streams of the peer.
func (c *TCP) accept() {
	if !c.dialled {
		control, err := c.mux.AcceptStream()
		if err != nil {
			c.end(err)
			return
		}
		go c.control(control)
	}
	for last := uint32(0); ; {
		select {
		case c.slots <- struct{}{}:
		case <-c.done:
			return
		}
		y, err := c.mux.AcceptStream()
		if err == nil && ((y.StreamID()%2 == 1) == c.dialled || y.StreamID() <= last) {
			err = errViolation // of this end, or a number again
		}
		if err != nil {
			c.end(err)
			return
		}
		last = y.StreamID()
		go c.add(y, false).arrive()
	}
}

// add adds a stream, which this end has opened or the peer.
func (c *TCP) add(y *yamux.Stream, opened bool) *stream {
	s := &stream{c: c, y: y, opened: opened, done: make(chan struct{})}
	id := y.StreamID()
	c.mu.Lock()
	c.streams[id] = s
	c.highest[id%2] = id
	code, early := c.early[id]
	delete(c.early, id)
	err := c.err
	c.mu.Unlock()
	if early {
		s.end(&kcp.StreamError{Code: code, Remote: true})
	} else if err != nil {
		s.end(err)
	}
	return s
}

// forget forgets a stream that has ended at both ends.
func (c *TCP) forget(s *stream) {
	c.mu.Lock()
	delete(c.streams, s.ID())
	c.mu.Unlock()
	if !s.opened {
		<-c.slots
	}
}

// OpenStream opens a stream. The first one is the bare connection.
func (c *TCP) OpenStream(ctx context.Context, options *kcp.StreamOptions) (Stream, error) {
	if c.taken.CompareAndSwap(false, true) {
		return c.raw, nil
	}
	if err := c.begin(ctx); err != nil {
		return nil, err
	}
	c.opening.Lock()
	defer c.opening.Unlock()
	y, err := c.mux.OpenStream() // waits if the peer does not take streams
	if err != nil {
		c.end(err)
		return nil, c.Err()
	}
	s := c.add(y, true)
	s.packets = options != nil && options.Unordered
	return s, nil
}

// AcceptStream waits for a stream of the peer. With the first one comes the handshake.
func (c *TCP) AcceptStream(ctx context.Context) (Stream, error) {
	if c.taken.CompareAndSwap(false, true) {
		if err := c.handshake(ctx); err != nil {
			return nil, err
		}
		return c.raw, nil
	}
	if err := c.begin(ctx); err != nil {
		return nil, err
	}
	select {
	case s := <-c.accepted:
		return s, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.done:
		return nil, c.Err()
	}
}

// control reads the records of the peer, and sends those of this end.
func (c *TCP) control(y *yamux.Stream) {
	go c.sendRecords(y)
	go c.tidy(y)
	c.end(c.readRecords(countedReader{c, y}))
}

// tidy has yamux give empty buffers back, which may have the size of a window. It waits
// while the rest of a frame is to come, so it has a goroutine.
func (c *TCP) tidy(control *yamux.Stream) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-c.done:
			return
		case <-tick.C:
		}
		all := []*yamux.Stream{control}
		c.mu.Lock()
		for _, s := range c.streams {
			all = append(all, s.y)
		}
		c.mu.Unlock()
		for _, y := range all {
			y.Shrink()
		}
	}
}

func (c *TCP) sendRecords(y *yamux.Stream) {
	for {
		select {
		case <-c.wake:
		case <-c.done:
			return
		}
		c.mu.Lock()
		records := c.records
		c.records = nil
		c.mu.Unlock()
		if _, err := y.Write(records); err != nil {
			c.end(err)
			return
		}
	}
}

// readRecords carries out the records of the peer until the session ends, and returns
// why.
func (c *TCP) readRecords(r io.Reader) error {
	for {
		var b [13]byte
		if _, err := io.ReadFull(r, b[:11]); err != nil {
			return kcp.ErrReset
		}
		more := b[11:]
		if b[0] == recordClose {
			more = make([]byte, min(binary.BigEndian.Uint16(b[9:]), maxText))
		}
		if _, err := io.ReadFull(r, more); err != nil {
			return kcp.ErrReset
		}
		switch b[0] {
		case recordReset:
			if err := c.resetByPeer(binary.BigEndian.Uint32(b[1:]), binary.BigEndian.Uint64(b[5:])); err != nil {
				return err
			}
		case recordClose:
			return &kcp.PeerCloseError{Code: binary.BigEndian.Uint64(b[1:]), Text: string(more)}
		default:
			return errViolation
		}
	}
}

// resetByPeer ends a stream that the peer has reset. That may be known here in a moment.
func (c *TCP) resetByPeer(id uint32, code uint64) error {
	c.mu.Lock()
	s := c.streams[id]
	if s == nil && id > c.highest[id%2] {
		c.early[id] = code
	}
	many := len(c.early) > 2*backlog
	c.mu.Unlock()
	switch {
	case many:
		return errViolation
	case s != nil:
		s.end(&kcp.StreamError{Code: code, Remote: true})
	}
	return nil
}

// tellLocked has a record sent. It does not wait.
func (c *TCP) tellLocked(record []byte) error {
	if len(c.records)+len(record) > maxRecords {
		return errRecords
	}
	c.records = append(c.records, record...)
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return nil
}

// hold counts n more bytes that wait to be read. It reports an error if there are too
// many.
func (c *TCP) hold(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.account == nil {
		return nil // end has taken them off
	}
	c.unread += int64(n)
	most := cmp.Or(max(c.config.Limits.MaxBuffered, 0), defaultMaxBuffered) / unreadShare
	if c.account.unread.Add(int64(n)) > int64(most) && n > 0 {
		return errUnread
	}
	return nil
}

// end ends the session, and all streams with it, because of err.
func (c *TCP) end(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	if c.closing {
		err = net.ErrClosed
	} else if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = kcp.ErrReset // streams would take it for their end
	}
	c.err = err
	if c.account != nil {
		c.account.unread.Add(-c.unread)
	}
	streams, mux := c.streams, c.mux
	c.streams = make(map[uint32]*stream)
	c.mu.Unlock()
	close(c.done)
	for _, s := range streams {
		s.end(err)
		_ = s.y.SetReadDeadline(time.Unix(1, 0)) // of bury, too: yamux would have it spin
	}
	go func() { // it waits for what is being written
		if mux != nil {
			_ = c.wire.Close()
			_ = mux.Close()
		}
		_ = c.tls.Close()
	}()
}

// CloseWithError ends the session with a reason, and waits for a while until the peer
// knows.
func (c *TCP) CloseWithError(code uint64, text string) error {
	text = text[:min(len(text), maxText)]
	record := binary.BigEndian.AppendUint64([]byte{recordClose}, code)
	record = append(binary.BigEndian.AppendUint16(record, uint16(len(text))), text...)
	c.mu.Lock()
	if c.err != nil || c.closing {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.closing = true
	told := c.mux != nil && c.tellLocked(record) == nil
	c.mu.Unlock()
	if told {
		select {
		case <-c.done:
		case <-time.After(time.Duration(c.linger.Load())):
		}
	}
	c.end(net.ErrClosed)
	return nil
}

// Close is CloseWithError without a reason.
func (c *TCP) Close() error { return c.CloseWithError(0, "") }

// Abort ends the session at once. The peer does not learn why.
func (c *TCP) Abort(uint64, string) error {
	c.end(net.ErrClosed)
	return nil
}

// SetLinger sets how long Close waits for the peer.
func (c *TCP) SetLinger(d time.Duration) error {
	c.linger.Store(int64(d))
	return nil
}

// Done returns a channel that is closed when the session has ended.
func (c *TCP) Done() <-chan struct{} { return c.done }

// Err returns why the session has ended; nil: it has not.
func (c *TCP) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// RemoteAddr returns the peer's address, or that of a proxy.
func (c *TCP) RemoteAddr() net.Addr { return c.tls.RemoteAddr() }

// TLS returns what the handshake has shown.
func (c *TCP) TLS() *tls.ConnectionState {
	state := c.tls.ConnectionState()
	return &state
}

// Transport returns "tcp".
func (c *TCP) Transport() string { return "tcp" }

// Figures returns what the session knows of itself.
func (c *TCP) Figures() Figures {
	return Figures{
		Sent: c.sent.Load(), Received: c.received.Load(), RTT: time.Duration(c.rtt.Load()),
		Unanswered: c.unansweredFor() >= Unanswered,
	}
}

// unansweredFor returns how long the peer has left a ping unanswered, and sent nothing.
func (c *TCP) unansweredFor() time.Duration {
	asked := c.asked.Load()
	if asked == 0 {
		return 0
	}
	return c.wire.now() - time.Duration(max(asked, c.wire.arrived.Load()))
}

// watch asks the peer for a sign of life after a silence, and ends the session if there
// is none.
func (c *TCP) watch() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var carried uint64
	idle := time.Now()
	c.ask()
	for {
		select {
		case <-c.done:
			return
		case <-tick.C:
		}
		if now := c.sent.Load() + c.received.Load(); now != carried {
			carried, idle = now, time.Now()
		}
		if limit := c.config.IdleTimeout; limit > 0 && time.Since(idle) >= limit {
			c.end(&kcp.PeerLostError{Idle: true, Silence: limit})
		}
		if silence := c.unansweredFor(); silence >= c.peerTimeout() {
			c.end(&kcp.PeerLostError{Silence: silence})
		}
		arrived := time.Duration(c.wire.arrived.Load())
		silence := c.wire.now() - arrived
		waits := time.Duration(c.wire.sent.Load()) > arrived && silence >= time.Second
		if (waits || c.config.KeepAlive > 0 && silence >= c.config.KeepAlive) && c.asked.Load() == 0 {
			c.ask()
		}
	}
}

// ask sends a ping. The channel gets the round trip.
func (c *TCP) ask() <-chan time.Duration {
	c.asked.CompareAndSwap(0, int64(c.wire.now()))
	answered := make(chan time.Duration, 1)
	go func() {
		if rtt, err := c.mux.Ping(); err == nil {
			c.rtt.Store(int64(rtt))
			c.asked.Store(0)
			answered <- rtt
		} else if asked := c.asked.Load(); c.wire.arrived.Load() > asked {
			c.asked.CompareAndSwap(asked, 0) // the peer is there: it is asked again
		}
	}()
	return answered
}

// Ping measures the round trip.
func (c *TCP) Ping(ctx context.Context) (time.Duration, error) {
	if err := c.begin(ctx); err != nil {
		return 0, err
	}
	select {
	case rtt := <-c.ask():
		return rtt, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-c.done:
		return 0, c.Err()
	}
}
