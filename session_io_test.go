package kcp

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
)

// loopbackPair returns the two ends of a session over sockets of the system.
func loopbackPair(config *Config, address string) (a, b *Conn, stop func(), err error) {
	l, err := Listen("udp", address, config)
	if err != nil {
		return nil, nil, nil, err
	}
	a, err = Dial("udp", l.Addr().String(), config)
	if err != nil {
		return nil, nil, nil, err
	}
	if b, err = l.AcceptKCP(context.Background()); err != nil {
		return nil, nil, nil, err
	}
	stop = func() {
		var wg sync.WaitGroup
		for _, c := range []*Conn{a, b} {
			wg.Go(func() { _ = c.Close() }) // most cases leave data unread
		}
		wg.Wait()
		_ = l.Close()
	}
	return a, b, stop, nil
}

// The judge of net.Conn, with everything that changes a packet's way as well.
func TestNetConn(t *testing.T) {
	aead, err := crypt.AESGCM(bytes.Repeat([]byte{7}, 16))
	require.NoError(t, err)
	variants := []struct {
		name, address string
		config        Config
	}{
		{"ipv4", "127.0.0.1:0", Config{}},
		{"ipv6", "[::1]:0", Config{}},
		{"message", "127.0.0.1:0", Config{MessageMode: true}},
		{"aead", "127.0.0.1:0", Config{Cipher: aead}},
		{"fec", "127.0.0.1:0", Config{FEC: FEC{Data: 10, Parity: 3}}},
		{"tls", "127.0.0.1:0", *secured(Config{})},
		{"tls+fec+message", "[::1]:0", *secured(Config{FEC: FEC{Data: 10, Parity: 3}, MessageMode: true})},
		{"fec+aead+message", "[::1]:0", Config{Cipher: aead, FEC: FEC{Data: 10, Parity: 3}, MessageMode: true}},
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				a, b, stop, err := loopbackPair(&v.config, v.address)
				return a, b, stop, err
			})
		})
	}
}

// While the peer's window is zero it is probed after 200 ms, and then at intervals
// that grow by half each time, up to 5 s or a quarter of PeerTimeout.
func TestZeroWindowProbes(t *testing.T) {
	long(t)
	for _, limit := range []time.Duration{5 * time.Second, time.Second} {
		inWorld(t, 2, clean, func(w *world) {
			a, b, _ := w.pair(&Config{PeerTimeout: 4 * limit, KeepAlive: -1}, &Config{ReceiveWindow: minRcvWnd, KeepAlive: -1})
			closed := make(chan time.Time, 1) // when the window of zero arrives
			var mu sync.Mutex
			var probes []time.Time
			from := a.LocalAddr().(*net.UDPAddr).AddrPort()
			w.net.SetFilter(func(src, _ netip.AddrPort, p []byte) bool {
				mu.Lock()
				defer mu.Unlock()
				for rest := p; len(rest) >= headerSize; {
					h := decodeHeader(rest)
					switch {
					case src == from && h.cmd == cmdWask && h.frg == 0:
						probes = append(probes, time.Now())
					case src != from && h.wnd == 0:
						select {
						case closed <- time.Now().Add(clean.Delay):
						default:
						}
					}
					rest = rest[headerSize+int(h.len):]
				}
				return true
			})
			want := content(1, 1<<20) // more than the window
			send(t, a, want)
			time.Sleep(time.Minute)
			last, interval := <-closed, 200*time.Millisecond
			mu.Lock()
			seen := slices.Clone(probes)
			mu.Unlock()
			require.Greater(t, len(seen), 10)
			for i, at := range seen {
				require.InDelta(t, interval, at.Sub(last), float64(5*time.Millisecond), "probe %d", i)
				last, interval = at, min(interval*3/2, limit)
			}
			require.Equal(t, limit, interval)
			receive(t, b, want)
		})
	}
}

// An idle session does nothing at all: no packet, no wake-up, spare memory
// given back; and it works when it is needed again.
func TestIdleSessionCostsNothing(t *testing.T) {
	long(t)
	inWorld(t, 3, clean, func(w *world) {
		a, b, l := w.pair(&Config{KeepAlive: -1}, &Config{KeepAlive: -1})
		want := content(3, 1<<20)
		send(t, a, want)
		receive(t, b, want)
		time.Sleep(10 * time.Second)
		for _, c := range []*Conn{a, b} {
			c.mu.Lock()
			require.Zero(t, c.timers.wakeAt)
			require.Nil(t, c.kcp.snd.ring.slots)
			require.Nil(t, c.kcp.rcv.ring.slots)
			require.Nil(t, c.outgoing.outbox)
			require.Nil(t, c.kcp.snd.ccState)
			require.Nil(t, c.kcp.snd.rate.rateInput)
			c.mu.Unlock()
			require.True(t, c.ep.wakes.Idle())
		}
		sent := l.Stats().PacketsSent
		time.Sleep(24 * time.Hour)
		require.Equal(t, sent, l.Stats().PacketsSent)
		send(t, b, want)
		receive(t, a, want)
	})
}

// Listener: context, deadline and Close end Accept; accepted sessions survive.
func TestListener(t *testing.T) {
	inWorld(t, 3, clean, func(w *world) {
		a, b, l := w.pair(nil, nil)
		_, err := l.Endpoint().Listen()
		require.ErrorIs(t, err, ErrListening)

		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err = l.AcceptKCP(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, l.SetDeadline(time.Now().Add(time.Second)))
		_, err = l.Accept()
		requireTimeout(t, err)
		require.NoError(t, l.SetDeadline(time.Time{}))

		errs := make(chan error)
		go func() {
			_, err := l.Accept()
			errs <- err
		}()
		time.Sleep(time.Second)
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-errs, net.ErrClosed)
		require.ErrorIs(t, l.Close(), net.ErrClosed)
		require.ErrorIs(t, l.SetDeadline(time.Now()), net.ErrClosed)

		want := content(3, 10000)
		send(t, a, want)
		receive(t, b, want)
		again, err := b.ep.Listen()
		require.NoError(t, err)
		require.NoError(t, again.Close())
	})
}

// A dialled session owns its socket, a listener shares it with what it has
// accepted; sockets close with the last use.
func TestSocketsCloseWithTheirLastUse(t *testing.T) {
	l, err := Listen("udp", "127.0.0.1:0", nil)
	require.NoError(t, err)
	c, err := (&Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}}).
		DialContext(context.Background(), "tcp", l.Addr().String())
	require.NoError(t, err)
	require.Equal(t, l.Addr().String(), c.RemoteAddr().String())
	_, err = c.Write([]byte("x"))
	require.NoError(t, err)
	s, err := l.Accept()
	require.NoError(t, err)
	receive(t, s, []byte("x"))
	require.NoError(t, l.Close())
	require.NoError(t, c.Close())
	require.NoError(t, s.Close())
	c.(*Conn).ep.socket.readers.Wait()
	s.(*Conn).ep.socket.readers.Wait()
	require.True(t, c.(*Conn).ep.closed)
	require.True(t, s.(*Conn).ep.closed)
}
