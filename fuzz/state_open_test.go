package fuzz_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	kcp "github.com/arqnet/kcp"

	"github.com/arqnet/kcp/internal/rendezvous"
)

// TestHostileSimultaneousOpen attacks two ends that dial each other (simultaneous open,
// WIRE.md §5.1), before, while and after their session opens. The attacker holds the key
// of the cipher, and sends in the name of either end too, but sees nothing of what the
// two say. One session comes of it, both ends agree who has dialled, what is read was
// written, and nothing is left at the end.
func TestHostileSimultaneousOpen(t *testing.T) {
	first, count := number(t, "KCP_FUZZ_FIRST", 0), number(t, "KCP_FUZZ_SEEDS", 48)
	if n := number(t, "KCP_SEED", 1<<63); n != 1<<63 {
		first, count = n, 1
	}
	met := 0
	for seed := first; seed < first+count; seed++ {
		fmt.Printf("%s: KCP_SEED=%d\n", t.Name(), seed)
		if !t.Run(seedName(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { met += hostileOpen(t, seed) })
		}) {
			t.Fatalf("repeat with KCP_SEED=%d go test -run '^%s$' ./fuzz", seed, t.Name())
		}
	}
	if count > 8 && met == 0 {
		t.Error("nothing that was forged has opened a session by halves")
	}
}

var openEnds = [2]string{"10.0.0.30:4000", "10.0.0.31:4000"}

// hostileOpen is one attack on a simultaneous open. It returns how often a session was
// half open while one end alone had dialled.
func hostileOpen(t *testing.T, seed uint64) (met int) {
	w := newArena(t, seed, true)
	r, a := w.random, w.attacker
	w.config.DialTimeout = 30 * time.Second
	w.config.PeerTimeout = time.Minute
	duration := time.Duration(3000+r.IntN(6000)) * time.Millisecond
	w.until = time.Now().Add(duration)
	defer w.watch()()
	var ends [2]*kcp.Endpoint
	var addrs [2]netip.AddrPort
	for i, s := range openEnds {
		addrs[i] = netip.MustParseAddrPort(s)
		a.spare(addrs[i])
		config := w.config
		ends[i], _ = w.endpoint(s, &config)
	}
	a.ties, a.lethal, a.reacts = true, true, 0
	results := make(chan *kcp.Conn, 2)
	var dialling, decided atomic.Int32
	for i, e := range ends {
		later, others := time.Duration(r.IntN(2000))*time.Millisecond, 1-i
		random := rand.New(rand.NewPCG(seed, uint64(30+i)))
		w.apps.Go(func() {
			time.Sleep(later)
			dialling.Add(1)
			c := w.openTo(e, addrs[others])
			decided.Add(1)
			if results <- c; c != nil {
				w.note(e, c)
				w.exchange(c, uint64(i), 5000+random.IntN(20000))
			}
		})
	}
	check := func(p recorded) func() {
		for i, e := range ends {
			s := e.Stats()
			most := 1 + rendezvous.MaxHalfOpen
			if s.Sessions > most || s.HalfOpen > rendezvous.MaxHalfOpen {
				t.Errorf("end %d has %d sessions, %d half open", i, s.Sessions, s.HalfOpen)
			}
			if s.HalfOpen > 0 && dialling.Load() == 1 {
				met++
			}
			if decided.Load() == 2 && s.Sessions > 1 {
				t.Errorf("end %d has %d sessions beside the one", i, s.Sessions-1)
			}
		}
		return w.check(p)
	}
	w.strangers(addrs, duration, 600+r.IntN(1200), check)
	x, y := <-results, <-results
	if x != nil && y != nil && (x.Conv() != y.Conv() || x.Dialled() == y.Dialled()) {
		t.Errorf("%x and %x, dialled %v and %v", x.Conv(), y.Conv(), x.Dialled(), y.Dialled())
	}
	for i, e := range ends {
		if s := e.Stats(); s.HalfOpen != 0 || s.Sessions > 1 {
			t.Errorf("end %d has %d sessions, %d half open", i, s.Sessions, s.HalfOpen)
		}
	}
	w.apps.Wait()
	w.checkBooks()
	for _, e := range w.endpoints {
		w.within(time.Second, "Endpoint.Close", func() { _ = e.Close() })
	}
	return met
}

// openTo is DialWith with SimultaneousOpen.
func (w *arena) openTo(e *kcp.Endpoint, to netip.AddrPort) (c *kcp.Conn) {
	w.within(w.config.DialTimeout, "DialWith", func() {
		var err error
		c, err = e.DialWith(context.Background(), net.UDPAddrFromAddrPort(to), kcp.DialOptions{SimultaneousOpen: true})
		if err != nil {
			w.t.Errorf("DialWith at %v: %v; %+v", e.LocalAddr(), err, e.Stats())
		}
	})
	return c
}

// exchange writes content of one key, and holds what comes against the other.
func (w *arena) exchange(c *kcp.Conn, key uint64, size int) {
	name := fmt.Sprintf("end %d", key)
	var writes sync.WaitGroup
	writes.Go(func() {
		p := make([]byte, size)
		fill(p, key, 0)
		for at := 0; at < size; at += 500 {
			w.within(patience, name+"'s Write", func() {
				if _, err := c.Write(p[at:min(at+500, size)]); err != nil {
					w.t.Errorf("%s: Write after %d bytes: %v", name, at, err)
				}
			})
			time.Sleep(100 * time.Millisecond)
		}
		if err := c.CloseWrite(); err != nil {
			w.t.Errorf("%s: CloseWrite: %v", name, err)
		}
	})
	p := make([]byte, 3000)
	for at := uint64(0); ; {
		var n int
		var err error
		w.within(patience, name+"'s Read", func() { n, err = c.Read(p) })
		if wrong := differs(p[:n], 1-key, at); wrong >= 0 {
			w.t.Errorf("%s: byte %d is wrong", name, at+uint64(wrong))
			break
		}
		if at += uint64(n); err != nil {
			if err.Error() != "EOF" || at < 5000 {
				w.t.Errorf("%s: Read after %d bytes: %v", name, at, err)
			}
			break
		}
	}
	writes.Wait()
	w.within(patience, name+"'s Close", func() { _ = c.Close() })
}

// strangers has the attacker send what it does to a server to two ends that dial each
// other, from its own addresses and in the name of the other end.
func (w *arena) strangers(ends [2]netip.AddrPort, duration time.Duration, packets int, check func(recorded) func()) {
	a := w.attacker
	pause := duration / time.Duration(packets)
	for n := range packets {
		i := w.random.IntN(2)
		a.mu.Lock()
		a.server = ends[i]
		for _, c := range a.order { // its own sessions, with this end
			c.ends[1].addr = ends[i]
		}
		a.mu.Unlock()
		p := a.next()
		if w.random.IntN(3) == 0 { // a HELLO with TIEBREAKER, mostly
			a.mu.Lock()
			p = a.join()
			a.mu.Unlock()
		}
		if p.data == nil {
			continue
		}
		if p.to = ends[i]; a.blind[p.from] == nil && w.random.IntN(3) > 0 {
			p.from = ends[1-i]
		}
		var after func()
		if n%8 == 0 {
			synctest.Wait()
			after = check(p)
		}
		w.net.Inject(p.from, p.to, p.data)
		if after != nil {
			synctest.Wait()
			after()
		}
		if n%7 == 0 {
			time.Sleep(7 * pause)
		}
	}
}
