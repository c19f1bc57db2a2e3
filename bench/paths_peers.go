package main

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/quic-go/quic-go"
	"github.com/xtaci/smux"
)

// pathPeer opens the ends of a transfer between two sockets of a port.
type pathPeer func(r *pathRun, port uint16) (*pathEnds, error)

var pathPeers = map[string]pathPeer{
	ours:      func(r *pathRun, port uint16) (*pathEnds, error) { return kcpPath(r, port, nil) },
	kcpCubic:  func(r *pathRun, port uint16) (*pathEnds, error) { return kcpPath(r, port, congestion.NewCubic) },
	kcpGo:     kcpGoPath,
	kcpGoSmux: smuxPath,
	quicGo:    quicPath,
}

// sockets opens the sockets of both hosts.
func (r *pathRun) sockets(port uint16) (s [2]net.PacketConn, err error) {
	s, shut, err := streamsSockets(r.network, port)
	r.atEnd(func() { shut() })
	return s, err
}

// atEnd has f called at the end of the run, before what was asked for earlier.
func (r *pathRun) atEnd(f func()) { r.closes = append([]func(){f}, r.closes...) }

// kcpPair opens a session of this module from the first socket to the second.
func kcpPair(s [2]net.PacketConn, config kcp.Config) (near, far *kcp.Conn, stop func(), err error) {
	var ends [2]*kcp.Endpoint
	for i := range s {
		if ends[i], err = kcp.NewEndpoint(s[i], &config); err != nil {
			return nil, nil, nil, err
		}
	}
	l, err := ends[1].Listen()
	if err != nil {
		return nil, nil, nil, err
	}
	if near, err = ends[0].Dial(context.Background(), l.Addr()); err != nil {
		return nil, nil, nil, err
	}
	if far, err = l.AcceptKCP(context.Background()); err != nil {
		return nil, nil, nil, err
	}
	return near, far, func() {
		_, _ = near.Abort(), far.Abort()
		_, _ = ends[0].Close(), ends[1].Close()
	}, nil
}

func kcpPath(r *pathRun, port uint16, control func() congestion.Control) (*pathEnds, error) {
	s, err := r.sockets(port)
	if err != nil {
		return nil, err
	}
	near, far, stop, err := kcpPair(s, kcp.Config{CongestionControl: control, Repetition: r.repetition})
	if err != nil {
		return nil, err
	}
	r.atEnd(stop)
	p := &pathEnds{w: near, r: far, counts: func() (segments, again float64) {
		s := near.Stats()
		return float64(s.SegmentsSent + s.Retransmits()), float64(s.Retransmits())
	}}
	if !r.row.stream {
		return p, nil
	}
	open := func(priority int) (io.ReadWriter, io.ReadWriter, error) {
		to, err := near.OpenStream(context.Background(), &kcp.StreamOptions{Priority: priority})
		if err != nil {
			return nil, nil, err
		}
		from, err := far.AcceptStream(context.Background())
		return to, from, err
	}
	return p, p.streams(open)
}

// streams puts the transfer and messages on streams that open returns.
func (p *pathEnds) streams(open func(priority int) (to, from io.ReadWriter, err error)) (err error) {
	if p.w, p.r, err = open(0); err != nil {
		return err
	}
	p.messagesTo, p.messagesFrom, err = open(1)
	return err
}

// counted is impl with counts of what the first end sends.
func counted(impl simImpl) (first simImpl, counts func() (segments, again float64)) {
	var segments, distinct atomic.Int64
	first = func(output func([]byte)) (driver, error) {
		return impl(func(packet []byte) {
			const header, push = 24, 81
			for p := packet; len(p) >= header; p = p[header+binary.LittleEndian.Uint32(p[20:]):] {
				if p[4] != push {
					continue
				}
				segments.Add(1)
				if int64(binary.LittleEndian.Uint32(p[12:])) == distinct.Load() {
					distinct.Add(1)
				}
			}
			output(packet)
		})
	}
	return first, func() (float64, float64) {
		all := segments.Load()
		return float64(all), float64(all - distinct.Load())
	}
}

// kcpGoPair are two ends of kcp-go.
func kcpGoPair(r *pathRun, port uint16) (ends [2]*driven, counts func() (segments, again float64), err error) {
	s, err := r.sockets(port)
	if err != nil {
		return ends, nil, err
	}
	window := r.row.window
	if window == 0 {
		window = pathWindow
	}
	impl := newKCPGoImpl(1, 10, 2, 1, window, 0)
	first, counts := counted(impl)
	for i, impl := range []simImpl{first, impl} {
		c, err := newDriven(impl, s[i], s[1-i].LocalAddr(), window)
		if err != nil {
			return ends, nil, err
		}
		ends[i] = c
		r.atEnd(func() { _ = c.Close() })
	}
	return ends, counts, nil
}

func kcpGoPath(r *pathRun, port uint16) (*pathEnds, error) {
	ends, counts, err := kcpGoPair(r, port)
	return &pathEnds{w: ends[0], r: ends[1], counts: counts}, err
}

func smuxPath(r *pathRun, port uint16) (*pathEnds, error) {
	ends, counts, err := kcpGoPair(r, port)
	if err != nil {
		return nil, err
	}
	near, far, err := smuxOver(ends)
	if err != nil {
		return nil, err
	}
	r.atEnd(func() { _, _ = near.Close(), far.Close() })
	p := &pathEnds{counts: counts}
	return p, p.streams(func(int) (io.ReadWriter, io.ReadWriter, error) {
		to, err := near.OpenStream()
		if err != nil {
			return nil, nil, err
		}
		from, err := far.AcceptStream()
		return to, from, err
	})
}

// smuxOver opens a session of smux that holds nothing back.
func smuxOver(ends [2]*driven) (near, far *smux.Session, err error) {
	config := smux.DefaultConfig()
	config.Version, config.KeepAliveDisabled = 2, true
	config.MaxReceiveBuffer, config.MaxStreamBuffer = 64<<20, 16<<20
	if far, err = smux.Server(ends[1], config); err != nil {
		return nil, nil, err
	}
	near, err = smux.Client(ends[0], config)
	return near, far, err
}

// pathQUIC has a size of packets that is discovered: with another InitialPacketSize
// v0.59's pacer has a size of its own, and may wait for ever without letting time pass.
var pathQUIC = &quic.Config{
	InitialStreamReceiveWindow:     16 << 20,
	MaxStreamReceiveWindow:         64 << 20,
	InitialConnectionReceiveWindow: 16 << 20,
	MaxConnectionReceiveWindow:     64 << 20,
	MaxIdleTimeout:                 time.Minute,
}

func quicPath(r *pathRun, port uint16) (*pathEnds, error) {
	s, err := r.sockets(port)
	if err != nil {
		return nil, err
	}
	near, far, stop, err := quicPair(s, pathQUIC)
	if err != nil {
		return nil, err
	}
	r.atEnd(stop)
	p := &pathEnds{counts: func() (segments, again float64) {
		s := near.ConnectionStats()
		return float64(s.PacketsSent), float64(s.PacketsLost)
	}}
	return p, p.streams(func(int) (io.ReadWriter, io.ReadWriter, error) {
		to, from, err := quicStreamPair(near, far)
		return to, from, err
	})
}

// quicPair opens a connection from the first socket to the second.
func quicPair(s [2]net.PacketConn, config *quic.Config) (near, far *quic.Conn, stop func(), err error) {
	server, client, err := selfSigned()
	if err != nil {
		return nil, nil, nil, err
	}
	transports := [2]*quic.Transport{{Conn: s[0]}, {Conn: s[1]}}
	l, err := transports[1].Listen(server, config)
	if err != nil {
		return nil, nil, nil, err
	}
	if near, err = transports[0].Dial(context.Background(), s[1].LocalAddr(), client, config); err != nil {
		return nil, nil, nil, err
	}
	if far, err = l.Accept(context.Background()); err != nil {
		return nil, nil, nil, err
	}
	return near, far, func() {
		_, _, _ = near.CloseWithError(0, ""), far.CloseWithError(0, ""), l.Close()
		_, _ = transports[0].Close(), transports[1].Close()
	}, nil
}

// quicStreamPair opens a stream, of which the other end learns by a byte.
func quicStreamPair(near, far *quic.Conn) (to, from *quic.Stream, err error) {
	if to, err = near.OpenStreamSync(context.Background()); err != nil {
		return nil, nil, err
	}
	if _, err = to.Write([]byte{greeting}); err != nil {
		return nil, nil, err
	}
	if from, err = far.AcceptStream(context.Background()); err != nil {
		return nil, nil, err
	}
	return to, from, wantGreeting(from)
}
