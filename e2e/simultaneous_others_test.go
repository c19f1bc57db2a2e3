package e2e

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

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
