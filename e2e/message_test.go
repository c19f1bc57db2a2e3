package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// messageLog is what one end has sent by SendMessage, and what it knows of it.
type messageLog struct {
	t    *testing.T
	mu   sync.Mutex
	sent [][]byte
	done map[int]error // receipts, as far as they have come
}

// send sends a message of size bytes that begins with its number.
func (l *messageLog) send(c *kcp.Conn, size int, o kcp.MessageOptions) {
	l.mu.Lock()
	i := len(l.sent)
	p := binary.LittleEndian.AppendUint32(nil, uint32(i))
	p = append(p, content(uint64(i), size)...)
	l.sent = append(l.sent, p)
	l.mu.Unlock()
	o.Done = func(err error) {
		_ = c.Stats() // no lock is held
		l.mu.Lock()
		defer l.mu.Unlock()
		if _, twice := l.done[i]; twice {
			l.t.Errorf("two receipts for message %d", i)
		}
		l.done[i] = err
	}
	if err := c.WriteMessage(p, &o); err != nil {
		l.t.Error(err)
	}
}

// read reads messages to the end of the session, and demands that each is one of
// those sent, in their order. It returns their numbers.
func (l *messageLog) read(c *kcp.Conn) (got []int, err error) {
	buf := make([]byte, 1<<18)
	for last := -1; ; {
		n, err := c.ReadMessage(buf)
		if err != nil {
			return got, err
		}
		i := int(binary.LittleEndian.Uint32(buf))
		l.mu.Lock()
		if i <= last || i >= len(l.sent) || !bytes.Equal(buf[:n], l.sent[i]) {
			l.t.Errorf("message %d after %d, of %d bytes", i, last, n)
		}
		l.mu.Unlock()
		got, last = append(got, i), i
	}
}

// check demands one receipt for each message, ErrMessageAbandoned for those that
// did not arrive, and no other reason. It returns how many say so.
func (l *messageLog) check(got []int) (abandoned int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Len(l.t, l.done, len(l.sent))
	for i, err := range l.done {
		if err == nil {
			require.Contains(l.t, got, i, "the receipt says delivered")
		} else {
			require.ErrorIs(l.t, err, kcp.ErrMessageAbandoned)
			abandoned++
		}
	}
	return abandoned
}

// Messages of any size over a link that loses much, some with a lifetime or few
// retransmissions, and the end of what is written right behind them: what arrives
// is whole and in order, what is given up holds up nothing, and each has one
// receipt, which is true. Streams go on beside them.
func TestSendMessage(t *testing.T) {
	for seed := range fewer(16) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			random := rand.New(rand.NewPCG(seed, 3))
			a, b, _ := w.pair(&kcp.Config{MessageMode: true, SendWindow: 8 << (seed % 3 * 3)}, nil)
			l := &messageLog{t: t, done: make(map[int]error)}
			if seed%2 == 0 {
				s, r := streamPair(t, a, b, &kcp.StreamOptions{Priority: 1})
				go func() { bothWays(t, s, r, content(1, 50000), content(2, 20000)) }()
			}
			go func() {
				for range 100 {
					o := kcp.MessageOptions{MaxRetransmits: random.IntN(4) - 1, Lifetime: time.Duration(random.IntN(3)) * 50 * time.Millisecond}
					if random.IntN(4) == 0 {
						o = kcp.MessageOptions{}
					}
					l.send(a, random.IntN(1+random.IntN(9000)), o)
					if random.IntN(3) == 0 {
						time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
					}
				}
				if err := a.CloseWrite(); err != nil {
					t.Error(err)
				}
			}()
			got, err := l.read(b)
			require.Equal(t, io.EOF, err)
			time.Sleep(5 * time.Second)
			require.Greater(t, l.check(got), 0)
			require.Zero(t, b.Stats().Dropped.Total())
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
	}
}

// Receipts of what was not delivered say why, and Close says ErrNotDelivered only if
// something is missing that was not given up.
func TestSendMessageThatFails(t *testing.T) {
	brief, givenUp := kcp.MessageOptions{Lifetime: 100 * time.Millisecond}, kcp.ErrMessageAbandoned
	closes := func(_ *world, a, _ *kcp.Conn) error { return a.Close() }
	for _, tc := range []struct {
		name string
		send []kcp.MessageOptions
		end  func(w *world, a, b *kcp.Conn) error
		want []error
		err  error // of end
	}{
		{"close", []kcp.MessageOptions{{MaxRetransmits: -1}, brief, brief}, closes, []error{givenUp, givenUp, givenUp}, nil},
		{"close with a loss", []kcp.MessageOptions{brief, {}, brief}, closes, []error{givenUp, kcp.ErrNotDelivered, givenUp}, kcp.ErrNotDelivered},
		{"abort", []kcp.MessageOptions{{}, {Lifetime: time.Hour}}, func(_ *world, a, _ *kcp.Conn) error { return a.Abort(0, "") },
			[]error{net.ErrClosed, net.ErrClosed}, nil},
		{"peer closes", []kcp.MessageOptions{{}, {Lifetime: time.Hour}}, func(w *world, _, b *kcp.Conn) error {
			w.heal()
			return b.Close()
		}, []error{kcp.ErrPeerClosed, kcp.ErrPeerClosed}, nil},
	} {
		inWorld(t, 6, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&kcp.Config{MessageMode: true, Linger: time.Second}, nil)
			time.Sleep(time.Second)
			w.cut()
			var mu sync.Mutex
			got := make([][]error, len(tc.send))
			for i, o := range tc.send {
				o.Done = func(err error) {
					mu.Lock()
					defer mu.Unlock()
					got[i] = append(got[i], err)
				}
				require.NoError(t, a.WriteMessage(content(uint64(i), 5000), &o))
			}
			time.Sleep(time.Second)
			require.ErrorIs(t, tc.end(w, a, b), tc.err, tc.name)
			time.Sleep(2 * time.Minute)
			mu.Lock()
			defer mu.Unlock()
			for i, want := range tc.want {
				require.True(t, len(got[i]) == 1 && errors.Is(got[i][0], want), "%s: message %d: %v", tc.name, i, got[i])
			}
		})
	}
}
