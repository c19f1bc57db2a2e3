package netsim

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func rateChange(at time.Duration, rate int64) Script {
	return Script{{at, func(c *LinkConfig) { c.Rate = rate }}}
}

func routeChange(at, delay, jitter time.Duration) Script {
	return Script{{at, func(c *LinkConfig) { c.Delay, c.Jitter = delay, jitter }}}
}

const ms = time.Millisecond

func TestLinkScript(t *testing.T) {
	l := NewLink(LinkConfig{Delay: 10 * ms}, 1)
	require.NoError(t, l.Play(slices.Concat(
		routeChange(50*ms, 30*ms, 0),
		Outage(20*ms, 10*ms),
		rateChange(40*ms, 1000),
	)))
	for _, want := range []struct{ at, arrives time.Duration }{
		{0, 10 * ms}, {20*ms - 1, 30*ms - 1},
		{20 * ms, -1}, {30*ms - 1, -1}, {30 * ms, 40 * ms},
		{40*ms - 1, 50*ms - 1}, {40 * ms, 51 * ms}, // a byte takes 1 ms
		{50*ms - 1, 61*ms - 1}, {50 * ms, 82*ms - 1}, // behind the one before
	} {
		got := time.Duration(-1)
		if d := l.Send(want.at, []byte{1}); len(d) > 0 {
			got = d[0].At
		}
		require.Equal(t, want.arrives, got, "sent at %v", want.at)
	}
}

func TestScriptErrors(t *testing.T) {
	bad := slices.Concat(Outage(0, time.Second), Script{
		{2 * time.Second, func(c *LinkConfig) { c.Loss = 2 }},
	})
	l := NewLink(LinkConfig{}, 1)
	require.ErrorContains(t, l.Play(bad), "at 2s: netsim: LinkConfig.Loss")
	require.Len(t, l.Send(0, nil), 1, "a part of the script was added")
	require.ErrorContains(t, l.Play(Script{{At: time.Second}}), "no change at 1s")

	n := NewNetwork(1, LinkConfig{})
	require.ErrorContains(t, n.Play("", "", bad), "LinkConfig.Loss")
	require.ErrorContains(t, n.Play("nowhere", "", nil), "nowhere")
	require.ErrorContains(t, n.Play("", "nowhere", nil), "nowhere")
}

// A script of a network counts for what is sent at the same instant, whichever
// goroutine comes first.
func TestNetworkScriptIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(1, LinkConfig{Delay: ms})
		a, b := listen(t, n, "10.0.0.1:1"), listen(t, n, "10.0.0.2:1")
		require.NoError(t, n.Play("10.0.0.1", "10.0.0.2", slices.Concat(
			Outage(10*ms, 10*ms), routeChange(30*ms, 5*ms, 0),
		)))
		start := time.Now()
		for _, at := range []time.Duration{10*ms - 1, 10 * ms, 20*ms - 1, 20 * ms, 30*ms - 1, 30 * ms} {
			for range 20 { // each with a timer of its own
				time.AfterFunc(at, func() { send(t, a, b, []byte(at.String())) })
			}
		}
		send(t, b, a, []byte("back"))
		var got []string
		for _, each := range receiveAll(t, b, start) {
			got = append(got, each.data+" "+each.at.String())
		}
		var want []string
		for _, each := range []string{"9.999999ms 10.999999ms", "20ms 21ms", "29.999999ms 30.999999ms", "30ms 35ms"} {
			want = append(want, slices.Repeat([]string{each}, 20)...)
		}
		require.Equal(t, want, got)
		require.Len(t, receiveAll(t, a, start), 1, "the other direction has changed")
		require.Equal(t, LinkConfig{Delay: 5 * ms}, n.Link("10.0.0.1", "10.0.0.2"))
		require.Equal(t, LinkConfig{Delay: ms}, n.Link("10.0.0.1", ""))
		require.EqualValues(t, 40, n.LinkStats("10.0.0.1", "").Lost.Packets)
	})
}

func TestNetworkAtRunsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(1, LinkConfig{})
		var got []string
		note := func(name string) func() {
			return func() { got = append(got, fmt.Sprint(name, " ", n.Elapsed())) }
		}
		n.At(2*time.Second, note("second"))
		n.At(time.Second, func() {
			note("first")()
			n.At(0, note("late"))
			n.At(2*time.Second, note("third"))
		})
		time.Sleep(3 * time.Second)
		n.At(time.Second, note("past"))
		synctest.Wait()
		require.Equal(t, []string{"first 1s", "late 1s", "second 2s", "third 2s", "past 3s"}, got)
	})
}

func TestNetworkCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(1, LinkConfig{Delay: ms})
		var conns []*PacketConn
		for _, addr := range []string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2", "10.0.0.3:1"} {
			conns = append(conns, listen(t, n, addr))
		}
		// reach tells who receives from whom, as pairs of indexes.
		reach := func() (pairs []string) {
			for i, from := range conns {
				for j, to := range conns {
					if i != j {
						send(t, from, to, []byte(fmt.Sprint(i, j)))
					}
				}
			}
			for _, c := range conns {
				for _, each := range receiveAll(t, c, time.Now()) {
					pairs = append(pairs, each.data)
				}
			}
			slices.Sort(pairs)
			return pairs
		}
		all := reach()
		require.Len(t, all, 12)
		without := func(gone ...string) []string {
			return slices.DeleteFunc(slices.Clone(all), func(p string) bool { return slices.Contains(gone, p) })
		}
		n.Cut("10.0.0.1", "10.0.0.2")
		require.Equal(t, without("0 1", "1 0", "0 2", "2 0"), reach())
		n.Cut("10.0.0.3", "")
		require.Equal(t, []string{"1 2", "2 1"}, reach())
		n.Heal("10.0.0.2", "10.0.0.1")
		require.Equal(t, without("0 3", "3 0", "1 3", "3 1", "2 3", "3 2"), reach())
		n.Heal("10.0.0.3", "")
		n.Cut("10.0.0.2:2", "10.0.0.3")
		require.Equal(t, without("2 3", "3 2"), reach())
		require.EqualValues(t, 4+10+6+2, n.Stats().Lost.Packets)
		requireBalanced(t, n.Stats())

		n.Heal("10.0.0.2:2", "10.0.0.3")
		send(t, conns[0], conns[1], nil)
		n.Cut("", "")
		require.Len(t, receiveAll(t, conns[1], time.Now()), 1, "what was underway is lost")
		require.Panics(t, func() { n.Cut("somewhere", "") })
	})
}

func TestRebind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(1, LinkConfig{Delay: 10 * ms})
		n.SetLink("192.0.2.9", "", LinkConfig{Delay: 50 * ms})
		a, b := listen(t, n, "10.0.0.1:1"), listen(t, n, "10.0.0.2:1")
		home, away := a.AddrPort(), netip.MustParseAddrPort("192.0.2.9:77")
		answer := func(to netip.AddrPort, s string) {
			_, err := b.WriteToAddrPort([]byte(s), to)
			require.NoError(t, err)
		}
		start := time.Now()
		send(t, a, b, []byte("from home"))
		answer(home, "in time")
		time.Sleep(5 * ms)
		answer(home, "too late")
		n.At(10*ms, func() { require.NoError(t, a.Rebind("192.0.2.9:77")) })
		time.Sleep(5 * ms)
		send(t, a, b, []byte("from away")) // at the instant of the move
		require.Equal(t, away, a.PublicAddrPort())
		require.Equal(t, home, a.AddrPort())
		require.Equal(t, home.String(), a.LocalAddr().String())
		answer(home, "wrong")
		answer(away, "found")
		require.Equal(t, []arrival{
			{10 * ms, home, "from home"}, {60 * ms, away, "from away"},
		}, receiveAll(t, b, start))
		// "in time" would have arrived at the instant of the move, at which the
		// former address is gone already.
		require.Equal(t, []arrival{{time.Hour + 60*ms, b.AddrPort(), "found"}}, receiveAll(t, a, start))
		require.EqualValues(t, 3, n.Stats().Unreachable.Packets)
		requireBalanced(t, n.Stats())

		// The former address is free, the new one is not.
		other := listen(t, n, "10.0.0.1:1")
		require.ErrorIs(t, other.Rebind("192.0.2.9:77"), syscall.EADDRINUSE)
		require.Error(t, other.Rebind("nowhere"))
		require.Error(t, other.Rebind("0.0.0.0:1"))
		require.Equal(t, other.AddrPort(), other.PublicAddrPort())
		require.NoError(t, other.Rebind("192.0.2.9:0"))
		require.Equal(t, "192.0.2.9:49152", other.PublicAddrPort().String())

		require.NoError(t, a.Close())
		require.ErrorIs(t, a.Rebind("10.0.0.9:1"), net.ErrClosed)
		listen(t, n, "192.0.2.9:77")
		var op *net.OpError
		require.True(t, errors.As(a.Rebind("10.0.0.9:1"), &op))
		require.Equal(t, "rebind", op.Op)
	})
}

func TestLinkOverheadAndQueuePackets(t *testing.T) {
	l := NewLink(LinkConfig{Rate: 1000, Overhead: OverheadIPv4, Queue: 2000, QueuePackets: 3, MTU: 972}, 1)
	arrive := func(size int) time.Duration {
		if d := l.Send(0, make([]byte, size)); len(d) > 0 {
			require.Len(t, d[0].Data, size)
			return d[0].At
		}
		return -1
	}
	require.Equal(t, 1*time.Second, arrive(972), "headers take time, but are not part of the MTU")
	require.Equal(t, 2*time.Second, arrive(972))
	require.EqualValues(t, -1, arrive(973), "too big")
	require.Equal(t, 3*time.Second, arrive(972), "1000 and 1000 fill the queue")
	require.EqualValues(t, -1, arrive(0), "headers alone need room")
	packets, bytes := l.Backlog(0)
	require.Equal(t, []int{2, 2000}, []int{packets, bytes})
	packets, bytes = l.Backlog(time.Second) // the second has its turn
	require.Equal(t, []int{1, 1000}, []int{packets, bytes})
	require.Equal(t, LinkStats{
		Sent: Tally{5, 3*972 + 973}, Delivered: Tally{3, 3 * 972}, Overflow: Tally{1, 0}, TooBig: Tally{1, 973},
	}, l.Stats(), "payload alone is counted")

	l.SetConfig(LinkConfig{Rate: 1000, QueuePackets: 3})
	for range 10 {
		arrive(1)
	}
	packets, _ = l.Backlog(0)
	require.Equal(t, 3, packets)
}

// A bucket lets as much through at once as it has, and then the rate. What has no room
// in the queue is dropped, and a queue of one byte takes nothing.
func TestLinkBucket(t *testing.T) {
	l := NewLink(LinkConfig{Rate: 1000, Bucket: 2000, Queue: 2000}, 1)
	var at []time.Duration
	send := func(now time.Duration, size int) {
		for _, d := range l.Send(now, make([]byte, size)) {
			at = append(at, d.At)
		}
	}
	for range 5 {
		send(0, 1000)
	}
	require.EqualValues(t, 1, l.Stats().Overflow.Packets)
	send(5*time.Second, 1500)
	send(5*time.Second, 1000)
	s := time.Second
	require.Equal(t, []time.Duration{0, 0, s, 2 * s, 5 * s, 5*s + s/2}, at)
	at = nil
	send(time.Hour, 3000) // more than the bucket ever has
	send(time.Hour, 100)
	require.Equal(t, []time.Duration{time.Hour, time.Hour + 1100*ms}, at)
	large := NewLink(LinkConfig{Rate: 1000, Bucket: 2000}, 1) // what is larger waits for all of it
	large.Send(0, make([]byte, 1000))
	require.Equal(t, time.Second, large.Send(0, make([]byte, 3000))[0].At)
	policer := NewLink(LinkConfig{Rate: 1000, Bucket: 2000, Queue: 1}, 1)
	for now, want := range []int{1, 0, 1, 0, 0, 1} { // 1500 bytes every half second
		require.Len(t, policer.Send(time.Duration(now)*500*ms, make([]byte, 1500)), want, "%d", now)
	}
}

func TestDelays(t *testing.T) {
	var d, other Delays
	require.Zero(t, d.Quantile(0.5))
	require.Zero(t, d.Mean())
	for i := range 1000 {
		if i%2 == 0 {
			d.add(time.Duration(i+1) * 100 * time.Microsecond)
		} else {
			other.add(time.Duration(i+1) * 100 * time.Microsecond)
		}
	}
	before := d.clone()
	d.merge(&other)
	require.EqualValues(t, 500, before.Count(), "a copy shares its buckets")
	require.InEpsilon(t, 50*ms, before.Quantile(0.5), 0.07)
	require.EqualValues(t, 1000, d.Count())
	require.Equal(t, 100*ms, d.Max())
	require.Equal(t, 50050*time.Microsecond, d.Mean())
	for _, p := range []float64{0.001, 0.01, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999} {
		require.InEpsilon(t, p*float64(100*ms), float64(d.Quantile(p)), 1.0/16, "%v", p)
	}
	require.Equal(t, d.Max(), d.Quantile(1))

	// Buckets follow one another without gaps.
	for b := range delayBuckets - 1 {
		start := bucketStart(b)
		require.Equal(t, b, bucketOf(start))
		require.Equal(t, b, bucketOf(bucketStart(b+1)-1))
	}
}

// A fraction of a nanosecond at one rate is not one at another.
func TestRateChangeForgetsTheRemainder(t *testing.T) {
	l := NewLink(LinkConfig{Rate: 3_000_000_000}, 1)
	require.Equal(t, 33*time.Nanosecond, l.Send(0, make([]byte, 100))[0].At)
	l.SetConfig(LinkConfig{Rate: 1})
	require.Equal(t, time.Second+33, l.Send(0, make([]byte, 1))[0].At)
}

// An outage of a negative length loses nothing.
func TestOutageOfNegativeLength(t *testing.T) {
	l := NewLink(LinkConfig{}, 1)
	require.NoError(t, l.Play(Outage(time.Second, -2*time.Second)))
	for at := range 4 {
		require.Len(t, l.Send(time.Duration(at)*time.Second, []byte{1}), 1, at)
	}
}
