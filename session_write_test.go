package kcp

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Parity names no session, so that of an address with two sessions is not used:
// recovery would make packets of it that were never sent. Once one of the two
// has ended, the other has the benefit again.
func TestFECOfTwoSessions(t *testing.T) {
	long(t)
	link := netsim.LinkConfig{Delay: 20 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.05, Reorder: 0.1}
	inWorld(t, 6, link, func(w *world) {
		config := LowLatency()
		config.FEC = FEC{9, 4}
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
	inWorld(t, 8, clean, func(w *world) {
		cipher := testCiphers(t, 1)["aes-gcm"]
		client := &Config{Cipher: &exhausted{cipher, 20}, CongestionControl: NewNoControl}
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
	inWorld(t, 9, clean, func(w *world) {
		a, b, _ := w.pair(nil, nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := b.ReceiveDatagram(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Second)))
		_, err = b.ReceiveDatagram(context.Background())
		requireTimeout(t, err)
		require.NoError(t, b.SetReadDeadline(time.Time{}))

		const n = 3 * maxQueuedDatagrams
		for i := range n {
			require.NoError(t, a.SendDatagram([]byte{byte(i >> 8), byte(i)}))
		}
		time.Sleep(time.Second)
		s := b.Stats().Datagrams
		require.Equal(t, uint64(n), s.Received)
		require.Equal(t, uint64(n-maxQueuedDatagrams), s.Dropped)
		for i := n - maxQueuedDatagrams; i < n; i++ {
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
		inWorld(t, 10, clean, func(w *world) {
			config := &Config{Cipher: cipher, FEC: FEC{10, 3}}
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
				out, err := a.encode(packets, source{}, a.in.protection.Sender())
				if err != nil || len(out) != 13 || len(a.outgoing.batch) != 13 {
					panic(fmt.Sprint(err, len(out)))
				}
				for _, p := range out {
					a.ep.packets.Put(p.pooled)
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
		{Config{Cipher: salsa}, false},
		{Config{Cipher: gcm, FEC: FEC{Data: 5, Parity: 1}}, false},
	} {
		inWorld(t, 3, lossy, func(w *world) {
			a, b, _ := w.pair(&c.config, &c.config)
			require.Equal(t, c.direct, a.kcp.hooks.outputInPlace != nil)
			bothWays(t, a, b, content(1, 200_000), content(2, 200_000))
			require.NotZero(t, a.Stats().Retransmits())
		})
	}
}
