package paths

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

// settled is how long a session takes at most to find out what its path takes, after the
// opening or a change, at a round trip of 40 ms.
const settled = 5 * time.Second

// mtus are those of a dial-up line, IPv6's least, WireGuard's, Ethernet's and jumbo
// frames.
var mtus = []int{576, 1232, 1252, 1280, 1392, 1400, 1472, 9000}

// narrowings are paths that take so many bytes from the start, later, or no longer.
func narrowings(mtu int) map[string][2]path {
	return map[string][2]path{
		"always":  {sized(mtu), sized(mtu)},
		"shrinks": {sized(0), sized(mtu)},
		"grows":   {sized(mtu), sized(0)},
	}
}

// overChanges runs f over each path, whatever protects the packets. Without KCP_LONG=1 it
// leaves out most of those that are protected, and all but paths of short.
func overChanges(t *testing.T, config kcp.Config, short []int, f func(w *world, change func())) {
	for name, protected := range protections(t) {
		for _, mtu := range mtus {
			for change, p := range narrowings(mtu) {
				if !testenv.InFull() && (name != "plain" && (mtu != 1392 || change != "shrinks") || !slices.Contains(short, mtu)) {
					continue
				}
				if name == "TLS" && mtu < 1200 && change != "shrinks" {
					continue // a handshake has packets of 1200 bytes
				}
				t.Run(fmt.Sprint(name, " ", mtu, " ", change), func(t *testing.T) {
					t.Parallel()
					over(t, p[0], protected(config), protected(config), func(w *world) {
						f(w, func() { w.set(p[1]) })
					})
				})
			}
		}
	}
}

// sender sends datagrams of the largest size at a rate, and counts those that arrive.
type sender struct {
	from, to      *kcp.Conn
	sent, arrived int
	stop          bool
}

// numbered returns n bytes that show what they should be.
func numbered(n, number int) []byte {
	b := make([]byte, max(n, 8))
	binary.BigEndian.PutUint64(b, uint64(number))
	for i := range b[8:] {
		b[8+i] = byte(number + i)
	}
	return b
}

// run sends until the test ends.
func (s *sender) run(t *testing.T, each time.Duration) {
	done := make(chan struct{})
	t.Cleanup(func() {
		s.stop = true
		<-done
	})
	go func() {
		for {
			b, err := s.to.ReceiveDatagram(context.Background())
			if err != nil {
				return
			}
			require.Equal(t, numbered(len(b), int(binary.BigEndian.Uint64(b))), b)
			s.arrived++
		}
	}()
	go func() {
		defer close(done)
		for number := 0; !s.stop; number++ {
			if s.from.SendDatagram(numbered(s.from.MaxDatagramSize(), number)) == nil {
				s.sent++
			}
			time.Sleep(each)
		}
	}()
}

// Datagrams of the size that MaxDatagramSize says arrive, both ways, but for those of the
// first seconds after the opening or after the path has changed.
func TestLargestDatagramsArrive(t *testing.T) {
	overChanges(t, kcp.Config{}, mtus, func(w *world, change func()) {
		up := &sender{from: w.client, to: w.server}
		down := &sender{from: w.server, to: w.client}
		up.run(w.t, 33*time.Millisecond)
		down.run(w.t, 250*time.Millisecond)
		time.Sleep(time.Second)
		change()
		time.Sleep(settled)
		for _, s := range []*sender{up, down} {
			s.sent, s.arrived = 0, 0
		}
		time.Sleep(20 * time.Second)
		for _, s := range []*sender{up, down} {
			require.Greater(w.t, s.sent, 50)
			require.InDelta(w.t, s.sent, s.arrived, 2, "sent %d of %d bytes, %+v", s.sent, s.from.MaxDatagramSize(), s.from.Stats().PathMTU)
		}
		require.Greater(w.t, up.from.MaxDatagramSize(), 490)
	})
}

// messages counts messages.
type messages struct{ sent, arrived int }

// messaging sends messages of size bytes until the test ends.
func messaging(w *world, from, to *kcp.Conn, retransmits, size int, each time.Duration) *messages {
	m := new(messages)
	out, err := from.OpenStream(w.t.Context(), &kcp.StreamOptions{Unordered: true, MaxRetransmits: retransmits})
	require.NoError(w.t, err)
	stop, done := false, make(chan struct{})
	w.t.Cleanup(func() {
		stop = true
		<-done
	})
	go func() {
		in, err := to.AcceptStream(context.Background())
		if err != nil {
			return
		}
		b := make([]byte, size)
		for {
			n, err := in.ReadMessage(b)
			if err != nil {
				return
			}
			require.Equal(w.t, numbered(size, int(binary.BigEndian.Uint64(b))), b[:n])
			m.arrived++
		}
	}()
	go func() {
		defer close(done)
		for number := 0; !stop; number++ {
			if out.WriteMessage(numbered(size, number), nil) != nil {
				return
			}
			m.sent++
			time.Sleep(each)
		}
	}()
	return m
}

// Messages arrive, both ways, whole or in fragments, with parity or without, but for those
// of the first seconds if they are sent once only.
func TestMessagesArrive(t *testing.T) {
	for _, test := range []struct {
		name        string
		retransmits int
		config      kcp.Config
	}{
		{"once", -1, kcp.Config{}}, {"once with FEC", -1, kcp.Config{FEC: kcp.FEC{Data: 3, Parity: 1}}}, {"reliable", 0, kcp.Config{}},
	} {
		for _, size := range []int{1000, 1310, 5000} {
			if !testenv.InFull() && test.config.FEC.Data > 0 && size != 1310 {
				continue
			}
			t.Run(fmt.Sprint(test.name, " ", size), func(t *testing.T) {
				overChanges(t, test.config, []int{1392, 576}[size/5000:1+size/5000], func(w *world, change func()) {
					up := messaging(w, w.client, w.server, test.retransmits, size, 33*time.Millisecond)
					down := messaging(w, w.server, w.client, test.retransmits, size, 250*time.Millisecond)
					time.Sleep(time.Second)
					change()
					time.Sleep(settled)
					*up, *down = messages{}, messages{}
					time.Sleep(lasting(20*time.Second, 13*time.Second))
					for i, m := range []*messages{up, down} {
						c := []*kcp.Conn{w.client, w.server}[i]
						require.Greater(w.t, m.sent, 50)
						require.InDelta(w.t, m.sent, m.arrived, 2, "%+v", c.Stats().PathMTU)
					}
				})
			})
		}
	}
}

// What a path takes is found out however long it is, at once or when it has become longer.
func TestSizesOfLongPaths(t *testing.T) {
	for _, mtu := range []int{576, 1232} {
		for _, rtt := range []time.Duration{time.Second, 3 * time.Second} {
			for name, from := range map[string]time.Duration{"always": rtt, "becomes longer": 20 * time.Millisecond} {
				t.Run(fmt.Sprint(mtu, " ", rtt, " ", name), func(t *testing.T) {
					t.Parallel()
					p := both(delay(from), func(l *netsim.LinkConfig) { l.MTU = mtu })
					over(t, p, nil, nil, func(w *world) {
						w.paths[0] = both(p, func(l *netsim.LinkConfig) { l.Delay = rtt / 2 })
						w.set(w.paths[0])
						w.also(func() error { return writes(w.client, testenv.Content(1, some)) })
						w.call("Read", some, func() error { return getsAll(w.server, testenv.Content(1, some)) })
						w.join()
					})
				})
			}
		}
	}
}

// losing has packets of more than size bytes of UDP payload lost, a share of them.
func (w *world) losing(size int, share float64) {
	random := rand.New(rand.NewPCG(1, 1))
	w.net.SetFilter(func(_, _ netip.AddrPort, packet []byte) bool {
		return len(packet) <= size || random.Float64() >= share
	})
}

var controllers = map[string]func() congestion.Control{"BBR": congestion.NewBBR, "CUBIC": congestion.NewCubic}

// lossBySize returns how fast a flow is in the first ten seconds, and then, where a share
// of the packets above a size is lost.
func lossBySize(t *testing.T, control func() congestion.Control, size int, share float64) (first, later float64) {
	config := &kcp.Config{CongestionControl: control, MaxMTU: 1472}
	over(t, narrow(fast(20, 8), 100*time.Millisecond, 40*time.Millisecond), config, config, func(w *world) {
		if share > 0 {
			w.losing(size, share)
		}
		f := w.download(false)
		first = f.during(10 * time.Second).rate
		later = f.during(lasting(20*time.Second, 8*time.Second)).rate
		s := w.server.Stats()
		t.Logf("%.0f then %.0f bytes a second, %+v, %d of %d segments again", first, later, s.PathMTU, s.Retransmits(), s.SegmentsSent)
	})
	return first, later
}

// A flow is as fast, but for the first seconds, where a part of the large packets is lost.
func TestLossBySize(t *testing.T) {
	for name, control := range controllers {
		whole, wholeLater := lossBySize(t, control, 0, 0)
		for _, size := range []int{1300, 1412} {
			for _, share := range []float64{0.05, 0.3} {
				t.Run(fmt.Sprint(name, " ", size, " ", share), func(t *testing.T) {
					if !testenv.InFull() && (size == 1300) != (share > 0.1) {
						t.Skip("others show it")
					}
					t.Parallel()
					first, later := lossBySize(t, control, size, share)
					t.Logf("%.3f of the flow without loss in the first ten seconds, %.3f then", first/whole, later/wholeLater)
					require.Greater(t, first/whole, 0.5)
					require.Greater(t, later/wholeLater, 0.95)
				})
			}
		}
	}
}

// Loss of packets of all sizes, by chance or by a full queue, is not taken for one by size.
func TestLossOfAllSizes(t *testing.T) {
	for name, control := range controllers {
		for i, share := range []float64{0, 0.02, 0.05, 0.1} {
			for j, queue := range []time.Duration{3 * time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond} {
				if !testenv.InFull() && (i+j+len(name))%4 > 0 {
					continue
				}
				t.Run(fmt.Sprint(name, " ", share, " ", queue), func(t *testing.T) {
					t.Parallel()
					config := &kcp.Config{CongestionControl: control}
					over(t, narrow(fast(20, 4), queue, 40*time.Millisecond), config, config, func(w *world) {
						w.losing(0, share)
						w.download(false).during(lasting(30*time.Second, 15*time.Second))
						s := w.server.Stats()
						require.Zero(t, s.PathMTU.BlackHoles, "%+v, %d of %d segments again", s.PathMTU, s.Retransmits(), s.SegmentsSent)
					})
				})
			}
		}
	}
}
