package kcp

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/pacing"
	"github.com/arqnet/kcp/netsim"
)

// Probes of the path MTU and ACKs do not wait for the cap, but are paid for.
func TestMaxRateCountsWhatDoesNotWait(t *testing.T) {
	long(t)
	const rate, packet, borrowed = 125_000, 1472, 1472
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		config := Config{MaxMTU: packet, MaxRate: rate}
		a, b, _ := w.pair(&config, &config)
		readAll(a)
		readAll(b)
		m, from := w.meter(), w.net.Elapsed()
		keepBusy(t, a, 0, 0, 0)
		keepBusy(t, b, 0, 0, 0)
		for i := range 10 {
			time.Sleep(10 * time.Second)
			synctest.Wait()
			require.LessOrEqual(t, m.between(from, w.net.Elapsed()), (i+1)*10*rate+packet+borrowed)
		}
		_, most := m.extremes(from, w.net.Elapsed(), 100*time.Millisecond)
		require.LessOrEqual(t, most, rate/10+packet+borrowed)
		require.InEpsilon(t, 100*rate, m.between(from, w.net.Elapsed()), 0.002)
		s := a.Stats()
		t.Logf("%d bytes, at most %d in 100 ms, %d ACKs, probes %+v", m.between(from, w.net.Elapsed()), most, s.AcksSent, s.PathMTU)
		require.NotZero(t, s.PathMTU.Sent)
		require.Greater(t, s.AcksSent, uint64(1000))
	})
}

// ACKs do not wait for the cap of a receiver, so its peer is as fast as it was. Nor do
// they take all of it from what the receiver sends. Their parity does not leave.
func TestMaxRateOfReceiver(t *testing.T) {
	long(t)
	const rate = 5000
	link := netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 5_000_000}
	inWorld(t, 1, link, func(t *testing.T, w *world) {
		config := Config{FEC: FEC{Data: 3, Parity: 3}}
		a, b, _ := w.pair(&config, &config)
		readAll(b)
		keepBusy(t, a, 0, 0, 0)
		took := make(chan time.Duration, 1)
		received := func() uint64 {
			begun := b.Stats().BytesReceived
			time.Sleep(10 * time.Second)
			return b.Stats().BytesReceived - begun
		}
		time.Sleep(time.Second) // slow start
		uncapped := received()
		require.NoError(t, b.SetMaxRate(rate))
		parity := b.Stats().FEC.ParitySent
		data := content(1, 2*rate)
		begun := time.Now()
		send(t, b, data)
		go func() {
			if _, err := io.ReadFull(a, make([]byte, len(data))); err == nil {
				took <- time.Since(begun)
			}
		}()
		require.InEpsilon(t, uncapped, received(), 0.01)
		require.Len(t, took, 1)
		require.InDelta(t, 4, (<-took).Seconds(), 0.3, "half of the rate is left")
		require.Zero(t, a.Stats().TimeoutRetransmits)
		require.Less(t, b.Stats().FEC.ParitySent-parity, uint64(10))
	})
}

// Data leaves in the packet of an ACK, though that is not paid for yet.
func TestMaxRateAndAcks(t *testing.T) {
	h := newHarness(t, nil)
	h.k.capRate(minMaxRate, 0)
	h.input(push(0, 0, "x"))
	h.send("a")
	h.advance(0)
	h.want("ack 0 ts=0 una=1 wnd=127", `push 0 frg=0 "a"`)
	require.EqualValues(t, 1, h.k.counters.PacketsSent)
}

// Small segments that were lost leave again in one packet.
func TestMaxRateFillsPackets(t *testing.T) {
	h := newHarness(t, func(k *KCP) { k.SetExtensions(Extensions{PipeWindow: true}) })
	h.k.capRate(minMaxRate, 0)
	h.send("a")
	h.send("b")
	h.advance(0)
	h.want(`push 0 frg=0 "a"`, `push 1 frg=0 "b"`)
	h.advance(300)
	h.want(`push 0 frg=0 "a"`, `push 1 frg=0 "b"`)
	require.EqualValues(t, 2, h.k.counters.PacketsSent)
}

// Parity leaves as soon as its data is paid for.
func TestMaxRateOfParity(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MaxRate: 125_000, FEC: FEC{Data: 1, Parity: 1}}, &Config{FEC: FEC{Data: 1, Parity: 1}})
		readAll(b)
		time.Sleep(100 * time.Millisecond)
		m := w.meter()
		_, err := a.Write(content(1, 1000))
		require.NoError(t, err)
		time.Sleep(time.Second)
		synctest.Wait()
		require.GreaterOrEqual(t, len(m.at), 2)
		require.InDelta(t, m.sizes[0]*8, (m.at[1] - m.at[0]).Microseconds(), 2)
		require.Equal(t, m.sizes[0], m.sizes[1])
	})
}

// ACKs that leave beyond the cap take no copies of segments along.
func TestMaxRateAndRedundancy(t *testing.T) {
	for _, rate := range []int64{0, minMaxRate} {
		h := newHarness(t, func(k *KCP) { k.SetExtensions(Extensions{Redundancy: 400}) })
		h.k.capRate(rate, 0)
		h.send("a")
		h.advance(0)
		h.want(`push 0 frg=0 "a"`)
		h.input(push(0, 0, "x"))
		h.advance(1)
		want := []string{"ack 0 ts=0 una=1 wnd=127"}
		if rate == 0 {
			want = append(want, `push 0 frg=0 "a"`)
		}
		h.want(want...)
		h.advance(25)
	}
}

// Datagrams wait for the cap for 100 ms, the newest 256 of them.
func TestMaxRateOfDatagrams(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MaxRate: 125_000}, nil)
		time.Sleep(time.Second)
		m, from := w.meter(), w.net.Elapsed()
		const size = 1238 + datagramHeader // what the cap allows in 10 ms
		for i := range 20 {
			require.NoError(t, a.SendDatagram(append([]byte{byte(i)}, make([]byte, 1237)...)))
		}
		synctest.Wait()
		require.Equal(t, size, m.between(from, from+1), "one leaves at once")
		time.Sleep(time.Second)
		s := a.Stats().Datagrams
		require.Equal(t, DatagramStats{Sent: 10, Unsent: 10}, s)
		require.Equal(t, 10*size, m.between(from, w.net.Elapsed()))
		for i := range 10 {
			p, err := b.ReceiveDatagram(context.Background())
			require.NoError(t, err)
			require.Equal(t, byte(i), p[0], "in order")
		}
		for range 300 { // behind a PING
			require.NoError(t, a.SendDatagram(nil))
		}
		require.EqualValues(t, 10+300-pacing.MaxHeld, a.Stats().Datagrams.Unsent)
		require.NoError(t, a.SetMaxRate(0))
		require.EqualValues(t, 10+pacing.MaxHeld, a.Stats().Datagrams.Sent, "those that wait leave at once")
	})
}

// Datagrams take half of the rate at most while data waits, and data all that they
// leave.
func TestMaxRateIsShared(t *testing.T) {
	const rate = 125_000
	for _, size := range []int{100, 1000} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&Config{MaxRate: rate}, nil)
			readAll(b)
			keepBusy(t, a, 0, time.Duration(size)*time.Second/(2*rate), size)
			time.Sleep(10 * time.Second)
			s := a.Stats()
			datagrams := float64(s.Datagrams.Sent) * float64(size+datagramHeader)
			t.Logf("%d bytes: %v of datagrams, %d of data", size, datagrams, s.BytesSent)
			require.InEpsilon(t, rate*5, datagrams, 0.05)
			require.InEpsilon(t, rate*5, s.BytesSent, 0.05)
			require.NotZero(t, s.Datagrams.Unsent)
		})
	}
}

// Datagrams that had the rate to themselves do not wait longer for that when data comes.
func TestMaxRateRemembersLittle(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MaxRate: 125_000}, nil)
		readAll(b)
		go func() {
			for a.SendDatagram(make([]byte, 1000)) == nil { // 50 kB/s
				select {
				case <-time.After(20 * time.Millisecond):
				case <-a.Done():
				}
			}
		}()
		time.Sleep(5 * time.Second)
		keepBusy(t, a, 0, 0, 0)
		time.Sleep(5 * time.Second)
		require.Zero(t, a.Stats().Datagrams.Unsent)
		require.InDelta(t, 500, a.Stats().Datagrams.Sent, 2)
		require.NoError(t, errors.Join(a.Abort(), b.Abort()))
	})
}

// Packets that wait for the cap are dropped with the session.
func TestMaxRateEndsWithTheSession(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MaxRate: minMaxRate, FEC: FEC{Data: 1, Parity: 9}}, nil)
		for range 10 {
			require.NoError(t, a.SendDatagram(make([]byte, 500)))
		}
		require.NoError(t, a.Abort())
		require.NoError(t, b.Abort())
		s := a.Stats().Datagrams
		require.EqualValues(t, 10, s.Sent+s.Unsent)
		a.mu.Lock()
		defer a.mu.Unlock()
		require.Zero(t, a.capped.waiting())
	})
}
