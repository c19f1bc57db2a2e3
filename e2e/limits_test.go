package e2e

import (
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// limitCase is a situation in which one thing limits a session.
type limitCase struct {
	name           string
	client, server kcp.Config
	link           netsim.LinkConfig
	write          int           // bytes that the client writes every pause
	pause          time.Duration // 0: it writes as much as it can
	reads          int           // bytes that the server reads a second; 0: all
	sender         []stats.Limit // what limits the client
	receiver       stats.Limit   // what limits the server
}

func limitCases() []limitCase {
	fast := netsim.LinkConfig{Delay: 40 * time.Millisecond, Rate: 10 << 20, Queue: 2 << 20}
	slow := netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 256 << 10, Queue: 64 << 10}
	lossy := slow
	lossy.Loss = 0.02
	path, application := []stats.Limit{stats.LimitCongestion, stats.LimitPacing}, stats.LimitApplication
	peer := []stats.Limit{stats.LimitPeerWindow}
	return []limitCase{
		{name: "small window", server: kcp.Config{ReceiveWindow: 128}, link: fast, sender: peer, receiver: application},
		{name: "slow reader", link: fast, reads: 200_000, sender: peer, receiver: stats.LimitReader},
		{name: "cap", client: kcp.Config{MaxRate: 200_000}, link: fast, sender: []stats.Limit{stats.LimitRate}, receiver: application},
		{name: "slow path", link: slow, sender: path, receiver: application},
		{name: "slow path with loss", link: lossy, sender: path, receiver: application},
		{name: "idle application", link: fast, write: 1000, pause: 100 * time.Millisecond, sender: []stats.Limit{application}, receiver: application},
		{name: "small write buffer", client: kcp.Config{WriteBuffer: 64 << 10}, link: fast, sender: []stats.Limit{stats.LimitWriteBuffer}, receiver: application},
		{name: "small send window", client: kcp.Config{SendWindow: 32}, link: fast, sender: []stats.Limit{stats.LimitSendWindow}, receiver: application},
	}
}

// A session names what limits it, for at least 0.95 of the time, also within a stream.
func TestLimitedBy(t *testing.T) {
	t.Parallel()
	for _, c := range limitCases() {
		for _, streamed := range []bool{false, true} {
			if streamed && c.client.WriteBuffer > 0 {
				continue // that of streams has what waits, and not what is in flight
			}
			t.Run(fmt.Sprintf("%s/stream=%v", c.name, streamed), func(t *testing.T) {
				inWorld(t, 1, c.link, func(t *testing.T, w *world) { c.run(t, w, streamed) })
			})
		}
	}
}

func (c *limitCase) run(t *testing.T, w *world, streamed bool) {
	a, b, _ := w.pair(&c.client, &c.server)
	from, to := io.ReadWriter(a), io.ReadWriter(b)
	if streamed {
		s := openStream(t, a, nil)
		w.say(s, "*")
		from, to = s, acceptStream(t, b)
	}
	var ended sync.WaitGroup
	defer ended.Wait()
	ended.Go(func() { c.pour(from) })
	ended.Go(func() { c.drain(to) })
	defer func() { require.NoError(t, a.Abort(0, "")); require.NoError(t, b.Abort(0, "")) }()
	time.Sleep(5 * time.Second) // until it is steady
	before := [2]stats.Conn{a.Stats(), b.Stats()}
	length := time.Duration(some(30, 10)) * time.Second
	time.Sleep(length)
	after := [2]stats.Conn{a.Stats(), b.Stats()}
	share := func(end int, of ...stats.Limit) (share float64) {
		for _, l := range of {
			share += (after[end].Limited[l] - before[end].Limited[l]).Seconds() / length.Seconds()
		}
		return share
	}
	for end := range after {
		sum := 0.0
		for l := range after[end].Limited {
			sum += share(end, stats.Limit(l))
			t.Logf("%d %-20s %.4f", end, stats.Limit(l), share(end, stats.Limit(l)))
		}
		require.InDelta(t, 1, sum, 1e-9, "each moment counts once")
	}
	require.GreaterOrEqual(t, share(0, c.sender...), 0.95)
	require.GreaterOrEqual(t, share(1, c.receiver), 0.95)
	require.Positive(t, share(0, after[0].LimitedBy), "the present limit is one of these")
}

// pour writes as the case says, until the session ends.
func (c *limitCase) pour(w io.Writer) {
	p := make([]byte, 16<<10)
	if c.write > 0 {
		p = p[:c.write]
	}
	for {
		if _, err := w.Write(p); err != nil {
			return
		}
		time.Sleep(c.pause)
	}
}

// drain reads as the case says, until the session ends.
func (c *limitCase) drain(r io.Reader) {
	p := make([]byte, 64<<10)
	if c.reads > 0 {
		p = p[:2000]
	}
	for {
		n, err := r.Read(p)
		if err != nil {
			return
		}
		if c.reads > 0 {
			time.Sleep(time.Duration(float64(n) / float64(c.reads) * float64(time.Second)))
		}
	}
}

// stats.Conn says how many streams are open, and how far the reader is behind.
func TestStatsCountStreams(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MessageMode: true}, nil)
		require.Zero(t, a.Stats().Streams)
		var all [3]*kcp.Stream
		for i := range all {
			all[i] = openStream(t, a, nil)
			w.say(all[i], "*")
		}
		time.Sleep(time.Second)
		require.Equal(t, [2]int{3, 3}, [2]int{a.Stats().Streams, b.Stats().Streams})
		require.NoError(t, all[1].Reset(7))
		require.NoError(t, acceptStream(t, b).Close())
		require.NoError(t, all[0].Close())
		for range 300 {
			w.say(a, "*")
		}
		time.Sleep(time.Second)
		require.Equal(t, [2]int{1, 1}, [2]int{a.Stats().Streams, b.Stats().Streams})
		require.Equal(t, 300, a.Stats().RemoteUnread)
		_, err := io.ReadFull(b, make([]byte, 300))
		require.NoError(t, err)
		w.say(a, "*")
		time.Sleep(time.Second)
		require.Equal(t, 1, a.Stats().RemoteUnread)
	})
}
