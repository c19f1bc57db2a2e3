package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// meter notes when packets leave a host, and of what size.
type meter struct {
	mu    sync.Mutex
	at    []time.Duration
	sizes []int
}

// meter returns a meter of what the client sends from now on.
func (w *world) meter() *meter {
	m := new(meter)
	w.net.SetFilter(func(from, _ netip.AddrPort, packet []byte) bool {
		if from.Addr() == netip.MustParseAddr("10.0.0.2") {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.at = append(m.at, w.net.Elapsed())
			m.sizes = append(m.sizes, len(packet))
		}
		return true
	})
	return m
}

// between returns the bytes that left in [from, to).
func (m *meter) between(from, to time.Duration) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, at := range m.at {
		if at >= from && at < to {
			n += m.sizes[i]
		}
	}
	return n
}

// excess returns by how many bytes more left than rate allows, in the time within
// [from, to) in which that is most.
func (m *meter) excess(from, to time.Duration, rate int) (most float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, last := 0.0, from
	for i, at := range m.at {
		if at >= from && at < to {
			now = max(now-float64(rate)*(at-last).Seconds(), 0) + float64(m.sizes[i])
			most, last = max(most, now), at
		}
	}
	return most
}

// keepBusy keeps the session and streams of it busy, and sends a datagram every
// interval, if that is not 0, until the session ends.
func keepBusy(t *testing.T, c *kcp.Conn, streams int, interval time.Duration, size int) {
	t.Helper()
	endless := func(w io.Writer) {
		data := content(1, 50_000)
		for {
			if _, err := w.Write(data); err != nil {
				return
			}
		}
	}
	go endless(c)
	for range streams {
		s := openStream(t, c, nil)
		go endless(s)
	}
	if interval > 0 {
		go func() {
			for c.SendDatagram(make([]byte, size)) == nil {
				select {
				case <-time.After(interval):
				case <-c.Done():
				}
			}
		}()
	}
}

// readAll reads all that arrives until the session ends.
func readAll(c *kcp.Conn) {
	go func() { _, _ = io.Copy(io.Discard, c) }()
	go func() {
		for {
			s, err := c.AcceptStream(context.Background())
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, s) }()
		}
	}()
	go func() {
		for {
			if _, err := c.ReceiveDatagram(context.Background()); err != nil {
				return
			}
		}
	}()
}

// A cap of 1 Mbit/s is kept to within 2 % over 10 s, and in any time to within one
// packet, whatever is sent, and lost.
func TestMaxRate(t *testing.T) {
	long(t)
	const rate, packet = 125_000, 1400
	for name, test := range map[string]struct {
		config    kcp.Config
		streams   int
		datagrams time.Duration
		loss      float64
	}{
		"stream of bytes": {loss: 0.05},
		"TLS":             {config: kcp.Config{TLS: testTLS()}},
		"CUBIC":           {config: kcp.Config{CongestionControl: congestion.NewCubic}},
		"no control":      {config: kcp.Config{CongestionControl: congestion.NewNone, Redundancy: 1}, streams: 1, loss: 0.05},
		"all":             {config: kcp.Config{Cipher: testAEAD(t), FEC: kcp.FEC{Data: 5, Parity: 5}}, streams: 3, datagrams: 15 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			link := netsim.LinkConfig{Delay: 20 * time.Millisecond, Loss: test.loss}
			inWorld(t, 1, link, func(t *testing.T, w *world) {
				client, server := test.config, test.config
				client.MaxRate = rate
				a, b, l := w.pair(&client, &server)
				require.Equal(t, rate, a.Stats().MaxRate)
				require.Zero(t, b.Stats().MaxRate)
				readAll(b)
				m := w.meter()
				arrived, from := l.Endpoint().Stats().BytesReceived, w.net.Elapsed()
				keepBusy(t, a, test.streams, test.datagrams, 300)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				to := w.net.Elapsed()
				sent := m.between(from, to)
				require.InEpsilon(t, rate*10, sent, 0.02)
				require.LessOrEqual(t, m.excess(from, to, rate), float64(packet+wire.HeaderSize+36+1), "in any time, but for signals")
				require.InEpsilon(t, float64(sent)*(1-test.loss), l.Endpoint().Stats().BytesReceived-arrived, 0.03)
				if test.loss == 0 {
					require.Zero(t, a.Stats().FastRetransmits+a.Stats().TimeoutRetransmits)
				}
				if name == "CUBIC" || name == "TLS" { // a window that the cap leaves unused does not grow
					require.Less(t, a.Stats().CongestionWindow, 32)
				}
				if test.datagrams > 0 {
					require.Zero(t, a.Stats().Datagrams.Unsent, "they take less than half")
					require.Greater(t, a.Stats().Datagrams.Sent, uint64(600))
				}
				require.NoError(t, errors.Join(a.Abort(0, ""), b.Abort(0, "")))
			})
		})
	}
}

// During an outage the probes do not exceed the cap, and after it the session goes on.
func TestMaxRateInOutage(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MaxRate: 5000}, nil)
		data := content(1, 50_000)
		send(t, a, data)
		time.Sleep(time.Second)
		m, from := w.meter(), w.net.Elapsed()
		w.net.SetLink("10.0.0.2", "10.0.0.1", netsim.LinkConfig{Loss: 1})
		time.Sleep(5 * time.Second)
		require.LessOrEqual(t, m.between(from, w.net.Elapsed()), 5*5000+1400)
		w.net.SetLink("10.0.0.2", "10.0.0.1", clean)
		receive(t, b, data)
	})
}

// Datagrams take half of the rate at most while data waits, and data all that they
// leave.
func TestMaxRateIsShared(t *testing.T) {
	const rate, size, seconds = 125_000, 1000, 5
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MaxRate: rate}, nil)
		readAll(b)
		keepBusy(t, a, 0, size*time.Second/(2*rate), size)
		time.Sleep(seconds * time.Second)
		s := a.Stats()
		require.InEpsilon(t, rate/2*seconds, float64(s.Datagrams.Sent)*(size+session.DatagramHeader), 0.05)
		require.InEpsilon(t, rate/2*seconds, s.BytesSent, 0.05)
		require.NotZero(t, s.Datagrams.Unsent)
	})
}

// Streams share the cap whatever the sizes of their writes, and one that is idle but for a
// few bytes does not wait for room that the others take.
func TestMaxRateOfStreams(t *testing.T) {
	const rate, seconds = 250_000, 30
	inWorld(t, 1, netsim.LinkConfig{Delay: 500 * time.Microsecond}, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MaxRate: rate}, nil)
		var passed [3]atomic.Int64
		for i, size := range []int{1000, 32 << 10, 1 << 20} {
			s, r := streamPair(t, a, b, nil)
			go func() {
				for _, err := s.Write(make([]byte, size)); err == nil; {
					_, err = s.Write(make([]byte, size))
				}
			}()
			go func() {
				for p := make([]byte, 64<<10); ; {
					n, err := r.Read(p)
					if err != nil {
						return
					}
					passed[i].Add(int64(n))
				}
			}()
		}
		s, r := streamPair(t, a, b, nil)
		go func() { _, _ = io.Copy(r, r) }()
		for range seconds * 8 {
			begun := time.Now()
			_, err := s.Write([]byte("hello"))
			require.NoError(t, err)
			_, err = io.ReadFull(s, make([]byte, 5))
			require.NoError(t, err)
			require.Less(t, time.Since(begun), 8*time.Second*1500/rate) // of one segment of each, twice
			time.Sleep(time.Second/8 - time.Since(begun))
		}
		for i := range passed {
			require.InEpsilon(t, rate*seconds/3, passed[i].Load(), 0.1)
		}
	})
}

// ACKs do not wait for the cap of a receiver, so its peer is as fast as it was. Nor do
// they take all of it from what the receiver sends. Their parity does not leave.
func TestMaxRateOfReceiver(t *testing.T) {
	long(t)
	const rate = 5000
	link := netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 2_000_000}
	inWorld(t, 1, link, func(t *testing.T, w *world) {
		config := kcp.Config{FEC: kcp.FEC{Data: 3, Parity: 3}}
		a, b, _ := w.pair(&config, &config)
		readAll(b)
		keepBusy(t, a, 0, 0, 0)
		received := func() uint64 {
			begun := b.Stats().BytesReceived
			time.Sleep(5 * time.Second)
			return b.Stats().BytesReceived - begun
		}
		time.Sleep(time.Second) // slow start
		uncapped := received()
		require.NoError(t, b.SetMaxRate(rate))
		parity := b.Stats().FEC.ParitySent
		data, took := content(1, 2*rate), make(chan time.Duration, 1)
		begun := time.Now()
		send(t, b, data)
		go func() {
			if _, err := io.ReadFull(a, make([]byte, len(data))); err == nil {
				took <- time.Since(begun)
			}
		}()
		require.InEpsilon(t, uncapped, received(), 0.02)
		require.Len(t, took, 1)
		require.InDelta(t, 4, (<-took).Seconds(), 0.5, "half of the rate is left")
		require.Zero(t, a.Stats().TimeoutRetransmits)
		require.Less(t, b.Stats().FEC.ParitySent-parity, uint64(10))
	})
}

// crowd is senders that send to one listening endpoint without end, or until
// stopped.
type crowd struct {
	w        *world
	socket   *testenv.SimulatedSocket
	listener *kcp.Listener
	failed   atomic.Int32 // reads of what was not sent

	mu      sync.Mutex // guards senders while there are readers
	senders []*crowdSender
}

type crowdSender struct {
	conn     *kcp.Conn
	socket   *netsim.PacketConn
	stop     atomic.Bool
	received atomic.Uint64
}

// crowdChunk is the bytes of content that a sender repeats.
const crowdChunk = 16 << 10

// newCrowd opens the listening endpoint, with a socket buffer of limit bytes
// whose reader takes pace for each datagram.
func newCrowd(w *world, config *kcp.Config, limit int, pace time.Duration) *crowd {
	pc, err := testenv.ListenSimulated(w.net, serverAddr, limit, pace)
	require.NoError(w.t, err)
	c := &crowd{w: w, socket: pc}
	e, err := kcp.NewEndpoint(c.socket, config)
	require.NoError(w.t, err)
	c.listener, err = e.Listen()
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
	return c
}

// join adds a sender that sends all it can.
func (c *crowd) join(config *kcp.Config) {
	i := len(c.senders)
	e, pc := c.w.endpoint(fmt.Sprintf("10.1.%d.%d:0", i/250, i%250+1), config)
	s := &crowdSender{conn: c.w.dial(e), socket: pc}
	c.mu.Lock()
	c.senders = append(c.senders, s)
	c.mu.Unlock()
	data := content(uint64(i), crowdChunk)
	go func() {
		var head [4]byte
		binary.LittleEndian.PutUint32(head[:], uint32(i))
		_, err := s.conn.Write(head[:])
		for err == nil && !s.stop.Load() {
			_, err = s.conn.Write(data)
		}
	}()
}

// serve reads what the senders send, and compares it.
func (c *crowd) serve() {
	for {
		conn, err := c.listener.AcceptKCP(context.Background())
		if err != nil {
			return
		}
		go func() {
			var head [4]byte
			if _, err := io.ReadFull(conn, head[:]); err != nil {
				return
			}
			i := binary.LittleEndian.Uint32(head[:])
			c.mu.Lock()
			s := c.senders[i]
			c.mu.Unlock()
			want, at, b := slices.Repeat(content(uint64(i), crowdChunk), 2), 0, make([]byte, 8<<10)
			for {
				n, err := conn.Read(b)
				if !bytes.Equal(b[:n], want[at:at+n]) {
					c.failed.Add(1)
				}
				at = (at + n) % crowdChunk
				s.received.Add(uint64(n))
				if err != nil {
					return
				}
			}
		}()
	}
}

// crowdResult is what happened in a time.
type crowdResult struct {
	sent, resent  uint64  // segments
	mean, slowest float64 // bytes received of a sender
}

// measure lets the senders run for a time.
func (c *crowd) measure(d time.Duration) (r crowdResult) {
	before := make([]uint64, len(c.senders))
	count := func() (sent, resent uint64) {
		for _, s := range c.senders {
			n := s.conn.Stats().Counters
			sent, resent = sent+n.SegmentsSent, resent+n.Retransmits()
		}
		return sent, resent
	}
	for i, s := range c.senders {
		before[i] = s.received.Load()
	}
	sent, resent := count()
	time.Sleep(d)
	r.sent, r.resent = count()
	r.sent, r.resent = r.sent-sent, r.resent-resent
	r.slowest = 1e18
	for i, s := range c.senders {
		n := float64(s.received.Load() - before[i])
		r.mean += n / float64(len(c.senders))
		r.slowest = min(r.slowest, n)
	}
	return r
}

// Very many senders share what a socket buffer takes: hardly anything is sent
// twice, and none starves, whatever their congestion control.
func TestIncast(t *testing.T) {
	t.Parallel()
	long(t)
	low, senders, settled := kcp.LowLatency(), 200, 3*time.Second
	if testing.Short() {
		senders, settled = 60, time.Second
	}
	for name, config := range map[string]*kcp.Config{
		"bbr": nil, "cubic": {CongestionControl: congestion.NewCubic}, "none": {CongestionControl: congestion.NewNone}, "low latency": &low,
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && (name == "cubic" || name == "low latency") {
				t.Skip("the others show the same")
			}
			inWorld(t, 2, netsim.LinkConfig{Delay: 2 * time.Millisecond}, func(t *testing.T, w *world) {
				c := newCrowd(w, nil, senders*(5<<10), 50*time.Microsecond)
				go c.serve()
				for range senders {
					c.join(config)
					time.Sleep(2 * time.Millisecond)
				}
				time.Sleep(settled)
				dropped := c.socket.Dropped().Packets
				r := c.measure(time.Second)
				t.Logf("%+v, %d dropped, goodput %.0f%%, slowest %.2f", r, c.socket.Dropped().Packets-dropped,
					r.mean*float64(senders)/1448/20000*100, r.slowest/r.mean)
				require.LessOrEqual(t, float64(r.resent), 0.01*float64(r.sent+r.resent), "resent")
				require.GreaterOrEqual(t, r.slowest, 0.5*r.mean, "slowest")
				require.Zero(t, c.failed.Load())
			})
		})
	}
}

// The share of senders that stop, or vanish, is given back to the others.
func TestIncastGivesSharesBack(t *testing.T) {
	t.Parallel()
	long(t)
	inWorld(t, 6, netsim.LinkConfig{Delay: 2 * time.Millisecond}, func(t *testing.T, w *world) {
		c := newCrowd(w, nil, 1<<20, 50*time.Microsecond)
		go c.serve()
		for range 60 {
			c.join(nil)
		}
		time.Sleep(time.Second)
		windows := 0
		for _, s := range c.senders {
			windows += s.conn.Stats().RemoteWindow
		}
		require.Positive(t, windows)
		require.LessOrEqual(t, windows, 60*16, "60 senders, a buffer of 1 MiB")
		for i, s := range c.senders[1:] {
			if i%2 == 0 {
				require.NoError(t, s.socket.Close())
				continue
			}
			s.stop.Store(true)
		}
		before := c.senders[0].received.Load()
		time.Sleep(10 * time.Second)
		s := c.senders[0]
		require.Greater(t, s.conn.Stats().RemoteWindow, 1024)
		require.Greater(t, s.received.Load(), before+10*20000*1448/3)
		require.Zero(t, c.failed.Load())
	})
}
