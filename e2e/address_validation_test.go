package e2e

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/testenv/life/ends"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// forger sends packets in the name of an address that never answers, and counts
// what goes there.
type forger struct {
	w      *world
	name   netip.AddrPort
	cipher crypt.Cipher

	mu             sync.Mutex
	sent, provoked int
	worst          float64
}

func newForger(w *world, cipher crypt.Cipher) *forger {
	f := &forger{w: w, name: netip.MustParseAddrPort("10.0.0.66:6666"), cipher: cipher}
	w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		if to == f.name {
			f.provoked += len(p)
			f.worst = max(f.worst, float64(f.provoked)/float64(f.sent))
		}
		return true
	})
	return f
}

func (f *forger) send(p []byte) {
	if f.cipher != nil {
		head, tail := f.cipher.Overhead()
		sealed := make([]byte, head+len(p)+tail)
		copy(sealed[head:], p)
		require.NoError(f.w.t, f.cipher.Seal(sealed))
		p = sealed
	}
	f.mu.Lock()
	f.sent += len(p)
	f.mu.Unlock()
	f.w.net.Inject(f.name, acceptorAddr, p)
}

// forgeries are what somebody sends who gets none of the answers, as one thing
// after another.
var forgeries = map[string]func(f *forger){
	"push":       func(f *forger) { f.send(packetOf(5, push(0, 0, "x"))) },
	"empty push": func(f *forger) { f.send(packetOf(5, push(0, 0, ""))) },
	"large push": func(f *forger) { f.send(packetOf(5, push(0, 0, string(make([]byte, 1300))))) },
	"hello":      func(f *forger) { f.send(packetOf(5, hello(9), bytesOf(infoSignal()))) },
	"hello and push": func(f *forger) {
		f.send(packetOf(5, hello(9), bytesOf(infoSignal()), push(0, 0, "x")))
	},
	"fec push": func(f *forger) { f.send(ends.WithFEC(0, packetOf(5, push(0, 0, "x")))) },
	"early pushes": func(f *forger) {
		p := push(0, 0, "x")
		for sn := range uint32(50) {
			p = append(p, push(sn+2, 0, "")...)
		}
		for range 4 {
			f.send(packetOf(5, p))
			time.Sleep(20 * time.Millisecond)
		}
	},
	"second packet": func(f *forger) {
		for range 5 {
			f.send(packetOf(5, push(0, 0, "x")))
			time.Sleep(1100 * time.Millisecond)
		}
	},
	"una": func(f *forger) { // acknowledges whatever may have been sent
		f.send(packetOf(5, push(0, 0, "x")))
		for una := range uint32(500) {
			time.Sleep(20 * time.Millisecond)
			f.send(packetOf(5, segment(cmdWins, 0, 0, 0, una, "")))
		}
	},
	"acks": func(f *forger) { // and its ts as of a clock that began with the server
		f.send(packetOf(5, push(0, 0, "x")))
		for i := range uint32(500) {
			time.Sleep(20 * time.Millisecond)
			f.send(packetOf(5, ack(i/10, 20*i, i/10)))
		}
	},
	"signals": func(f *forger) {
		f.send(packetOf(5, hello(9), bytesOf(infoSignal()), push(0, 0, "x")))
		for i := range uint32(200) {
			time.Sleep(20 * time.Millisecond)
			code := signalCode(i%16 | i&16<<3)
			f.send(packetOf(5, bytesOf(signal{code, i, i * 7}), bytesOf(signal{sigPing, i, i})))
		}
	},
	"pings": func(f *forger) {
		f.send(packetOf(5, push(0, 0, "x")))
		for i := range uint32(50) {
			f.send(packetOf(5, bytesOf(signal{sigPing, i, i})))
		}
	},
}

// answers are what applications do with a session.
var answers = map[string]func(c *kcp.Conn){
	"echo":     func(c *kcp.Conn) { _, _ = io.Copy(c, c) },
	"megabyte": func(c *kcp.Conn) { _, _ = c.Write(make([]byte, 1<<20)) },
	"message": func(c *kcp.Conn) {
		for c.WriteMessage(make([]byte, 3000), nil) == nil {
		}
	},
	"endless": func(c *kcp.Conn) {
		for {
			if _, err := c.Write(make([]byte, 10000)); err != nil {
				return
			}
		}
	},
	"datagrams": func(c *kcp.Conn) {
		for range 200 {
			_ = c.SendDatagram(make([]byte, 100))
			time.Sleep(10 * time.Millisecond)
		}
	},
	"close": func(c *kcp.Conn) { _, _ = c.Write(make([]byte, 5000)); _ = c.Close() },
}

// Whatever is sent in the name of an address that never answers, and whatever
// the application does: no more than three times as much goes there, at any
// time (RFC 9000 §8.1).
func TestAmplificationLimit(t *testing.T) {
	long(t)
	low := kcp.LowLatency()
	low.Redundancy = 2
	settings := map[string]kcp.Config{
		"default":   {},
		"low":       low,
		"fec":       {FEC: kcp.FEC{Data: 10, Parity: 3}},
		"messages":  {MessageMode: true, FEC: kcp.FEC{Data: 2, Parity: 2}, Cipher: testAEAD(t)},
		"validates": {AddressValidation: kcp.ValidateAlways},
		"refuses":   {LegacyPeers: kcp.LegacyRefuse},
		"reference": {CongestionControl: congestion.NewReference, MTU: 60},
	}
	for name, config := range settings {
		t.Run(name, func(t *testing.T) {
			n := 0
			for _, forgery := range slices.Sorted(maps.Keys(forgeries)) {
				for _, answer := range slices.Sorted(maps.Keys(answers)) {
					if n++; inFull() || name == "default" && n%2 == 0 || n%7 == len(name)%7 {
						checkAmplification(t, config, forgery+", "+answer, forgeries[forgery], answers[answer])
					}
				}
			}
		})
	}
}

func checkAmplification(t *testing.T, config kcp.Config, name string, forge func(*forger), use func(*kcp.Conn)) {
	inWorld(t, 8, clean, func(t *testing.T, w *world) {
		l := w.listen(&config)
		f := newForger(w, config.Cipher)
		go serve(l, use)
		forge(f)
		time.Sleep(100 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		require.LessOrEqual(t, f.worst, 3.0, "%s: %d bytes have brought %d", name, f.sent, f.provoked)
		require.Zero(t, l.Endpoint().Stats().DropCredit, "%s: packets were made in vain", name)
		require.Zero(t, l.Endpoint().Stats().Sessions, "%s: a session is left whose peer never answered", name)
	})
}

// legacyPeer is a peer without signals. It begins a session of conversation 77 with to, or
// with nil takes the first that comes.
type legacyPeer struct {
	*ends.Bare
	got []byte
}

// legacyThinks is longer than it takes such a peer to answer.
const legacyThinks = time.Millisecond

func newLegacyPeer(w *world, addr string, to net.Addr, fecs bool) *legacyPeer {
	pc, err := w.net.Listen(addr)
	require.NoError(w.t, err)
	stop := make(chan struct{})
	w.t.Cleanup(func() { close(stop) })
	return &legacyPeer{Bare: ends.NewBare(pc, ends.BareOptions{Conv: 77, To: to, FEC: fecs, Stop: stop})}
}

func (p *legacyPeer) write(b []byte) { _, _ = p.Write(0, b, true) }

// received returns all that has arrived.
func (p *legacyPeer) received() []byte {
	for len(p.Bare.Got) > 0 {
		p.got = append(p.got, <-p.Bare.Got...)
	}
	return p.got
}

// A legacy peer validates its address by its ACKs: a small question gets a
// large answer, on lossy paths too, and the session then is like any other.
func TestLegacyPeerIsValidated(t *testing.T) {
	long(t)
	for _, question := range []int{1, 40, 1300, 20000} {
		for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
			for _, messages := range []bool{false, true} {
				for seed, link := range []netsim.LinkConfig{clean, lossy, lossy, lossy}[:some(4, 2)] {
					t.Run(fmt.Sprint(question, wait, messages, seed), func(t *testing.T) {
						inWorld(t, uint64(seed), link, func(t *testing.T, w *world) {
							l := w.listen(&kcp.Config{MessageMode: messages})
							p := newLegacyPeer(w, "10.0.0.7:7", l.Addr(), false)
							p.write(content(1, question))
							c := accepted(t, l)
							receive(t, c, content(1, question))
							time.Sleep(wait)
							want := content(2, 200_000)
							go func() { _, _ = c.Write(want) }()
							for len(p.received()) < len(want) && w.net.Elapsed() < time.Minute {
								time.Sleep(100 * time.Millisecond)
							}
							require.Equal(t, sum(want), sum(p.received()))
							require.Zero(t, l.Endpoint().Stats().HalfOpen)
							require.Zero(t, l.Endpoint().Stats().DropCredit)
						})
					})
				}
			}
		}
	}
}

// A peer whose first packet has an FEC header is answered in one, at once: some
// read nothing else.
func TestFECPeerIsAnsweredInKind(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		start := time.Now()
		l := w.listen(&kcp.Config{FEC: kcp.FEC{Data: 10, Parity: 3}})
		p := newLegacyPeer(w, "10.0.0.7:7", l.Addr(), true)
		p.write([]byte("x"))
		c := accepted(t, l)
		w.hear(c, "x")
		w.say(c, "y")
		for len(p.received()) == 0 && time.Since(start) < time.Second {
			time.Sleep(time.Millisecond)
		}
		require.Equal(t, "y", string(p.received()))
		require.Less(t, time.Since(start), 150*time.Millisecond, "in the first round trip")
	})
}

// Sessions in the name of others never fill the table: they stay half open, and
// who has an address gets in.
func TestForgedSessionsStayHalfOpen(t *testing.T) {
	long(t)
	inWorld(t, 4, clean, func(t *testing.T, w *world) {
		l := w.listen(&kcp.Config{Limits: kcp.Limits{MaxSessions: 4096}})
		go serve(l, func(c *kcp.Conn) { _ = end(c) })
		random := rand.New(rand.NewPCG(4, 4))
		for range some(28, 6) { // seconds
			first := random.IntN(1 << 20)
			for again := range 4 {
				for i := range 400 {
					p := packetOf(uint32(first+i), push(uint32(again), 0, ""), segment(cmdWins, 0, 0, 0, uint32(again), ""))
					w.net.Inject(floodAddr(first+i), acceptorAddr, p)
				}
				time.Sleep(250 * time.Millisecond)
			}
			s := l.Endpoint().Stats()
			require.LessOrEqual(t, s.Sessions, 1024)
			require.Equal(t, s.Sessions, s.HalfOpen)
		}
		start := time.Now()
		w.dial(w.client(nil))
		require.Less(t, time.Since(start), time.Second)
	})
}

// Sessions in the name of an address do not keep out who has it: cookies tell.
func TestForgedSessionsOfAnAddress(t *testing.T) {
	inWorld(t, 5, clean, func(t *testing.T, w *world) {
		l := w.listen(&kcp.Config{Limits: kcp.Limits{MaxSessionsPerAddress: 16}})
		name := netip.MustParseAddr("10.0.0.2")
		for i := range uint32(100) {
			w.net.Inject(netip.AddrPortFrom(name, uint16(1000+i)), acceptorAddr, packetOf(i+1, hello(i+1), bytesOf(infoSignal())))
		}
		synctest.Wait()
		require.Equal(t, 16, l.Endpoint().Stats().HalfOpen)
		start := time.Now()
		w.dial(w.client(nil))
		require.Less(t, time.Since(start), time.Second)
	})
}
