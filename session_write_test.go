package kcp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// small is a session whose write buffer is soon full, because its peer reads
// nothing.
func small(messages bool) *Config {
	return &Config{MessageMode: messages, WriteBuffer: minWriteBuffer, ReceiveWindow: 128, SendWindow: 4}
}

// TryWrite queues what there is room for, and WriteReady says when there is
// more.
func TestTryWrite(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(small(false), nil)
		time.Sleep(time.Second)
		w.deaf()
		data := content(1, 3*minWriteBuffer)
		n, err := a.TryWrite(data[:10])
		require.NoError(t, err)
		require.Equal(t, 10, n)
		room := available(a)
		require.Equal(t, minWriteBuffer-a.Stats().WriteBufferUsed, a.session.Room())
		require.Greater(t, room, 2000)
		m, err := a.TryWrite(data[n : n+room])
		require.NoError(t, err, "of all that is available")
		require.Equal(t, room, m)
		require.LessOrEqual(t, a.Stats().WriteBufferUsed, minWriteBuffer)
		n += m
		for { // what shares a segment costs less
			m, err := a.TryWrite(data[n:])
			n += m
			if err != nil {
				require.Same(t, ErrWouldBlock, err)
				break
			}
		}
		require.Zero(t, available(a))
		require.GreaterOrEqual(t, a.Stats().WriteBufferUsed, minWriteBuffer)
		again, err := a.TryWrite(data[n:])
		require.Same(t, ErrWouldBlock, err)
		require.Zero(t, again)
		ready := a.WriteReady()
		require.Equal(t, ready, a.WriteReady())
		require.False(t, isDone(ready))
		w.net.SetFilter(nil)
		for n < len(data) {
			<-a.WriteReady()
			require.NotZero(t, available(a))
			m, err := a.TryWrite(data[n:])
			require.NotZero(t, m)
			if n += m; n < len(data) {
				require.Same(t, ErrWouldBlock, err)
			}
		}
		require.True(t, isDone(ready))
		receive(t, b, data)
	})
}

// deaf makes all packets be lost.
func (w *world) deaf() { w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false }) }

// After the end there is nothing to wait for, and the errors are those of Write. A write
// of nothing waits for no room.
func TestTryWriteAfterTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(a, b *Conn)
		want error
	}{
		"closed":      {func(a, _ *Conn) { _ = a.Close() }, net.ErrClosed},
		"half-closed": {func(a, _ *Conn) { _ = a.CloseWrite() }, net.ErrClosed},
		"aborted":     {func(_, b *Conn) { _ = b.Abort(0, "") }, ErrReset},
		"peer closed": {func(_, b *Conn) { _ = b.Close() }, ErrPeerClosed},
		"deadline":    {func(a, _ *Conn) { _ = a.SetWriteDeadline(time.Now().Add(time.Second)) }, os.ErrDeadlineExceeded},
	} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			config := small(true)
			config.Linger = -1
			a, b, _ := w.pair(config, config)
			for a.WriteMessage(make([]byte, 1000), &MessageOptions{NoWait: true}) == nil {
			}
			writeAll(t, a, nil)
			ready := a.WriteReady()
			require.False(t, isDone(ready), name)
			if name != "peer closed" && name != "aborted" {
				w.deaf()
			}
			c.end(a, b)
			<-ready
			require.ErrorIs(t, a.WriteMessage(nil, &MessageOptions{NoWait: true}), c.want, name)
			_, err := a.TryWrite(nil)
			require.ErrorIs(t, err, c.want)
			require.ErrorAs(t, err, new(*net.OpError))
			require.Zero(t, available(a))
			require.True(t, isDone(a.WriteReady()))
		})
	}
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(nil, nil)
		require.ErrorIs(t, a.WriteMessage(nil, &MessageOptions{NoWait: true}), errNotMessageMode)
	})
}

// The more the sessions of an endpoint hold, the less room each has beyond what
// its path needs: 4 MiB at first. What sessions hold is counted, and released. What the
// program has said counts.
func TestWriteMemoryPressure(t *testing.T) {
	full := content(1, session.DefaultWriteBuffer+1)
	inWorld(t, 61, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		const segment, stranger = defaultConfigMTU + machine.WriteCostPerSegment, session.WritePressure + 1 // what other sessions hold
		for i, test := range []struct {
			config            Config
			scarce, set, much int // 0: not tried
		}{
			{Config{SendWindow: 32}, session.ScarceWriteBuffer, 0, session.DefaultWriteBuffer},
			{Config{WriteBuffer: 1 << 20}, 1 << 20, 2 << 20, 0},
			{Config{CongestionControl: congestion.NewNone}, session.DefaultWriteBuffer, 0, 0}, // its path takes much
		} {
			e, _ := w.endpoint(fmt.Sprintf("10.0.0.%d:0", i+2), &test.config)
			c := w.dial(e)
			bothWays(t, c, accepted(t, l), []byte("here"), []byte("here"))
			w.net.Cut("10.0.0.1", fmt.Sprint("10.0.0.", i+2))
			held := &e.shared.Load.Written
			fill := func(want int) { // writes until the buffer has no room
				require.NoError(t, c.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
				_, err := c.Write(full)
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				require.InDelta(t, want, c.Stats().WriteBufferUsed, segment)
			}
			account := func(want int) { // the account is within two grains of that
				allocated := float64(want) * (1536 + 256) / segment
				require.InDelta(t, allocated/session.WriteGrain, held.Load(), allocated/session.WriteGrain/40+3)
			}
			held.Add(stranger)
			fill(test.scarce)
			require.Zero(t, available(c))
			if test.set > 0 {
				require.NoError(t, c.SetWriteBuffer(test.set))
				fill(test.set)
				require.NoError(t, c.SetWriteBuffer(0))
				require.Zero(t, available(c), "that of the Config again")
			}
			held.Add(-stranger)
			account(max(test.scarce, test.set))
			if test.much > 0 {
				fill(test.much)
				account(test.much)
			}
			require.NoError(t, c.Abort(0, ""))
			require.Zero(t, held.Load(), "what has ended holds nothing")
		}
	})
}

// The more the sessions of an endpoint hold, the less room each has beyond what
// its path needs.
func TestWriteMemoryFollowsPressure(t *testing.T) {
	inWorld(t, 61, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(&Config{SendWindow: 1}, nil)
		for held, want := range map[int64]int{
			64 << 20: session.DefaultWriteBuffer, 64<<20 + session.WriteGrain: 256 << 10, 128 << 20: 128 << 10, 512 << 20: 32 << 10, 1 << 30: 16 << 10, 1 << 40: 16 << 10,
		} {
			a.ep.shared.Load.Written.Store(held / session.WriteGrain)
			require.InDelta(t, want, a.session.Inside().WriteBuffer(), 100)
		}
		a.ep.shared.Load.Written.Store(0)
	})
}

// Write, and the channel of WriteReady, are woken when other sessions hold less, although
// the peer is silent. So is a group.
func TestWriteMemoryPressureEnds(t *testing.T) {
	inWorld(t, 62, clean, func(t *testing.T, w *world) {
		_, a, g := w.grouped(nil)
		require.NoError(t, a.SetWindow(32, 0))
		w.net.Cut("10.0.0.1", "10.0.0.2")
		const stranger = session.WritePressure + 1
		a.ep.shared.Load.Written.Add(stranger)
		done := make(chan error, 1)
		go func() {
			_, err := a.Write(make([]byte, 1<<20))
			done <- err
		}()
		time.Sleep(time.Second)
		require.Empty(t, done)
		ready := a.WriteReady()
		require.False(t, isDone(ready))
		require.Zero(t, g.Send([]Outgoing{{Conn: a, Data: []byte("x")}}))
		a.ep.shared.Load.Written.Add(-stranger)
		require.NoError(t, <-done)
		<-ready
		takeOne(t, g, EventWritable)
		require.NoError(t, a.Abort(0, ""))
	})
}

// Parity names no session, so that of an address with two sessions is not used:
// recovery would make packets of it that were never sent. Once one of the two
// has ended, the other has the benefit again.
func TestFECOfTwoSessions(t *testing.T) {
	t.Parallel()
	long(t)
	link := netsim.LinkConfig{Delay: 20 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.05, Reorder: 0.1}
	inWorld(t, 6, link, func(t *testing.T, w *world) {
		config := LowLatency()
		config.FEC = FEC{Data: 9, Parity: 4}
		a1, b1, l := w.pair(&config, &config)
		a2 := w.dial(a1.ep)
		go func() { _, _ = a2.Write([]byte{42}) }()
		b2 := accepted(t, l)
		receive(t, b2, []byte{42})
		time.Sleep(time.Second) // what came before the second session is dealt with
		before := [2]stats.FEC{b1.Stats().FEC, b2.Stats().FEC}
		up := [2][]byte{content(7, 1<<20), content(8, 1<<20)}
		send(t, a1, up[0])
		send(t, a2, up[1])
		receive(t, b1, up[0])
		receive(t, b2, up[1])
		for i, b := range []*Conn{b1, b2} {
			s := b.Stats()
			require.Zero(t, s.Dropped.Total(), "%+v", s.Dropped)
			require.Equal(t, before[i].Recovered, s.FEC.Recovered)
		}
		go func() { _ = a2.Close() }()
		require.NoError(t, b2.Close())
		time.Sleep(10 * time.Second) // until both have drained
		require.Equal(t, 1, l.Endpoint().Stats().Sessions)
		send(t, a1, up[1])
		receive(t, b1, up[1])
		require.Greater(t, b1.Stats().FEC.Recovered, before[0].Recovered+10)
	})
}

// ReceiveDatagram ends with its context, the read deadline and the session; its
// queue is bounded and keeps the newest.
func TestDatagramLimits(t *testing.T) {
	inWorld(t, 9, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := b.ReceiveDatagram(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Second)))
		_, err = b.ReceiveDatagram(context.Background())
		requireTimeout(t, err)
		require.NoError(t, b.SetReadDeadline(time.Time{}))

		const n = 3 * streams.MostDatagrams
		for i := range n {
			require.NoError(t, a.SendDatagram([]byte{byte(i >> 8), byte(i)}))
		}
		time.Sleep(time.Second)
		s := b.Stats().Datagrams
		require.Equal(t, uint64(n), s.Received)
		require.Equal(t, uint64(n-streams.MostDatagrams), s.Dropped)
		for i := n - streams.MostDatagrams; i < n; i++ {
			got, err := b.ReceiveDatagram(context.Background())
			require.NoError(t, err)
			require.Equal(t, []byte{byte(i >> 8), byte(i)}, got)
		}

		errs := make(chan error)
		go func() {
			_, err := b.ReceiveDatagram(context.Background())
			errs <- err
		}()
		synctest.Wait()
		require.NoError(t, b.Close())
		require.ErrorIs(t, <-errs, net.ErrClosed)
		require.ErrorIs(t, b.SendDatagram(nil), net.ErrClosed)
	})
}
