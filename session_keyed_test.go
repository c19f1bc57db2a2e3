package kcp

import (
	"bytes"
	"crypto/des"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
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
					require.NoError(t, a.Abort(0, ""))
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
	before := []stats.Conn{a.Stats(), b.Stats()}
	random := rand.New(rand.NewPCG(12, 1))
	a.mu.Lock()
	next, una := uint32(a.session.Inside().Machine().Position().Received), uint32(a.session.Inside().Machine().Position().Sent)
	a.mu.Unlock()
	order := packetOf(a.Conv(), segment(wire.CmdPush, 0, 0, next, una, "order of the attacker"))
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

// changeOverLink returns a link that loses, doubles and reorders packets, as seed says.
func changeOverLink(seed uint64) netsim.LinkConfig {
	random := rand.New(rand.NewPCG(seed, 7))
	return netsim.LinkConfig{
		Delay: 10 * time.Millisecond, Jitter: time.Duration(random.IntN(30)) * time.Millisecond, Reorder: 0.5,
		Loss: 0.4 * random.Float64(), Duplicate: 0.2 * random.Float64(),
	}
}

// Whatever is lost, doubled or reordered while two ends change over, all that they write
// arrives, and both end up under the keys. Either may prefer the slower AEAD. Who can
// change packets under the cipher keeps the session under it if he removes from every
// INFO of the listening end that it derives keys. The ends do not differ for long.
func TestChangeOver(t *testing.T) {
	t.Parallel()
	ciphers := hidingCiphers(t)
	names := []string{"CFB", "CFB-8", "Salsa20"}
	for seed := range fewer(120) {
		inWorld(t, seed, changeOverLink(seed), func(t *testing.T, w *world) {
			random := rand.New(rand.NewPCG(seed, 8))
			cipher := ciphers[names[random.IntN(len(names))]]
			config := &Config{Cipher: cipher, DialTimeout: time.Minute, PeerTimeout: time.Minute}
			attacked := seed%3 == 2
			toServer, toClient := attacked && seed/3%2 == 1, attacked && seed/6%2 == 1
			if attacked {
				w.removesKeys(seed, cipher, toServer, toClient)
			} else if random.IntN(2) == 0 {
				config.FEC = FEC{Data: 1 + random.IntN(5), Parity: 1 + random.IntN(2)}
			}
			if random.IntN(3) == 0 {
				config.AddressValidation = ValidateAlways
			}
			l := w.listen(config)
			e, _ := w.endpoint("10.0.0.2:5000", config)
			for _, ep := range []*Endpoint{e, l.ep} {
				ep.shared.Protection.Capabilities |= uint32(random.IntN(3) / 2 * protect.CapChaCha)
			}
			a := w.dial(e)
			send(t, a, []byte{1})
			b := accepted(t, l)
			receive(t, b, []byte{1})
			bothWays(t, a, b, content(seed, 1+random.IntN(20000)), content(seed+1, 1+random.IntN(20000)))
			for range 3 {
				bothWays(t, a, b, []byte("up"), []byte("down"))
				time.Sleep(5 * time.Second)
			}
			for _, c := range []*Conn{a, b} {
				_, sends, heard := progress(c)
				require.Equal(t, [2]bool{!toClient, !toClient}, [2]bool{sends, heard}, "seed %d", seed)
			}
			late := w.watched() // and the attacker is gone
			bothWays(t, a, b, content(2, 3000), content(3, 3000))
			for _, p := range late.all(w) {
				if content, err := cipher.Open(p.data); err == nil && !toClient { // a request that is repeated
					h := wire.DecodeHeader(content)
					s, ok := h.Signal()
					require.True(t, ok && h.Cmd == wire.CmdWask && s.Code&wire.Answer == 0 && len(content) == wire.HeaderSize)
				}
			}
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
	}
}

// removesKeys puts an attacker on the path who removes from the INFO of either end that
// it derives keys, and repeats packets.
func (w *world) removesKeys(seed uint64, cipher crypt.Cipher, toServer, toClient bool) {
	random := rand.New(rand.NewPCG(seed, 10))
	var kept []keptPacket
	w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
		if len(kept) > 0 && random.IntN(4) == 0 {
			again := kept[random.IntN(len(kept))]
			w.net.Inject(again.from, again.to, again.data)
		}
		content, found := withoutKeys(cipher, p)
		changes := found && (to.String() == serverAddr && toServer || to.String() != serverAddr && toClient)
		packet := bytes.Clone(p)
		if changes {
			packet = sealed(w.t, cipher, content)
		}
		kept = append(kept, keptPacket{from, to, packet})
		if changes && random.IntN(3) > 0 { // lost otherwise, as by any path
			w.net.Inject(from, to, packet)
		}
		return !changes
	})
}

// If either end is restarted at its address, its peer learns of that, and a new session
// opens there, on a path that loses packets too, and whatever numbers the packets.
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
			if seed%4 > 1 {
				config.Cipher = testAEAD(t)
			}
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
			writeAll(t, survivor, []byte("to whom?"))
			again := w.dial(e) // beside the old session
			send(t, again, []byte("again"))
			receive(t, accepted(t, l), []byte("again"))
			_, err := survivor.Read(make([]byte, 1))
			require.ErrorIs(t, err, ErrReset)
			require.Less(t, time.Since(start), 20*time.Second)
		})
	}
}

// withoutKeys removes the capabilities that concern keys from a packet under the cipher.
// It reports whether there was one.
func withoutKeys(c crypt.Cipher, packet []byte) (content []byte, found bool) {
	content, err := c.Open(bytes.Clone(packet))
	for b := content; err == nil && len(b) >= wire.HeaderSize; {
		h := wire.DecodeHeader(b)
		payload, fits := h.Payload(b[wire.HeaderSize:])
		if !fits {
			break
		}
		if s, ok := h.Signal(); ok && s.Code == wire.Info && s.TS&protect.CapKeys != 0 {
			binary.LittleEndian.PutUint32(b[8:], s.TS&^(protect.CapKeys|protect.CapChaCha))
			found = true
		}
		b = b[wire.HeaderSize+len(payload):]
	}
	return content, found
}
