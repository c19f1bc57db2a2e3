// Package carrier has what sessions of the tunnel run over, behind one interface: KCP,
// which is UDP, and TLS over TCP for paths that let no UDP pass.
//
// Over TCP the wire is this. The ends speak TLS 1.3 with the same ALPN id, certificates
// and keys as over UDP. The first stream of a session, on which the client says who it
// is, is the bare TLS connection: until the client is known nothing else is there that
// could grow. Then yamux begins (github.com/hashicorp/yamux, spec.md), with the dialler
// as its client. The first stream of yamux, number 1, has records, each with a type of 1
// byte:
//
//	0 reset  number of a stream (4 bytes), code (8): it ends at once at both ends
//	1 close  code (8), length (2), text of at most 256 bytes: the session ends
//
// Each other stream is a sequence of frames: kind (1), length (3), and that many bytes.
//
//	0 bytes    of a stream of bytes
//	1 message  a whole one; the first frame says which of the two a stream is
//	2 end      nothing follows in this direction, of length 0
//
// What ends without such an end was cut off, whatever yamux says of it. Numbers are in
// network byte order. A keep-alive is a ping of yamux.
package carrier

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"time"

	"github.com/arqnet/kcp"
)

// Conn is a session between two ends. What the methods do is as in *kcp.Conn.
type Conn interface {
	OpenStream(ctx context.Context, options *kcp.StreamOptions) (Stream, error)
	AcceptStream(ctx context.Context) (Stream, error)
	Ping(ctx context.Context) (rtt time.Duration, err error)
	RemoteAddr() net.Addr
	TLS() *tls.ConnectionState // nil: there is none
	Figures() Figures
	Transport() string // "udp" or "tcp"
	Done() <-chan struct{}
	Err() error
	SetLinger(d time.Duration) error
	Close() error
	CloseWithError(code uint64, text string) error
	Abort(code uint64, text string) error
}

// Datagrams is what a Conn has that can send packets beside its streams.
type Datagrams interface {
	MaxDatagramSize() int
	SendDatagram(b []byte) error
	ReceiveDatagram(ctx context.Context) ([]byte, error)
}

// Stream is a stream of a session. What the methods do is as in *kcp.Stream, which is
// one.
type Stream interface {
	io.ReadWriteCloser
	ID() uint32
	Options() kcp.StreamOptions
	CloseWrite() error
	Reset(code uint64) error
	SetReadDeadline(t time.Time) error
	WriteMessage(b []byte, options *kcp.MessageOptions) error
	ReadMessage(b []byte) (int, error)
	NextMessageSize() (size int, ok bool)
	Done() <-chan struct{}
}

// Figures are what a session knows of itself.
type Figures struct {
	Sent, Received uint64        // bytes of payload
	RTT            time.Duration // 0: not known
	// Unanswered reports whether the peer has left data unanswered for some seconds.
	Unanswered bool
}

// Unanswered is how long a peer may leave data unanswered at the least.
const Unanswered = 3 * time.Second

// KCP is a session over UDP.
type KCP struct{ *kcp.Conn }

// OpenStream opens a stream.
func (c KCP) OpenStream(ctx context.Context, options *kcp.StreamOptions) (Stream, error) {
	return streamOf(c.Conn.OpenStream(ctx, options))
}

// AcceptStream waits for a stream of the peer.
func (c KCP) AcceptStream(ctx context.Context) (Stream, error) {
	return streamOf(c.Conn.AcceptStream(ctx))
}

// streamOf returns a stream without a nil *kcp.Stream in it.
func streamOf(s *kcp.Stream, err error) (Stream, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// TLS returns what the handshake has shown.
func (c KCP) TLS() *tls.ConnectionState { return c.Peer().TLS }

// Transport returns "udp".
func (c KCP) Transport() string { return "udp" }

// Figures returns what the session knows of itself.
func (c KCP) Figures() Figures {
	s := c.Stats()
	return Figures{
		Sent: s.BytesAcked, Received: s.BytesReceived, RTT: s.RTT,
		Unanswered: s.InFlight != 0 && s.RTTAge >= max(Unanswered, 4*s.RTO),
	}
}
