package kcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

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
					server := b.Endpoint()
					a = w.dial(a.Endpoint())
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
		require.NotZero(t, c.Endpoint().Stats().DropReplay)
		require.NotZero(t, c.Endpoint().Stats().DropCipher)
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

// Sessions with TLS work in programs that are held to FIPS 140-3, between two of
// them and with others, and offer no cipher that is not approved. They run over
// real sockets: the FIPS module needs a clock that moves to collect entropy.
func TestTLSUnderFIPS(t *testing.T) {
	t.Parallel()
	long(t)
	config := secured(Config{FEC: FEC{Data: 10, Parity: 3}, MaxMTU: 9000})
	config.TLS = config.TLS.Clone()
	config.TLS.Time = func() time.Time { return bubbleTime }
	config.TLS.ClientAuth = tls.RequireAnyClientCert
	config.TLS.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	if addr := os.Getenv("KCP_TEST_FIPS"); addr != "" {
		require.True(t, protect.OwnNonces())
		// crypto/tls of Go 1.25.0 offers X25519, which crypto/ecdh then refuses.
		config.TLS.CurvePreferences = []tls.CurveID{tls.CurveP256}
		echoOver(t, addr, &Config{TLS: &tls.Config{InsecureSkipVerify: true, Certificates: config.TLS.Certificates, CurvePreferences: config.TLS.CurvePreferences}})
		l := echoServer(t, config)
		for range 2 { // the second is resumed
			echoOver(t, l.Addr().String(), config)
		}
		require.Zero(t, l.Endpoint().Stats().DropCipher)
		return
	}
	var offered []uint16
	config.TLS.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		offered = hello.CipherSuites
		return nil, nil
	}
	l := echoServer(t, config)
	test := exec.Command(os.Args[0], "-test.run=^TestTLSUnderFIPS$")
	test.Env = append(os.Environ(), "GODEBUG=fips140=only", "KCP_TEST_FIPS="+l.Addr().String())
	out, err := test.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Zero(t, l.Endpoint().Stats().DropCipher)
	require.True(t, slices.Contains(offered, tls.TLS_AES_128_GCM_SHA256))
	require.False(t, slices.Contains(offered, tls.TLS_CHACHA20_POLY1305_SHA256))
}

// echoServer returns a listener whose sessions send back what they receive, and
// change their keys often.
func echoServer(t *testing.T, config *Config) *Listener {
	l, err := Listen("udp", "127.0.0.1:0", config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Endpoint().Close() })
	go func() {
		for {
			c, err := l.AcceptKCP(context.Background())
			if err != nil {
				return
			}
			c.session.Inside().Keys().Keys.SetUpdateAfter(20)
			c.handleDatagrams(func(b []byte) { _ = c.SendDatagram(b) })
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return l
}

// echoOver dials a server of echoServer, and checks its answers.
func echoOver(t *testing.T, addr string, config *Config) {
	c, err := Dial("udp", addr, config)
	require.NoError(t, err)
	c.session.Inside().Keys().Keys.SetUpdateAfter(20)
	want := content(1, 500_000)
	go func() { _, _ = c.Write(want) }()
	receive(t, c, want)
	datagram := content(2, 1000) // whatever either end has found of the path
	require.NoError(t, c.SendDatagram(datagram))
	got, err := c.ReceiveDatagram(context.Background())
	require.NoError(t, err)
	require.Equal(t, datagram, got)
	sent, received := c.session.Inside().Keys().Keys.Generations()
	require.Greater(t, min(sent, received), uint64(3))
	require.NoError(t, c.Close())
}

// FuzzTLSContent has a peer seal whatever it likes. The session may end; nothing
// else suffers.
func FuzzTLSContent(f *testing.F) {
	f.Add([]byte("content"), false)
	f.Add(testenv.SegmentOf(wire.Signal{Code: wire.Ping, SN: 1, TS: 2}), true)
	f.Add(packetOf(0, push(0, 0, "x"), push(1, 0, "y")), false)
	f.Add(append(testenv.SegmentOf(wire.Signal{Code: wire.Crypto, SN: 0, TS: 0}), 1, 2, 3), true)
	f.Add([]byte{0, 0, 0, 0, 0xf1, 0, 30, 0, 1, 2, 3, 4}, false)
	f.Add([]byte{0, 0, 0, 0, 0xf2, 0, 30, 0, 1, 2, 3, 4}, true)
	f.Fuzz(func(t *testing.T, content []byte, fromServer bool) {
		content = content[:min(len(content), 1400)]
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			a, b, l, pc := w.movable(secured(Config{PeerTimeout: 5 * time.Second, Linger: time.Second}))
			from, to := a, b
			if fromServer {
				from, to = b, a
			}
			client, server := pc.AddrPort(), netip.MustParseAddrPort(serverAddr)
			for _, conv := range []bool{true, false} {
				packet := make([]byte, protect.KeyedOverhead+len(content))
				copy(packet[protect.HeaderSize:], content)
				if inner := packet[protect.HeaderSize : protect.HeaderSize+len(content)]; conv && len(inner) >= wire.HeaderSize {
					h := wire.DecodeHeader(inner)
					h.Conv = a.Conv()
					h.Encode(inner)
				}
				require.NoError(t, from.session.Inside().Keys().Seal(packet, nil))
				if fromServer {
					w.net.Inject(server, client, packet)
				} else {
					w.net.Inject(client, server, packet)
				}
				time.Sleep(100 * time.Millisecond)
			}
			require.NoError(t, to.SetReadDeadline(time.Now().Add(time.Second)))
			_, _ = to.Read(make([]byte, 2000))
			_, _ = a.Close(), b.Close()
			time.Sleep(2 * time.Minute)
			require.Zero(t, l.Endpoint().Stats().Sessions)
			require.Zero(t, l.Endpoint().Stats().Buffered)
			e, _ := w.endpoint("10.0.0.4:0", secured(Config{}))
			c := w.dial(e)
			bothWays(t, c, accepted(t, l), []byte("up"), []byte("down"))
		})
	})
}

// A session whose peer changes its keys again before this end has followed ends,
// with an error that says so.
func TestTLSKeyUpdateTooFast(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(secured(Config{}), secured(Config{}))
		time.Sleep(time.Second)
		var batch []udp.Datagram // in one, so that b sends nothing in between
		w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
			if to.String() == serverAddr {
				batch = append(batch, udp.Datagram{Buf: bytes.Clone(p), Addr: from})
			}
			return false
		})
		for range 2 {
			require.NoError(t, a.session.Inside().Keys().Keys.Update())
			require.NoError(t, a.SendDatagram([]byte("under new keys")))
		}
		require.Len(t, batch, 2)
		b.ep.take(batch, new(readState), nil)
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Second)))
		wantReadErr(t, b, errKeyUpdate)
	})
}

// What of a handshake arrives at an end. More than the last has nothing else.
const ()

// secured returns config with TLS, for both ends.
func secured(config Config) *Config {
	config.TLS = testTLS()
	return &config
}
