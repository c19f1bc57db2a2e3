package kcp

import (
	"bytes"
	"context"
	"crypto/des"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/packetkeys"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/netsim"
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

// underCipher reports whether a packet is one under the cipher, and not under the keys of
// a session.
func underCipher(c crypt.Cipher, packet []byte) bool {
	_, err := c.Open(bytes.Clone(packet))
	return err == nil
}

// forgeries returns what an attacker could make of a recorded packet at best. What is
// under the cipher alone he changes as he likes, and its CRC fits.
func forgeries(t *testing.T, c crypt.Cipher, packet []byte, random *rand.Rand) (all [][]byte) {
	t.Helper()
	if content, err := c.Open(bytes.Clone(packet)); err == nil {
		for range 3 {
			changed := bytes.Clone(content)
			changed[random.IntN(len(changed))] ^= 1 << random.IntN(8)
			all = append(all, sealed(t, c, changed))
		}
		return all
	}
	for _, i := range []int{0, 3, 4, 7, 8, len(packet) - 1, len(packet) - 16, random.IntN(len(packet))} {
		changed := bytes.Clone(packet)
		changed[i] ^= 1 << random.IntN(8)
		all = append(all, changed)
	}
	return append(all, packet[:random.IntN(len(packet))], append(bytes.Clone(packet), packet...))
}

// Once both ends have changed over to their keys, nothing counts under a cipher without
// authentication but what the peer has sent, once: whatever the attacker changes,
// whatever he makes under the cipher itself, and whichever socket it comes to.
func TestForgeriesUnderKeysDoNotCount(t *testing.T) {
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
					attackKeyed(t, w, a, b, c, append(kept, recorded...))
					w.net.SetFilter(nil)
					bothWays(t, a, b, content(5, 1000), content(6, 1000))
				})
			})
		}
	}
}

// attackKeyed sends both ends what is made of recorded packets, and checks that none of
// it counts.
func attackKeyed(t *testing.T, w *world, a, b *Conn, c crypt.Cipher, recorded []keptPacket) {
	t.Helper()
	before := []ConnStats{a.Stats(), b.Stats()}
	random := rand.New(rand.NewPCG(12, 1))
	a.mu.Lock()
	next, una := uint32(a.kcp.rcv.nxt), uint32(a.kcp.snd.nxt)
	a.mu.Unlock()
	order := packetOf(a.Conv(), segment(cmdPush, 0, 0, next, una, "order of the attacker"))
	for _, p := range recorded {
		for _, forged := range append(forgeries(t, c, p.data, random), p.data, sealed(t, c, order)) {
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
		require.Zero(t, s.Moves)
		require.NotZero(t, c.ep.Stats().DropReplay)
		require.NotZero(t, c.ep.Stats().DropCipher)
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

// numbered returns what Scheme.Number makes of a protection, with the tokens 2 and 3.
func numbered(s *protect.Scheme, p protect.Protection, conv uint32) protect.Protection {
	var of atomic.Pointer[protect.Protection]
	of.Store(&p)
	s.Number(&of, conv, 2, 3, protect.CapKeys, true)
	return *of.Load()
}

// Ciphers that hide nothing, and ciphers of other packages, derive no keys. With such a
// peer, or one without signals, all stays under the cipher.
func TestWhoDerivesKeys(t *testing.T) {
	all := map[string]crypt.Cipher{"none": crypt.None(), "xor": crypt.XOR([]byte("key")), "wrapped": struct{ crypt.Cipher }{testCiphers(t, 1)["aes-cfb"]}}
	for name, c := range all {
		scheme := protect.NewScheme(c, false, nil)
		require.Equal(t, scheme.Outside, numbered(scheme, scheme.Outside, 1), name)
		if n, ok := c.(crypt.NonceCipher); ok {
			require.Error(t, n.SealNonce(make([]byte, 100)), name)
		}
	}
	for name, c := range hidingCiphers(t) {
		scheme := protect.NewScheme(c, false, nil)
		require.NotEqual(t, scheme.Outside, numbered(scheme, scheme.Outside, 1), name)
		require.ErrorIs(t, c.(crypt.NonceCipher).SealNonce(make([]byte, 19)), crypt.ErrShort)
	}
	cfb := testCiphers(t, 1)["aes-cfb"]
	for _, ends := range [][2]crypt.Cipher{{all["wrapped"], cfb}, {cfb, all["wrapped"]}} {
		inWorld(t, 3, lossy, func(t *testing.T, w *world) {
			path := w.watched()
			a, b, _ := w.pair(&Config{Cipher: ends[0]}, &Config{Cipher: ends[1]})
			bothWays(t, a, b, content(1, 30000), content(2, 30000))
			require.NoError(t, a.Close())
			_ = b.Close()
			for _, p := range path.all(w) {
				require.True(t, underCipher(cfb, p.data))
			}
		})
	}
}

// Packets under keys are taken in whatever order they come, and once each; their keys
// change with the numbers, which go beyond 32 bits.
func TestKeyedPacketsReordered(t *testing.T) {
	inWorld(t, 9, lossy, func(t *testing.T, w *world) {
		config := &Config{Cipher: hidingCiphers(t)["Salsa20"], FEC: FEC{Data: 3, Parity: 1}}
		a, b, l := w.pair(config, config)
		bothWays(t, a, b, content(3, 1000), content(4, 1000))
		time.Sleep(time.Second)
		for _, ends := range [][2]*Conn{{a, b}, {b, a}} {
			const at = 1<<32 - 20
			for i, c := range ends {
				_, sends, heard := progress(c)
				require.True(t, sends && heard)
				if i == 0 {
					(*c.in.protection.Load()).(*protect.Keyed).Skip(at, 0)
				} else {
					(*c.in.protection.Load()).(*protect.Keyed).Skip(0, at)
				}
			}
		}
		bothWays(t, a, b, content(1, 100_000), content(2, 100_000))
		next, _, _ := progress(a)
		require.Greater(t, next, uint64(1<<32))
		require.Zero(t, a.Stats().Dropped.Total()+b.Stats().Dropped.Total())
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		require.Zero(t, l.Stats().Sessions)
	})
}

// changeOverLink returns a link that loses, doubles and reorders packets, as seed says.
func changeOverLink(seed uint64) netsim.LinkConfig {
	random := rand.New(rand.NewPCG(seed, 7))
	return netsim.LinkConfig{
		Delay: 10 * time.Millisecond, Jitter: time.Duration(random.IntN(30)) * time.Millisecond, Reorder: 0.5,
		Loss: 0.4 * random.Float64(), Duplicate: 0.2 * random.Float64(),
	}
}

// Whatever is lost, doubled or reordered while two ends change over, all that they write
// arrives, and both end up under the keys. Either may prefer the slower AEAD.
func TestChangeOver(t *testing.T) {
	t.Parallel()
	seeds := uint64(200)
	if testing.Short() {
		seeds = 20
	}
	ciphers := hidingCiphers(t)
	names := []string{"CFB", "CFB-8", "Salsa20"}
	for seed := range seeds {
		inWorld(t, seed, changeOverLink(seed), func(t *testing.T, w *world) {
			random := rand.New(rand.NewPCG(seed, 8))
			cipher := ciphers[names[random.IntN(len(names))]]
			config := &Config{Cipher: cipher, DialTimeout: time.Minute, PeerTimeout: time.Minute}
			if random.IntN(2) == 0 {
				config.FEC = FEC{Data: 1 + random.IntN(5), Parity: 1 + random.IntN(2)}
			}
			if random.IntN(3) == 0 {
				config.AddressValidation = ValidateAlways
			}
			l := w.listen(config)
			e, _ := w.endpoint("10.0.0.2:5000", config)
			for _, ep := range []*Endpoint{e, l.ep} {
				ep.protection.Capabilities |= uint32(random.IntN(3) / 2 * protect.CapChaCha)
			}
			a := w.dial(e)
			send(t, a, []byte{1})
			b := accepted(t, l)
			receive(t, b, []byte{1})
			bothWays(t, a, b, content(seed, 1+random.IntN(20000)), content(seed+1, 1+random.IntN(20000)))
			bothWays(t, a, b, []byte("up"), []byte("down"))
			for _, c := range []*Conn{a, b} {
				_, sends, heard := progress(c)
				require.True(t, sends && heard)
			}
			late := w.watched()
			bothWays(t, a, b, content(2, 3000), content(3, 3000))
			for _, p := range late.all(w) {
				if content, err := cipher.Open(p.data); err == nil { // a request that is repeated
					h := decodeHeader(content)
					s, ok := h.signal()
					require.True(t, ok && h.cmd == cmdWask && s.code&sigAnswer == 0 && len(content) == headerSize)
				}
			}
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
	}
}

// If either end is restarted at its address, its peer learns of that, and a new session
// opens there, on a path that loses packets too.
func TestRestartUnderKeys(t *testing.T) {
	t.Parallel()
	seeds := uint64(40)
	if testing.Short() {
		seeds = 8
	}
	for seed := range seeds {
		link := netsim.LinkConfig{Delay: 10 * time.Millisecond, Loss: 0.2 * float64(seed%2)}
		inWorld(t, seed, link, func(t *testing.T, w *world) {
			random := rand.New(rand.NewPCG(seed, 8))
			config := &Config{Cipher: hidingCiphers(t)["CFB"], PeerTimeout: time.Minute}
			if random.IntN(2) == 0 {
				config.FEC = FEC{Data: 2, Parity: 1}
			}
			l, server := w.server(config)
			e, client := w.endpoint("10.0.0.2:5000", config)
			a := w.dial(e)
			send(t, a, []byte("up"))
			b := accepted(t, l)
			receive(t, b, []byte("up"))
			bothWays(t, a, b, content(1, 3000), content(2, 3000))
			survivor, pc, ep := a, server, l.ep
			if random.IntN(2) == 0 {
				survivor, pc, ep = b, client, e
			}
			w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false }) // as it dies
			_, _ = ep.Close(), pc.Close()
			w.net.SetFilter(nil)
			if survivor == a {
				l = w.listen(config)
			} else {
				e, _ = w.endpoint("10.0.0.2:5000", config)
			}
			start := time.Now()
			_, err := survivor.Write([]byte("to whom?"))
			require.NoError(t, err)
			again := w.dial(e) // beside the old session
			send(t, again, []byte("again"))
			receive(t, accepted(t, l), []byte("again"))
			_, err = survivor.Read(make([]byte, 1))
			require.ErrorIs(t, err, ErrReset)
			require.Less(t, time.Since(start), 20*time.Second)
		})
	}
}

// A session under keys migrates when the address of its peer changes, with FEC and
// without, and again. Its peer's HELLO may be the last packet from the old address.
func TestMigrationUnderKeys(t *testing.T) {
	for _, f := range []FEC{{}, {Data: 2, Parity: 1}} {
		for seed := range uint64(5) {
			link := netsim.LinkConfig{Delay: 10 * time.Millisecond, Loss: 0.1 * float64(seed%2)}
			inWorld(t, seed, link, func(t *testing.T, w *world) {
				config := &Config{Cipher: hidingCiphers(t)["CFB"], FEC: f, KeepAlive: time.Second}
				a, b, l, pc := w.movable(config)
				bothWays(t, a, b, content(1, 3000), content(2, 3000))
				for _, to := range []string{"10.0.0.3:6000", "10.0.0.4:7000"} {
					require.NoError(t, pc.Rebind(to))
					bothWays(t, a, b, content(3, 30000), content(4, 30000))
					require.Equal(t, to, b.RemoteAddr().String())
				}
				require.Equal(t, 1, l.Stats().Sessions)
				require.NoError(t, a.Close())
				_, err := b.Read(make([]byte, 1))
				require.ErrorIs(t, err, io.EOF)
				require.NoError(t, b.Close())
			})
		}
	}
}

// Several sessions of one address each open their own packets, beside packets of the
// cipher alone. Their parity is dropped, as it names none of them.
func TestSessionsOfOneAddressUnderKeys(t *testing.T) {
	inWorld(t, 21, lossy, func(t *testing.T, w *world) {
		config := &Config{Cipher: hidingCiphers(t)["CFB"], FEC: FEC{Data: 2, Parity: 1}}
		l := w.listen(config)
		e, _ := w.endpoint("10.0.0.2:5000", config)
		legacy, err := e.DialWith(context.Background(), l.Addr(), DialOptions{})
		require.NoError(t, err)
		send(t, legacy, []byte{0})
		receive(t, accepted(t, l), []byte{0})
		var ends [][2]*Conn
		for i := range byte(5) {
			a := w.dial(e)
			send(t, a, []byte{i})
			b := accepted(t, l)
			receive(t, b, []byte{i})
			ends = append(ends, [2]*Conn{a, b})
		}
		for range 3 {
			for i, p := range ends {
				bothWays(t, p[0], p[1], content(uint64(i), 3000), content(uint64(i+10), 3000))
			}
		}
		for _, p := range ends {
			for _, c := range p {
				_, sends, heard := progress(c)
				require.True(t, sends && heard)
			}
		}
	})
}

// A header that names by luck a session without keys drops the packet, and no more.
func TestHeaderNamesSessionWithoutKeys(t *testing.T) {
	inWorld(t, 22, clean, func(t *testing.T, w *world) {
		cipher := hidingCiphers(t)["CFB"]
		config := &Config{Cipher: cipher}
		l := w.listen(config)
		key := admission.MakeKey(elsewhere, nil, 77)
		x, err := l.ep.openSession(key, net.UDPAddrFromAddrPort(elsewhere), true)
		require.NoError(t, err)
		k := numbered(protect.NewScheme(cipher, false, nil), nil, 77)
		packet := make([]byte, packetkeys.PresharedOverhead+headerSize)
		copy(packet[packetkeys.PresharedOverhead:], packetOf(77, bytesOf(signal{sigPing, 1, 2})))
		require.NoError(t, k.Seal(packet, nil))
		before := l.ep.Stats().DropCipher
		w.net.Inject(elsewhere, netip.MustParseAddrPort(serverAddr), packet)
		time.Sleep(time.Second)
		require.Equal(t, before+1, l.ep.Stats().DropCipher)
		require.Zero(t, x.Stats().PacketsReceived)
	})
}
