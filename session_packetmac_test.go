package kcp

import (
	"bytes"
	"context"
	"crypto/des"
	"encoding/binary"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/packetmac"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/stretchr/testify/require"
)

// hidingCiphers returns ciphers of all kinds that hide content, and do not
// authenticate: with long blocks, with short ones, and a stream.
func hidingCiphers(t *testing.T) map[string]crypt.Cipher {
	block, err := des.NewTripleDESCipher(make([]byte, 24))
	require.NoError(t, err)
	salsa, err := crypt.Salsa20(make([]byte, 32))
	require.NoError(t, err)
	return map[string]crypt.Cipher{
		"CFB":     testCiphers(t, 1)["aes-cfb"],
		"CFB-8":   crypt.Locked(crypt.CFB(block)),
		"Salsa20": salsa,
	}
}

// tampered returns what an attacker could make of a recorded packet at best with
// a cipher that does not authenticate: any change whose CRC is right.
func tampered(t testing.TB, c crypt.Cipher, packet []byte, change func(nonce, content []byte)) []byte {
	t.Helper()
	packet = bytes.Clone(packet)
	content, err := c.Open(packet)
	require.NoError(t, err)
	change(packet[:packetmac.NonceSize], content)
	require.NoError(t, c.(crypt.NonceCipher).SealNonce(packet))
	return packet
}

// Once both ends number their packets, nothing counts under a cipher without
// authentication but what the peer has sent, once: whatever the attacker changes
// and however well the CRC fits, whichever socket it comes to.
func TestTamperedPacketsDoNotCount(t *testing.T) {
	t.Parallel()
	long(t)
	for name, c := range hidingCiphers(t) {
		for _, f := range []FEC{{}, {Data: 3, Parity: 2}} {
			if testing.Short() && (f == FEC{}) == (name == "CFB") {
				continue
			}
			t.Run(name, func(t *testing.T) {
				inWorld(t, 12, clean, func(t *testing.T, w *world) {
					config := &Config{Cipher: c, FEC: f, Redundancy: 1, LegacyPeers: LegacyRefuse}
					a, b := w.twoSockets(config)
					old := w.watched()
					bothWays(t, a, b, content(3, 3000), content(4, 3000))
					require.NoError(t, a.SendDatagram([]byte("old")))
					time.Sleep(time.Second)
					recorded := old.all(w) // of a session before
					require.NoError(t, a.Abort())
					server := b.ep
					a = w.dial(a.ep)
					b = accepted(t, server.listener)
					path := w.watched()
					bothWays(t, a, b, content(1, 10000), content(2, 10000))
					require.NoError(t, a.SendDatagram([]byte("once")))
					require.NoError(t, b.SendDatagram([]byte("once")))
					time.Sleep(time.Second)
					kept := path.all(w)
					require.Greater(t, len(kept), 20)
					w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false }) // cut off
					before := []ConnStats{a.Stats(), b.Stats()}
					for _, p := range append(kept, recorded...) {
						for _, change := range []func(nonce, content []byte){
							func(nonce, content []byte) {},
							func(nonce, content []byte) { content[len(content)-1] ^= 1 },
							func(nonce, content []byte) { nonce[12] += 100 }, // a number that was not used
							func(nonce, content []byte) { clear(nonce) },     // none, as it seems
							func(nonce, content []byte) { // of this session, as it seems
								inSession(content, a.Conv())
							},
						} {
							forged := tampered(t, c, p.data, change)
							w.net.Inject(p.from, p.to, forged)
							w.net.Inject(p.from, secondSocket, forged)
							w.net.Inject(p.to, p.from, forged) // reflected
							w.net.Inject(elsewhere, p.to, forged)
						}
						time.Sleep(time.Millisecond)
					}
					synctest.Wait()
					for i, c := range []*Conn{a, b} {
						s := c.Stats()
						require.Equal(t, before[i].PacketsReceived, s.PacketsReceived)
						require.Equal(t, before[i].Datagrams.Received, s.Datagrams.Received)
						require.Equal(t, before[i].FEC.ParityReceived, s.FEC.ParityReceived)
						require.NotZero(t, c.ep.Stats().DropReplay)
					}
					w.net.SetFilter(nil)
					bothWays(t, a, b, content(5, 1000), content(6, 1000))
				})
			})
		}
	}
}

// secondSocket is the other address of an endpoint of twoSockets.
var secondSocket = netip.MustParseAddrPort("10.0.0.1:4001")

// twoSockets is pair with a server that reads two sockets, as with
// Config.Shards.
func (w *world) twoSockets(config *Config) (a, b *Conn) {
	w.t.Helper()
	first, err := w.net.Listen(serverAddr)
	require.NoError(w.t, err)
	second, err := w.net.Listen(secondSocket.String())
	require.NoError(w.t, err)
	server := newEndpoint(config, false, w.socket(first), w.socket(second))
	w.t.Cleanup(func() { _, _, _ = server.Close(), first.Close(), second.Close() })
	l, err := server.Listen()
	require.NoError(w.t, err)
	e, _ := w.endpoint("10.0.0.2:5000", config)
	a = w.dial(e)
	return a, accepted(w.t, l)
}

// inSession sets the conversation id in a packet, behind an FEC header or not.
func inSession(content []byte, conv uint32) {
	if kind, _, ok := admission.Classify(content, false); ok && kind != parityPacket {
		at := 0
		if kind != plainPacket {
			at = datagramHeader - 4
		}
		binary.LittleEndian.PutUint32(content[at:], conv)
	}
}

// Ciphers that hide nothing, and ciphers of other packages, have random nonces,
// and so has a peer without signals.
func TestWhoMarksPackets(t *testing.T) {
	all := map[string]crypt.Cipher{"none": crypt.None(), "xor": crypt.XOR([]byte("key")), "wrapped": struct{ crypt.Cipher }{testCiphers(t, 1)["aes-cfb"]}}
	for name, c := range all {
		scheme := protect.NewScheme(c, false, nil)
		require.Equal(t, scheme.Outside, scheme.Number(scheme.Outside, 1, 2, 3, true), name)
		if n, ok := c.(crypt.NonceCipher); ok {
			require.Error(t, n.SealNonce(make([]byte, 100)), name)
		}
	}
	for name, c := range hidingCiphers(t) {
		scheme := protect.NewScheme(c, false, nil)
		require.NotEqual(t, scheme.Outside, scheme.Number(scheme.Outside, 1, 2, 3, true), name)
		require.ErrorIs(t, c.(crypt.NonceCipher).SealNonce(make([]byte, 19)), crypt.ErrShort)
	}
	for _, ends := range [][2]crypt.Cipher{{all["wrapped"], testCiphers(t, 1)["aes-cfb"]}, {testCiphers(t, 1)["aes-cfb"], all["wrapped"]}} {
		inWorld(t, 3, lossy, func(t *testing.T, w *world) { // one end marks its packets, the other does not
			a, b, _ := w.pair(&Config{Cipher: ends[0]}, &Config{Cipher: ends[1]})
			bothWays(t, a, b, content(1, 30000), content(2, 30000))
			require.NoError(t, a.Close())
			_ = b.Close()
		})
	}
}

// Marked packets are taken in whatever order they come, and once each; a number
// goes beyond 32 bits.
func TestMarkedPacketsReordered(t *testing.T) {
	inWorld(t, 9, lossy, func(t *testing.T, w *world) {
		config := &Config{Cipher: hidingCiphers(t)["Salsa20"], FEC: FEC{Data: 3, Parity: 1}}
		a, b, l := w.pair(config, config)
		time.Sleep(time.Second)
		for _, ends := range [][2]*Conn{{a, b}, {b, a}} {
			const at = 1<<32 - 20
			next, sends, _ := progress(ends[0])
			require.True(t, sends)
			back, _, heard := progress(ends[1])
			require.True(t, heard)
			for _, c := range ends {
				c.mu.Lock()
			}
			ends[0].in.protection.(*protect.Numbered).Skip(at, 0)
			ends[1].in.protection.(*protect.Numbered).Skip(back, at-1)
			for _, c := range ends {
				c.mu.Unlock()
			}
			require.Less(t, next, uint64(at))
		}
		bothWays(t, a, b, content(1, 100_000), content(2, 100_000))
		next, _, _ := progress(a)
		require.Greater(t, next, uint64(1<<32))
		require.Zero(t, a.Stats().Dropped.Total()+b.Stats().Dropped.Total())
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		require.Zero(t, l.Stats().Sessions)
		_, err := a.Write([]byte("x"))
		require.Error(t, err)
		_, err = b.ReceiveDatagram(context.Background())
		require.Error(t, err)
	})
}
