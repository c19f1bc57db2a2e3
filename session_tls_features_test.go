package kcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Parity inside the protection recovers what is lost, also with several sessions
// of one address: the header names the session.
func TestTLSWithFEC(t *testing.T) {
	inWorld(t, 5, netsim.LinkConfig{Delay: 20 * time.Millisecond, Loss: 0.05}, func(t *testing.T, w *world) {
		config := LowLatency()
		config.FEC = FEC{Data: 10, Parity: 3}
		l := w.listen(secured(config))
		e, _ := w.endpoint("10.0.0.2:0", secured(config))
		for i := range uint64(2) {
			a := w.dial(e)
			b := accepted(t, l)
			want := content(i, 1<<20)
			send(t, a, want)
			receive(t, b, want)
			require.Positive(t, a.Stats().FEC.ParitySent)
			require.Greater(t, b.Stats().FEC.Recovered, uint64(20))
			require.Zero(t, b.Stats().Dropped.Total())
		}
	})
}

// The path MTU is searched, and redundant copies are sent.
func TestTLSPathMTU(t *testing.T) {
	inWorld(t, 1, path(4000), func(t *testing.T, w *world) {
		config := secured(Config{MaxMTU: 9000, Redundancy: 1})
		a, b, _ := w.pair(config, config)
		w.move(a, b, 1, 1<<20)
		time.Sleep(time.Minute)
		require.InDelta(t, 4000, a.Stats().PathMTU.MTU, 21)
		for i := range byte(50) {
			_, err := a.Write([]byte{i})
			require.NoError(t, err)
			receive(t, b, []byte{i})
		}
		require.Positive(t, a.Stats().Repeats)
	})
}

// A session migrates with its peer, in either direction of the transfer. A
// datagram of the largest size and messages of the most fragments pass.
func TestTLSMigration(t *testing.T) {
	t.Parallel()
	long(t)
	for _, up := range []bool{true, false} {
		inWorld(t, 28, netsim.LinkConfig{Delay: 20 * time.Millisecond, Loss: 0.01, Rate: 4 << 20, Queue: 256 << 10}, func(t *testing.T, w *world) {
			a, b, l, pc := w.movable(secured(Config{MessageMode: true}))
			from, to := a, b
			if !up {
				from, to = b, a
			}
			message := content(28, 127*(1400-25-headerSize))
			w.net.At(w.net.Elapsed()+300*time.Millisecond, func() { require.NoError(t, pc.Rebind("10.0.0.3:6000")) })
			go func() {
				for range 16 {
					if err := from.WriteMessage(message); err != nil {
						t.Error(err)
					}
				}
			}()
			buf := make([]byte, len(message)+1)
			for range 16 {
				n, err := to.ReadMessage(buf)
				require.NoError(t, err)
				require.Equal(t, message, buf[:n])
			}
			require.Equal(t, "10.0.0.3:6000", b.RemoteAddr().String())
			require.Equal(t, 1, b.Stats().Moves)
			require.Equal(t, 1, l.Stats().Sessions)
			datagram := content(1, a.MaxDatagramSize())
			require.NoError(t, a.SendDatagram(datagram))
			got, err := b.ReceiveDatagram(context.Background())
			require.NoError(t, err)
			require.Equal(t, datagram, got)
			require.ErrorIs(t, a.SendDatagram(append(datagram, 0)), ErrDatagramTooLarge)
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
	}
}

// Copies of a peer's packets from other addresses do not take its session
// there, nor keep it from being read.
func TestTLSCopiesFromElsewhere(t *testing.T) {
	inWorld(t, 4, clean, func(t *testing.T, w *world) {
		a, b, l, _ := w.movable(secured(Config{}))
		w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
			if to.String() == serverAddr {
				w.net.Inject(elsewhere, to, p) // first
			}
			return to != elsewhere
		})
		want := content(4, 200_000)
		send(t, a, want)
		receive(t, b, want)
		require.Equal(t, "10.0.0.2:5000", b.RemoteAddr().String())
		require.Zero(t, b.Stats().Moves)
		require.Equal(t, 1, l.Stats().Sessions)
	})
}

// A session that has ended answers its peer under its keys, also at another
// address.
func TestTLSTimeWait(t *testing.T) {
	inWorld(t, 7, clean, func(t *testing.T, w *world) {
		a, b, l, pc := w.movable(secured(Config{}))
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool { return from.String() != serverAddr })
		_, err := a.Write([]byte("all of it"))
		require.NoError(t, err)
		receive(t, b, []byte("all of it"))
		closed := make(chan error, 1)
		go func() { closed <- a.Close() }()
		_, err = b.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		require.NoError(t, b.Close())
		require.NoError(t, pc.Rebind("10.0.0.3:6000"))
		w.net.SetFilter(nil)
		require.NoError(t, <-closed)
		require.Zero(t, l.Stats().Sessions)
	})
	inWorld(t, 8, clean, func(t *testing.T, w *world) { // aborted, and ABORT is lost
		a, b, _, _ := w.movable(secured(Config{}))
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool { return from.String() != serverAddr })
		require.NoError(t, b.Abort())
		w.settle()
		w.net.SetFilter(nil)
		_, err := a.Write([]byte("x"))
		require.NoError(t, err)
		_, err = a.Read(make([]byte, 1))
		require.ErrorIs(t, err, ErrReset)
	})
}

// A group takes the events of sessions with TLS, and those that a listener
// accepts.
func TestTLSGroup(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, _, g := w.grouped(secured(Config{MessageMode: true}))
		require.NoError(t, a.WriteMessage([]byte("message")))
		require.NoError(t, a.SendDatagram([]byte("datagram")))
		time.Sleep(time.Second)
		require.Len(t, take(t, g), 2)
	})
}

// With a ticket the second handshake has no certificates. Nothing else changes.
func TestTLSResumption(t *testing.T) {
	for _, link := range []netsim.LinkConfig{clean, lossy} {
		inWorld(t, 2, link, func(t *testing.T, w *world) {
			l := w.listen(secured(Config{}))
			config := secured(Config{})
			config.TLS = config.TLS.Clone()
			config.TLS.ClientSessionCache = tls.NewLRUClientSessionCache(4)
			e, _ := w.endpoint("10.0.0.2:0", config)
			for i := range 3 {
				a := w.dial(e)
				b := accepted(t, l)
				bothWays(t, a, b, []byte("up"), []byte("down"))
				time.Sleep(20 * time.Second)
				require.Equal(t, i > 0, a.ConnectionState().TLS.DidResume)
				require.Equal(t, i > 0, b.ConnectionState().TLS.DidResume)
				require.NotEmpty(t, a.ConnectionState().TLS.PeerCertificates)
				requireSettled(t, a, b)
			}
		})
	}
}

// requireSettled checks that nothing is left of the handshakes of sessions.
func requireSettled(t *testing.T, conns ...*Conn) {
	t.Helper()
	for _, c := range conns {
		c.mu.Lock()
		require.Nil(t, c.tlsHandshake())
		require.False(t, c.hs.Unanswered&opening.Hello != 0)
		c.mu.Unlock()
	}
}

// An idle session with TLS has no goroutine and no wake-up, and the pair takes
// 8 KiB at most.
func TestTLSIdleCost(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		t.Skip("the race detector takes memory of its own")
	}
	long(t)
	if !alone(t) {
		return
	}
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		const pairs = 2400
		config := secured(Config{KeepAlive: -1})
		l := w.listen(config)
		e, _ := w.endpoint("10.0.0.2:0", config)
		var conns []*Conn
		for range 100 { // what is allocated once, threads of the runtime among that
			conns = append(conns, w.dial(e), accepted(t, l))
		}
		settled := func() (memory int64, goroutines int) {
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			return memoryInUse(), runtime.NumGoroutine()
		}
		before, goroutines := settled()
		for range pairs {
			conns = append(conns, w.dial(e), accepted(t, l))
		}
		after, now := settled()
		requireSettled(t, conns...)
		each := (after - before) / pairs
		t.Logf("%d bytes for a pair", each)
		require.LessOrEqual(t, each, int64(8<<10))
		require.Equal(t, goroutines, now)
		require.True(t, e.wakes.Idle())
		runtime.KeepAlive(conns)
	})
}

// A server under pressure runs TLS only behind a cookie.
func TestTLSFloodMakesNoWork(t *testing.T) {
	t.Parallel()
	long(t)
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		config := secured(Config{MaxHalfOpen: 256})
		l := w.listen(config)
		hello := w.recordHello(config)
		from := netip.MustParseAddr("10.0.9.9")
		for i := range 2000 {
			for _, p := range hello {
				p = resealed(t, bytes.Clone(p), func(p []byte) []byte { return packetOf(uint32(i), p) })
				w.net.Inject(netip.AddrPortFrom(from, uint16(1000+i)), netip.MustParseAddrPort(serverAddr), p)
			}
			if i%50 == 0 {
				w.settle()
			}
		}
		w.settle()
		s := l.Stats()
		require.LessOrEqual(t, s.HalfOpen, 32+1)
		require.Greater(t, s.CookiesSent, uint64(1900))
		require.LessOrEqual(t, s.HandshakeErrors, uint64(33), "each stands for one that ran TLS")
		require.Less(t, s.BytesSent, 3*s.BytesReceived)
		e, _ := w.endpoint("10.0.0.2:0", config)
		a := w.dial(e)
		b, err := l.Accept() // past the errors of handshakes
		require.NoError(t, err)
		bothWays(t, a, b, []byte("up"), []byte("down"))
		time.Sleep(time.Minute)
		require.Equal(t, 1, l.Stats().Sessions)
		require.Zero(t, l.Stats().HalfOpen)
		require.Less(t, l.Stats().Buffered, 4096)
	})
}

// recordHello returns the first packets of a session that nobody answers.
func (w *world) recordHello(config *Config) (packets [][]byte) {
	e, _ := w.endpoint("10.0.7.7:7777", config)
	silent, err := w.net.Listen("10.0.7.8:1")
	require.NoError(w.t, err)
	defer silent.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err = e.Dial(ctx, silent.LocalAddr())
	require.Error(w.t, err)
	require.NoError(w.t, silent.SetReadDeadline(time.Now().Add(time.Millisecond)))
	buf := make([]byte, 2000)
	for {
		n, _, err := silent.ReadFrom(buf)
		if err != nil {
			break
		}
		packets = append(packets, append([]byte(nil), buf[:n]...))
		require.Equal(w.t, handshake.PacketSize, n)
	}
	require.Len(w.t, packets, 2)
	return packets
}

// A packet that arrives is looked up, and opened, without an allocation, whether
// it is authentic or not.
func TestSealedPacketsAllocateNothing(t *testing.T) {
	sequential(t)
	if !alone(t) {
		return
	}
	inWorld(t, 4, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(secured(Config{}), secured(Config{}))
		var packet []byte
		w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
			if len(p) > 1000 && to == b.LocalAddr().(*net.UDPAddr).AddrPort() {
				packet = bytes.Clone(p)
			}
			return true
		})
		_, err := a.Write(make([]byte, 3000))
		require.NoError(t, err)
		time.Sleep(time.Second)
		packet[len(packet)-1] ^= 1
		var in readState
		var p inPacket
		d := udp.Datagram{Buf: make([]byte, len(packet)), Addr: a.LocalAddr().(*net.UDPAddr).AddrPort()}
		require.Zero(t, testing.AllocsPerRun(100, func() {
			copy(d.Buf, packet)
			if b.ep.receive(&d, &in, &p, time.Second) != nil || in.last != b {
				panic("a forged packet is taken, or of another session")
			}
		}))
	})
}
