package kcp

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Of two streams that always have something to send, equals get the same, one
// with higher priority everything, and the session itself is such an equal.
func TestStreamPriorities(t *testing.T) {
	t.Parallel()
	long(t)
	for _, tc := range []struct {
		first, second int
		least, most   float64 // of what the first gets
	}{{0, 0, 0.45, 0.55}, {3, 3, 0.45, 0.55}, {1, 0, 0.97, 1}, {-1, -2, 0.97, 1}, {-8, 7, 0, 0.03}} {
		inWorld(t, 14, netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 1e6, Queue: 50000}, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			var got [2]int
			var wg sync.WaitGroup
			for i, p := range []int{tc.first, tc.second} {
				s, r := streamPair(t, a, b, &StreamOptions{Priority: p})
				wg.Go(func() {
					for {
						if _, err := s.Write(make([]byte, 10000)); err != nil {
							return
						}
					}
				})
				wg.Go(func() {
					buf := make([]byte, 1<<16)
					for {
						n, err := r.Read(buf)
						if got[i] += n; err != nil {
							return
						}
					}
				})
			}
			time.Sleep(10 * time.Second)
			_, _ = a.Abort(), b.Abort()
			wg.Wait()
			total := got[0] + got[1]
			share := float64(got[0]) / float64(total)
			require.GreaterOrEqual(t, share, tc.least, "%+v", tc)
			require.LessOrEqual(t, share, tc.most, "%+v", tc)
			require.Greater(t, total, 7<<20)
		})
	}
}

// The session itself gets its share beside a stream, and a small message that is
// more urgent overtakes both.
func TestStreamBesideSession(t *testing.T) {
	t.Parallel()
	long(t)
	inWorld(t, 15, netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 1e6, Queue: 50000}, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		s, r := streamPair(t, a, b, nil)
		urgent, arrives := streamPair(t, a, b, &StreamOptions{Priority: 5})
		var got [2]int
		var wg sync.WaitGroup
		for i, ends := range [][2]io.ReadWriter{{a, b}, {s, r}} {
			wg.Go(func() {
				for {
					if _, err := ends[0].Write(make([]byte, 10000)); err != nil {
						return
					}
				}
			})
			wg.Go(func() {
				buf := make([]byte, 1<<16)
				for {
					n, err := ends[1].Read(buf)
					if got[i] += n; err != nil {
						return
					}
				}
			})
		}
		time.Sleep(5 * time.Second)
		for range 20 {
			begin := time.Now()
			_, err := urgent.Write([]byte("now"))
			require.NoError(t, err)
			receive(t, arrives, []byte("now"))
			require.Less(t, time.Since(begin), 90*time.Millisecond) // the queue of the link alone holds 50 ms
		}
		_, _ = a.Abort(), b.Abort()
		wg.Wait()
		share := float64(got[0]) / float64(got[0]+got[1])
		require.InDelta(t, 0.5, share, 0.1)
	})
}

// Messages with a lifetime: through an outage nothing is delivered that was older
// when it left, receipts say so, and what is fresh arrives soon after.
func TestStreamLifetime(t *testing.T) {
	const rtt, lifetime = 80 * time.Millisecond, 100 * time.Millisecond
	for seed := range fewer(8) {
		inWorld(t, seed, netsim.LinkConfig{Delay: rtt / 2, Loss: 0.02 * float64(seed%3)}, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			s, r := streamPair(t, a, b, &StreamOptions{Unordered: seed%2 == 0, MaxLifetime: lifetime})
			time.Sleep(time.Second)
			begin := time.Now()
			var mu sync.Mutex
			done := make(map[int]error)
			const messages = 360
			go func() {
				for i := range messages {
					p := binary.LittleEndian.AppendUint64(make([]byte, 0, 100), uint64(i))
					err := s.SendMessage(append(p, make([]byte, 92)...), &MessageOptions{Done: func(err error) {
						mu.Lock()
						defer mu.Unlock()
						if _, twice := done[i]; twice {
							t.Error("two receipts")
						}
						done[i] = err
					}})
					if err != nil {
						t.Error(err)
					}
					time.Sleep(time.Second / 60)
				}
				_ = s.CloseWrite()
			}()
			time.AfterFunc(time.Second, func() { w.net.Cut("10.0.0.1", "10.0.0.2") })
			healed := time.Now().Add(4 * time.Second)
			time.AfterFunc(4*time.Second, func() { w.net.Heal("10.0.0.1", "10.0.0.2") })
			got := make(map[int]time.Duration)
			var first time.Duration
			buf := make([]byte, 200)
			for {
				n, err := r.ReadMessage(buf)
				if err == io.EOF {
					break
				}
				require.NoError(t, err)
				require.Equal(t, 100, n)
				i := int(binary.LittleEndian.Uint64(buf))
				age := time.Since(begin) - time.Duration(i)*(time.Second/60)
				if seed%2 == 0 { // else it may wait for those before it to be given up
					require.LessOrEqual(t, age, lifetime+rtt/2+time.Millisecond, "message %d", i)
				}
				got[i] = age
				if time.Now().After(healed) && first == 0 {
					first = time.Since(healed)
				}
			}
			t.Logf("seed %d: %d arrived, the first %v after the outage", seed, len(got), first)
			require.Greater(t, len(got), messages/3)
			require.LessOrEqual(t, first, rtt*3/2)
			time.Sleep(10 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			require.Len(t, done, messages)
			for i, err := range done {
				if err == nil {
					require.Contains(t, got, i, "the receipt says delivered")
				} else {
					require.ErrorIs(t, err, ErrMessageAbandoned)
				}
			}
		})
	}
}

// Messages of any size with few retransmissions, over a link that loses much: the
// ordered stream goes on behind what is given up, and each has one receipt, which
// is true.
func TestStreamReceipts(t *testing.T) {
	for seed := range fewer(16) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			random := rand.New(rand.NewPCG(seed, 3))
			a, b, _ := w.pair(nil, nil)
			s, r := streamPair(t, a, b, &StreamOptions{Unordered: seed%2 == 0})
			done := make(map[uint32]error)
			var mu sync.Mutex
			messages := uint32(100 + random.IntN(100))
			go func() {
				for i := range messages {
					p := binary.LittleEndian.AppendUint32(nil, i)
					o := &MessageOptions{MaxRetransmits: random.IntN(4) - 1, Lifetime: time.Duration(random.IntN(3)) * 100 * time.Millisecond, Done: func(err error) {
						mu.Lock()
						defer mu.Unlock()
						if _, twice := done[i]; twice {
							t.Error("two receipts")
						}
						done[i] = err
					}}
					if err := s.SendMessage(append(p, make([]byte, random.IntN(6000))...), o); err != nil {
						t.Error(err)
					}
					if random.IntN(3) == 0 {
						time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
					}
				}
				_ = s.CloseWrite()
			}()
			got := make(map[uint32]bool)
			last := int64(-1)
			buf := make([]byte, 1<<16)
			for {
				_, err := r.ReadMessage(buf)
				if err == io.EOF {
					break
				}
				require.NoError(t, err)
				i := binary.LittleEndian.Uint32(buf)
				require.False(t, got[i])
				got[i] = true
				if seed%2 == 1 {
					require.Greater(t, int64(i), last)
					last = int64(i)
				}
			}
			time.Sleep(10 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			require.Len(t, done, int(messages))
			abandoned := 0
			for i, err := range done {
				if err == nil {
					require.True(t, got[i], "message %d", i)
				} else {
					require.ErrorIs(t, err, ErrMessageAbandoned)
					abandoned++
				}
			}
			require.Greater(t, abandoned, 0)
			st := r.Stats()
			require.EqualValues(t, len(got), st.MessagesReceived)
			require.LessOrEqual(t, st.MessagesReceived+st.Skipped, uint64(messages))
			require.GreaterOrEqual(t, st.MessagesReceived+s.Stats().Abandoned, uint64(messages))
			require.Zero(t, figuresOf(a).awaited)
			require.Zero(t, b.Stats().Dropped.Total())
		})
	}
}

// A receipt comes also when the stream is reset, or the session ends.
func TestReceiptsOfWhatFails(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(a, b *Conn, s, r *Stream)
		want error
	}{
		{"reset", func(_, _ *Conn, s, _ *Stream) { _ = s.Reset(7) }, &StreamError{Code: 7}},
		{"peer resets", func(_, _ *Conn, _, r *Stream) { _ = r.Reset(7) }, &StreamError{Code: 7, Remote: true}},
		{"abort", func(a, _ *Conn, _, _ *Stream) { _ = a.Abort() }, net.ErrClosed},
		{"peer aborts", func(_, b *Conn, _, _ *Stream) { _ = b.Abort() }, ErrReset},
		{"peer closes", func(_, b *Conn, _, _ *Stream) { _ = b.CloseWithError(8, "x") }, &PeerCloseError{Code: 8, Text: "x"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inWorld(t, 16, clean, func(t *testing.T, w *world) {
				a, b, _ := w.pair(nil, nil)
				s, r := streamPair(t, a, b, nil)
				time.Sleep(time.Second)
				results := make(chan error, 3)
				send := func(n int) {
					require.NoError(t, s.SendMessage(make([]byte, n), &MessageOptions{Done: func(err error) { results <- err }}))
				}
				send(10)
				require.NoError(t, <-results)
				send(200000) // more than the credit
				tc.end(a, b, s, r)
				err := <-results
				require.Equal(t, tc.want.Error(), err.Error())
				time.Sleep(time.Minute)
				require.Empty(t, results)
				_, _ = a.Abort(), b.Abort()
			})
		})
	}
}

// Lifetimes run while the peer reads nothing, and there is no credit: calls and groups
// have room then, and Done is called.
func TestStreamLifetimeWithoutCredit(t *testing.T) {
	const lifetime = 100 * time.Millisecond
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, g := w.withStreams(nil)
		s := openStream(t, b, &StreamOptions{MaxLifetime: lifetime})
		var abandoned []time.Duration // ages; at most one at a time calls Done
		for range 100 {
			begin := time.Now()
			require.NoError(t, s.SendMessage(content(1, 10000), &MessageOptions{Done: func(err error) {
				if err != nil { // nil: there was credit
					assert.Equal(t, ErrMessageAbandoned, err)
					abandoned = append(abandoned, time.Since(begin))
				}
			}}))
			require.LessOrEqual(t, time.Since(begin), lifetime+purgeInterval)
		}
		for s.TryWriteMessage(content(1, 10000)) == nil {
		}
		begin := time.Now()
		for len(take(t, g)) == 0 {
			time.Sleep(time.Millisecond)
		}
		require.LessOrEqual(t, time.Since(begin), lifetime+purgeInterval)
		require.NoError(t, s.TryWriteMessage(content(1, 10000)))
		time.Sleep(time.Second)
		require.Zero(t, s.Stats().WriteQueued)
		require.Greater(t, len(abandoned), 50)
		for _, age := range abandoned {
			require.InDelta(t, lifetime+purgeInterval/2, age, float64(purgeInterval/2+time.Millisecond))
		}

		last := acceptStream(t, a) // which has all that it had credit for
		time.Sleep(time.Second)
		begin = time.Now()
		require.NoError(t, s.WriteMessage([]byte("last")))
		require.NoError(t, s.CloseWrite())
		buf := make([]byte, 10000)
		for n, err := 0, error(nil); err == nil; {
			if n, err = last.ReadMessage(buf); err == nil && n == 4 {
				require.Equal(t, "last", string(buf[:n]))
				require.Less(t, time.Since(begin), lifetime)
				return
			}
		}
		require.Fail(t, "the last message has not arrived")
	})
}

// A stream that may send no more, as its peer does not read, lets a call that waits write
// what there is room for.
func TestStreamRoomWithoutCredit(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, g := w.withStreams(nil)
		s, err := b.TryOpenStream(nil)
		require.NoError(t, err)
		fill := func() (n int) {
			for {
				k, err := s.TryWrite(content(1, 10000))
				if n += k; err != nil {
					require.Same(t, ErrWouldBlock, err)
					return n
				}
			}
		}
		fill()
		time.Sleep(time.Second)
		require.Same(t, s, takeOne(t, g, EventWritable).Stream)
		require.Greater(t, fill(), 10000)
		require.Empty(t, take(t, g))
		require.Greater(t, s.Stats().WriteQueued, b.ep.config.StreamWriteBuffer/10*9)

		o := openStream(t, a, nil)
		require.NoError(t, o.SetWriteDeadline(time.Now().Add(time.Second)))
		n, err := o.Write(make([]byte, 1<<20))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Greater(t, n, b.ep.config.StreamWriteBuffer)
	})
}
