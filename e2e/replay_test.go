package e2e

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// onPath is somebody who sees and keeps all packets, and has no key.
type onPath struct {
	mu   sync.Mutex
	kept []keptPacket
}

type keptPacket struct {
	from, to netip.AddrPort
	data     []byte
}

func (w *world) watched() *onPath {
	o := new(onPath)
	w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.kept = append(o.kept, keptPacket{from, to, bytes.Clone(p)})
		return true
	})
	return o
}

// all returns what was kept, and ends the watch.
func (o *onPath) all(w *world) []keptPacket {
	w.net.SetFilter(nil)
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept
}

// A peer without signals opens a session if there is no cipher that
// authenticates, or if that is allowed in spite of one.
func TestLegacyPeers(t *testing.T) {
	aead := testAEAD(t)
	for _, v := range []struct {
		config kcp.Config
		opens  bool
	}{
		{kcp.Config{}, true},
		{kcp.Config{LegacyPeers: kcp.LegacyRefuse}, false},
		{kcp.Config{LegacyPeers: kcp.LegacyAllow}, true},
		{kcp.Config{Cipher: crypt.None()}, true},
		{kcp.Config{Cipher: aead}, false},
		{kcp.Config{Cipher: crypt.Locked(aead)}, false},
		{kcp.Config{Cipher: aead, LegacyPeers: kcp.LegacyAllow}, true},
	} {
		inWorld(t, 3, clean, func(t *testing.T, w *world) {
			l := w.listen(&v.config)
			p := push(0, 0, "hello")
			if v.config.Cipher != nil {
				p = sealed(t, v.config.Cipher, p)
			}
			w.net.Inject(attacker, netip.MustParseAddrPort(serverAddr), p)
			time.Sleep(time.Second)
			require.Equal(t, v.opens, l.Endpoint().Stats().Backlog == 1, "%+v", v.config)
		})
	}
}

// What an endpoint has sent and gets back is neither read nor an
// acknowledgement, with a peer with signals and without.
func TestReflection(t *testing.T) {
	for name, c := range authenticCiphers(t) {
		for _, legacy := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				inWorld(t, 5, clean, func(t *testing.T, w *world) {
					config := &kcp.Config{Cipher: c, Linger: time.Second, DialTimeout: -1}
					e, _ := w.endpoint("10.0.0.2:5000", config)
					client, server := netip.MustParseAddrPort("10.0.0.2:5000"), netip.MustParseAddrPort(serverAddr)
					if !legacy {
						l := w.listen(config)
						a := w.dial(e)
						b := accepted(t, l)
						bothWays(t, a, b, content(1, 5000), content(2, 5000))
					} else {
						pc, err := w.net.Listen(serverAddr)
						require.NoError(t, err)
						defer pc.Close()
					}
					a := w.dial(e)
					w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
						if from == client {
							w.net.Inject(server, client, p) // instead
						}
						return false
					})
					requireNothingReflected(t, a)
				})
			})
		}
	}
}

// requireNothingReflected checks that a reads and acknowledges nothing of what it
// sends, which comes back to it.
func requireNothingReflected(t *testing.T, a *kcp.Conn) {
	t.Helper()
	writeAll(t, a, []byte("important"))
	require.NoError(t, a.SetReadDeadline(time.Now().Add(5*time.Second)))
	n, err := a.Read(make([]byte, 100))
	require.Zero(t, n, "it has read its own data")
	requireTimeout(t, err)
	require.Error(t, a.Close())
}

// attacker is from where somebody sends who is on the path.
var attacker = netip.MustParseAddrPort("10.0.0.66:6666")

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
			config := &kcp.Config{Cipher: hidingCiphers(t)["CFB"], PeerTimeout: time.Minute}
			if seed%4 > 1 {
				config.Cipher = testAEAD(t)
			}
			if random.IntN(2) == 0 {
				config.FEC = kcp.FEC{Data: 2, Parity: 1}
			}
			l, server := w.server(config)
			e, client := w.endpoint("10.0.0.2:5000", config)
			a := w.dial(e)
			send(t, a, []byte("up"))
			b := accepted(t, l)
			receive(t, b, []byte("up"))
			bothWays(t, a, b, content(1, 3000), content(2, 3000))
			survivor, pc, ep := a, server, l.Endpoint()
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
			require.ErrorIs(t, err, kcp.ErrReset)
			require.Less(t, time.Since(start), 20*time.Second)
		})
	}
}

// A CONFIRM validates the address only if it shows the tokens of both ends. One with a
// wrong token of the receiver is answered by RESET, as it may be meant for a session
// before.
func TestConfirmShowsBothTokens(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		l := w.listen(&kcp.Config{KeepAlive: -1})
		from, to := netip.MustParseAddrPort("10.0.0.9:9"), netip.MustParseAddrPort(serverAddr)
		var answers []wire.Signal
		w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool {
			answers = append(answers, testenv.SignalsOf(p)...)
			return true
		})
		const ours = 12345
		ask := func(s wire.Signal) []wire.Signal {
			answers = nil
			w.net.Inject(from, to, packetOf(77, testenv.SegmentOf(s)))
			time.Sleep(50 * time.Millisecond)
			return answers
		}
		welcome := ask(wire.Signal{Code: wire.Hello, SN: 0, TS: ours})
		require.NotEmpty(t, welcome)
		theirs := welcome[0].SN
		require.Equal(t, wire.Signal{Code: wire.Welcome, SN: theirs, TS: ours}, welcome[0])
		reset := ask(wire.Signal{Code: wire.Confirm, SN: theirs + 1, TS: ours})
		require.Len(t, reset, 1)
		require.Equal(t, wire.Reset, reset[0].Code)
		require.Empty(t, ask(wire.Signal{Code: wire.Confirm, SN: theirs, TS: ours + 1}))
		require.Equal(t, 1, l.Endpoint().Stats().HalfOpen)
		require.NotEmpty(t, ask(wire.Signal{Code: wire.Confirm, SN: theirs, TS: ours}))
		require.Zero(t, l.Endpoint().Stats().HalfOpen)
		require.NoError(t, accepted(t, l).Abort(0, ""))
	})
}
