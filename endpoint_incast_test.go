package kcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/incast"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// crowd is senders that send to one listening endpoint without end, or until
// stopped.
type crowd struct {
	w        *world
	socket   *testenv.SimulatedSocket
	listener *Listener
	failed   atomic.Int32 // reads of what was not sent

	mu      sync.Mutex // guards senders while there are readers
	senders []*crowdSender
}

type crowdSender struct {
	conn     *Conn
	socket   *netsim.PacketConn
	stop     atomic.Bool
	received atomic.Uint64
}

// crowdChunk is the bytes of content that a sender repeats.
const crowdChunk = 16 << 10

// newCrowd opens the listening endpoint, with a socket buffer of limit bytes
// whose reader takes pace for each datagram.
func newCrowd(w *world, config *Config, limit int, pace time.Duration) *crowd {
	pc, err := testenv.ListenSimulated(w.net, serverAddr, limit, pace)
	require.NoError(w.t, err)
	c := &crowd{w: w, socket: pc}
	e, err := NewEndpoint(c.socket, config)
	require.NoError(w.t, err)
	c.listener, err = e.Listen()
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
	return c
}

// join adds a sender that sends all it can.
func (c *crowd) join(config *Config) {
	i := len(c.senders)
	e, pc := c.w.endpoint(fmt.Sprintf("10.1.%d.%d:0", i/250, i%250+1), config)
	s := &crowdSender{conn: c.w.dial(e), socket: pc}
	c.mu.Lock()
	c.senders = append(c.senders, s)
	c.mu.Unlock()
	data := content(uint64(i), crowdChunk)
	go func() {
		var head [4]byte
		binary.LittleEndian.PutUint32(head[:], uint32(i))
		_, err := s.conn.Write(head[:])
		for err == nil && !s.stop.Load() {
			_, err = s.conn.Write(data)
		}
	}()
}

// serve reads what the senders send, and compares it.
func (c *crowd) serve() {
	for {
		conn, err := c.listener.AcceptKCP(context.Background())
		if err != nil {
			return
		}
		go func() {
			var head [4]byte
			if _, err := io.ReadFull(conn, head[:]); err != nil {
				return
			}
			i := binary.LittleEndian.Uint32(head[:])
			c.mu.Lock()
			s := c.senders[i]
			c.mu.Unlock()
			want, at, b := slices.Repeat(content(uint64(i), crowdChunk), 2), 0, make([]byte, 8<<10)
			for {
				n, err := conn.Read(b)
				if !bytes.Equal(b[:n], want[at:at+n]) {
					c.failed.Add(1)
				}
				at = (at + n) % crowdChunk
				s.received.Add(uint64(n))
				if err != nil {
					return
				}
			}
		}()
	}
}

// crowdResult is what happened in a time.
type crowdResult struct {
	sent, resent  uint64  // segments
	mean, slowest float64 // bytes received of a sender
}

// measure lets the senders run for a time.
func (c *crowd) measure(d time.Duration) (r crowdResult) {
	before := make([]uint64, len(c.senders))
	count := func() (sent, resent uint64) {
		for _, s := range c.senders {
			n := s.conn.Stats().Counters
			sent, resent = sent+n.SegmentsSent, resent+n.Retransmits()
		}
		return sent, resent
	}
	for i, s := range c.senders {
		before[i] = s.received.Load()
	}
	sent, resent := count()
	time.Sleep(d)
	r.sent, r.resent = count()
	r.sent, r.resent = r.sent-sent, r.resent-resent
	r.slowest = 1e18
	for i, s := range c.senders {
		n := float64(s.received.Load() - before[i])
		r.mean += n / float64(len(c.senders))
		r.slowest = min(r.slowest, n)
	}
	return r
}

// Very many senders share what a socket buffer takes: hardly anything is sent
// twice, and none starves, whatever their congestion control.
func TestIncast(t *testing.T) {
	t.Parallel()
	long(t)
	low, senders := LowLatency(), 200
	if testing.Short() {
		senders = 60
	}
	for name, config := range map[string]*Config{
		"bbr": nil, "cubic": {CongestionControl: congestion.NewCubic}, "none": {CongestionControl: congestion.NewNone}, "low latency": &low,
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && (name == "cubic" || name == "low latency") {
				t.Skip("the others show the same")
			}
			inWorld(t, 2, netsim.LinkConfig{Delay: 2 * time.Millisecond}, func(t *testing.T, w *world) {
				c := newCrowd(w, nil, senders*(5<<10), 50*time.Microsecond)
				go c.serve()
				for range senders {
					c.join(config)
					time.Sleep(2 * time.Millisecond)
				}
				time.Sleep(3 * time.Second)
				dropped := c.socket.Dropped().Packets
				r := c.measure(time.Second)
				t.Logf("%+v, %d dropped, goodput %.0f%%, slowest %.2f", r, c.socket.Dropped().Packets-dropped,
					r.mean*float64(senders)/1448/20000*100, r.slowest/r.mean)
				require.LessOrEqual(t, float64(r.resent), 0.01*float64(r.sent+r.resent), "resent")
				require.GreaterOrEqual(t, r.slowest, 0.5*r.mean, "slowest")
				require.Zero(t, c.failed.Load())
			})
		})
	}
}

// The share of senders that stop, or vanish, is given back to the others.
func TestIncastGivesSharesBack(t *testing.T) {
	t.Parallel()
	long(t)
	inWorld(t, 6, netsim.LinkConfig{Delay: 2 * time.Millisecond}, func(t *testing.T, w *world) {
		c := newCrowd(w, nil, 1<<20, 50*time.Microsecond)
		go c.serve()
		for range 60 {
			c.join(nil)
		}
		time.Sleep(3 * time.Second)
		windows := 0
		for _, s := range c.senders {
			windows += s.conn.Stats().RemoteWindow
		}
		require.Positive(t, windows)
		require.LessOrEqual(t, windows, 60*16, "60 senders, a buffer of 1 MiB")
		for i, s := range c.senders[1:] {
			if i%2 == 0 {
				require.NoError(t, s.socket.Close())
				continue
			}
			s.stop.Store(true)
		}
		before := c.senders[0].received.Load()
		time.Sleep(10 * time.Second)
		s := c.senders[0]
		require.Greater(t, s.conn.Stats().RemoteWindow, defaultWindow/2)
		require.Greater(t, s.received.Load(), before+10*20000*1448/3)
		require.Zero(t, c.failed.Load())
	})
}

// takeTurns has senders take turns for ever at the first socket of e.
func takeTurns(e *Endpoint) *session.SocketIncast {
	i := e.incastOf(0)
	i.Set(16<<20, 1000, 1, 8<<20, true)
	return i
}

// A session that waits for its turn at one socket is told another window if its
// packets arrive at another, also if they have no data.
func TestTurnsOfAnotherShard(t *testing.T) {
	inWorld(t, 5, clean, func(t *testing.T, w *world) {
		a, c, l := w.pair(nil, nil)
		bothWays(t, a, c, content(1, 64), content(2, 64))
		time.Sleep(time.Second) // no ACK waits
		i := takeTurns(l.ep)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.session.Inside().Sender().Segments(incast.Least)
		g, _ := i.Arrived(&c.session, 1, l.ep.now())
		c.session.Inside().LimitWindow(g)
		require.Zero(t, c.session.Inside().Machine().Inspect().Unused)
		require.True(t, c.session.Inside().ChangeShard(0))
		require.Positive(t, c.session.Inside().Machine().Inspect().Unused)
		require.True(t, c.session.Inside().Machine().WindowReopened(), "the peer is told")
		require.False(t, c.session.Inside().ChangeShard(0))
	})
}
