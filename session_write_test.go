package kcp

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/datagrams"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// small is a session whose write buffer is soon full, because its peer reads
// nothing.
func small(messages bool) *Config {
	return &Config{MessageMode: messages, WriteBuffer: minWriteBuffer, ReceiveWindow: 128, SendWindow: 4}
}

// TryWrite queues what there is room for, WriteAvailable says how much that is,
// and WriteReady when there is more.
func TestTryWrite(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(small(false), nil)
		time.Sleep(time.Second)
		w.deaf()
		data := content(1, 3*minWriteBuffer)
		n, err := a.TryWrite(data[:10])
		require.NoError(t, err)
		require.Equal(t, 10, n)
		room := a.WriteAvailable()
		require.Equal(t, minWriteBuffer-a.Stats().WriteBufferUsed, a.room())
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
		require.Zero(t, a.WriteAvailable())
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
			require.NotZero(t, a.WriteAvailable())
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

// A message that is refused is not queued in part: what the peer reads are the
// messages that were taken, whole, and no others. So it is for a WriteMessage
// whose deadline passes.
func TestRefusedMessagesQueueNothing(t *testing.T) {
	for _, try := range []bool{true, false} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(small(true), small(true))
			var read [][]byte
			done := make(chan struct{})
			go func() {
				defer close(done)
				for got := make([]byte, 4000); ; {
					n, err := b.ReadMessage(got)
					if err != nil {
						return
					}
					read = append(read, bytes.Clone(got[:n]))
				}
			}()
			var taken [][]byte
			refused := 0
			for i := range 100 {
				m := content(uint64(i), 3000) // of three segments
				var err error
				if try {
					err = a.TryWriteMessage(m)
				} else {
					require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Microsecond)))
					err = a.WriteMessage(m)
				}
				switch {
				case err == nil:
					taken = append(taken, m)
					continue
				case try:
					require.Same(t, ErrWouldBlock, err)
				default:
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				}
				refused++
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(time.Minute)
			require.Greater(t, len(taken), 10)
			require.Greater(t, refused, 10)
			require.NoError(t, b.Close())
			<-done
			require.Equal(t, taken, read)
		})
	}
}

// Neither of them waits for a Write that does, nor comes between its segments.
func TestTryWriteBesideWrite(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(small(true), nil)
		w.deaf()
		go func() { _, _ = a.Write(make([]byte, 100000)) }()
		synctest.Wait()
		require.Same(t, ErrWouldBlock, a.TryWriteMessage(nil))
		_, err := a.TryWrite([]byte{1})
		require.Same(t, ErrWouldBlock, err)
		require.Zero(t, a.WriteAvailable())
	})
}

// A Write of nothing waits for no room, and fails as others do.
func TestWriteOfNothing(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(small(false), nil)
		w.deaf()
		_, err := a.TryWrite(make([]byte, 100000))
		require.Same(t, ErrWouldBlock, err)
		n, err := a.Write(nil)
		require.NoError(t, err)
		require.Zero(t, n)
		require.NoError(t, a.Abort())
		_, err = a.Write(nil)
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// After the end there is nothing to wait for, and the errors are those of Write.
func TestTryWriteAfterTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(a, b *Conn)
		want error
	}{
		"closed":      {func(a, _ *Conn) { _ = a.Close() }, net.ErrClosed},
		"half-closed": {func(a, _ *Conn) { _ = a.CloseWrite() }, net.ErrClosed},
		"aborted":     {func(_, b *Conn) { _ = b.Abort() }, ErrReset},
		"peer closed": {func(_, b *Conn) { _ = b.Close() }, ErrPeerClosed},
		"deadline":    {func(a, _ *Conn) { _ = a.SetWriteDeadline(time.Now().Add(time.Second)) }, os.ErrDeadlineExceeded},
	} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			config := small(true)
			config.Linger = -1
			a, b, _ := w.pair(config, config)
			for a.TryWriteMessage(make([]byte, 1000)) == nil {
			}
			ready := a.WriteReady()
			require.False(t, isDone(ready), name)
			if name != "peer closed" && name != "aborted" {
				w.deaf()
			}
			c.end(a, b)
			<-ready
			require.ErrorIs(t, a.TryWriteMessage(nil), c.want, name)
			_, err := a.TryWrite(nil)
			require.ErrorIs(t, err, c.want)
			var oe *net.OpError
			require.ErrorAs(t, err, &oe)
			require.Zero(t, a.WriteAvailable())
			require.True(t, isDone(a.WriteReady()))
		})
	}
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(nil, nil)
		require.ErrorIs(t, a.TryWriteMessage(nil), ErrNotMessageMode)
	})
}

// A session in a group has EventWritable after a TryWrite without room.
func TestTryWriteInGroup(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(small(true), nil)
		g := NewGroup()
		defer g.Close()
		require.NoError(t, g.Add(a))
		for a.TryWriteMessage(make([]byte, 1000)) == nil {
		}
		go func() {
			buf := make([]byte, 1000)
			for {
				if _, err := b.Read(buf); err != nil {
					return
				}
			}
		}()
		events := make([]Event, 1)
		n, err := g.Wait(context.Background(), events)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, EventWritable, events[0].Kind)
		require.NoError(t, a.TryWriteMessage(nil))
	})
}

// A session may run 4 MiB ahead of its peer. Once the sessions of its endpoint
// hold much, it may run 256 KiB ahead, or as far as its path needs, unless the
// program has said otherwise. What sessions hold is counted, and released.
func TestWriteMemoryPressure(t *testing.T) {
	full := content(1, defaultWriteBuffer+1)
	inWorld(t, 61, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		dial := func(addr string, config *Config) *Conn {
			e, _ := w.endpoint(addr, config)
			c := w.dial(e)
			bothWays(t, c, accepted(t, l), []byte("here"), []byte("here"))
			return c
		}
		conns := []*Conn{
			dial("10.0.0.2:0", &Config{SendWindow: 32}),
			dial("10.0.0.3:0", &Config{WriteBuffer: 1 << 20}),
			dial("10.0.0.4:0", &Config{CongestionControl: congestion.NewNone}),
		}
		for _, c := range conns {
			w.net.Cut("10.0.0.1", c.LocalAddr().String()[:8])
		}
		// fill writes until the buffer has no room, and returns what it holds.
		fill := func(c *Conn) int {
			require.NoError(t, c.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
			_, err := c.Write(full)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			return c.Stats().WriteBufferUsed
		}
		const segment = defaultConfigMTU + writeCostPerSegment
		held := func(want ...int) { // the accounts are within two grains of that
			t.Helper()
			for i, n := range want {
				allocated := float64(n) * (1536 + sendSegmentBytes) / segment
				require.InDelta(t, allocated/writeGrain, conns[i].ep.load.written.Load(), allocated/writeGrain/40+3)
			}
		}

		const stranger = writePressure + 1 // what other sessions hold
		for _, c := range conns {
			c.ep.load.written.Add(stranger)
		}
		require.InDelta(t, scarceWriteBuffer, fill(conns[0]), segment)
		require.Zero(t, conns[0].WriteAvailable())
		require.InDelta(t, 1<<20, fill(conns[1]), segment, "as the Config says")
		require.NoError(t, conns[1].SetWriteBuffer(2<<20))
		require.InDelta(t, 2<<20, fill(conns[1]), segment, "as the program says")
		require.NoError(t, conns[1].SetWriteBuffer(0))
		require.Zero(t, conns[1].WriteAvailable(), "that of the Config again")
		require.InDelta(t, defaultWriteBuffer, fill(conns[2]), segment, "the path takes much")
		require.NoError(t, conns[2].Abort())
		for _, c := range conns {
			c.ep.load.written.Add(-stranger)
		}

		held(scarceWriteBuffer, 2<<20, 0)
		require.InDelta(t, defaultWriteBuffer, fill(conns[0]), segment, "there is no pressure any more")
		held(defaultWriteBuffer, 2<<20, 0)
		require.NoError(t, conns[0].Abort())
		require.Zero(t, conns[0].ep.load.written.Load(), "what has ended holds nothing")
	})
}

// The more the sessions of an endpoint hold, the less room each has beyond what
// its path needs.
func TestWriteMemoryFollowsPressure(t *testing.T) {
	inWorld(t, 61, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(&Config{SendWindow: 1}, nil)
		for held, want := range map[int64]int{
			64 << 20: defaultWriteBuffer, 64<<20 + writeGrain: 256 << 10, 128 << 20: 128 << 10, 512 << 20: 32 << 10, 1 << 30: 16 << 10, 1 << 40: 16 << 10,
		} {
			a.ep.load.written.Store(held / writeGrain)
			require.InDelta(t, want, a.writeBuffer(), 100)
		}
		a.ep.load.written.Store(0)
	})
}

// What waits for room is woken when other sessions hold less, although the peer is
// silent: Write, the channel of WriteReady, and a group.
func TestWriteMemoryPressureEnds(t *testing.T) {
	inWorld(t, 62, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		conns := make([]*Conn, 2)
		for i := range conns {
			conns[i] = w.dial(e)
			bothWays(t, conns[i], accepted(t, l), []byte("here"), []byte("here"))
			require.NoError(t, conns[i].SetWindow(32, 0))
		}
		w.net.Cut("10.0.0.1", "10.0.0.2")
		g := NewGroup()
		require.NoError(t, g.Add(conns[1]))
		const stranger = writePressure + 1
		e.load.written.Add(stranger)
		done := make(chan error, 1)
		go func() {
			_, err := conns[0].Write(make([]byte, 1<<20))
			done <- err
		}()
		batch := []Outgoing{{Conn: conns[1], Data: make([]byte, 1<<20)}}
		g.Send(batch)
		require.ErrorIs(t, batch[0].Err, ErrWouldBlock)
		time.Sleep(time.Second)
		ready := conns[0].WriteReady()
		select {
		case <-ready:
			t.Fatal("there is no room")
		case <-done:
			t.Fatal("there was no room")
		default:
		}
		e.load.written.Add(-stranger)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		events := make([]Event, 1)
		n, err := g.Wait(ctx, events)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, EventWritable, events[0].Kind)
		select {
		case <-ready:
		case <-ctx.Done():
			t.Fatal("WriteReady still waits")
		}
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-ctx.Done():
			t.Fatal("Write still waits")
		}
		for _, c := range conns {
			require.NoError(t, c.Abort())
		}
	})
}

// Sizes at their extremes: more than 4 GiB in one session, and the largest
// windows of the largest packets, on 32 bits too.
func TestWriteMemoryExtremes(t *testing.T) {
	config := &Config{MTU: 60000, MaxMTU: 60000, SendWindow: 65535, ReceiveWindow: 65535, CongestionControl: congestion.NewNone}
	inWorld(t, 64, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(config, config)
		bothWays(t, a, b, make([]byte, 100_000), []byte("here"))
		all := &a.ep.load.written
		before := all.Load()
		a.mu.Lock()
		defer a.mu.Unlock()
		all.Add(writePressure + 1)
		require.Equal(t, defaultWriteBuffer, a.writeBuffer())
		all.Add(-writePressure - 1)
		if math.MaxInt == math.MaxInt32 {
			return
		}
		much := 1<<(bits.UintSize/2) + 10*writeGrain
		a.kcp.out.held += uint32(much / memoryGrain)
		for range 3 {
			a.accountWrites()
			require.EqualValues(t, much/writeGrain, all.Load()-before)
		}
		a.kcp.out.held -= uint32(much / memoryGrain)
		a.accountWrites()
		require.Equal(t, before, all.Load())
	})
}

// Small messages cost no write to the counter that all sessions share, and
// acknowledged data is released.
func TestWriteMemoryIsReleased(t *testing.T) {
	inWorld(t, 62, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		all := &a.ep.load.written
		before := all.Load()
		a.mu.Lock()
		defer a.mu.Unlock()
		for range 10 {
			_, err := a.kcp.Send(make([]byte, 1000))
			require.NoError(t, err)
			a.accountWrites()
		}
		require.Equal(t, before, all.Load())
		_, err := a.kcp.Send(make([]byte, 2*writeGrain))
		require.NoError(t, err)
		a.accountWrites()
		require.InDelta(t, 3, all.Load()-before, 0, "as allocated")
		a.push()
		a.mu.Unlock()
		receive(t, b, make([]byte, 10_000+2*writeGrain))
		time.Sleep(time.Second) // the acknowledgements
		a.mu.Lock()
		require.Zero(t, a.kcp.WaitSend())
		require.Equal(t, before, all.Load())
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
		b2, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		receive(t, b2, []byte{42})
		time.Sleep(time.Second) // what came before the second session is dealt with
		before := [2]FECStats{b1.Stats().FEC, b2.Stats().FEC}
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
		require.Equal(t, 1, l.Stats().Sessions)
		send(t, a1, up[1])
		receive(t, b1, up[1])
		require.Greater(t, b1.Stats().FEC.Recovered, before[0].Recovered+10)
	})
}

// exhausted is a cipher whose key is used up after some packets.
type exhausted struct {
	crypt.Cipher
	left int
}

func (c *exhausted) Seal(p []byte) error {
	if c.left--; c.left < 0 {
		return crypt.ErrKeyExhausted
	}
	return c.Cipher.Seal(p)
}

// When the key is used up nothing more is sent, and the session says why.
func TestKeyExhaustion(t *testing.T) {
	inWorld(t, 8, clean, func(t *testing.T, w *world) {
		cipher := testCiphers(t, 1)["aes-gcm"]
		client := &Config{Cipher: &exhausted{cipher, 20}, CongestionControl: congestion.NewNone}
		a, b, _ := w.pair(client, &Config{Cipher: cipher})
		go func() { _, _ = b.Read(make([]byte, 1<<20)) }()
		_, err := a.Write(make([]byte, 1<<23))
		require.ErrorIs(t, err, crypt.ErrKeyExhausted)
		_, err = a.Read(make([]byte, 1))
		require.ErrorIs(t, err, crypt.ErrKeyExhausted)
		require.LessOrEqual(t, a.ep.Stats().PacketsSent, uint64(20))
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

		const n = 3 * datagrams.Most
		for i := range n {
			require.NoError(t, a.SendDatagram([]byte{byte(i >> 8), byte(i)}))
		}
		time.Sleep(time.Second)
		s := b.Stats().Datagrams
		require.Equal(t, uint64(n), s.Received)
		require.Equal(t, uint64(n-datagrams.Most), s.Dropped)
		for i := n - datagrams.Most; i < n; i++ {
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

// Encoding and sealing a packet allocates nothing.
func TestPipelineAllocatesNothing(t *testing.T) {
	for name, cipher := range testCiphers(t, 1) {
		inWorld(t, 10, clean, func(t *testing.T, w *world) {
			config := &Config{Cipher: cipher, FEC: FEC{Data: 10, Parity: 3}}
			a, _, _ := w.pair(config, config)
			a.mu.Lock() // after whoever has sent before
			defer a.mu.Unlock()
			packets := make([]packet, 0, 16)
			run := func() {
				packets = packets[:0]
				for range 10 {
					p := a.ep.packet(1400)
					packets = append(packets, p)
				}
				out, err := a.encode(packets, source{}, (*a.in.protection.Load()).Sender())
				if err != nil || len(out) != 13 || len(a.outgoing.batch) != 13 {
					panic(fmt.Sprint(err, len(out)))
				}
				for _, p := range out {
					packetBuffers.Put(p.pooled)
				}
			}
			run()
			if allocs := testing.AllocsPerRun(100, run); !raceEnabled { // the detector makes sync.Pool forget
				require.Less(t, allocs, 1.0, name)
			}
		})
	}
}

// Packets of one segment are sealed from the segment's own buffer, which is
// still right when it has to be retransmitted. Other ciphers work in a copy.
func TestSegmentsAreSealedFromTheirBuffers(t *testing.T) {
	gcm, err := crypt.AESGCM(bytes.Repeat([]byte{7}, 16))
	require.NoError(t, err)
	salsa, err := crypt.Salsa20(bytes.Repeat([]byte{7}, 32))
	require.NoError(t, err)
	for _, c := range []struct {
		config Config
		direct bool
	}{
		{Config{Cipher: gcm}, true},
		{*secured(Config{}), true},
		{Config{Cipher: salsa}, true},
		{Config{Cipher: gcm, FEC: FEC{Data: 5, Parity: 1}}, false},
	} {
		inWorld(t, 3, lossy, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&c.config, &c.config)
			require.Equal(t, c.direct, a.kcp.hooks.outputInPlace != nil)
			bothWays(t, a, b, content(1, 200_000), content(2, 200_000))
			require.NotZero(t, a.Stats().Retransmits())
		})
	}
}
