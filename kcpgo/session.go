package kcp

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	engine "github.com/arqnet/kcp"
	"github.com/arqnet/kcp/compat"
)

// UDPSession is a session with a peer: a net.Conn. All methods are safe for
// concurrent use.
type UDPSession struct {
	conn   *engine.Conn
	port   *port
	remote net.Addr
	l      *Listener // nil: dialled
	closed atomic.Bool

	older, newer *UDPSession // of the address in l; l.mu guards them

	validated chan struct{} // closed when the peer's address is validated; nil: dialled

	settings settings

	reading sync.Mutex // held by Read; guards rest and large
	rest    []byte     // of a message that was longer than the slice it was read into
	large   *[]byte    // what rest is a part of; of buffers; nil: nothing
	writing sync.Mutex // held by WriteBuffers

	keeping sync.Mutex // guards kept; after reading
	kept    [][]byte   // what had arrived before Close, to be read
}

func newSession(c *engine.Conn, p *port, remote net.Addr, l *Listener) *UDPSession {
	s := &UDPSession{conn: c, port: p, remote: remote, l: l}
	if l != nil {
		s.validated = make(chan struct{})
		l.add(s)
	}
	return s
}

// Read waits for data, and reads up to len(b) bytes of one message of the peer:
// what it has passed to Write, or a part of up to a packet of that. What does
// not fit into b is for the next Read. After SetStreamMode(true) Read may join
// several messages.
//
// Data that has arrived is returned even if the read deadline has passed, or
// after Close. Then Read fails with
//   - a net.Error with the text "timeout" when the read deadline has passed;
//   - an error that matches io.ErrClosedPipe and net.ErrClosed after Close;
//   - io.EOF if the peer has closed the session, which peers with kcp-go cannot
//     tell;
//   - the error with which the session has ended.
func (s *UDPSession) Read(b []byte) (n int, err error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	switch {
	case len(s.rest) > 0:
		n = copy(b, s.rest)
		s.keep(s.rest[n:], s.large)
	case s.settings.stream.Load() && len(b) > 0:
		n, err = s.conn.Read(b)
	default:
		n, err = s.readMessage(b)
	}
	if errors.Is(err, net.ErrClosed) {
		n, err = s.readKept(b, err)
	}
	atomic.AddUint64(&DefaultSnmp.BytesReceived, uint64(n))
	meters.touch()
	return n, sessionError(err)
}

// readMessage reads one message that is not empty, and keeps what does not fit
// into b. s.reading is held.
func (s *UDPSession) readMessage(b []byte) (int, error) {
	for {
		n, err := s.conn.ReadMessage(b)
		if errors.Is(err, io.ErrShortBuffer) {
			return s.readLarge(b)
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// readLarge is readMessage for a message that waits, and does not fit into b.
// s.reading is held.
func (s *UDPSession) readLarge(b []byte) (int, error) {
	large := buffers.Get().(*[]byte)
	if size, _ := s.conn.NextMessageSize(); size > len(*large) {
		*large = make([]byte, size)
	}
	n, err := s.conn.ReadMessage(*large)
	fits := copy(b, (*large)[:n])
	s.keep((*large)[fits:n], large)
	return fits, err
}

// keep makes rest, a part of large, what the next Read returns. s.reading is
// held.
func (s *UDPSession) keep(rest []byte, large *[]byte) {
	if s.rest, s.large = rest, large; len(rest) == 0 {
		s.rest, s.large = nil, nil
		recycle(large)
	}
}

// readKept reads what Close has kept. If that is nothing, it returns err. s.reading is
// held.
func (s *UDPSession) readKept(b []byte, err error) (n int, _ error) {
	s.keeping.Lock()
	defer s.keeping.Unlock()
	for len(s.kept) > 0 {
		m := copy(b[n:], s.kept[0])
		n += m
		if m < len(s.kept[0]) {
			s.kept[0] = s.kept[0][m:]
			return n, nil
		}
		s.kept = s.kept[1:]
		if n > 0 && !s.settings.stream.Load() {
			return n, nil
		}
	}
	if n > 0 {
		return n, nil
	}
	return 0, err
}

// buffers holds buffers for messages and for writes that are joined.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, 2*maxPacket)
	return &b
}}

// recycle puts b back, unless it has grown beyond what is usual.
func recycle(b *[]byte) {
	const most = 1 << 16
	if len(*b) <= most {
		buffers.Put(b)
	}
}

// Write is WriteBuffers with one slice.
func (s *UDPSession) Write(b []byte) (n int, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.write(b)
}

// WriteBuffers waits until fewer segments wait for the peer's acknowledgement
// than the send window has, and then takes all of the slices, whatever their
// size, as if nothing could come between them. Each becomes one message, or
// several if it is larger than a packet; after SetStreamMode(true) all are parts
// of one stream. It does not wait for the peer to take anything. On success n is
// the sum of the lengths.
//
// It fails with
//   - a net.Error with the text "timeout" if the write deadline passes first;
//   - an error that matches io.ErrClosedPipe and net.ErrClosed after Close;
//   - the error with which the session has ended.
func (s *UDPSession) WriteBuffers(v [][]byte) (n int, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if len(v) > 1 && s.settings.stream.Load() {
		return s.writeJoined(v)
	}
	for _, b := range v {
		m, err := s.write(b)
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// writeJoined queues the slices at once, so that slices of a stream share packets.
// s.writing is held.
func (s *UDPSession) writeJoined(v [][]byte) (int, error) {
	joined := buffers.Get().(*[]byte)
	defer recycle(joined)
	b := (*joined)[:0]
	for _, part := range v {
		b = append(b, part...)
	}
	*joined = b[:cap(b)]
	return s.write(b)
}

// write queues b. s.writing is held.
func (s *UDPSession) write(b []byte) (n int, err error) {
	n, err = s.conn.Write(b)
	atomic.AddUint64(&DefaultSnmp.BytesSent, uint64(n))
	meters.touch()
	return n, sessionError(err)
}

// Close closes the session. Calls that wait return, and what has arrived can
// still be read. It does not wait: what was written is delivered in the
// background, for as long as the peer acknowledges any of it within 30 seconds.
// A peer of this package then reads io.EOF; kcp-go learns nothing.
//
// A dialled session then closes its socket, if it owns it. If it does not, it
// leaves the socket at once, and what was not delivered is lost; so it does if
// the process has 1024 closed sessions with sockets that still deliver. Further
// calls return an error that matches io.ErrClosedPipe.
func (s *UDPSession) Close() error {
	if s.closed.Swap(true) {
		return errClosed
	}
	DefaultSnmp.closed()
	s.keeping.Lock()
	s.kept, _ = compat.Close(s.conn) // it goes on in the background
	s.keeping.Unlock()
	switch {
	case s.l != nil:
		s.l.forget(s)
		return nil
	case !s.port.own:
		return s.port.shut()
	}
	select {
	case <-s.conn.Done():
		return s.port.shut()
	default:
		return s.port.shutAfter(s.conn)
	}
}

// supersede ends the session: a later one of its address takes its place.
func (s *UDPSession) supersede() {
	if !s.closed.Swap(true) {
		DefaultSnmp.closed()
		_ = s.conn.Abort(0, "")
	}
}

// LocalAddr returns the address of the socket, as in kcp-go. An accepted session whose
// socket is bound to no address has the one that its peer sends to.
func (s *UDPSession) LocalAddr() net.Addr { return s.conn.LocalAddr() }

// RemoteAddr returns the address of the peer, as NewConn2 was given it, or as
// the socket has returned it.
func (s *UDPSession) RemoteAddr() net.Addr { return s.remote }

// SetDeadline is SetReadDeadline and SetWriteDeadline.
func (s *UDPSession) SetDeadline(t time.Time) error {
	_ = s.conn.SetDeadline(t) // fails after Close, when it does nothing
	return nil
}

// SetReadDeadline sets the time after which Read does not wait. The zero time,
// the default, means none. It also counts for a Read that waits already. It
// returns nil.
func (s *UDPSession) SetReadDeadline(t time.Time) error {
	_ = s.conn.SetReadDeadline(t) // fails after Close, when it does nothing
	return nil
}

// SetWriteDeadline sets the time after which Write and WriteBuffers do not wait.
// The zero time, the default, means none. It also counts for a call that waits
// already. It returns nil.
func (s *UDPSession) SetWriteDeadline(t time.Time) error {
	_ = s.conn.SetWriteDeadline(t) // fails after Close, when it does nothing
	return nil
}

// GetConv returns the conversation id.
func (s *UDPSession) GetConv() uint32 { return s.conn.Conv() }

// GetRTO returns the retransmission time-out in milliseconds, 200 at first.
func (s *UDPSession) GetRTO() uint32 { return uint32(s.conn.Stats().RTO.Milliseconds()) }

// GetSRTT returns the smoothed round-trip time in milliseconds, 0 before the
// first sample.
func (s *UDPSession) GetSRTT() int32 {
	return int32((s.conn.Stats().RTT + time.Millisecond - 1).Milliseconds())
}

// GetSRTTVar returns the variation of the round-trip time in milliseconds.
func (s *UDPSession) GetSRTTVar() int32 { return int32(s.conn.Stats().RTTVar.Milliseconds()) }

// Control calls f with the socket of the session. It fails if the session does
// not own it: an accepted one, and one of NewConn to NewConn3.
func (s *UDPSession) Control(f func(conn net.PacketConn) error) error {
	if s.l != nil || !s.port.own {
		return errNotOwner
	}
	return f(s.port.pc)
}

// SetDSCP sets the DSCP field of the socket's packets over IPv4, and the traffic
// class over IPv6. It fails on an accepted session, and if the socket cannot do
// it.
func (s *UDPSession) SetDSCP(dscp int) error {
	if s.l != nil {
		return errInvalidOperation
	}
	return setDSCP(s.port.pc, dscp)
}

// SetReadBuffer sets the receive buffer of the socket in bytes. It fails on an
// accepted session, and if the socket cannot do it.
func (s *UDPSession) SetReadBuffer(bytes int) error {
	if s.l != nil {
		return errInvalidOperation
	}
	return setReadBuffer(s.port.pc, bytes)
}

// SetWriteBuffer sets the send buffer of the socket in bytes. It fails on an
// accepted session, and if the socket cannot do it.
func (s *UDPSession) SetWriteBuffer(bytes int) error {
	if s.l != nil {
		return errInvalidOperation
	}
	return setWriteBuffer(s.port.pc, bytes)
}
