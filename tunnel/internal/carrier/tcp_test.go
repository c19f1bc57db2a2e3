package carrier

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/hashicorp/yamux"
	"github.com/stretchr/testify/require"
)

// ends is a session over TCP.
type ends struct {
	client, server *TCP
	cable          net.Conn // of the client, below TLS
	accounts       [2]*Account
}

// settings returns the settings of both ends.
func settings(t *testing.T) *kcp.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return &kcp.Config{
		Limits: kcp.Limits{MaxStreams: 64}, KeepAlive: 10 * time.Second,
		TLS: &tls.Config{
			InsecureSkipVerify: true, NextProtos: []string{"kcptunnel/1"}, MinVersion: tls.VersionTLS13,
			Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		},
	}
}

// connect returns a session whose first stream was used and closed.
func connect(t *testing.T) *ends {
	t.Helper()
	return begun(t, settings(t))
}

// begun is connect with settings.
func begun(t *testing.T, config *kcp.Config) *ends {
	t.Helper()
	e := unused(t, config)
	one, err := e.client.OpenStream(t.Context(), nil)
	require.NoError(t, err)
	go func() { _, _ = io.WriteString(one, "hello") }()
	other, err := e.server.AcceptStream(t.Context())
	require.NoError(t, err)
	hello := make([]byte, 5)
	_, err = io.ReadFull(other, hello)
	require.NoError(t, err)
	require.Equal(t, "hello", string(hello))
	require.NoError(t, other.Close())
	require.NoError(t, one.Close())
	return e
}

// unused returns a session of which nothing was used.
func unused(t *testing.T, config *kcp.Config) *ends {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	cable, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	e := &ends{NewTCP(cable, config, true), NewTCP(accepted, config, false), cable, [2]*Account{{}, {}}}
	e.client.CountFor(e.accounts[0])
	e.server.CountFor(e.accounts[1])
	t.Cleanup(func() {
		_ = e.client.Abort(0, "")
		_ = e.server.Abort(0, "")
	})
	return e
}

// stream returns both ends of a stream that has b in it, from the client or the server.
func (e *ends) stream(t *testing.T, from, to *TCP, b string) (one, other Stream) {
	t.Helper()
	one, err := from.OpenStream(t.Context(), nil)
	require.NoError(t, err)
	_, err = io.WriteString(one, b)
	require.NoError(t, err)
	other, err = to.AcceptStream(t.Context())
	require.NoError(t, err)
	require.Equal(t, one.ID(), other.ID())
	got := make([]byte, len(b))
	_, err = io.ReadFull(other, got)
	require.NoError(t, err)
	require.Equal(t, b, string(got))
	return one, other
}

// both calls f for streams that the client opens, and for those that the server does.
func both(t *testing.T, f func(t *testing.T, e *ends, one, other Stream)) {
	for name, swap := range map[string]bool{"client opens": false, "server opens": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := connect(t)
			from, to := e.client, e.server
			if swap {
				from, to = to, from
			}
			one, other := e.stream(t, from, to, "x")
			f(t, e, one, other)
		})
	}
}

// Each direction ends by itself, behind all bytes, and both make the end of the stream.
func TestHalves(t *testing.T) {
	both(t, func(t *testing.T, e *ends, one, other Stream) {
		sent := bytes.Repeat([]byte("0123456789abcdef"), 3*window/16) // more than a window
		for _, way := range [][2]Stream{{one, other}, {other, one}} {
			go func() {
				_, _ = way[0].Write(sent)
				_ = way[0].CloseWrite()
			}()
			got, err := io.ReadAll(way[1])
			require.NoError(t, err)
			require.True(t, bytes.Equal(sent, got))
		}
		<-one.Done()
		<-other.Done()
		_, err := one.Write([]byte("x"))
		require.ErrorIs(t, err, net.ErrClosed)
		for _, c := range []*TCP{e.client, e.server} {
			testenv.Await(t, func() bool { return c.mux.NumStreams() == 1 }) // the records'
			testenv.Await(t, func() bool { return c.held() == 0 })
		}
	})
}

// held returns how many streams the session knows, with the bytes that it counts.
func (c *TCP) held() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams) + int(c.unread)
}

// A reset reaches a peer that does not read, with its code, past all that fills the
// window, and ends the calls of both ends that wait.
func TestResetPastAFullWindow(t *testing.T) {
	both(t, func(t *testing.T, e *ends, one, other Stream) {
		for i, code := range []uint64{1, 13, 1<<62 - 1} {
			one, other := e.stream(t, e.client, e.server, "y")
			if i == 1 {
				one, other = other, one
			}
			stuck := make(chan error, 2)
			for _, s := range []Stream{one, other} {
				go func() {
					_, err := s.Write(make([]byte, 2*window))
					stuck <- err
				}()
			}
			for _, a := range e.accounts {
				testenv.Await(t, func() bool { return a.unread.Load() >= window-64 })
			}
			require.NoError(t, one.Reset(code))
			<-one.Done()
			<-other.Done()
			<-stuck // it may have ended just before
			<-stuck
			var reset *kcp.StreamError
			_, err := other.Read(make([]byte, 1))
			require.ErrorAs(t, err, &reset)
			require.Equal(t, kcp.StreamError{Code: code, Remote: true}, *reset)
			_, err = other.Write([]byte("x"))
			require.ErrorAs(t, err, &reset)
			_, err = one.Read(make([]byte, 1))
			require.ErrorIs(t, err, net.ErrClosed)
			require.ErrorIs(t, one.Reset(1), net.ErrClosed)
			for _, a := range e.accounts {
				testenv.Await(t, func() bool { return a.unread.Load() == 0 })
			}
		}
	})
}

// silent returns a session whose server reads no more, and a stream of it.
func silent(t *testing.T, peerTimeout time.Duration) (*ends, Stream) {
	t.Parallel()
	config := settings(t)
	config.PeerTimeout = peerTimeout
	e := begun(t, config)
	one, _ := e.stream(t, e.client, e.server, "x")
	rtt, err := e.client.Ping(t.Context())
	require.NoError(t, err)
	require.Positive(t, rtt)
	require.False(t, e.client.Figures().Unanswered)
	e.server.mu.Lock() // its reader stops at what arrives next
	t.Cleanup(e.server.mu.Unlock)
	_, err = io.WriteString(one, "x")
	require.NoError(t, err)
	return e, one
}

// A peer that is silent is asked, and counts as one that does not answer. A reset ends a
// Read without it.
func TestSilentPeer(t *testing.T) {
	e, one := silent(t, time.Hour)
	testenv.Await(t, func() bool { return e.client.Figures().Unanswered })
	read := make(chan error, 1)
	go func() {
		_, err := one.Read(make([]byte, 1))
		read <- err
	}()
	testenv.Await(t, func() bool { // it waits
		free := one.(*stream).reading.TryLock()
		if free {
			one.(*stream).reading.Unlock()
		}
		return !free
	})
	require.NoError(t, one.Reset(1))
	require.ErrorIs(t, <-read, net.ErrClosed)
	require.NoError(t, e.client.Err())
}

// A peer that is silent for the time of -peer-timeout is lost.
func TestLostPeer(t *testing.T) {
	e, _ := silent(t, 3*time.Second)
	<-e.client.Done()
	var lost *kcp.PeerLostError
	require.ErrorAs(t, e.client.Err(), &lost)
	require.False(t, lost.Idle)
}

// A connection that is cut ends streams with errors, not as if all had arrived.
func TestCutConnectionIsNoEnd(t *testing.T) {
	both(t, func(t *testing.T, e *ends, one, other Stream) {
		require.NoError(t, e.cable.Close())
		for _, s := range []Stream{one, other} {
			_, err := s.Read(make([]byte, 1))
			require.Error(t, err)
			require.NotErrorIs(t, err, io.EOF)
		}
		<-e.client.Done()
		<-e.server.Done()
	})
}

// A stream of yamux that ends without the frame that says so is cut off.
func TestEndWithoutItsFrameIsNoEnd(t *testing.T) {
	both(t, func(t *testing.T, _ *ends, one, other Stream) {
		require.NoError(t, one.(*stream).y.Close())
		_, err := other.Read(make([]byte, 1))
		require.ErrorIs(t, err, kcp.ErrReset)
	})
}

// Messages keep their boundaries, and the opener's kind of stream is known at once.
func TestMessages(t *testing.T) {
	e := connect(t)
	one, err := e.client.OpenStream(t.Context(), &kcp.StreamOptions{Unordered: true})
	require.NoError(t, err)
	sizes := []int{1, 100, 65528, 3}
	for _, n := range sizes {
		require.NoError(t, one.WriteMessage(bytes.Repeat([]byte{byte(n)}, n), &kcp.MessageOptions{NoWait: true}))
	}
	other, err := e.server.AcceptStream(t.Context())
	require.NoError(t, err)
	require.True(t, other.Options().Unordered)
	for _, n := range sizes {
		_, err := other.ReadMessage(nil)
		require.ErrorIs(t, err, io.ErrShortBuffer)
		size, ok := other.NextMessageSize()
		require.True(t, ok)
		require.Equal(t, n, size)
		b := make([]byte, n)
		_, err = other.ReadMessage(b)
		require.NoError(t, err)
		require.Equal(t, bytes.Repeat([]byte{byte(n)}, n), b)
	}
	require.NoError(t, one.Close())
	_, err = other.ReadMessage(nil)
	require.ErrorIs(t, err, io.EOF)
}

// The peer learns why a session ends, and so does what waits at either end.
func TestReasonOfTheEnd(t *testing.T) {
	both(t, func(t *testing.T, e *ends, one, other Stream) {
		require.NoError(t, e.server.SetLinger(time.Minute))
		require.NoError(t, e.server.CloseWithError(7, "seven"))
		<-e.client.Done()
		var why *kcp.PeerCloseError
		require.ErrorAs(t, e.client.Err(), &why)
		require.Equal(t, kcp.PeerCloseError{Code: 7, Text: "seven"}, *why)
		_, err := e.client.AcceptStream(t.Context())
		require.ErrorAs(t, err, &why)
		require.ErrorIs(t, e.server.Err(), net.ErrClosed)
		for _, s := range []Stream{one, other} {
			_, err := s.Read(make([]byte, 1))
			require.Error(t, err)
			require.NotErrorIs(t, err, io.EOF)
		}
	})
}

// Before the first stream is closed, nothing else is there; and what another protocol
// says ends the session.
func TestFirstStreamIsAlone(t *testing.T) {
	config := settings(t)
	e := unused(t, config)
	done := make(chan error, 1)
	go func() {
		_, err := e.server.AcceptStream(t.Context())
		done <- err
	}()
	_, err := e.client.OpenStream(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, e.client.tls.HandshakeContext(t.Context()))
	require.NoError(t, <-done)
	soon, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = e.server.AcceptStream(soon)
	require.ErrorIs(t, err, context.Canceled)
	require.Nil(t, e.server.mux)

	e = unused(t, config)
	web := config.TLS.Clone()
	web.NextProtos = nil
	go func() { _ = tls.Client(e.cable, web).Handshake() }()
	_, err = e.server.AcceptStream(t.Context())
	var handshake *kcp.HandshakeError
	require.ErrorAs(t, err, &handshake)
}

// hostile returns a session whose client is a connection of TLS, past the first stream.
func hostile(t *testing.T, config *kcp.Config) (*ends, *tls.Conn) {
	t.Helper()
	e := unused(t, config)
	conn := tls.Client(e.cable, config.TLS)
	go func() { _ = conn.Handshake() }()
	hello, err := e.server.AcceptStream(t.Context())
	require.NoError(t, err)
	require.NoError(t, hello.Close())
	return e, conn
}

const update, reset = 1, 8 // a type of frame, and a flag

// muxFrame returns a frame of yamux.
func muxFrame(kind byte, flags uint16, id uint32, body string) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0, kind}, flags)
	b = binary.BigEndian.AppendUint32(b, id)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(body))), body...)
}

// A number that comes again ends the session: the end of the stream that had it first
// would make this end forget the other one.
func TestNumberComesAgain(t *testing.T) {
	e, conn := hostile(t, settings(t))
	for _, part := range [][]byte{muxFrame(update, flagSYN, 1, ""), muxFrame(update, flagSYN, 3, ""), muxFrame(typeData, 0, 3, "\x00\x00\x00\x01x")} {
		_, err := conn.Write(part)
		require.NoError(t, err)
	}
	_, err := e.server.AcceptStream(t.Context())
	require.NoError(t, err)
	_, err = conn.Write(append(muxFrame(update, reset, 3, ""), muxFrame(update, flagSYN, 3, "")...))
	require.NoError(t, err)
	<-e.server.Done()
	require.ErrorIs(t, e.server.Err(), errViolation)
}

// Buffers of a window, which were filled once, and those of streams whose end the peer
// does not answer, do not stay.
func TestBuffersAreGivenBack(t *testing.T) {
	const streams, each = 64, window / 4
	config := settings(t)
	config.Limits.MaxStreams = 2 * streams
	e, conn := hostile(t, config)
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	used := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // of sync.Pool as well
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := used()
	send := func(b []byte) {
		_, err := conn.Write(b)
		require.NoError(t, err)
	}
	send(muxFrame(update, flagSYN, 1, ""))
	for id := uint32(3); id < 3+4*streams; id += 4 {
		for _, id := range []uint32{id, id + 2} {
			send(muxFrame(update, flagSYN, id, ""))
			send(muxFrame(typeData, 0, id, "\x00\xff\xff\xffx")) // of a large frame, of which a part arrives
		}
		for range 2 {
			s, err := e.server.AcceptStream(t.Context())
			require.NoError(t, err)
			if s.ID() == id {
				require.NoError(t, s.Reset(0))
			} else {
				go func() { _, _ = io.Copy(io.Discard, s) }()
			}
		}
		send(muxFrame(typeData, 0, id+2, strings.Repeat("x", each)))
	}
	testenv.Await(t, func() bool { return used()-before < 2<<20 })
	require.NoError(t, e.server.Err())
}

// Nothing follows a frame that was cut, as the peer would take it for the rest.
func TestCutFrameEndsTheStream(t *testing.T) {
	both(t, func(t *testing.T, e *ends, one, other Stream) {
		require.NoError(t, one.(*stream).y.SetWriteDeadline(time.Unix(1, 0)))
		_, err := one.Write(make([]byte, 2*window))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		<-one.Done()
		<-other.Done()
	})
}

// A peer with keys cannot make this end hold more than its account has room for, nor
// begin goroutines without limit.
func TestHostilePeer(t *testing.T) {
	const most = 32 << 20
	for name, attack := range map[string]func(t *testing.T, mux *yamux.Session, raw io.Writer){
		"unread": func(t *testing.T, mux *yamux.Session, _ io.Writer) {
			for range most/window + 2 {
				y, err := mux.OpenStream()
				if err != nil {
					return
				}
				go func() {
					_, _ = y.Write([]byte{frameBytes, 0xff, 0xff, 0xff})
					_, _ = y.Write(make([]byte, window-4))
				}()
			}
		},
		"pings": func(_ *testing.T, _ *yamux.Session, raw io.Writer) {
			for i := range uint32(1000) {
				_, _ = raw.Write(binary.BigEndian.AppendUint32([]byte{0, typePing, 0, flagSYN, 0, 0, 0, 0}, i))
			}
		},
		"records": func(_ *testing.T, mux *yamux.Session, _ io.Writer) {
			y, _ := mux.OpenStream()
			_, _ = y.Write([]byte{9, 12: 0})
		},
		"kinds of frames": func(_ *testing.T, mux *yamux.Session, _ io.Writer) {
			y, _ := mux.OpenStream()
			_, _ = y.Write([]byte{9, 0, 0, 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := settings(t)
			config.Limits.MaxStreams, config.Limits.MaxBuffered = 1024, unreadShare*most
			e, conn := hostile(t, config)
			account := e.accounts[1]
			quiet := yamux.DefaultConfig()
			quiet.LogOutput, quiet.MaxStreamWindowSize = io.Discard, window
			mux, err := yamux.Client(conn, quiet)
			require.NoError(t, err)
			defer mux.Close()
			if name != "records" {
				_, err = mux.OpenStream()
				require.NoError(t, err)
			}
			go attack(t, mux, conn)
			held := int64(0)
			for err == nil {
				_, err = e.server.AcceptStream(t.Context())
				held = max(held, account.unread.Load())
			}
			<-e.server.Done()
			require.True(t, errors.Is(e.server.Err(), errViolation) || errors.Is(e.server.Err(), errUnread), "%v", e.server.Err())
			require.LessOrEqual(t, held, int64(most+1<<20))
			require.Zero(t, account.unread.Load())
		})
	}
}
