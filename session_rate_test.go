package kcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/pacing"
	"github.com/arqnet/kcp/netsim"
)

// meter notes when packets leave a host, and of what size.
type meter struct {
	mu    sync.Mutex
	at    []time.Duration
	sizes []int
}

// meter returns a meter of what the client sends from now on.
func (w *world) meter() *meter {
	return w.meters(func(from, _ netip.AddrPort) string { return from.Addr().String() }, "10.0.0.2")[0]
}

// meters returns a meter for each of names, which name gives to packets.
func (w *world) meters(name func(from, to netip.AddrPort) string, names ...string) []*meter {
	all := make([]*meter, len(names))
	for i := range all {
		all[i] = new(meter)
	}
	w.net.SetFilter(func(from, to netip.AddrPort, packet []byte) bool {
		if i := slices.Index(names, name(from, to)); i >= 0 {
			m := all[i]
			m.mu.Lock()
			defer m.mu.Unlock()
			m.at = append(m.at, w.net.Elapsed())
			m.sizes = append(m.sizes, len(packet))
		}
		return true
	})
	return all
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

// extremes returns the fewest and the most bytes that left in any time d within
// [from, to).
func (m *meter) extremes(from, to, d time.Duration) (least, most int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	least = math.MaxInt
	for i, begin := range m.at {
		if begin < from || begin+d > to {
			continue
		}
		n := 0
		for j := i; j < len(m.at) && m.at[j] < begin+d; j++ {
			n += m.sizes[j]
		}
		least, most = min(least, n), max(most, n)
	}
	return least, most
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
func keepBusy(t *testing.T, c *Conn, streams int, interval time.Duration, size int) {
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
		s, err := c.OpenStream(context.Background(), nil)
		require.NoError(t, err)
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
func readAll(c *Conn) {
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

// A cap of 1 Mbit/s is kept to within 2 % over 10 s, and over any 100 ms to within one
// packet, whatever is sent, and lost.
func TestMaxRate(t *testing.T) {
	long(t)
	const rate, packet, tenth = 125_000, 1400, 100 * time.Millisecond
	for name, test := range map[string]struct {
		config    Config
		streams   int
		datagrams time.Duration
	}{
		"stream of bytes": {},
		"FEC":             {config: Config{FEC: FEC{Data: 10, Parity: 3}}},
		"streams":         {streams: 3},
		"AEAD":            {config: Config{Cipher: testAEAD(t)}, streams: 1},
		"TLS":             {config: Config{TLS: testTLS()}},
		"CUBIC":           {config: Config{CongestionControl: congestion.NewCubic}},
		"no control":      {config: Config{CongestionControl: congestion.NewNone, Redundancy: 1}, streams: 1},
		"all":             {Config{Cipher: testAEAD(t), FEC: FEC{Data: 5, Parity: 5}}, 3, 15 * time.Millisecond},
	} {
		for _, loss := range []float64{0, 0.05} {
			t.Run(fmt.Sprintf("%s/%v", name, loss), func(t *testing.T) {
				link := netsim.LinkConfig{Delay: 20 * time.Millisecond, Loss: loss}
				inWorld(t, 1, link, func(t *testing.T, w *world) {
					client, server := test.config, test.config
					client.MaxRate = rate
					a, b, l := w.pair(&client, &server)
					require.Equal(t, rate, a.Stats().MaxRate)
					require.Zero(t, b.Stats().MaxRate)
					readAll(b)
					m := w.meter()
					arrived, from := l.Stats().BytesReceived, w.net.Elapsed()
					keepBusy(t, a, test.streams, test.datagrams, 300)
					time.Sleep(10 * time.Second)
					synctest.Wait()
					to := w.net.Elapsed()
					sent := m.between(from, to)
					least, most := m.extremes(from, to, tenth)
					t.Logf("loss %v: %d bytes, %d to %d in 100 ms; window %d, %d retransmissions, datagrams %+v",
						loss, sent, least, most, a.Stats().CongestionWindow, a.Stats().FastRetransmits+a.Stats().TimeoutRetransmits, a.Stats().Datagrams)
					require.InEpsilon(t, rate*10, sent, 0.02)
					borrowed := 0
					if test.datagrams > 0 {
						borrowed = headerSize + 36 // a PING a second, in AEAD and FEC
					}
					require.LessOrEqual(t, sent, rate*10+packet+borrowed)
					require.LessOrEqual(t, most, rate/10+packet+borrowed)
					require.LessOrEqual(t, m.excess(from, to, rate), float64(packet+headerSize+36+1), "in any time, but for signals")
					if loss == 0 || name != "CUBIC" { // whose window is less then
						require.GreaterOrEqual(t, least, rate/10-packet)
					}
					require.InEpsilon(t, float64(sent)*(1-loss), l.Stats().BytesReceived-arrived, 0.03)
					if loss == 0 {
						require.Zero(t, a.Stats().FastRetransmits+a.Stats().TimeoutRetransmits)
					}
					if test.datagrams > 0 {
						require.Zero(t, a.Stats().Datagrams.Unsent, "they take less than half")
						require.Greater(t, a.Stats().Datagrams.Sent, uint64(600))
					}
					require.NoError(t, errors.Join(a.Abort(), b.Abort()))
				})
			})
		}
	}
}

// The handshake of TLS counts too.
func TestMaxRateCountsTheHandshake(t *testing.T) {
	const rate = 20_000
	inWorld(t, 1, netsim.LinkConfig{}, func(t *testing.T, w *world) {
		w.listen(&Config{TLS: testTLS()})
		e, _ := w.endpoint("10.0.0.2:0", &Config{TLS: testTLS(), MaxRate: rate})
		// The loop leaves the socket to a call that it wakes, for readturn.Grace, also if
		// that finds nothing and has blocked again.
		e.socket.shards[0].lead.Stop()
		m, from := w.meter(), w.net.Elapsed()
		a := w.dial(e)
		require.Equal(t, from, w.net.Elapsed(), "the handshake does not wait for the cap")
		keepBusy(t, a, 0, 0, 0)
		time.Sleep(time.Second)
		sent := m.between(from, w.net.Elapsed())
		t.Logf("%d bytes", sent)
		require.LessOrEqual(t, sent, rate+1400)
	})
}

// Each session of an endpoint has a cap of its own. Packets of several may leave with
// one call of the system.
func TestMaxRateOfEachSession(t *testing.T) {
	const rate, packet = 125_000, 1400
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		l := w.listen(&Config{MaxRate: rate, FEC: FEC{Data: 3, Parity: 2}})
		for _, host := range []string{"10.0.0.2:0", "10.0.0.3:0"} {
			e, _ := w.endpoint(host, nil)
			c := w.dial(e)
			readAll(c)
			keepBusy(t, accepted(t, l), 1, 0, 0)
		}
		time.Sleep(time.Second)
		both := w.meters(func(_, to netip.AddrPort) string { return to.Addr().String() }, "10.0.0.2", "10.0.0.3")
		from := w.net.Elapsed()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for _, m := range both {
			require.InEpsilon(t, rate*10, m.between(from, w.net.Elapsed()), 0.02)
			_, most := m.extremes(from, w.net.Elapsed(), 100*time.Millisecond)
			require.LessOrEqual(t, most, rate/10+packet)
		}
		for c := range l.Endpoint().Sessions() {
			s := c.Stats().FEC
			require.InEpsilon(t, 2./3, float64(s.ParitySent)/float64(s.DataSent), 0.01)
		}
	})
}

// A cap that changes counts from that moment on, up and down. Without one, the path
// counts.
func TestMaxRateChanges(t *testing.T) {
	const packet, tenth = 1400, 100 * time.Millisecond
	link := netsim.LinkConfig{Delay: 20 * time.Millisecond, Loss: 0.01, Rate: 2_000_000}
	inWorld(t, 1, link, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{FEC: FEC{Data: 10, Parity: 3}}, nil)
		readAll(b)
		m := w.meter()
		keepBusy(t, a, 1, 50*time.Millisecond, 200)
		time.Sleep(2 * time.Second)
		for _, rate := range []int{125_000, 500_000, 50_000, 0, 10_000, 125_000} {
			require.NoError(t, a.SetMaxRate(rate))
			require.Equal(t, rate, a.Stats().MaxRate)
			synctest.Wait()
			from := w.net.Elapsed() + 1
			time.Sleep(3 * time.Second)
			synctest.Wait()
			to := w.net.Elapsed()
			sent := m.between(from, to)
			_, most := m.extremes(from, to, tenth)
			t.Logf("%d bytes a second: %d bytes, at most %d in 100 ms", rate, sent, most)
			if rate == 0 {
				require.Greater(t, sent, 3*1_000_000)
				continue
			}
			require.InDelta(t, 3*rate, sent, float64(3*rate)*0.02+packet)
			require.LessOrEqual(t, most, rate/10+packet)
			require.LessOrEqual(t, m.excess(from, to, rate), float64(packet+headerSize+fec.HeaderSize+1))
		}
	})
}

// At high rates several packets leave at a time, at most every millisecond.
func TestMaxRateIsHigh(t *testing.T) {
	long(t)
	const rate = 20_000_000
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MaxRate: rate, Cipher: testAEAD(t)}, &Config{Cipher: testAEAD(t)})
		readAll(b)
		keepBusy(t, a, 0, 0, 0)
		time.Sleep(time.Second) // until the window is large enough
		m, from := w.meter(), w.net.Elapsed()
		time.Sleep(time.Second)
		synctest.Wait()
		require.InEpsilon(t, rate, m.between(from, w.net.Elapsed()), 0.02)
		require.LessOrEqual(t, m.excess(from, w.net.Elapsed(), rate), rate/1000.+1400+1)
		times := map[time.Duration]bool{}
		for _, at := range m.at {
			times[at] = true
		}
		require.LessOrEqual(t, len(times), 1100)
	})
}

// A window that the cap leaves unused does not grow (RFC 9002 §7.8).
func TestMaxRateLimitsTheWindow(t *testing.T) {
	for name, control := range map[string]func() congestion.Control{"BBR": congestion.NewBBR, "CUBIC": congestion.NewCubic} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&Config{MaxRate: 125_000, CongestionControl: control}, nil)
			readAll(b)
			keepBusy(t, a, 0, 0, 0)
			time.Sleep(20 * time.Second)
			require.Less(t, a.Stats().CongestionWindow, 32, name)
			a.mu.Lock()
			defer a.mu.Unlock()
			require.True(t, a.kcp.snd.rate.AppLimited())
		})
	}
}

// The lifetime of a message goes on while it waits for the cap.
func TestMaxRateAndLifetimes(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MaxRate: 10_000, MessageMode: true}, &Config{MessageMode: true})
		s, err := a.OpenStream(context.Background(), &StreamOptions{Unordered: true})
		require.NoError(t, err)
		results := make(chan error, 4)
		done := func(err error) { results <- err }
		require.NoError(t, a.WriteMessage(content(1, 20_000))) // 2 s
		require.NoError(t, a.SendMessage([]byte("late"), &MessageOptions{Lifetime: time.Second, Done: done}))
		require.NoError(t, a.SendMessage([]byte("in time"), &MessageOptions{Lifetime: 4 * time.Second, Done: done}))
		begun := time.Now()
		require.ErrorIs(t, <-results, ErrMessageAbandoned)
		require.InDelta(t, 2, time.Since(begun).Seconds(), 0.3, "when it could leave")
		require.NoError(t, <-results)
		buf := make([]byte, 32_000)
		for _, want := range []int{20_000, len("in time")} {
			n, err := b.ReadMessage(buf)
			require.NoError(t, err)
			require.Equal(t, want, n)
		}
		require.NoError(t, s.SendMessage(content(2, 20_000), &MessageOptions{Lifetime: 5 * time.Second, Done: done}))
		late := make(chan error)
		require.NoError(t, s.SendMessage([]byte("late"), &MessageOptions{Lifetime: time.Second, Done: func(err error) { late <- err }}))
		require.ErrorIs(t, <-late, ErrMessageAbandoned)
		require.NoError(t, <-results)
	})
}

// The write buffer holds what the cap carries in a second, and WriteReady tells when it
// has room.
func TestMaxRateBoundsTheWriteBuffer(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MaxRate: 100_000}, nil)
		readAll(b)
		fill := func() int {
			n, err := a.TryWrite(content(1, 8<<20))
			require.ErrorIs(t, err, ErrWouldBlock)
			return n
		}
		require.InDelta(t, 100_000, fill(), 8000)
		select {
		case <-a.WriteReady():
			t.Fatal("there is no room")
		default:
		}
		begun := time.Now()
		<-a.WriteReady()
		require.InDelta(t, 40, time.Since(begun).Milliseconds(), 40, "after the first ACK")
		time.Sleep(500 * time.Millisecond)
		require.InDelta(t, 50_000, a.WriteAvailable(), 8000)
		fill()
		require.NoError(t, a.SetMaxRate(1_000_000))
		<-a.WriteReady()
		require.InDelta(t, 900_000, a.WriteAvailable(), 80_000)
		require.NoError(t, a.SetMaxRate(minMaxRate))
		require.Equal(t, pacing.LeastWriteBuffer, a.writeBufferSize())
		require.NoError(t, a.SetWriteBuffer(1<<20))
		require.Equal(t, 1<<20, a.writeBufferSize(), "it was set")
		require.NoError(t, a.SetWriteBuffer(0))
		require.NoError(t, a.SetMaxRate(0))
		require.Equal(t, defaultWriteBuffer, a.writeBufferSize())
	})
}

// writeBufferSize locks c.mu for writeBuffer.
func (c *Conn) writeBufferSize() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writeBuffer()
}

// A higher cap, or none, counts at once, for what waits and for calls that wait.
func TestMaxRateIsRaisedAtOnce(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MaxRate: minMaxRate}, nil)
		time.Sleep(time.Second)
		_, err := a.Write(content(1, 5600))
		require.NoError(t, err)
		time.Sleep(50 * time.Millisecond)
		m, from := w.meter(), w.net.Elapsed()
		require.NoError(t, a.SetMaxRate(0))
		synctest.Wait()
		require.Greater(t, m.between(from, from+1), 4000)
		receive(t, b, content(1, 5600))
	})
}

// What the old rate has paid until the change stays paid.
func TestMaxRateChangesFromNowOn(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MaxRate: 2000}, nil)
		readAll(b)
		time.Sleep(time.Second)
		m, from := w.meter(), w.net.Elapsed()
		_, err := a.Write(content(1, 10_000))
		require.NoError(t, err)
		time.Sleep(600 * time.Millisecond) // 200 bytes of the first packet are left
		require.NoError(t, a.SetMaxRate(1000))
		time.Sleep(190 * time.Millisecond)
		require.Equal(t, 1400, m.between(from, w.net.Elapsed()))
		time.Sleep(20 * time.Millisecond)
		require.Equal(t, 2800, m.between(from, w.net.Elapsed()))
	})
}

// A lower cap leaves nothing of what was earned at the higher one.
func TestMaxRateIsLoweredAtOnce(t *testing.T) {
	long(t)
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		readAll(b)
		keepBusy(t, a, 0, 0, 0)
		for i := range 20 {
			require.NoError(t, a.SetMaxRate(20_000_000))
			time.Sleep(500*time.Millisecond + time.Duration(i*50)*time.Microsecond)
			synctest.Wait()
			m, from := w.meter(), w.net.Elapsed()
			require.NoError(t, a.SetMaxRate(10_000))
			time.Sleep(100 * time.Millisecond)
			require.LessOrEqual(t, m.between(from, w.net.Elapsed()), 1000+1400)
		}
	})
}

// At the smallest cap, with the largest packets too, sessions do not take the peer for
// lost, and end as they should.
func TestMaxRateIsLeast(t *testing.T) {
	for _, mtu := range []int{0, maxUDPPayload} {
		inWorld(t, 1, netsim.LinkConfig{Delay: 20 * time.Millisecond, Loss: 0.05}, func(t *testing.T, w *world) {
			config := Config{MaxRate: minMaxRate, Linger: time.Hour, FEC: FEC{Data: 2, Parity: 1}}
			a, b, _ := w.pair(&config, &config)
			require.NoError(t, a.SetMTU(mtu))
			data, closed := content(1, 200_000), make(chan error, 2)
			go func() {
				_, err := a.Write(data)
				closed <- err
				closed <- a.Close()
			}()
			got, err := io.ReadAll(b)
			require.NoError(t, errors.Join(err, <-closed, <-closed))
			require.Equal(t, data, got)
			require.NoError(t, b.Close())
		})
	}
}

// A call that waits for room goes on when a higher cap makes the write buffer larger.
func TestMaxRateWakesWriters(t *testing.T) {
	for _, streams := range []int{0, 2} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			a, _, _ := w.pair(&Config{MaxRate: minMaxRate}, nil)
			writers := []io.Writer{a}
			for i := range streams {
				s, err := a.OpenStream(context.Background(), nil)
				require.NoError(t, err)
				writers = append(writers[:i], s)
			}
			w.net.Cut("10.0.0.1", "10.0.0.2")
			done := make(chan error, len(writers))
			for _, to := range writers {
				go func() {
					_, err := to.Write(content(2, 200_000))
					done <- err
				}()
			}
			time.Sleep(time.Second)
			require.Less(t, len(done), len(writers))
			require.NoError(t, a.SetMaxRate(2_000_000))
			synctest.Wait()
			require.Len(t, done, len(writers))
		})
	}
}

// During an outage the probes do not exceed the cap, and after it the session goes on.
func TestMaxRateInOutage(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MaxRate: 5000}, nil)
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
