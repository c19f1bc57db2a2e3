package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// A simultaneous open: both ends dial each other, and one session comes of it.

// peerTLS is the settings of two ends that check each other's certificates.
var peerTLS = sync.OnceValue(func() *tls.Config {
	c := testenv.TLS()
	c.ClientCAs, c.ClientAuth = c.RootCAs, tls.RequireAndVerifyClientCert
	return c
})

// peerConfigs are the protections of sessions between peers.
func peerConfigs(t *testing.T) map[string]*kcp.Config {
	return map[string]*kcp.Config{
		"plain": {}, "aead": {Cipher: testAEAD(t)}, "tls": {TLS: testTLS()}, "tls, client certificates": {TLS: peerTLS()},
	}
}

// opened is what Dial has returned.
type opened struct {
	c   *kcp.Conn
	err error
	in  time.Duration
}

// open dials a peer of several addresses that dials too.
func open(e *kcp.Endpoint, to []string) opened {
	begin := time.Now()
	o := kcp.DialOptions{SimultaneousOpen: true}
	for _, s := range to[1:] {
		o.Candidates = append(o.Candidates, udpAddr(s))
	}
	c, err := e.Dial(context.Background(), udpAddr(to[0]), &o)
	return opened{c, err, time.Since(begin)}
}

// openBoth opens a session between two ends that dial each other, b later than a.
func openBoth(a, b *kcp.Endpoint, toA, toB []string, later time.Duration) (ofA, ofB opened) {
	result := make(chan opened)
	go func() {
		time.Sleep(later)
		result <- open(b, toA)
	}()
	ofA = open(a, toB)
	return ofA, <-result
}

// natted opens an endpoint behind a NAT of its own.
func (w *world) natted(n *natNet, host, public string, kind filtering, config *kcp.Config) (*kcp.Endpoint, *natHost) {
	w.t.Helper()
	return w.inLAN(n, host, host, public, kind, config)
}

// inLAN opens an endpoint on a host of a network behind a NAT.
func (w *world) inLAN(n *natNet, lan, host, public string, kind filtering, config *kcp.Config) (*kcp.Endpoint, *natHost) {
	w.t.Helper()
	pc, err := w.net.Listen(host)
	require.NoError(w.t, err)
	h := n.host(pc, lan, public, kind)
	e, err := kcp.NewEndpoint(h, config)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
	return e, h
}

const (
	hostA, hostB = "192.168.1.2:4000", "192.168.1.3:4000"
	peerA, peerB = "203.0.113.1:4000", "198.51.100.2:4000"
)

// requireOneSession requires that both calls have ended with one session, which works.
func requireOneSession(t *testing.T, a, b *kcp.Endpoint, x, y opened) {
	t.Helper()
	require.NoError(t, x.err)
	require.NoError(t, y.err)
	require.Equal(t, x.c.Conv(), y.c.Conv())
	require.NotEqual(t, x.c.Dialled(), y.c.Dialled())
	bothWays(t, x.c, y.c, content(1, 20_000), content(2, 20_000))
	for _, e := range []*kcp.Endpoint{a, b} {
		require.Equal(t, 1, e.Stats().Sessions)
	}
}

// Both ends have the session within two round trips if nothing is lost, through NATs of
// all kinds.
func TestSimultaneousOpen(t *testing.T) {
	for name, config := range peerConfigs(t) {
		for _, kind := range allFiltering {
			t.Run(fmt.Sprint(name, ", filtering ", kind), func(t *testing.T) {
				inWorld(t, 1, netsim.LinkConfig{Delay: 50 * time.Millisecond}, func(t *testing.T, w *world) {
					n := new(natNet)
					a, _ := w.natted(n, hostA, peerA, kind, config)
					b, _ := w.natted(n, hostB, peerB, kind, config)
					x, y := openBoth(a, b, []string{peerA}, []string{peerB}, 0)
					requireOneSession(t, a, b, x, y)
					require.LessOrEqual(t, max(x.in, y.in), 200*time.Millisecond)
				})
			})
		}
	}
}

// One session comes of both calls on bad links, whichever end is first. Of several
// addresses of a peer, one that works is used: in its network, or outside. Two networks
// may have the same addresses.
func TestSimultaneousOpenCandidates(t *testing.T) {
	const dead, nobody = "203.0.113.99:9", "10.9.9.9:9"
	for name, test := range map[string]struct {
		lanA, lanB string
		toA, toB   []string
		remote     string // of a
	}{
		"the only one":        {"one", "two", []string{peerA}, []string{peerB}, peerB},
		"in one network":      {"one", "one", []string{peerA, nobody, hostA}, []string{peerB, nobody, hostB}, hostB},
		"one end knows":       {"one", "one", []string{peerA, hostA}, []string{hostB}, hostB},
		"in two":              {"one", "two", []string{dead, hostA, peerA}, []string{dead, hostB, peerB}, peerB},
		"own address":         {"one", "two", []string{peerA, hostA, hostB}, []string{peerB, hostA, hostB}, peerB},
		"only the last":       {"one", "two", []string{dead, nobody, hostA, peerA}, []string{peerB}, peerB},
		"the first is better": {"one", "two", []string{peerA, dead}, []string{peerB, dead}, peerB},
	} {
		for protection, config := range peerConfigs(t) {
			t.Run(name+", "+protection, func(t *testing.T) {
				for seed := range some(40, 4) {
					random := rand.New(rand.NewPCG(seed, 4))
					inWorld(t, seed, randomLink(random, 100*time.Millisecond, 0.2), func(t *testing.T, w *world) {
						n := new(natNet)
						a, _ := w.inLAN(n, test.lanA, hostA, peerA, allFiltering[random.IntN(3)], config)
						b, _ := w.inLAN(n, test.lanB, hostB, peerB, allFiltering[random.IntN(3)], config)
						later := time.Duration(random.IntN(2)*random.IntN(3000)) * time.Millisecond
						x, y := openBoth(a, b, test.toA, test.toB, later)
						requireOneSession(t, a, b, x, y)
						require.Equal(t, test.remote, x.c.RemoteAddr().String())
					})
				}
			})
		}
	}
}

// What cannot become a session is an error at once.
func TestSimultaneousOpenErrors(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		open := func(e *kcp.Endpoint, o kcp.DialOptions) error {
			begin := time.Now()
			o.SimultaneousOpen = true
			_, err := e.Dial(context.Background(), udpAddr(peerB), &o)
			require.Zero(t, time.Since(begin))
			return err
		}
		client := testTLS().Clone()
		client.Certificates = nil
		e, _ := w.endpoint(peerA, &kcp.Config{TLS: client})
		var invalid *kcp.ConfigError
		require.ErrorAs(t, open(e, kcp.DialOptions{}), &invalid)
		require.Equal(t, "TLS.Certificates", invalid.Field)
		e, _ = w.endpoint("203.0.113.2:4000", nil)
		var option *kcp.OptionError
		require.ErrorAs(t, open(e, kcp.DialOptions{Conv: id(1)}), &option)
		require.ErrorAs(t, open(e, kcp.DialOptions{Quiet: true}), &option)
		require.ErrorAs(t, open(e, kcp.DialOptions{Candidates: make([]net.Addr, 17)}), &option)
		ctx, cancel := context.WithCancel(context.Background())
		first := make(chan error)
		go func() {
			_, err := e.Dial(ctx, udpAddr(peerB), &kcp.DialOptions{SimultaneousOpen: true})
			first <- err
		}()
		synctest.Wait()
		require.ErrorIs(t, open(e, kcp.DialOptions{}), kcp.ErrInUse)
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)
		e, _ = w.endpoint("203.0.113.3:4000", &kcp.Config{DialTimeout: -1})
		require.ErrorAs(t, open(e, kcp.DialOptions{}), &option)
		e, _ = w.endpoint("203.0.113.4:4000", &kcp.Config{MTU: 95}) // four segments have 96
		require.ErrorAs(t, open(e, kcp.DialOptions{}), &option)
	})
}

// forgedTie returns a packet that may seem to be the HELLO of an end whose peer dials it.
func forgedTie(random *rand.Rand) []byte {
	hello, info := segment(83, 1, random.Uint32(), 0, 0, ""), segment(84, 2, 0x7d|random.Uint32()&2, 2, 0, "")
	tie := segment(84, 15, 1<<32-1, 1<<32-1, 0, "")
	switch random.IntN(4) {
	case 0:
		return packetOf(random.Uint32(), tie)
	case 1:
		tie = segment(84, 15, random.Uint32(), random.Uint32(), 0, "")
	}
	return packetOf(random.Uint32(), hello, info, tie)
}

// A peer that dials too may forge packets of a third party, whose address it may have
// named as its own. What the third party gets is held against what was sent in its name.

// victim is that third party, and accomplice another host of the peer's.
const victim, accomplice = "192.0.2.99:4000", "192.0.2.66:4000"

// toVictim counts what a third party gets, and what was sent in its name.
type toVictim struct {
	mu     sync.Mutex
	begin  time.Time
	got    int
	forged int
	alone  []sample // what it gets if nothing is sent in its name
	worst  string   // the first packet that it should not have got
	counts []sample
}

// sample is how many bytes there were at a time.
type sample struct {
	at    time.Duration
	bytes int
}

// sent counts a packet to the third party.
func (v *toVictim) sent(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Since(v.begin)
	v.got += n
	v.counts = append(v.counts, sample{now, v.got})
	may := 3 * v.forged
	for i := len(v.alone) - 1; i >= 0; i-- {
		if v.alone[i].at <= now {
			may += v.alone[i].bytes
			break
		}
	}
	if v.got > may && v.worst == "" && v.alone != nil {
		v.worst = fmt.Sprintf("%d bytes after %v, the last a packet of %d, for %d in its name", v.got, now, n, v.forged)
	}
}

// forge sends a packet in the name of the third party.
func (v *toVictim) forge(w *world, to netip.AddrPort, packet []byte) {
	v.mu.Lock()
	v.forged += len(packet)
	v.mu.Unlock()
	w.net.Inject(netip.MustParseAddrPort(victim), to, packet)
}

// dialAlone returns what the third party gets of a dial if nobody answers.
func dialAlone(t *testing.T, config *kcp.Config, to []string) []sample {
	v := &toVictim{}
	inWorld(t, 2, netsim.LinkConfig{}, func(t *testing.T, w *world) {
		a, _ := w.endpoint(peerA, config)
		v.begin = time.Now()
		w.net.SetFilter(func(_, to netip.AddrPort, packet []byte) bool {
			if to == netip.MustParseAddrPort(victim) {
				v.sent(len(packet))
			}
			return false
		})
		open(a, to)
	})
	return append([]sample{{-time.Hour, 0}}, v.counts...)
}

// A third party gets what any dial sends to its address, and beside that three times what
// was sent in its name at most: in whatever order packets of the peer come from the
// peer's address, from the third party's, or from both, at either end of the session,
// while it opens, when it is open, and with data under way.
func TestSimultaneousOpenThirdParty(t *testing.T) {
	for name, config := range peerConfigs(t) {
		for i, to := range [][]string{{peerB}, {victim}, {peerB, victim}, {victim, peerB}, {"192.0.2.1:9", victim, peerB}} {
			t.Run(fmt.Sprint(name, ", ", i), func(t *testing.T) {
				alone := dialAlone(t, config, to)
				for seed := range some(200, 12) {
					inWorld(t, seed, netsim.LinkConfig{Delay: 20 * time.Millisecond}, func(t *testing.T, w *world) {
						v := &toVictim{alone: alone}
						hostileOpen(t, w, seed, config, to, v)
						require.Empty(t, v.worst)
					})
				}
			})
		}
	}
}

// hostileOpen opens a session with a hostile peer, and sends over it.
func hostileOpen(t *testing.T, w *world, seed uint64, config *kcp.Config, to []string, v *toVictim) {
	random := rand.New(rand.NewPCG(seed, 6))
	a, _ := w.endpoint(peerA, config)
	b, _ := w.endpoint(peerB, config)
	c, _ := w.endpoint(accomplice, config)
	ctx, cancel := context.WithCancel(context.Background())
	forges, both := random.Float64()*random.Float64(), random.Float64()
	later := time.Duration(random.IntN(2)*random.IntN(1000)) * time.Millisecond
	var mu sync.Mutex
	var seen []byte // the last packet of the end that is attacked
	at, ofVictim := netip.MustParseAddrPort(peerA), netip.MustParseAddrPort(victim)
	w.net.SetFilter(func(from, to netip.AddrPort, packet []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		if from == at {
			seen = append(seen[:0], packet...)
		}
		switch {
		case to == ofVictim:
			v.sent(len(packet))
			return false
		case to != at:
			return true
		case from.String() == accomplice || random.Float64() < forges:
			p := append([]byte(nil), packet...)
			time.AfterFunc(time.Duration(random.IntN(60))*time.Millisecond, func() { v.forge(w, at, p) })
			return from.String() != accomplice && random.Float64() < both
		}
		return true
	})
	v.begin = time.Now()
	var calls sync.WaitGroup
	calls.Go(func() { // short packets in the clear, all the time
		for n := 0; n < 1000 && ctx.Err() == nil; n++ {
			time.Sleep(10 * time.Millisecond)
			if config.Cipher == nil {
				mu.Lock()
				p := forgedTie(random)
				if random.IntN(2) == 0 && seen != nil {
					p = forgedOf(random, seen)
				}
				mu.Unlock()
				v.forge(w, at, p)
			}
		}
	})
	for i, e := range []*kcp.Endpoint{b, c} {
		calls.Go(func() {
			time.Sleep(later)
			s, err := e.Dial(ctx, udpAddr(peerA), &kcp.DialOptions{SimultaneousOpen: true})
			if err == nil && i == 0 {
				_, _ = s.Write(content(1, 50_000))
				<-ctx.Done()
			}
		})
	}
	if x := open(a, to); x.err == nil {
		_ = x.c.SetWriteDeadline(time.Now().Add(5 * time.Second))
		_, _ = x.c.Write(content(2, 200_000))
		time.Sleep(3 * time.Second)
		_ = x.c.Abort(0, "")
	}
	cancel()
	calls.Wait()
	time.Sleep(time.Second)
}

// forgedOf returns a packet that may seem to be of the session of another, as far as its
// sender does not know more than the conversation id.
func forgedOf(random *rand.Rand, packet []byte) []byte {
	code := []byte{0, 2, 6, 7, 8, 9, 10, 15, 0x81, 0x86}[random.IntN(10)]
	forged := segment(byte(81+random.IntN(4)), code, random.Uint32(), uint32(random.IntN(2)), 0, "")
	return append(packet[:4:4], forged[4:]...)
}

// A peer may name the address of another host as one of its own.

// friend is that host, and rogue the peer.
const friend, rogue = "192.0.2.10:4000", "192.0.2.11:4000"

// begin is open on a goroutine of its own, some time later.
func begin(later time.Duration, e *kcp.Endpoint, to ...string) <-chan opened {
	result := make(chan opened, 1)
	time.AfterFunc(later, func() { result <- open(e, to) })
	return result
}

// A friend that dials before this end does may be taken for the peer that has named its
// address, as nothing tells them apart, until this end dials the friend: the call has
// what is half open then.
func TestCandidateDialsFirst(t *testing.T) {
	for name, config := range peerConfigs(t) {
		t.Run(name, func(t *testing.T) {
			for ms := 0; ms < 60; ms += 60 / int(some(60, 15)) {
				inWorld(t, 1, netsim.LinkConfig{Delay: 20 * time.Millisecond}, func(t *testing.T, w *world) {
					a, _ := w.endpoint(peerA, config)
					f, _ := w.endpoint(friend, config)
					withRogue, ofFriend := begin(0, a, rogue, friend), begin(0, f, peerA)
					time.Sleep(time.Duration(ms) * time.Millisecond)
					synctest.Wait()
					var early *opened
					select {
					case o := <-withRogue:
						early = &o
					default:
					}
					if early != nil { // it had answered before it was dialled
						require.NoError(t, early.err)
						require.NoError(t, (<-ofFriend).err)
						return
					}
					withFriend := begin(0, a, friend)
					x, y := <-withFriend, <-ofFriend
					require.NoError(t, x.err, "%d ms", ms)
					require.NoError(t, y.err, "%d ms", ms)
					bothWays(t, x.c, y.c, content(1, 5000), content(2, 5000))
					require.Error(t, (<-withRogue).err)
				})
			}
		})
	}
}

// An address of a session that there is is no candidate. Sessions that anybody may have
// opened in the name of an address do not count. Nor do plain calls to an address leave
// it to the peer that names it.
func TestCandidateWithSession(t *testing.T) {
	inWorld(t, 1, netsim.LinkConfig{Delay: 20 * time.Millisecond}, func(t *testing.T, w *world) {
		a, _ := w.endpoint(peerA, nil)
		l, err := a.Listen()
		require.NoError(t, err)
		f, _ := w.endpoint(friend, nil)
		got := w.packetsTo()
		c, err := f.Dial(context.Background(), udpAddr(peerA), nil)
		require.NoError(t, err)
		s := accepted(t, l)
		require.Equal(t, friend, s.RemoteAddr().String())
		w.settle() // the last answers of the handshake leave
		before := got(friend)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err = a.Dial(ctx, udpAddr(rogue), &kcp.DialOptions{SimultaneousOpen: true, Candidates: []net.Addr{udpAddr(friend)}})
		cancel()
		none := new(kcp.NoAnswerError)
		require.ErrorAs(t, err, &none)
		require.Len(t, none.Tried, 1)
		require.Equal(t, before, got(friend))
		require.NoError(t, s.Abort(0, ""))
		<-c.Done()

		other := "192.0.2.12:4000"
		w.net.Inject(netip.MustParseAddrPort(other), netip.MustParseAddrPort(peerA), packetOf(77, push(0, 0, "forged")))
		w.settle()
		require.Equal(t, 1, a.Stats().HalfOpen)
		o := begin(0, a, rogue, other)
		time.Sleep(3 * time.Second)
		require.NotZero(t, got(other), "it is tried")
		_, err = a.Dial(ctx, udpAddr(other), nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		dialled := begin(0, a, other)
		require.Error(t, (<-o).err)
		require.Error(t, (<-dialled).err)
	})
}

// packetsTo returns how many packets were sent to an address.
func (w *world) packetsTo() (n func(to string) int) {
	var mu sync.Mutex
	counts := make(map[string]int)
	w.net.SetFilter(func(_, to netip.AddrPort, _ []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		counts[to.String()]++
		return true
	})
	return func(to string) int {
		mu.Lock()
		defer mu.Unlock()
		return counts[to]
	}
}

// Of candidates that are no address of a single host, this end's own, or the same again
// in another spelling, none is tried.
func TestCandidatesThatAreNone(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, _ := w.endpoint(peerA, nil)
		got := w.packetsTo()
		all := []string{"0.0.0.0:9", "[::]:9", "224.0.0.1:9", "[ff02::1]:9", "255.255.255.255:9", "192.0.2.1:0", peerA, "[::ffff:224.0.0.1]:9"}
		var candidates []net.Addr
		for _, s := range all {
			candidates = append(candidates, udpAddr(s))
		}
		candidates = append(candidates, udpAddr("[::ffff:198.51.100.2]:4000"), udpAddr(friend), udpAddr("[::ffff:192.0.2.10]:4000"), nil)
		_, err := a.Dial(context.Background(), udpAddr(peerB), &kcp.DialOptions{SimultaneousOpen: true, Candidates: candidates})
		none := new(kcp.NoAnswerError)
		require.ErrorAs(t, err, &none)
		require.Equal(t, 10*time.Second, none.Waited)
		require.Len(t, none.Tried, 2, "%v", none)
		require.ErrorContains(t, err, "(peer did not dial, NATs or firewalls block it, or keys differ), tried at 198.51.100.2:4000, 192.0.2.10:4000")
		require.NotZero(t, got(friend))
		for _, s := range all {
			require.Zero(t, got(s), s)
		}
	})
}
