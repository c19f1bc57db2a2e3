package kcp

import (
	"bytes"
	"context"
	"crypto/aes"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// testCiphers returns one cipher of each kind.
func testCiphers(t *testing.T, key byte) map[string]crypt.Cipher {
	t.Helper()
	k := bytes.Repeat([]byte{key}, 32)
	gcm, err := crypt.AESGCM(k)
	require.NoError(t, err)
	chacha, err := crypt.ChaCha20Poly1305(k)
	require.NoError(t, err)
	salsa, err := crypt.Salsa20(k)
	require.NoError(t, err)
	block, err := aes.NewCipher(k)
	require.NoError(t, err)
	if repeated() {
		return map[string]crypt.Cipher{"no-cipher": nil, "aes-gcm": gcm, "aes-cfb": crypt.CFB(block)}
	}
	return map[string]crypt.Cipher{
		"no-cipher": nil, "aes-gcm": gcm, "chacha20": chacha, "salsa20": salsa,
		"aes-cfb": crypt.CFB(block), "xor": crypt.XOR(k), "none": crypt.None(),
	}
}

// Transfers in both directions with every cipher and ratio, over a bad link.
func TestTransfersThroughPipeline(t *testing.T) {
	for name, cipher := range testCiphers(t, 1) {
		for i, fec := range []FEC{{}, {10, 3}, {1, 1}, {20, 10}} {
			t.Run(fmt.Sprintf("%s-%d-%d", name, fec.Data, fec.Parity), func(t *testing.T) {
				inWorld(t, uint64(i), lossy, func(w *world) {
					client, server := LowLatency(), LowLatency()
					client.Cipher, server.Cipher = cipher, cipher
					client.FEC = fec
					if i%2 == 0 { // else only one side sends FEC
						server.FEC = FEC{3, 1}
					}
					a, b, l := w.pair(&client, &server)
					up, down := content(1, 300000), content(2, 200000)
					send(t, a, up)
					send(t, b, down)
					receive(t, b, up)
					receive(t, a, down)
					for _, c := range []*Conn{a, b} {
						dropped := c.Stats().Dropped
						dropped.FEC = 0 // the link repeats parity packets
						require.Zero(t, dropped)
					}
					require.Zero(t, l.Stats().DropCipher)
					require.Equal(t, fec.Data > 0, b.Stats().FEC.Recovered > 0)
					require.Equal(t, i%2 == 0, a.Stats().FEC.Recovered > 0)
					if fec.Data > 0 {
						require.Equal(t, fec, b.Stats().FEC.PeerRatio)
					}
				})
			})
		}
	}
}

// Of the packets lost at random, nearly all come back without being sent again.
func TestFECRecovers(t *testing.T) {
	long(t)
	link := netsim.LinkConfig{Delay: 30 * time.Millisecond, Loss: 0.05}
	inWorld(t, 5, clean, func(w *world) {
		config := LowLatency()
		config.FEC = FEC{10, 3}
		a, b, _ := w.pair(&config, &config)
		var lost uint64 // the filter is never called concurrently
		rng := netsim.NewLink(link, 5)
		from := a.LocalAddr().(*net.UDPAddr).AddrPort()
		w.net.SetFilter(func(src, _ netip.AddrPort, p []byte) bool {
			if src != from || len(rng.Send(0, p)) > 0 {
				return true
			}
			if p[4] == 0xf1 { // a data packet
				lost++
			}
			return false
		})
		want := content(5, 8<<20)
		send(t, a, want)
		receive(t, b, want)
		s := b.Stats().FEC
		share := float64(s.Recovered) / float64(lost)
		t.Logf("%d of %d data packets lost, %d recovered: %.1f %%; retransmitted segments: %d",
			lost, a.Stats().FEC.DataSent, s.Recovered, 100*share, a.Stats().Retransmits())
		require.Greater(t, lost, uint64(300))
		require.GreaterOrEqual(t, share, 0.9)
	})
}

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

// Packets that were flipped, cut, replayed or made with another key are
// dropped and counted, and the transfer that they disturb stays correct.
func TestHostilePacketsBesideTransfer(t *testing.T) {
	other := testCiphers(t, 2)
	for name, cipher := range testCiphers(t, 1) {
		if cipher == nil || name == "xor" || name == "none" {
			continue // nothing there detects more than damage
		}
		if repeated() && name != "aes-gcm" {
			continue
		}
		for _, fec := range []FEC{{}, {3, 1}} {
			t.Run(fmt.Sprintf("%s-%d-%d", name, fec.Data, fec.Parity), func(t *testing.T) {
				inWorld(t, 6, clean, func(w *world) {
					config := LowLatency()
					config.Cipher, config.FEC = cipher, fec
					a, b, l := w.pair(&config, &config)
					var mu sync.Mutex
					var captured [][]byte
					from, to := a.LocalAddr().(*net.UDPAddr).AddrPort(), b.LocalAddr().(*net.UDPAddr).AddrPort()
					w.net.SetFilter(func(src, _ netip.AddrPort, p []byte) bool {
						mu.Lock()
						defer mu.Unlock()
						if src == from {
							captured = append(captured, bytes.Clone(p))
						}
						return true
					})
					want := content(6, 400000)
					send(t, a, want)
					receive(t, b, want[:1000])
					before := l.Stats()
					mu.Lock()
					last := captured[len(captured)-1]
					mu.Unlock()
					sent := attack(w, from, to, last, other[name])
					receive(t, b, want[1000:])
					time.Sleep(3 * handoverGrace) // nobody may be reading right now
					synctest.Wait()
					s := l.Stats()
					inNonce := 0
					if name == "salsa20" {
						inNonce = 64 // half of the nonce is not covered by the CRC
					}
					sent -= inNonce
					require.Equal(t, uint64(sent), s.DropCipher+s.DropShort-before.DropCipher-before.DropShort)

					// Everything once more, while something else is on its way.
					more := content(7, 100000)
					send(t, b, more)
					mu.Lock()
					all := captured
					mu.Unlock()
					for _, p := range all {
						w.net.Inject(from, to, p)
					}
					receive(t, a, more)
					synctest.Wait()
					require.Equal(t, uint64(len(all)+inNonce), l.Stats().DropReplay)
					require.Zero(t, b.Stats().Duplicates)
				})
			})
		}
	}
}

// attack injects packet with every bit flipped in turn and cut to every
// length, and one made with another key. It returns how many that were.
func attack(w *world, from, to netip.AddrPort, packet []byte, wrong crypt.Cipher) int {
	sent := 0
	inject := func(p []byte) {
		w.net.Inject(from, to, p)
		if sent++; sent%100 == 0 {
			synctest.Wait() // the receive queue is bounded
		}
	}
	for bit := range 8 * len(packet) {
		p := bytes.Clone(packet)
		p[bit/8] ^= 1 << (bit % 8)
		inject(p)
	}
	for n := range packet {
		inject(packet[:n])
	}
	head, tail := wrong.Overhead()
	p := make([]byte, head+100+tail)
	if wrong.Seal(p) == nil {
		inject(p)
	}
	synctest.Wait()
	return sent
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

// Datagrams go both ways past the stream, with FEC and without.
func TestDatagrams(t *testing.T) {
	for _, fec := range []FEC{{}, {10, 3}} {
		for name, cipher := range testCiphers(t, 1) {
			t.Run(fmt.Sprintf("%s-%d", name, fec.Data), func(t *testing.T) {
				inWorld(t, 9, clean, func(w *world) {
					config := &Config{FEC: fec, Cipher: cipher}
					a, b, _ := w.pair(config, config)
					ctx := context.Background()
					for _, size := range []int{0, 1, 100, a.MaxDatagramSize()} {
						for _, ends := range [][2]*Conn{{a, b}, {b, a}} {
							want := content(uint64(size), size)
							require.NoError(t, ends[0].SendDatagram(want))
							got, err := ends[1].ReceiveDatagram(ctx)
							require.NoError(t, err)
							require.True(t, bytes.Equal(want, got))
						}
					}
					require.ErrorIs(t, a.SendDatagram(make([]byte, a.MaxDatagramSize()+1)), ErrDatagramTooLarge)

					want := content(9, 50000)
					send(t, a, want)
					require.NoError(t, a.SendDatagram([]byte("beside")))
					receive(t, b, want)
					got, err := b.ReceiveDatagram(ctx)
					require.NoError(t, err)
					require.Equal(t, "beside", string(got))
					require.Equal(t, uint64(5), b.Stats().Datagrams.Received)
				})
			})
		}
	}
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
