package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// hostileRelay is an attacker on the path with full control: it drops, holds
// back, rewrites, truncates, extends, splices, repeats and reflects packets, of
// this session and of those before it. All packets pass through it.
type hostileRelay struct {
	w      *world
	random *rand.Rand // used under the lock of the filter alone
	mu     sync.Mutex
	kept   []keptPacket
	hurts  float64 // share of packets that something is done to
	spare  bool    // packets of handshakes are not changed, only kept
}

// maxKept is how many packets the attacker keeps to use again.
const maxKept = 500

func (w *world) hostile(seed uint64) *hostileRelay {
	r := &hostileRelay{w: w, random: rand.New(rand.NewPCG(seed, 99)), hurts: 0.3}
	w.net.SetFilter(r.packet)
	return r
}

// packet is the filter: whatever arrives is sent by the relay itself.
func (r *hostileRelay) packet(from, to netip.AddrPort, data []byte) bool {
	data = bytes.Clone(data)
	p := keptPacket{from, to, data}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) < maxKept {
		r.kept = append(r.kept, p)
	} else {
		r.kept[r.random.IntN(maxKept)] = p
	}
	plain := data[4] < 0xa2
	if plain && r.random.IntN(2) == 0 {
		r.askForReset(p)
	}
	if r.random.Float64() > r.hurts || r.spare && plain {
		r.later(p, 10)
		return false
	}
	r.attack(p)
	return false
}

// attack does something to a packet.
func (r *hostileRelay) attack(p keptPacket) {
	other := r.kept[r.random.IntN(len(r.kept))]
	changed := bytes.Clone(p.data)
	switch r.random.IntN(11) {
	case 0: // drop
	case 1: // hold back
		r.later(p, 10+r.random.IntN(500))
	case 2: // flip a bit
		changed[r.random.IntN(len(changed))] ^= 1 << r.random.IntN(8)
		r.later(keptPacket{p.from, p.to, changed}, 10)
	case 3: // truncate
		r.later(keptPacket{p.from, p.to, changed[:r.random.IntN(len(changed))]}, 10)
	case 4: // extend
		r.later(keptPacket{p.from, p.to, append(changed, make([]byte, 1+r.random.IntN(30))...)}, 10)
	case 5: // splice: the header of one, the content of another
		n := min(len(changed), len(other.data), 9)
		r.later(keptPacket{p.from, p.to, append(changed[:n:n], other.data[n:]...)}, 10)
	case 6: // repeat something old, and this several times
		r.later(p, 10)
		r.later(p, 11)
		r.later(other, 12)
		r.later(p, 300)
	case 7: // reflect
		r.later(p, 10)
		r.later(keptPacket{p.to, p.from, p.data}, 10)
	case 8: // something old as though from the other, or from elsewhere
		r.later(p, 10)
		r.later(keptPacket{other.to, other.from, other.data}, 10)
		r.later(keptPacket{attacker, p.to, p.data}, 9)
	case 9: // another key phase, another number, another type
		changed[4+r.random.IntN(5)] ^= byte(1 + r.random.IntN(255))
		r.later(keptPacket{p.from, p.to, changed}, 10)
		r.later(p, 10)
	case 10:
		r.askForReset(p)
		r.later(p, 10)
	}
}

// askForReset sends what looks like a protected packet of the conversation, in
// front of a packet: an endpoint that does not know it yet, or any more, makes a
// stateless reset, which the relay keeps.
func (r *hostileRelay) askForReset(p keptPacket) {
	ask := append(bytes.Clone(p.data[:4]), make([]byte, 60)...)
	ask[4] = 0xa2
	r.later(keptPacket{p.from, p.to, ask}, r.random.IntN(5))
}

func (r *hostileRelay) later(p keptPacket, ms int) {
	time.AfterFunc(time.Duration(ms)*time.Millisecond, func() { r.w.net.Inject(p.from, p.to, p.data) })
}

// hostileSeeds returns how many seeds the relay is tried with: KCP_TLS_SEEDS, or
// a few.
func hostileSeeds(t *testing.T) uint64 {
	if s := os.Getenv("KCP_TLS_SEEDS"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		return n
	}
	return fewer(8)
}

// No attacker on the path makes a byte wrong, or arrive twice, or ends a
// session: while it leaves handshakes alone, all that is sent arrives whatever it
// does otherwise. Once it cuts the path, the sessions end by their time-outs.
func TestTLSHostileRelay(t *testing.T) {
	t.Parallel()
	for seed := range hostileSeeds(t) {
		inWorld(t, seed, clean, func(t *testing.T, w *world) {
			random := rand.New(rand.NewPCG(seed, 5))
			config := secured(kcp.Config{PeerTimeout: 20 * time.Second})
			if random.IntN(3) == 0 {
				config.FEC = kcp.FEC{Data: 5, Parity: 2}
			}
			config.Redundancy = float64(random.IntN(2))
			l := w.listen(config)
			e, _ := w.endpoint("10.0.0.2:5000", config)
			relay := w.hostile(seed)
			relay.spare = true
			for round := range 2 { // the second with what was recorded of the first
				a := w.dial(e)
				b := accepted(t, l)
				bothWays(t, a, b, content(seed+uint64(round), random.IntN(100_000)), content(seed+7, random.IntN(100_000)))
				sendOnce(t, a, b)
				if round == 0 {
					require.NoError(t, a.Close())
					require.NoError(t, b.Close())
					continue
				}
				for _, c := range []*kcp.Conn{a, b} { // while old packets still come
					require.NoError(t, c.SetReadDeadline(time.Now().Add(3*time.Second)))
					_, err := c.Read(make([]byte, 10))
					requireTimeout(t, err)
					require.NoError(t, c.SetReadDeadline(time.Time{}))
				}
				w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false })
				for _, c := range []*kcp.Conn{a, b} {
					writeAll(t, c, []byte("x"))
				}
				for _, c := range []*kcp.Conn{a, b} {
					_, err := c.Read(make([]byte, 1))
					var lost *kcp.PeerLostError
					require.ErrorAs(t, err, &lost)
				}
			}
			time.Sleep(2 * session.HandshakeTime) // first packets that were repeated
			require.Zero(t, l.Endpoint().Stats().Sessions)
		})
	}
}

// sendOnce sends datagrams from a to b, none of which may arrive twice.
func sendOnce(t *testing.T, a, b *kcp.Conn) {
	t.Helper()
	for i := range byte(50) {
		require.NoError(t, a.SendDatagram([]byte{i}))
		time.Sleep(time.Millisecond)
	}
	time.Sleep(2 * time.Second)
	got := make(map[byte]bool)
	for b.Stats().Datagrams.Received > uint64(len(got)) {
		d, err := b.ReceiveDatagram(t.Context())
		require.NoError(t, err)
		require.False(t, got[d[0]], "datagram %d", d[0])
		got[d[0]] = true
	}
	require.Greater(t, len(got), 10)
}

// If the attacker changes handshakes too, Dial fails or the session is as good as
// any; nothing of a handshake that was tampered with gets through.
func TestTLSHostileHandshake(t *testing.T) {
	t.Parallel()
	dialled := 0
	for seed := range 4 * hostileSeeds(t) {
		inWorld(t, seed, clean, func(t *testing.T, w *world) {
			config := secured(kcp.Config{DialTimeout: 5 * time.Second, PeerTimeout: 10 * time.Second, Linger: time.Minute})
			l := w.listen(config)
			e, _ := w.endpoint("10.0.0.2:5000", config)
			go echoOnce(l)
			w.hostile(seed)
			for range 3 {
				if w.dialsOrFails(e, content(seed, 3000)) {
					dialled++
				}
			}
			time.Sleep(time.Minute)
			require.Zero(t, l.Endpoint().Stats().Sessions)
			require.Zero(t, l.Endpoint().Stats().HalfOpen)
			require.Zero(t, e.Stats().Sessions)
			require.Zero(t, l.Endpoint().Stats().Buffered)
		})
	}
	require.Positive(t, dialled)
}

// dialsOrFails dials a server that echoes. It reports whether there is a session, which
// then carries data; if not, the error has to be one of handshakes.
func (w *world) dialsOrFails(e *kcp.Endpoint, data []byte) bool {
	c, err := e.Dial(context.Background(), udpAddr(serverAddr), nil)
	if err != nil {
		is := errors.As(err, new(*kcp.HandshakeError)) || errors.As(err, new(*kcp.NoAnswerError)) || errors.Is(err, kcp.ErrRefused)
		require.True(w.t, is, "%v", err)
		return false
	}
	_, err = c.Write(data)
	require.NoError(w.t, err)
	receive(w.t, c, data)
	require.NoError(w.t, c.CloseWrite())
	_, err = c.Read(make([]byte, 1))
	require.Equal(w.t, io.EOF, err)
	require.NoError(w.t, c.Close())
	return true
}

// echoOnce echoes what the sessions of l receive until their peers are done.
func echoOnce(l *kcp.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}()
	}
}

// resettable returns settings whose stateless resets count after a restart.
func resettable(config kcp.Config) *kcp.Config {
	config.StatelessResetKey = []byte("the key of these servers, all but secret")
	return secured(config)
}

// secureLife opens a session with a server, and lets it be in use for a while.
func (w *world) secureLife(config *kcp.Config) (a, b *kcp.Conn, client, server *netsim.PacketConn) {
	w.t.Helper()
	l, server := w.server(config)
	e, client := w.endpoint("10.0.0.2:5000", config)
	a = w.dial(e)
	b = accepted(w.t, l)
	bothWays(w.t, a, b, []byte("here"), []byte("here"))
	time.Sleep(3 * time.Second)
	return a, b, client, server
}

// wantReadErr checks that a Read fails with err, and returns how long it took.
func wantReadErr(t *testing.T, c *kcp.Conn, want error) time.Duration {
	t.Helper()
	start := time.Now()
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, want)
	return time.Since(start)
}

// requireResetNow writes at c, and checks that the answer resets its session.
func requireResetNow(t *testing.T, c *kcp.Conn) {
	t.Helper()
	writeAll(t, c, []byte("anyone there?"))
	require.Equal(t, roundTrip, wantReadErr(t, c, kcp.ErrReset))
}

// A peer that was restarted with the same key says so in answer to the next
// packet; nothing of the old session opens a new one.
func TestTLSRestarted(t *testing.T) {
	t.Run("writes", func(t *testing.T) {
		for _, config := range []kcp.Config{{}, {FEC: kcp.FEC{Data: 2, Parity: 1}}, {SharedConvs: true}} {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				a, _, _, server := w.secureLife(resettable(config))
				l := w.restarted(server, resettable(config))
				requireResetNow(t, a)
				require.EqualValues(t, 1, l.Endpoint().Stats().ResetsSent)
				time.Sleep(time.Minute)
				require.Zero(t, l.Endpoint().Stats().Sessions)
			})
		}
	})
	t.Run("closes", func(t *testing.T) { // which succeeds, as with any peer that has forgotten
		inWorld(t, 3, clean, func(t *testing.T, w *world) {
			a, _, _, server := w.secureLife(resettable(kcp.Config{}))
			w.restarted(server, resettable(kcp.Config{}))
			start := time.Now()
			require.NoError(t, a.Close())
			require.Equal(t, roundTrip, time.Since(start))
			require.NotErrorIs(t, a.Err(), kcp.ErrReset)
		})
	})
	t.Run("client", func(t *testing.T) {
		inWorld(t, 4, clean, func(t *testing.T, w *world) {
			_, b, client, _ := w.secureLife(resettable(kcp.Config{}))
			require.NoError(t, client.Close())
			w.endpoint("10.0.0.2:5000", resettable(kcp.Config{}))
			requireResetNow(t, b)
		})
	})
	t.Run("migrated", func(t *testing.T) {
		for _, lost := range []bool{false, true} { // what tells the key for the new address
			inWorld(t, 5, clean, func(t *testing.T, w *world) {
				a, b, client, server := w.secureLife(resettable(kcp.Config{}))
				require.NoError(t, client.Rebind("10.0.0.3:6000"))
				w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
					return !lost || from.String() != serverAddr || b.Stats().Moves == 0
				})
				bothWaysOrNot(t, a, b, !lost)
				time.Sleep(2 * time.Second)
				w.net.SetFilter(nil)
				bothWaysOrNot(t, a, b, true)
				time.Sleep(time.Minute) // a PING
				require.Equal(t, 1, b.Stats().Moves)
				w.restarted(server, resettable(kcp.Config{}))
				requireResetNow(t, a)
			})
		}
	})
	t.Run("another key", func(t *testing.T) {
		inWorld(t, 6, clean, func(t *testing.T, w *world) {
			a, _, _, server := w.secureLife(resettable(kcp.Config{}))
			l := w.restarted(server, secured(kcp.Config{}))
			writeAll(t, a, []byte("anyone there?"))
			_, err := a.Read(make([]byte, 1))
			require.ErrorAs(t, err, new(*kcp.PeerLostError))
			require.Greater(t, l.Endpoint().Stats().ResetsSent, uint64(1))
		})
	})
}

// bothWaysOrNot writes at a, and reads that at b if it is to arrive.
func bothWaysOrNot(t *testing.T, a, b *kcp.Conn, arrives bool) {
	t.Helper()
	writeAll(t, a, []byte("moved"))
	if arrives {
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
		receive(t, b, []byte("moved"))
	}
}

// An endpoint that has given a session up says so long after, without a key of
// its Config: a peer that was away for that time learns of it at once.
func TestTLSForgottenSession(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(secured(kcp.Config{}))
		e, _ := w.endpoint("10.0.0.2:5000", secured(kcp.Config{PeerTimeout: -1}))
		a := w.dial(e)
		b := accepted(t, l)
		bothWays(t, a, b, []byte("here"), []byte("here"))
		w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false })
		writeAll(t, b, []byte("anyone there?"))
		_, err := b.Read(make([]byte, 1))
		var lost *kcp.PeerLostError
		require.ErrorAs(t, err, &lost)
		time.Sleep(session.TimeWaitTime + time.Second)
		w.net.SetFilter(nil)
		requireResetNow(t, a)
	})
}

// Endpoints without a session do not go on to answer each other. What a flood
// causes is bounded, and smaller than the flood, packet by packet.
func TestTLSResetsAreBounded(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		config := secured(kcp.Config{})
		l := w.listen(config)
		e, _ := w.endpoint("10.0.0.2:5000", config)
		from, to := netip.MustParseAddrPort("10.0.0.2:5000"), netip.MustParseAddrPort(serverAddr)
		for size := range 2 * protect.MaxReset {
			packet := content(uint64(size), size)
			if size > 4 {
				packet[4] = 0xa2 | byte(size)&1
			}
			sent, before := 0, l.Endpoint().Stats().ResetsSent
			w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool {
				if sent++; sent > 1 {
					require.Less(t, len(p), size)
				}
				return true
			})
			w.net.Inject(from, to, packet)
			time.Sleep(time.Second)
			require.Equal(t, size > protect.MaxReset, l.Endpoint().Stats().ResetsSent > before, "%d bytes", size)
		}
		require.Zero(t, e.Stats().ResetsSent)
		w.net.SetFilter(nil)

		a := w.dial(e)
		b := accepted(t, l)
		s := l.Endpoint().Stats()
		const flood = 2000
		for i := range flood {
			packet := content(uint64(i), 1200)
			packet[4] = 0xa2
			w.net.Inject(netip.AddrPortFrom(floodAddr(i).Addr(), 1), to, packet)
		}
		w.settle()
		n := l.Endpoint().Stats().ResetsSent - s.ResetsSent
		require.InDelta(t, admission.ResetRate/10, n, admission.ResetRate/20)
		require.EqualValues(t, flood, n+l.Endpoint().Stats().DropReplies-s.DropReplies)
		require.LessOrEqual(t, l.Endpoint().Stats().BytesSent-s.BytesSent, n*protect.MaxReset)
		bothWays(t, a, b, []byte("up"), []byte("down"))
	})
}
