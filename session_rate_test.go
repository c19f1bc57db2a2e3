package kcp

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/session"
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

// A cap of 1 Mbit/s is kept to within 2 % over 10 s, and in any time to within one
// packet, whatever is sent, and lost.
func TestMaxRate(t *testing.T) {
	long(t)
	const rate, Packet = 125_000, 1400
	for name, test := range map[string]struct {
		config    Config
		streams   int
		datagrams time.Duration
		loss      float64
	}{
		"stream of bytes": {loss: 0.05},
		"TLS":             {config: Config{TLS: testTLS()}},
		"CUBIC":           {config: Config{CongestionControl: congestion.NewCubic}},
		"no control":      {config: Config{CongestionControl: congestion.NewNone, Redundancy: 1}, streams: 1, loss: 0.05},
		"all":             {config: Config{Cipher: testAEAD(t), FEC: FEC{Data: 5, Parity: 5}}, streams: 3, datagrams: 15 * time.Millisecond},
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
				require.LessOrEqual(t, m.excess(from, to, rate), float64(Packet+wire.HeaderSize+36+1), "in any time, but for signals")
				require.InEpsilon(t, float64(sent)*(1-test.loss), l.Endpoint().Stats().BytesReceived-arrived, 0.03)
				if test.loss == 0 {
					require.Zero(t, a.Stats().FastRetransmits+a.Stats().TimeoutRetransmits)
				}
				if name == "CUBIC" || name == "TLS" { // a window that the cap leaves unused does not grow
					require.Less(t, a.Stats().CongestionWindow, 32)
					a.mu.Lock()
					limited := a.session.Inside().Machine().Inspect().AppLimited
					a.mu.Unlock()
					require.True(t, limited)
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

// Datagrams take half of the rate at most while data waits, and data all that they
// leave.
func TestMaxRateIsShared(t *testing.T) {
	const rate, size, seconds = 125_000, 1000, 5
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MaxRate: rate}, nil)
		readAll(b)
		keepBusy(t, a, 0, size*time.Second/(2*rate), size)
		time.Sleep(seconds * time.Second)
		s := a.Stats()
		require.InEpsilon(t, rate/2*seconds, float64(s.Datagrams.Sent)*(size+session.DatagramHeader), 0.05)
		require.InEpsilon(t, rate/2*seconds, s.BytesSent, 0.05)
		require.NotZero(t, s.Datagrams.Unsent)
	})
}

// ACKs do not wait for the cap of a receiver, so its peer is as fast as it was. Nor do
// they take all of it from what the receiver sends. Their parity does not leave.
func TestMaxRateOfReceiver(t *testing.T) {
	long(t)
	const rate = 5000
	link := netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 2_000_000}
	inWorld(t, 1, link, func(t *testing.T, w *world) {
		config := Config{FEC: FEC{Data: 3, Parity: 3}}
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

// Packets that wait for the cap are dropped with the session.
func TestMaxRateEndsWithTheSession(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MaxRate: minMaxRate, FEC: FEC{Data: 1, Parity: 9}}, nil)
		for range 10 {
			require.NoError(t, a.SendDatagram(make([]byte, 500)))
		}
		require.NoError(t, errors.Join(a.Abort(0, ""), b.Abort(0, "")))
		s := a.Stats().Datagrams
		require.EqualValues(t, 10, s.Sent+s.Unsent)
		a.mu.Lock()
		defer a.mu.Unlock()
		require.Zero(t, a.session.Inside().WaitsForCap())
	})
}
