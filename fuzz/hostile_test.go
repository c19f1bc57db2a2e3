package fuzz_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	kcp "github.com/arqnet/kcp"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/netsim"
)

// ability is what an attacker can.
type ability struct {
	name  string
	sees  bool // the packets of others, which it repeats, redirects and damages
	reads bool // it has the keys of ciphers, so it knows the state of sessions
	keys  bool // what it says is under the keys of the session, with TLS too
}

var attackers = []ability{
	{name: "off path"},
	{name: "on path", sees: true},
	{name: "knows the state", sees: true, reads: true},
	{name: "has authenticated itself", sees: true, reads: true, keys: true},
}

// TestHostileSessions attacks sessions of two endpoints with packets between any two
// steps of their calls: before and after each call of the application, whenever an end
// calls code of the application's, beside each packet on its way, and at other times.
// Nothing panics, every call returns when it has to, one packet causes bounded work,
// and nothing is left of sessions. A session of a third endpoint, which is not
// attacked, reads what was written, to its end, and so do those that an attacker
// cannot read.
//
// KCP_FUZZ_SEEDS is how many seeds to try of each attacker, from KCP_FUZZ_FIRST on, and
// KCP_FUZZ_TIME for how long, such as 10m; KCP_SEED repeats one. Tokens and conversation
// ids are random all the same, so a repetition takes nearly the same course. The
// protection of sessions is that of the seed.
func TestHostileSessions(t *testing.T) {
	for _, who := range attackers {
		t.Run(who.name, func(t *testing.T) {
			promised, opened, judged, read, secured := 0, 0, 0, 0, 0
			eachHostileSeed(t, 20, 1, func(t *testing.T, seed uint64) {
				synctest.Test(t, func(t *testing.T) {
					w := newHostile(t, seed, who)
					w.attack()
					if w.intact {
						promised++
					}
					if who.keys && w.config.TLS != nil {
						secured++
					}
					opened, judged, read = opened+int(w.opened.Load()), judged+w.judged, read+w.attacker.opened
				})
			})
			text := fmt.Sprintf("%d of %d honest sessions, %d others judged, %d packets under TLS read", opened, promised, judged, read)
			if t.Log(text); opened < promised/2 || judged < promised || secured > 1 && read == 0 {
				t.Error("too few")
			}
		})
	}
}

// eachHostileSeed runs f for the seeds that the environment names, or one of so many of
// them, or else the first so many.
func eachHostileSeed(t *testing.T, seeds, of uint64, f func(t *testing.T, seed uint64)) {
	number := func(name string, otherwise uint64) uint64 {
		if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
			return n
		}
		return otherwise
	}
	first, count := number("KCP_FUZZ_FIRST", 0), number("KCP_FUZZ_SEEDS", testenv.Fewer(seeds)*of)/of
	until := time.Time{}
	if d, err := time.ParseDuration(os.Getenv("KCP_FUZZ_TIME")); err == nil {
		count, until = 1<<40, time.Now().Add(d)
	}
	if os.Getenv("KCP_SEED") != "" {
		first, count = number("KCP_SEED", 0), 1
	}
	for seed := first; seed < first+count && (until.IsZero() || time.Now().Before(until)); seed++ {
		fmt.Printf("%s: KCP_SEED=%d\n", t.Name(), seed) // a panic ends the process without the name of the test
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { f(t, seed) }) {
			t.Fatalf("repeat with KCP_SEED=%d go test -run '%s$' ./fuzz", seed, t.Name())
		}
	}
}

// Addresses of the ends, and of those that attack.
var (
	hostileEnds = [3]string{"10.0.0.40:4000", "10.0.0.41:4000", "10.0.0.42:4000"}
	hostileOwn  = []netip.AddrPort{netip.MustParseAddrPort("10.6.6.6:666"), netip.MustParseAddrPort("10.6.6.7:666")}
)

// hostileConv is the id of sessions that are dialled with one that can be guessed.
const hostileConv = 77

// newHostile returns the world of a seed. It lives in a synctest bubble.
func newHostile(t testing.TB, seed uint64, who ability) *hostile {
	w := &hostile{t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 11)), calls: make(map[int]string), echoes: make(map[uint32]netip.AddrPort), sessions: make(map[uint32]*life.Session), failures: make(map[uint32][]string)}
	r := w.random
	known := w.protect(who)
	w.limited = r.IntN(2) == 0
	link := netsim.LinkConfig{
		Delay: time.Duration(1+r.IntN(60)) * time.Millisecond, Jitter: time.Duration(r.IntN(20)) * time.Millisecond,
		Duplicate: one(r, 0, 0.05), Reorder: one(r, 0, 0.2), Loss: one(r, 0, 0, 0.02, 0.1),
	}
	w.net = netsim.NewNetwork(seed, link)
	for i, s := range hostileEnds {
		w.addrs[i] = netip.MustParseAddrPort(s)
	}
	w.attacker = &attacker{
		t: t, inject: func(p recorded) { w.net.Inject(p.from, p.to, p.data) }, wire: known, ability: who,
		random: rand.New(rand.NewPCG(seed, 12)), ends: w.addrs[:2], own: hostileOwn, spared: w.addrs[2],
		lethal: r.IntN(3) == 0,
	}
	w.attacker.begin()
	w.net.SetFilter(w.attacker.tap)
	for i := range w.ends {
		w.open(i)
	}
	return w
}

// attack is one run.
func (w *hostile) attack() {
	r := w.random
	watch := time.AfterFunc(3*time.Hour, w.hangs)
	duration := time.Duration(2+r.IntN(8)) * time.Second
	w.until = time.Now().Add(duration)
	leave := w.disturb(duration)
	w.apps.Go(func() { w.honest(2, 0, 2000+w.draw(10000)) })
	if w.intact {
		w.apps.Go(func() { w.honest(0, 1, 20000) })
	}
	w.live(duration)
	for n := 0; time.Now().Before(w.until); n++ {
		w.checked(w.addrs[w.draw(2)], n%8 == 0)
		if n%5 == 0 {
			time.Sleep(time.Duration(w.draw(60)) * time.Millisecond)
		}
	}
	w.attacker.rest(true)
	leave()
	w.apps.Wait()
	w.honest(2, 0, 2000) // a newcomer is served
	for i := range w.lists {
		w.closeListener(i)
	}
	w.apps.Wait()
	time.Sleep(4 * time.Minute)
	for i, e := range w.ends {
		if s := e.Stats(); s.Sessions != 0 || s.HalfOpen != 0 || s.Buffered != 0 || s.Backlog != 0 {
			w.t.Errorf("end %d: left are %d sessions, %d half open, %d bytes, backlog %d", i, s.Sessions, s.HalfOpen, s.Buffered, s.Backlog)
		}
		w.close(i)
	}
	watch.Stop()
	for conv, s := range w.sessions {
		if s.Ends[0].There && s.Ends[1].There {
			w.judged++
			if s.Check(); len(w.failures[conv]) > 0 {
				w.t.Errorf("session %08x: %q", conv, w.failures[conv])
			}
		}
	}
	if w.attacker.struck < 100 {
		w.t.Errorf("the attacker has sent %d packets", w.attacker.struck)
	}
}

// disturb has the second end move, be out of reach for a while, or for good, or be closed
// in the middle, in some of the runs. leave does the last.
func (w *hostile) disturb(duration time.Duration) (leave func()) {
	at := time.Duration(w.draw(int(duration)))
	leave = func() {}
	switch host := w.addrs[1].Addr().String(); w.random.IntN(12) {
	case 0:
		w.net.At(at, func() { _ = w.sockets[1].Rebind("10.0.1.41:4000") })
	case 1, 2:
		w.net.At(at, func() { w.net.Cut(host, "") })
		if w.random.IntN(2) == 0 {
			w.net.At(at+time.Duration(w.random.IntN(8000))*time.Millisecond, func() { w.net.Heal(host, "") })
		}
	case 3, 4:
		leave = func() { w.close(1) }
	default:
		return leave
	}
	w.intact, w.reachable = false, false
	return leave
}

// live dials sessions in all ways.
func (w *hostile) live(duration time.Duration) {
	later := func() { time.Sleep(time.Duration(w.draw(int(duration/2)) + 1)) }
	guessed := uint32(hostileConv)
	for i := range 2 {
		w.apps.Go(func() { later(); w.dial(i, kcp.DialOptions{}) })
		w.apps.Go(func() { later(); w.dial(i, kcp.DialOptions{Conv: new(uint32)}) })
		w.apps.Go(func() { later(); w.dial(i, kcp.DialOptions{Conv: &guessed, Quiet: true}) })
	}
	w.apps.Go(func() {
		for range 3 {
			w.openBoth()
		}
	})
	w.apps.Go(func() { // the attacker's own end is dialled
		later()
		if c, _ := w.dialTo(0, hostileOwn[0], kcp.DialOptions{}); c != nil {
			w.use(0, c)
		}
	})
	if w.draw(2) == 0 {
		w.apps.Go(func() {
			later()
			w.closeListener(1) // honest dials it again
			w.listen(1)
		})
	}
}

// dial opens a session from an end to the other, and does anything with it.
func (w *hostile) dial(i int, o kcp.DialOptions) {
	if c, _ := w.dialTo(i, w.addrs[1-i], o); c != nil {
		w.use(i, c)
	}
}

func (w *hostile) dialTo(i int, to netip.AddrPort, o kcp.DialOptions) (c *kcp.Conn, err error) {
	limit := time.Duration(1+w.draw(8000)) * time.Millisecond
	if o.SimultaneousOpen {
		limit = time.Minute // DialTimeout is shorter
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	w.call(i, limit, "Dial with options", func() { c, err = w.ends[i].Dial(ctx, net.UDPAddrFromAddrPort(to), &o) })
	return c, err
}

// openBoth has both ends dial each other (simultaneous open, WIRE.md §5.1). If both have
// a session it is one, and they agree who has dialled, where that is promised. Who is off
// the path cannot keep them from having one, where there is room.
func (w *hostile) openBoth() {
	other := net.UDPAddrFromAddrPort(hostileOwn[1])
	if !w.attacker.sees { // it would see a HELLO
		other.Port++
	}
	if a, b := w.addrs[0].Addr().String(), w.addrs[1].Addr().String(); w.reachable && w.draw(2) == 0 {
		w.net.Cut(a, b)
		w.net.At(w.net.Elapsed()+300*time.Millisecond, func() { w.net.Heal(a, b) })
	}
	var got [2]chan *kcp.Conn
	for i := range got {
		got[i] = make(chan *kcp.Conn, 1)
		go func() {
			time.Sleep(time.Duration(w.draw(100)) * time.Millisecond)
			o := kcp.DialOptions{SimultaneousOpen: true}
			if w.draw(2) == 0 {
				o.Candidates = []net.Addr{other, net.UDPAddrFromAddrPort(w.addrs[i])}
			}
			c, err := w.dialTo(i, w.addrs[1-i], o)
			if err != nil && w.reachable && !w.limited && !w.attacker.sees {
				w.t.Errorf("Dial at %d, both: %v; %+v", i, err, w.ends[i].Stats())
			}
			got[i] <- c
		}()
	}
	a, b := <-got[0], <-got[1]
	if w.reachable && a != nil && b != nil && (a.Conv() != b.Conv() || a.Dialled() == b.Dialled()) {
		w.t.Errorf("%x and %x, dialled %v and %v", a.Conv(), b.Conv(), a.Dialled(), b.Dialled())
	}
	for i, c := range []*kcp.Conn{a, b} {
		if c != nil {
			w.apps.Go(func() { w.use(i, c) })
		}
	}
}
