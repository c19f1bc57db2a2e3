package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Transfers in both directions with every cipher and ratio, over a bad link.
func TestTransfersThroughPipeline(t *testing.T) {
	for name, cipher := range testCiphers(t, 1) {
		for i, fec := range []kcp.FEC{{}, {Data: 10, Parity: 3}, {Data: 1, Parity: 1}, {Data: 20, Parity: 10}} {
			t.Run(fmt.Sprintf("%s-%d-%d", name, fec.Data, fec.Parity), func(t *testing.T) {
				inWorld(t, uint64(i), lossy, func(t *testing.T, w *world) {
					client, server := kcp.LowLatency(), kcp.LowLatency()
					client.Cipher, server.Cipher = cipher, cipher
					client.FEC = fec
					if i%2 == 0 { // else only one side sends FEC
						server.FEC = kcp.FEC{Data: 3, Parity: 1}
					}
					a, b, l := w.pair(&client, &server)
					up, down := content(1, 300000), content(2, 200000)
					send(t, a, up)
					send(t, b, down)
					receive(t, b, up)
					receive(t, a, down)
					for _, c := range []*kcp.Conn{a, b} {
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
	inWorld(t, 5, clean, func(t *testing.T, w *world) {
		config := kcp.LowLatency()
		config.FEC = kcp.FEC{Data: 10, Parity: 3}
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
		for _, fec := range []kcp.FEC{{}, {Data: 3, Parity: 1}} {
			t.Run(fmt.Sprintf("%s-%d-%d", name, fec.Data, fec.Parity), func(t *testing.T) {
				inWorld(t, 6, clean, func(t *testing.T, w *world) {
					config := kcp.LowLatency()
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
					require.Equal(t, uint64(len(all)), l.Stats().DropReplay)
					require.Zero(t, b.Stats().Duplicates)
				})
			})
		}
	}
}

// attack injects packet with every bit flipped in turn and cut to every
// length, and one made with another key. It returns how many that were.
func attack(w *world, from, to netip.AddrPort, packet []byte, wrong crypt.Cipher) int {
	time.Sleep(3 * handoverGrace) // a call that has read may be expected to read on
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

// Datagrams go both ways past the stream, with FEC and without.
func TestDatagrams(t *testing.T) {
	for _, fec := range []kcp.FEC{{}, {Data: 10, Parity: 3}} {
		for name, cipher := range testCiphers(t, 1) {
			t.Run(fmt.Sprintf("%s-%d", name, fec.Data), func(t *testing.T) {
				inWorld(t, 9, clean, func(t *testing.T, w *world) {
					config := &kcp.Config{FEC: fec, Cipher: cipher}
					a, b, _ := w.pair(config, config)
					ctx := context.Background()
					for _, size := range []int{0, 1, 100, a.MaxDatagramSize()} {
						for _, ends := range [][2]*kcp.Conn{{a, b}, {b, a}} {
							want := content(uint64(size), size)
							require.NoError(t, ends[0].SendDatagram(want))
							got, err := ends[1].ReceiveDatagram(ctx)
							require.NoError(t, err)
							require.True(t, bytes.Equal(want, got))
						}
					}
					require.ErrorIs(t, a.SendDatagram(make([]byte, a.MaxDatagramSize()+1)), kcp.ErrDatagramTooLarge)

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
