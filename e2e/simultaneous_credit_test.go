package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

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
