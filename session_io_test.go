package kcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/netsim"
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

// Transfers in both directions at once over random links, in virtual time.
func TestTransfers(t *testing.T) {
	for seed := range fewer(40) {
		random := rand.New(rand.NewPCG(seed, 7))
		link := randomLink(random, 100*time.Millisecond, 0.3)
		config := func() *Config {
			c := []Config{{}, LowLatency(), Classic()}[random.IntN(3)]
			c.MessageMode = random.IntN(2) == 0
			c.MTU = 100 + random.IntN(1400)
			c.SendWindow = 1 + random.IntN(500)
			c.ReceiveWindow = 1 + random.IntN(500)
			c.WriteBuffer = 4096 + random.IntN(1<<18)
			c.Linger = time.Minute
			c.PeerTimeout = 5 * time.Minute
			return &c
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inWorld(t, seed, link, func(w *world) {
				a, b, _ := w.pair(config(), config())
				bothWays(t, a, b, content(seed, random.IntN(200000)), content(seed+1, random.IntN(200000)))
			})
		})
	}
}

// Messages keep their boundaries, empty ones included, over a bad link.
func TestConnMessages(t *testing.T) {
	inWorld(t, 3, lossy, func(w *world) {
		cfg := LowLatency()
		cfg.MessageMode = true
		a, b, _ := w.pair(&cfg, &cfg)
		sizes := []int{0, 1, 1375, 1376, 1377, 0, 0, 50000, 127 * 1376, 3}
		go func() {
			for i, size := range sizes {
				if err := a.WriteMessage(bytes.Repeat([]byte{byte(i)}, size)); err != nil {
					t.Error(err)
				}
			}
		}()
		buf := make([]byte, 127*1376)
		for i, size := range sizes {
			if size > 1 {
				_, err := b.ReadMessage(buf[:size-1])
				require.ErrorIs(t, err, io.ErrShortBuffer)
				next, ok := b.NextMessageSize()
				require.True(t, ok)
				require.Equal(t, size, next)
			}
			n, err := b.ReadMessage(buf)
			require.NoError(t, err)
			require.Equal(t, size, n)
			require.Equal(t, bytes.Repeat([]byte{byte(i)}, size), append([]byte{}, buf[:n]...))
		}
		require.Equal(t, 127*1376, a.MaxMessageSize())
		require.ErrorIs(t, a.WriteMessage(make([]byte, 127*1376+1)), ErrMessageTooLarge)
		a.SetMessageMode(false)
		require.Zero(t, a.MaxMessageSize())
		a.SetMessageMode(true)

		// Read goes through boundaries; ReadMessage then gives what is left.
		require.NoError(t, a.WriteMessage([]byte("hello world")))
		require.NoError(t, a.WriteMessage([]byte("next")))
		receive(t, b, []byte("hello "))
		next, ok := b.NextMessageSize()
		require.True(t, ok)
		require.Equal(t, len("world"), next)
		n, err := b.ReadMessage(buf)
		require.NoError(t, err)
		require.Equal(t, "world", string(buf[:n]))
		n, err = b.ReadMessage(buf)
		require.NoError(t, err)
		require.Equal(t, "next", string(buf[:n]))
		_, ok = b.NextMessageSize()
		require.False(t, ok)
		require.NoError(t, a.WriteMessage(nil))
		time.Sleep(time.Second)
		next, ok = b.NextMessageSize()
		require.True(t, ok)
		require.Zero(t, next)
		require.NoError(t, b.Abort())
		_, ok = b.NextMessageSize()
		require.False(t, ok)
	})
}

func TestStreamHasNoMessages(t *testing.T) {
	inWorld(t, 3, clean, func(w *world) {
		a, _, _ := w.pair(nil, nil)
		require.ErrorIs(t, a.WriteMessage([]byte("x")), ErrNotMessageMode)
	})
}

// In stream mode ReadMessage returns segments as the peer has cut them.
func TestReadMessageOfStream(t *testing.T) {
	inWorld(t, 3, clean, func(w *world) {
		a, b, _ := w.pair(nil, nil)
		for range 5 {
			_, err := a.Write([]byte("abc"))
			require.NoError(t, err)
		}
		time.Sleep(time.Second)
		buf := make([]byte, 100)
		_, err := b.ReadMessage(buf[:2])
		require.ErrorIs(t, err, io.ErrShortBuffer)
		for range 3 {
			n, err := b.ReadMessage(buf)
			require.NoError(t, err)
			require.Equal(t, "abc", string(buf[:n]))
		}
		receive(t, b, []byte("a"))
		n, err := b.ReadMessage(buf)
		require.NoError(t, err)
		require.Equal(t, "bc", string(buf[:n]), "the rest of what Read has begun")
		require.NoError(t, a.SetLinger(0))
		require.NoError(t, a.Close())
		n, err = b.ReadMessage(buf)
		require.NoError(t, err)
		require.Equal(t, "abc", string(buf[:n]))
		_, err = b.ReadMessage(buf)
		require.Equal(t, io.EOF, err)
	})
}

// The application stops reading, and the window becomes zero. It opens again even
// if the window update is lost.
func TestSlowReader(t *testing.T) {
	long(t)
	for seed := range uint64(5) {
		inWorld(t, seed, lossy, func(w *world) {
			cfg := LowLatency()
			cfg.ReceiveWindow = 128
			a, b, _ := w.pair(&cfg, &cfg)
			want := content(seed, 1<<20)
			send(t, a, want)
			for rest := want; len(rest) > 0; rest = rest[len(want)/8:] {
				time.Sleep(time.Duration(1+seed*4) * time.Second)
				start := time.Now()
				receive(t, b, rest[:len(want)/8])
				require.Less(t, time.Since(start), 12*time.Second)
			}
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

// What has arrived can be read after the peer is lost; then comes the error.
func TestReadAfterLoss(t *testing.T) {
	inWorld(t, 3, clean, func(w *world) {
		a, b, _ := w.pair(nil, &Config{PeerTimeout: 3 * time.Second})
		_, err := a.Write([]byte("last words"))
		require.NoError(t, err)
		time.Sleep(time.Second)
		w.net.SetLink("", "", netsim.LinkConfig{Loss: 1})
		_, err = b.Write([]byte("are you there?"))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		receive(t, b, []byte("last words"))
		_, err = b.Read(make([]byte, 1))
		require.ErrorAs(t, err, new(*PeerLostError))
	})
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
			require.Nil(t, c.kcp.snd.rate.Input)
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

// MaxSessions bounds what one endpoint holds, dialled and accepted.
func TestMaxSessions(t *testing.T) {
	inWorld(t, 3, clean, func(w *world) {
		l := w.listen(&Config{MaxSessions: 3})
		e, _ := w.endpoint("10.0.0.2:0", &Config{MaxSessions: 5, DialTimeout: -1})
		for range 5 {
			c := w.dial(e)
			_, err := c.Write([]byte("x"))
			require.NoError(t, err)
		}
		_, err := e.Dial(context.Background(), l.Addr())
		require.ErrorIs(t, err, ErrTooManySessions)
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, 3, l.Stats().Sessions)
		require.Positive(t, l.Stats().DropSessions)
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

func TestDialErrors(t *testing.T) {
	for _, network := range []string{"unix", "udp9", ""} {
		_, err := Dial(network, "127.0.0.1:1", nil)
		require.Error(t, err)
		_, err = Listen(network, "127.0.0.1:0", nil)
		require.Error(t, err)
	}
	_, err := Dial("udp", "127.0.0.1:notaport", nil)
	require.Error(t, err)
	_, err = Listen("udp", "127.0.0.1:notaport", nil)
	require.Error(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = (&Dialer{}).DialContext(ctx, "udp", "127.0.0.1:1")
	require.Error(t, err)
	var oe *net.OpError
	require.True(t, errors.As(err, &oe))
}

// Many sessions write and read at once while they are closed and looked at;
// the race detector is the judge.
func TestConcurrentUse(t *testing.T) {
	l, err := Listen("udp", "127.0.0.1:0", nil)
	require.NoError(t, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			c, err := Dial("udp", l.Addr().String(), nil)
			if err != nil {
				t.Error(err)
				return
			}
			want := content(uint64(i), 50000)
			wg.Go(func() {
				for range 100 {
					_ = c.Stats()
					_ = l.Stats()
				}
			})
			send(t, c, want)
			got := make([]byte, len(want))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("session %d: %v", i, err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, l.Endpoint().Close())
}
