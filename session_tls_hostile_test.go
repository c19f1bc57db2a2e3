package kcp

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

	"github.com/arqnet/kcp/internal/session"
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
		r.later(keptPacket{elsewhere, p.to, p.data}, 9)
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
			config := secured(Config{PeerTimeout: 20 * time.Second})
			if random.IntN(3) == 0 {
				config.FEC = FEC{Data: 5, Parity: 2}
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
				for _, c := range []*Conn{a, b} { // while old packets still come
					require.NoError(t, c.SetReadDeadline(time.Now().Add(3*time.Second)))
					_, err := c.Read(make([]byte, 10))
					requireTimeout(t, err)
					require.NoError(t, c.SetReadDeadline(time.Time{}))
				}
				w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false })
				for _, c := range []*Conn{a, b} {
					writeAll(t, c, []byte("x"))
				}
				for _, c := range []*Conn{a, b} {
					_, err := c.Read(make([]byte, 1))
					var lost *PeerLostError
					require.ErrorAs(t, err, &lost)
				}
			}
			time.Sleep(2 * session.HandshakeTime) // first packets that were repeated
			require.Zero(t, l.Endpoint().Stats().Sessions)
		})
	}
}

// sendOnce sends datagrams from a to b, none of which may arrive twice.
func sendOnce(t *testing.T, a, b *Conn) {
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
			config := secured(Config{DialTimeout: 5 * time.Second, PeerTimeout: 10 * time.Second, Linger: time.Minute})
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
func (w *world) dialsOrFails(e *Endpoint, data []byte) bool {
	c, err := e.Dial(context.Background(), udpAddr(serverAddr), nil)
	if err != nil {
		is := errors.As(err, new(*HandshakeError)) || errors.As(err, new(*NoAnswerError)) || errors.Is(err, ErrRefused)
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
func echoOnce(l *Listener) {
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
