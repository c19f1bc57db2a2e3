package kcp

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/incast"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// starved is a process that lacks processor time: for some of the time none of its
// goroutines runs.
type starved struct {
	until atomic.Int64 // of the present interruption, in Unix ns
	away  atomic.Int64 // ns
	ended atomic.Bool
}

// interrupt interrupts the process again and again, for up to most, until ended.
func (s *starved) interrupt(r *rand.Rand, most time.Duration) {
	for !s.ended.Load() {
		runs := time.Duration(r.Int64N(int64(most))) + time.Millisecond
		time.Sleep(runs)
		d := time.Duration(r.Int64N(int64(most)))
		s.until.Store(time.Now().Add(d).UnixNano())
		s.away.Add(int64(d))
		time.Sleep(d)
	}
}

// wait returns when the process runs, and for how long it did not.
func (s *starved) wait() (d time.Duration) {
	for {
		left := time.Duration(s.until.Load() - time.Now().UnixNano())
		if left <= 0 {
			return d
		}
		time.Sleep(left)
		d += left
	}
}

// starvedSocket is a socket of a starved process.
type starvedSocket struct {
	*netsim.PacketConn
	process *starved
	held    atomic.Int32 // datagrams that were read when the process did not run
}

func (s *starvedSocket) ReadFromAddrPort(b []byte) (n int, from netip.AddrPort, err error) {
	n, from, err = s.PacketConn.ReadFromAddrPort(b)
	s.held.Store(1)
	s.process.wait()
	s.held.Store(0)
	return n, from, err
}

func (s *starvedSocket) ReadQueue(q *udp.Queue) bool {
	*q = udp.Queue{Used: (s.Unread() + int(s.held.Load())) * incast.BufferBytes(1500), Limit: 1 << 20}
	return true
}

// server opens a listener of a starved process. Its wake-ups are late, too.
func (s *starved) server(w *world, config *Config) *Listener {
	e, _ := w.endpointOn(serverAddr, config, func(pc *netsim.PacketConn) net.PacketConn {
		return &starvedSocket{PacketConn: pc, process: s}
	})
	e.wakes.Init(1, e.shared.Epoch, (*Conn).wakeIndex, (*Conn).wakeHash, nil, func(c *Conn) {
		s.wait()
		c.onWake()
	}, nil)
	l, err := e.Listen()
	require.NoError(w.t, err)
	return l
}

// pour writes to a session until it ends, whenever the process runs.
func (s *starved) pour(c *Conn) {
	for p := make([]byte, 32<<10); ; s.wait() {
		if _, err := c.Write(p); err != nil {
			return
		}
	}
}

// drain reads a session until it ends, whenever the process runs, and counts what has
// come.
func (s *starved) drain(c *Conn, n *atomic.Int64) {
	for p := make([]byte, 64<<10); ; s.wait() {
		m, err := c.Read(p)
		if err != nil {
			return
		}
		n.Add(int64(m))
	}
}

// A process that is interrupted at random, for up to 50, 200 and 1000 ms, takes no late
// ACK for a loss, and keeps most of its congestion window. What passes, either way, is what its
// processor time allows.
func TestLateWakeUps(t *testing.T) {
	t.Parallel()
	long(t)
	const rate, length = 2 << 20, 20 * time.Second
	link := netsim.LinkConfig{Delay: 10 * time.Millisecond, Rate: rate, Queue: 1 << 20}
	window := 0 // without interruptions
	for _, most := range []time.Duration{0, 50, 200, 1000} {
		most *= time.Millisecond
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			inWorld(t, 1, link, func(t *testing.T, w *world) {
				s, here := new(starved), new(starved)
				l := s.server(w, nil)
				var ends [2][2]*Conn
				for i := range ends {
					e, _ := w.endpoint(fmt.Sprintf("10.0.0.%d:0", 2+i), nil)
					c := w.dial(e)
					writeAll(t, c, []byte{42})
					ends[i] = [2]*Conn{c, accepted(t, l)}
				}
				var ended sync.WaitGroup
				var down, up atomic.Int64
				if most > 0 {
					ended.Go(func() { s.interrupt(rand.New(rand.NewPCG(1, uint64(most))), most) })
				}
				ended.Go(func() { s.pour(ends[0][1]) })
				ended.Go(func() { here.drain(ends[0][0], &down) })
				ended.Go(func() { here.pour(ends[1][0]) })
				ended.Go(func() { s.drain(ends[1][1], &up) })
				defer ended.Wait()
				defer func() {
					s.ended.Store(true)
					for _, c := range ends {
						require.NoError(t, c[0].Abort(0, ""))
					}
				}()
				time.Sleep(length)
				share := 1 - float64(s.away.Load())/float64(length)
				whole := share * rate * length.Seconds()
				require.Greater(t, float64(down.Load()), 0.9*whole, "it runs %.2f of the time", share)
				// 0.9 on average. Single runs with long interruptions scatter by 0.02.
				require.Greater(t, float64(up.Load()), 0.88*whole, "it runs %.2f of the time", share)
				st := ends[0][1].Stats()
				require.Zero(t, st.Retransmits())
				if most == 0 {
					window = st.CongestionWindow
				}
				require.GreaterOrEqual(t, st.CongestionWindow, window/2)
			})
		})
	}
}

// busySocket is a socket whose buffer holds something for some time, from when it is
// first looked at.
type busySocket struct {
	*netsim.PacketConn
	since atomic.Int64 // Unix ns; 0: it was not looked at
	lasts atomic.Int64 // ns; 0: it holds nothing
}

func (s *busySocket) ReadQueue(q *udp.Queue) bool {
	*q = udp.Queue{Limit: 1 << 20}
	if now := time.Now().UnixNano(); s.lasts.Load() > 0 {
		s.since.CompareAndSwap(0, now)
		if now-s.since.Load() < s.lasts.Load() {
			q.Used = incast.BufferBytes(1500)
		}
	}
	return true
}

// A segment that is lost is sent again soon after what was in the buffer was read,
// though no other timer of the session fires. If it is never read, time-outs
// wait a second.
func TestHeldTimeoutLooksAgain(t *testing.T) {
	t.Parallel()
	lasts := []time.Duration{0, 3 * time.Millisecond, time.Hour}
	times := make([]time.Duration, len(lasts))
	for i := range times {
		inWorld(t, 1, netsim.LinkConfig{Delay: 10 * time.Millisecond}, func(t *testing.T, w *world) {
			s := new(busySocket)
			l, _ := w.serverOn(nil, func(pc *netsim.PacketConn) net.PacketConn {
				s.PacketConn = pc
				return s
			})
			ce, _ := w.endpoint("10.0.0.2:0", nil)
			c := w.dial(ce)
			w.say(c, "a")
			b := accepted(t, l)
			w.hear(b, "a")
			for range 20 {
				w.say(b, "x")
				w.hear(c, "x")
			}
			time.Sleep(1500 * time.Millisecond)
			s.lasts.Store(int64(lasts[i]))
			drop := 2 // the tail loss probe, too
			w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
				if from.String() == serverAddr && drop > 0 {
					drop--
					return false
				}
				return true
			})
			start := time.Now()
			w.say(b, "lost")
			w.hear(c, "lost")
			times[i] = time.Since(start)
		})
	}
	require.Less(t, times[1], times[0]+10*time.Millisecond, "with nothing in the buffer it took %v", times[0])
	require.InDelta(t, time.Second, times[2]-times[0], float64(100*time.Millisecond))
}
