package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Transfers in both directions at once over random links, in virtual time.
func TestTransfers(t *testing.T) {
	for seed := range fewer(40) {
		random := rand.New(rand.NewPCG(seed, 7))
		link := randomLink(random, 100*time.Millisecond, 0.3)
		config := func() *kcp.Config {
			c := []kcp.Config{{}, kcp.LowLatency(), kcp.Classic()}[random.IntN(3)]
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
			inWorld(t, seed, link, func(t *testing.T, w *world) {
				a, b, _ := w.pair(config(), config())
				bothWays(t, a, b, content(seed, random.IntN(200000)), content(seed+1, random.IntN(200000)))
			})
		})
	}
}

// Messages keep their boundaries, empty ones included, over a bad link.
func TestConnMessages(t *testing.T) {
	inWorld(t, 3, lossy, func(t *testing.T, w *world) {
		cfg := kcp.LowLatency()
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
		require.ErrorIs(t, a.WriteMessage(make([]byte, 127*1376+1)), kcp.ErrMessageTooLarge)
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
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(nil, nil)
		require.ErrorIs(t, a.WriteMessage([]byte("x")), kcp.ErrNotMessageMode)
	})
}

// In stream mode ReadMessage returns segments as the peer has cut them.
func TestReadMessageOfStream(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
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
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			cfg := kcp.LowLatency()
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

// What has arrived can be read after the peer is lost; then comes the error.
func TestReadAfterLoss(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, &kcp.Config{PeerTimeout: 3 * time.Second})
		_, err := a.Write([]byte("last words"))
		require.NoError(t, err)
		time.Sleep(time.Second)
		w.net.SetLink("", "", netsim.LinkConfig{Loss: 1})
		_, err = b.Write([]byte("are you there?"))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		receive(t, b, []byte("last words"))
		_, err = b.Read(make([]byte, 1))
		require.ErrorAs(t, err, new(*kcp.PeerLostError))
	})
}

// MaxSessions bounds what one endpoint holds, dialled and accepted.
func TestMaxSessions(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		l := w.listen(&kcp.Config{MaxSessions: 3})
		e, _ := w.endpoint("10.0.0.2:0", &kcp.Config{MaxSessions: 5, DialTimeout: -1})
		for range 5 {
			c := w.dial(e)
			_, err := c.Write([]byte("x"))
			require.NoError(t, err)
		}
		_, err := e.Dial(context.Background(), l.Addr())
		require.ErrorIs(t, err, kcp.ErrTooManySessions)
		require.ErrorContains(t, err, "kcp: too many sessions: this endpoint has 5, as Config.MaxSessions allows")
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, 3, l.Stats().Sessions)
		require.Positive(t, l.Stats().DropSessions)
	})
}

func TestDialErrors(t *testing.T) {
	for _, network := range []string{"unix", "udp9", ""} {
		_, err := kcp.Dial(network, "127.0.0.1:1", nil)
		require.Error(t, err)
		_, err = kcp.Listen(network, "127.0.0.1:0", nil)
		require.Error(t, err)
	}
	_, err := kcp.Dial("udp", "127.0.0.1:notaport", nil)
	require.Error(t, err)
	_, err = kcp.Listen("udp", "127.0.0.1:notaport", nil)
	require.Error(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = (&kcp.Dialer{}).DialContext(ctx, "udp", "127.0.0.1:1")
	require.Error(t, err)
	var oe *net.OpError
	require.True(t, errors.As(err, &oe))
}

// Many sessions write and read at once while they are closed and looked at;
// the race detector is the judge.
func TestConcurrentUse(t *testing.T) {
	l, err := kcp.Listen("udp", "127.0.0.1:0", nil)
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
			c, err := kcp.Dial("udp", l.Addr().String(), nil)
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
