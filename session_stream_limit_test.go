package kcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/netsim"
)

// ends are both ends of a session and of its only stream, which leaves no room.
type ends struct {
	a, b   *Conn
	s, r   *Stream
	w      *world
	pc     *netsim.PacketConn // of b
	cancel func()
}

// Ways in which the last thing that happens to a stream is a call that fails, or returns
// io.EOF.

func endByReading(e *ends) {
	_, _ = e.s.CloseWrite(), e.r.CloseWrite()
	time.Sleep(time.Second)
	_, _ = e.r.Read(make([]byte, 1))
}

// endByData is endByReading, of which the last bytes are enough.
func endByData(e *ends) {
	_, _ = e.s.Write([]byte("x"))
	endByReading(e)
}

func endByError(e *ends) {
	_, _ = e.r.CloseWrite(), e.s.Reset(1)
	time.Sleep(time.Second)
	_, _ = e.r.Read(make([]byte, 1))
}

func endByCloseWrite(e *ends) {
	_ = e.s.Reset(1)
	time.Sleep(time.Second)
	_, _ = e.r.Read(make([]byte, 1))
	_ = e.r.CloseWrite()
}

// errLost stands for a *PeerLostError.
var errLost = errors.New("lost")

// OpenStream waits while the peer has as many streams as it takes. Room, the end of its
// context, and the end of the session in each way end that.
func TestOpenStreamWaits(t *testing.T) {
	for name, v := range map[string]struct {
		do      func(e *ends)
		want    error // nil: a stream
		timeout time.Duration
		within  time.Duration
	}{
		"room":             {do: func(e *ends) { _, _ = e.s.Close(), e.r.Close() }, within: time.Second / 10},
		"reset":            {do: func(e *ends) { _, _ = e.s.Reset(1), e.r.Close() }, within: time.Second / 10},
		"read to the end":  {do: endByReading, within: 11 * time.Millisecond},
		"all is read":      {do: endByData, within: 11 * time.Millisecond},
		"an error is read": {do: endByError, within: 11 * time.Millisecond},
		"CloseWrite fails": {do: endByCloseWrite, within: 11 * time.Millisecond},
		"deadline":         {do: func(*ends) {}, want: context.DeadlineExceeded, timeout: 3 * time.Second, within: 4 * time.Second},
		"context":          {do: func(e *ends) { e.cancel() }, want: context.Canceled, within: time.Millisecond},
		"Close":            {do: func(e *ends) { _ = e.a.Close() }, want: net.ErrClosed, within: time.Second / 10},
		"Abort":            {do: func(e *ends) { _ = e.a.Abort() }, want: net.ErrClosed, within: time.Second / 10},
		"Endpoint.Close":   {do: func(e *ends) { _ = e.a.Endpoint().Close() }, want: net.ErrClosed, within: 30 * time.Second},
		"the peer closes":  {do: func(e *ends) { _ = e.b.Close() }, want: ErrPeerClosed, within: time.Second / 10},
		"the peer aborts":  {do: func(e *ends) { _ = e.b.Abort() }, want: ErrReset, within: time.Second / 10},
		"the peer is lost": {do: func(e *ends) { e.w.net.Cut("10.0.0.1", "10.0.0.2") }, want: errLost, within: time.Hour},
		"the peer restarts": {do: func(e *ends) {
			_ = e.pc.Close()
			time.Sleep(time.Second)
			e.w.listen(nil)
		}, want: ErrReset, within: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				l, pc := w.server(&Config{MaxStreams: 1})
				dialler, _ := w.endpoint("10.0.0.2:0", nil)
				a := w.dial(dialler)
				b := accepted(t, l)
				e := &ends{a: a, b: b, w: w, pc: pc}
				e.s, e.r = streamPair(t, a, b, nil)
				_, err := a.TryOpenStream(nil)
				require.ErrorIs(t, err, errNoStreamYet)
				ctx, cancel := context.WithCancel(t.Context())
				if v.timeout > 0 {
					ctx, cancel = context.WithTimeout(ctx, v.timeout)
				}
				defer cancel()
				e.cancel = cancel
				type result struct {
					s   *Stream
					err error
				}
				results := make(chan result, 1)
				go func() {
					s, err := a.OpenStream(ctx, nil)
					results <- result{s, err}
				}()
				time.Sleep(2 * time.Second)
				require.Empty(t, results)
				v.do(e)
				begin := time.Now()
				got := <-results
				require.LessOrEqual(t, time.Since(begin), v.within)
				if v.want == errLost {
					require.ErrorAs(t, got.err, new(*PeerLostError))
				} else if v.want != nil {
					require.ErrorIs(t, got.err, v.want)
					require.Nil(t, got.s)
				} else {
					require.NoError(t, got.err)
					send(t, got.s, []byte("more"))
					receive(t, acceptStream(t, b), []byte("more"))
					require.Zero(t, b.Endpoint().Totals().Streams.Refused)
				}
				_, _ = a.Abort(), b.Abort()
			})
		})
	}
}

// Calls that wait open their streams in the order in which they came, and one whose
// context ends does not keep the next from its turn.
func TestOpenStreamTakesTurns(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		const most = 3
		a, b, _ := w.pair(nil, &Config{MaxStreams: most})
		var mine, theirs []*Stream
		for range most {
			s, r := streamPair(t, a, b, nil)
			mine, theirs = append(mine, s), append(theirs, r)
		}
		var mu sync.Mutex
		opened := map[uint32]int{} // the call that opened the stream of a number
		var calls sync.WaitGroup
		cancelled, cancel := context.WithCancel(t.Context())
		defer cancel()
		for i := range 20 {
			ctx := t.Context()
			if i%4 == 1 {
				ctx = cancelled
			}
			calls.Go(func() {
				s, err := a.OpenStream(ctx, nil)
				if i%4 == 1 {
					require.ErrorIs(t, err, context.Canceled)
					return
				}
				require.NoError(t, err)
				mu.Lock()
				defer mu.Unlock()
				opened[s.ID()] = i
				mine = append(mine, s)
			})
			time.Sleep(time.Millisecond)
		}
		for done := 0; done < 15; {
			time.Sleep(time.Second)
			cancel()
			mu.Lock()
			for _, s := range mine {
				_ = s.Close()
			}
			mine = nil
			mu.Unlock()
			for _, r := range theirs {
				_ = r.Close()
			}
			time.Sleep(time.Second)
			done, theirs = done+len(theirs), nil
			for b.waitingStreams() > 0 {
				theirs = append(theirs, acceptStream(t, b))
			}
		}
		calls.Wait()
		var order []int // of the numbers: the calls return in any order
		for _, id := range slices.Sorted(maps.Keys(opened)) {
			order = append(order, opened[id])
		}
		require.True(t, slices.IsSorted(order), "%v", order)
		require.Len(t, order, 15)
		require.Zero(t, b.Endpoint().Totals().Streams.Refused)
		_, _ = a.Abort(), b.Abort()
	})
}

// waitingStreams returns how many streams AcceptStream would return at once.
func (c *Conn) waitingStreams() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams.Waiting()
}

// A call of OpenStream that waits for what the peer is, and then for room, ends with its
// context.
func TestOpenStreamWaitsTwice(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		l := w.listen(&Config{MaxStreams: 1})
		e, _ := w.endpoint("10.0.0.2:0", &Config{DialTimeout: -1})
		a := w.dial(e)
		results := make(chan error)
		for range 2 {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				_, err := a.OpenStream(ctx, nil)
				results <- err
			}()
		}
		_, err := a.Write([]byte{1})
		require.NoError(t, err)
		b := accepted(t, l)
		require.NoError(t, <-results)
		begin := time.Now()
		require.ErrorIs(t, <-results, context.DeadlineExceeded)
		require.Less(t, time.Since(begin), 6*time.Second)
		_, _ = a.Abort(), b.Abort()
	})
}

// Many streams at a time, of both ends, over a bad network: none is refused, all that
// their applications write arrives, and nothing is left.
func TestOpenStreamOverBadNetwork(t *testing.T) {
	for seed := range fewer(6) {
		random := rand.New(rand.NewPCG(seed, 11))
		one, other := &Config{MaxStreams: 1 + random.IntN(20)}, &Config{MaxStreams: 1 + random.IntN(5)}
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			a, b, _ := w.pair(one, other)
			var all sync.WaitGroup
			for _, c := range []*Conn{a, b} {
				all.Go(func() {
					for {
						s, err := c.AcceptStream(t.Context())
						if err != nil {
							return
						}
						go func() {
							answerQuestion(t, s)
							_ = s.Close()
						}()
					}
				})
			}
			var calls sync.WaitGroup
			for i := range 200 {
				c := []*Conn{a, b}[i%2]
				calls.Go(func() {
					s, err := c.OpenStream(t.Context(), nil)
					require.NoError(t, err)
					send(t, s, fmt.Append(nil, "question ", i%10))
					receive(t, s, fmt.Append(nil, "answer 2 ", i%10))
					require.NoError(t, s.Close())
				})
			}
			calls.Wait()
			time.Sleep(time.Minute)
			for _, c := range []*Conn{a, b} {
				require.Zero(t, c.Endpoint().Totals().Streams.Refused)
				require.Zero(t, figuresOf(c).streams)
				require.Zero(t, figuresOf(c).fromPeer)
				require.Zero(t, c.Stats().Dropped)
			}
			_, _ = a.Abort(), b.Abort()
			all.Wait()
		})
	}
}

// answerQuestion reads a question of 10 bytes, and writes the answer to it.
func answerQuestion(t *testing.T, s *Stream) {
	b := make([]byte, 10)
	for n := 0; n < len(b); {
		k, err := s.Read(b[n:])
		if err != nil {
			return
		}
		n += k
	}
	_, _ = s.Write(append([]byte("answer 2 "), b[9]))
}

// Ten thousand streams, one after another, take no memory once they are over, and few
// segments beside their own tell of room.
func TestStreamsOneAfterAnother(t *testing.T) {
	var segments [2]float64 // for each stream
	for i := range segments {
		inWorld(t, 5, netsim.LinkConfig{Delay: time.Millisecond}, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, &Config{MaxStreams: 64})
			if i == 0 {
				ignoreLimit(a)
				ignoreLimit(b)
			}
			go func() {
				for {
					s, err := b.AcceptStream(t.Context())
					if err != nil {
						return
					}
					answerQuestion(t, s)
					_ = s.Close()
				}
			}()
			open := func(n int) {
				for range n {
					s := openStream(t, a, nil)
					send(t, s, []byte("question 7"))
					receive(t, s, []byte("answer 2 7"))
					require.NoError(t, s.Close())
				}
			}
			open(100)
			before, memory := b.Stats().SegmentsSent, memoryInUse()
			n := int(fewer(10000))
			open(n)
			segments[i] = float64(b.Stats().SegmentsSent-before) / float64(n)
			require.Less(t, int64(memoryInUse())-int64(memory), int64(200<<10))
			_, _ = a.Abort(), b.Abort()
		})
	}
	require.InDelta(t, segments[0], segments[1], 0.1)
}

// An end of the package before limits were told, at either side, opens what it likes, and
// is refused what is too much.
func TestPeersWithoutLimit(t *testing.T) {
	inWorld(t, 6, lossy, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MaxStreams: 2}, &Config{MaxStreams: 2})
		ignoreLimit(a)
		ignoreLimit(b)
		for _, c := range []*Conn{a, b} {
			for range 2 {
				openStream(t, c, nil)
			}
			s := openStream(t, c, nil)
			_, err := s.Read(make([]byte, 1))
			wantReset(t, err, StreamRefused, true)
		}
		for range 2 {
			for _, c := range []*Conn{a, b} {
				_ = acceptStream(t, c).Close()
			}
		}
		time.Sleep(time.Minute)
		require.Zero(t, a.Stats().Dropped, "no MAX_STREAMS came")
		require.Zero(t, figuresOf(a).streams)
		_, _ = a.Abort(), b.Abort()
	})
}

// A peer that says that it takes more than it does refuses streams. One that says less
// than before, or nothing that counts, changes nothing.
func TestPeerLiesAboutItsLimit(t *testing.T) {
	inWorld(t, 7, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, &Config{MaxStreams: 2})
		streamPair(t, a, b, nil)
		tell := func(n uint32) {
			b.sendRaw((&streams.Header{Kind: streams.MaxStreams, Streams: n}).Append(nil))
			time.Sleep(time.Second)
		}
		tell(0)
		tell(1)
		streamPair(t, a, b, nil)
		_, err := a.TryOpenStream(nil)
		require.ErrorIs(t, err, errNoStreamYet)
		tell(1<<32 - 1)
		s := openStream(t, a, nil)
		_, err = s.Read(make([]byte, 1))
		wantReset(t, err, StreamRefused, true)
		tell(3)
		openStream(t, a, nil)
		require.Zero(t, a.Stats().Dropped)
		_, _ = a.Abort(), b.Abort()
	})
}
