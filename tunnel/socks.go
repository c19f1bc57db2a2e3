package tunnel

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/arqnet/kcp/tunnel/internal/carrier"
	"github.com/arqnet/kcp/tunnel/internal/tcp"
	"github.com/things-go/go-socks5"
	"github.com/things-go/go-socks5/statute"
)

// socksConn is a connection that speaks SOCKS5: one of TCP.
type socksConn interface {
	net.Conn
	CloseWrite() error
	SetLinger(seconds int) error
}

// serveSocks speaks SOCKS5 on a connection: CONNECT and UDP ASSOCIATE, without
// identity. Names go to the other end as they are. What it opens here is counted for a
// user, unless that is nil, and in figures for a remote.
func serveSocks(ctx context.Context, conn socksConn, log *slog.Logger, of *account, remote string, open openFunc) {
	stop := context.AfterFunc(ctx, func() { tcp.Abort(conn) })
	defer stop()
	server := socks5.NewServer(
		socks5.WithResolver(noResolver{}),
		socks5.WithConnectHandle(func(_ context.Context, _ io.Writer, r *socks5.Request) error {
			_ = conn.SetReadDeadline(time.Time{})
			return socksConnect(ctx, conn, r, remote, open)
		}),
		socks5.WithAssociateHandle(func(_ context.Context, _ io.Writer, r *socks5.Request) error {
			_ = conn.SetReadDeadline(time.Time{})
			return socksAssociate(ctx, conn, r, log, of, remote, open)
		}),
	)
	_ = conn.SetReadDeadline(time.Now().Add(openDeadline))
	if err := server.ServeConn(conn); err != nil {
		log.Debug("SOCKS5", "from", conn.RemoteAddr(), "error", err)
	}
}

// noResolver leaves names to the other end.
type noResolver struct{}

func (noResolver) Resolve(ctx context.Context, _ string) (context.Context, net.IP, error) {
	return ctx, nil, nil
}

// socksTarget returns the target of a request.
func socksTarget(a *statute.AddrSpec) (string, error) {
	if a.FQDN != "" {
		return canonicalTarget((&statute.AddrSpec{FQDN: a.FQDN, Port: a.Port}).String())
	}
	ip, ok := netip.AddrFromSlice(a.IP)
	if !ok {
		return "", refusal(codeMalformed)
	}
	return canonicalTarget(netip.AddrPortFrom(ip.Unmap(), uint16(a.Port)).String())
}

// bufferedConn is a connection of which the beginning was read ahead.
type bufferedConn struct {
	socksConn
	r io.Reader
}

func (c bufferedConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// socksConnect carries out CONNECT.
func socksConnect(ctx context.Context, conn socksConn, r *socks5.Request, remote string, open openFunc) error {
	target, err := socksTarget(r.RawDestAddr)
	if err != nil {
		_ = socks5.SendReply(conn, statute.RepAddrTypeNotSupported, nil)
		return err
	}
	s, stream, err := open(ctx, kindSocksTCP, target)
	if err != nil {
		_ = socks5.SendReply(conn, statute.RepServerFailure, nil)
		return err
	}
	if err := awaitOpenFor(conn, r.Reader, stream); err != nil {
		_ = stream.Reset(uint64(codeGone))
		s.release(stream)
		_ = socks5.SendReply(conn, socksReply(err), nil)
		return &targetError{target, err}
	}
	if err := socks5.SendReply(conn, statute.RepSuccess, &net.TCPAddr{IP: net.IPv4zero}); err != nil {
		_ = stream.Reset(uint64(codeGone))
		s.release(stream)
		return err
	}
	began := time.Now()
	if err = s.relay(bufferedConn{conn, r.Reader}, stream, false, subject{remote: remote, target: target}); err == nil {
		s.log.Debug("connection ended", "kind", kindSocksTCP, "target", target, "from", conn.RemoteAddr(), since(began))
	}
	return err
}

// awaitOpenFor is awaitOpen for a connection from which r reads. If that ends meanwhile
// the stream is reset: nobody waits for what is being dialled.
func awaitOpenFor(conn net.Conn, r io.Reader, stream carrier.Stream) error {
	ahead, ok := r.(interface{ Peek(n int) ([]byte, error) })
	if !ok {
		return awaitOpen(stream)
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if _, err := ahead.Peek(1); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			_ = stream.Reset(uint64(codeGone))
		}
	}()
	err := awaitOpen(stream)
	_ = conn.SetReadDeadline(time.Unix(1, 0)) // ends Peek
	<-watched
	_ = conn.SetReadDeadline(time.Time{})
	return err
}

// targetError is an error with the target that it is about.
type targetError struct {
	target string
	err    error
}

func (e *targetError) Error() string { return e.target + ": " + e.err.Error() }
func (e *targetError) Unwrap() error { return e.err }

// socksReply returns the reply of SOCKS5 for why a stream was refused.
func socksReply(err error) uint8 {
	var why refusal
	if !errors.As(err, &why) {
		return statute.RepServerFailure
	}
	switch why {
	case codeForbidden:
		return statute.RepRuleFailure
	case codeConnRefused:
		return statute.RepConnectionRefused
	case codeUnreachable:
		return statute.RepNetworkUnreachable
	case codeTimeout, codeUnresolvable:
		return statute.RepHostUnreachable
	}
	return statute.RepServerFailure
}

// socksSplit returns the target of a packet of UDP ASSOCIATE, and its payload.
func socksSplit(packet []byte) (target string, payload []byte, ok bool) {
	d, err := statute.ParseDatagram(packet)
	if err != nil || d.Frag != 0 {
		return "", nil, false
	}
	target, err = socksTarget(&d.DstAddr)
	return target, d.Data, err == nil
}

// socksWrap returns a packet of UDP ASSOCIATE with a payload of a target; nil: the target
// does not fit into one.
func socksWrap(target string, payload []byte) []byte {
	d, err := statute.NewDatagram(target, payload)
	if err != nil {
		return nil
	}
	return d.Bytes()
}

// socksAssociate carries out UDP ASSOCIATE: a socket for packets of the host that
// has asked, until its connection ends. Each target has a flow. The connection has shown
// that the host has its address, so what it is sent has no limit.
func socksAssociate(ctx context.Context, conn socksConn, r *socks5.Request, log *slog.Logger, of *account, remote string, open openFunc) error {
	if of != nil {
		if !of.addConn() {
			_ = socks5.SendReply(conn, statute.RepServerFailure, nil)
			return errTooMany
		}
		defer of.removeConn()
	}
	here := conn.LocalAddr().(*net.TCPAddr)
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: here.IP, Zone: here.Zone})
	if err != nil {
		_ = socks5.SendReply(conn, statute.RepServerFailure, nil)
		return err
	}
	owner := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	f := front{
		pc: pc, log: log, lean: true, remote: remote,
		open: func(target string) (*session, carrier.Stream, error) { return open(ctx, kindSocksUDP, target) },
		split: func(from netip.AddrPort, packet []byte) (string, []byte, bool) {
			if from.Addr().Unmap() != owner {
				return "", nil, false
			}
			return socksSplit(packet)
		},
		wrap: socksWrap,
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.serve()
	}()
	if err = socks5.SendReply(conn, statute.RepSuccess, pc.LocalAddr()); err == nil {
		_, err = io.Copy(io.Discard, r.Reader)
	}
	_ = pc.Close()
	<-ended
	return err
}
