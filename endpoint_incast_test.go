package kcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/incast"
	"github.com/arqnet/kcp/internal/simsocket"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// crowd is senders that send to one listening endpoint without end, or until
// stopped.
type crowd struct {
	w        *world
	socket   *simsocket.Socket
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
	pc, err := simsocket.Listen(w.net, serverAddr, limit, pace)
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
func (c *crowd) join(config *Config) *crowdSender { return c.joinWith(config, crowdChunk, 0) }

// joinWith adds a sender of so many bytes at a time, a part of crowdChunk.
func (c *crowd) joinWith(config *Config, bytes int, pause time.Duration) *crowdSender {
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
		for at := 0; err == nil && !s.stop.Load(); at = (at + bytes) % crowdChunk {
			_, err = s.conn.Write(data[at : at+bytes])
			time.Sleep(pause)
		}
	}()
	return s
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
		senders = 100
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

// Many sessions share a narrow link: most of it carries data for the first time.
func TestManySendersOnANarrowLink(t *testing.T) {
	t.Parallel()
	long(t)
	const senders, rate = 20, 400_000
	inWorld(t, 2, netsim.LinkConfig{Delay: 5 * time.Millisecond}, func(t *testing.T, w *world) {
		w.net.SetLink("10.0.0.2", "10.0.0.1", netsim.LinkConfig{Delay: 5 * time.Millisecond, Rate: rate, Queue: 40_000})
		l := w.listen(nil)
		var received atomic.Int64
		data := content(2, crowdChunk)
		for range senders {
			e, _ := w.endpoint("10.0.0.2:0", nil)
			c := w.dial(e)
			_, err := c.Write([]byte("hello"))
			require.NoError(t, err)
			s := accepted(t, l)
			receive(t, s, []byte("hello"))
			go func() {
				for {
					if _, err := c.Write(data); err != nil {
						return
					}
				}
			}()
			go func() {
				for got, b := 0, make([]byte, 8<<10); ; {
					n, err := s.Read(b)
					for _, x := range b[:n] {
						if x != data[got%len(data)] {
							t.Error("not what was sent")
							return
						}
						got++
					}
					if received.Add(int64(n)); err != nil {
						return
					}
				}
			}()
		}
		time.Sleep(10 * time.Second)
		before := received.Load()
		time.Sleep(10 * time.Second)
		require.Greater(t, float64(received.Load()-before), 0.6*10*rate)
	})
}

// A sender that is alone has the whole window, also among idle sessions.
func TestIncastSparesALoneSender(t *testing.T) {
	t.Parallel()
	long(t)
	inWorld(t, 4, netsim.LinkConfig{Delay: 2 * time.Millisecond}, func(t *testing.T, w *world) {
		c := newCrowd(w, nil, 1<<20, 20*time.Microsecond)
		go c.serve()
		for range 20 {
			c.join(nil).stop.Store(true)
		}
		time.Sleep(5 * time.Second)
		s := c.join(nil)
		for range 5 {
			time.Sleep(100 * time.Millisecond)
			require.Greater(t, s.conn.Stats().RemoteWindow, defaultWindow/2, "less what waits for Read")
		}
		w.settle()
		require.Zero(t, c.listener.ep.socket.shards[0].incast.Bytes())
	})
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

// An upload beside many peers that send little has nearly what it has alone: beside
// peers with small messages, peers that repeat what has arrived, and first packets
// from forged addresses.
func TestIncastCountsDemand(t *testing.T) {
	t.Parallel()
	long(t)
	upload := func(beside func(w *world, c *crowd)) (bytes float64) {
		inWorld(t, 4, netsim.LinkConfig{Delay: 20 * time.Millisecond}, func(t *testing.T, w *world) {
			c := newCrowd(w, nil, 1<<20, 40*time.Microsecond)
			go c.serve()
			c.join(nil)
			if beside != nil {
				beside(w, c)
			}
			time.Sleep(3 * time.Second)
			before := c.senders[0].received.Load()
			time.Sleep(2 * time.Second)
			bytes = float64(c.senders[0].received.Load() - before)
			require.Zero(t, c.failed.Load())
			for _, s := range c.senders {
				s.stop.Store(true)
			}
			time.Sleep(5 * time.Second) // until those beside it have stopped
		})
		return bytes
	}
	alone := upload(nil)
	// trickle has as many others repeat a packet every 0.4 s.
	trickle := func(w *world, n int, packet func(i int) (netip.AddrPort, []byte)) {
		to := netip.MustParseAddrPort(serverAddr)
		for i := range n {
			from, p := packet(i)
			go func() {
				for time.Sleep(time.Duration(i) * 400 * time.Millisecond / time.Duration(n)); w.net.Elapsed() < 6*time.Second; time.Sleep(400 * time.Millisecond) {
					w.net.Inject(from, to, p)
				}
			}()
		}
	}
	for _, n := range []int{100, 1000} {
		t.Run(fmt.Sprint(n, " forged"), func(t *testing.T) {
			got := upload(func(w *world, _ *crowd) {
				trickle(w, n, func(i int) (netip.AddrPort, []byte) {
					p := packetOf(uint32(i), push(0, 0, "x"))
					return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 9), p
				})
			})
			t.Logf("%.2f of alone", got/alone)
			require.Greater(t, got, 0.8*alone)
		})
		t.Run(fmt.Sprint(n, " chatty"), func(t *testing.T) {
			if testing.Short() && n > 100 {
				t.Skip("the others show the same")
			}
			got := upload(func(w *world, c *crowd) {
				for range n {
					c.joinWith(nil, 32, 400*time.Millisecond)
				}
			})
			t.Logf("%.2f of alone", got/alone)
			require.Greater(t, got, 0.8*alone)
		})
	}
}

// jain returns Jain's index of fairness: 1 if all are equal.
func jain(all []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, x := range all {
		sum += x
		squares += x * x
	}
	return sum * sum / squares / float64(len(all))
}

// maxMin returns the max-min fair shares of what demands may have in all.
func maxMin(demands []float64, all float64) (shares []float64) {
	shares = make([]float64, len(demands))
	order := make([]int, len(demands))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(demands[i], demands[j]) })
	for n, i := range order {
		shares[i] = min(demands[i], all/float64(len(order)-n))
		all -= shares[i]
	}
	return shares
}

// Senders of different demand have max-min fair shares of what the reader gets done:
// those that want little have it, and the others have equal parts of the rest.
func TestIncastSharesAreMaxMin(t *testing.T) {
	t.Parallel()
	long(t)
	length, senders := 16*time.Second, 1000 // some turns of each
	if testing.Short() {
		length, senders = 8*time.Second, 200
	}
	inWorld(t, 6, netsim.LinkConfig{Delay: 2 * time.Millisecond}, func(t *testing.T, w *world) {
		pace := time.Second / time.Duration(20*senders) // 20 segments a second for each
		c := newCrowd(w, nil, senders*(5<<10), pace)
		go c.serve()
		demands := make([]float64, senders) // bytes a second
		for i := range demands {
			pause, bytes := time.Duration(0), crowdChunk
			if i%2 == 0 { // from 2.5 to 20 KB a second
				pause, bytes = 200*time.Millisecond, 512<<(i/2%4)
			}
			demands[i] = 1e9
			if pause > 0 {
				demands[i] = float64(bytes) / pause.Seconds()
			}
			c.joinWith(nil, bytes, pause)
			time.Sleep(time.Millisecond)
		}
		defer func() {
			for _, s := range c.senders {
				s.stop.Store(true)
			}
			time.Sleep(5 * time.Second)
		}()
		time.Sleep(3 * time.Second)
		before := make([]uint64, senders)
		for i, s := range c.senders {
			before[i] = s.received.Load()
		}
		time.Sleep(length)
		got, all := make([]float64, senders), 0.0
		for i, s := range c.senders {
			got[i] = float64(s.received.Load()-before[i]) / length.Seconds()
			all += got[i]
		}
		shares := maxMin(demands, all)
		ratios, worst, best := make([]float64, senders), 1e9, 0.0
		for i := range got {
			ratios[i] = got[i] / shares[i]
			worst, best = min(worst, ratios[i]), max(best, ratios[i])
		}
		t.Logf("%.0f %% of %v a segment, Jain's index %.4f, from %.2f to %.2f of the share", all/1448*pace.Seconds()*100, pace, jain(ratios), worst, best)
		within := 0.1
		if testing.Short() {
			within = 0.5 // few senders of many segments: one of them may have a burst of losses
		}
		require.Greater(t, jain(ratios), 0.99)
		require.Greater(t, worst, 1-within)
		require.Less(t, best, 1+within)
		require.Greater(t, all/1448*pace.Seconds(), 0.8)
		require.Zero(t, c.failed.Load())
	})
}

// What is done for each batch allocates nothing.
func TestIncastAllocatesNothing(t *testing.T) {
	sequential(t)
	if !alone(t) {
		return
	}
	l, err := Listen("udp", "127.0.0.1:0", nil)
	require.NoError(t, err)
	defer l.Close()
	s := &l.ep.socket.shards[0]
	var own shard // the reader has s.incast
	own.incast.Init((*session).sender, takeGrant, func() {})
	own.link.Store(s.link.Load())
	now := time.Duration(0)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		now += 250 * time.Microsecond
		own.incast.Offered(new(incast.Sender), 1000, true)
		own.observe(32<<10, now)
		_ = own.incast.Window(1472, false, true)
	}))
}

// News of a turn may be lost.
func TestTurnsSurviveLoss(t *testing.T) {
	t.Parallel()
	long(t)
	inWorld(t, 3, netsim.LinkConfig{Delay: 2 * time.Millisecond, Loss: 0.05}, func(t *testing.T, w *world) {
		c := newCrowd(w, nil, 60*(5<<10), 50*time.Microsecond)
		go c.serve()
		for range 60 {
			c.join(nil)
		}
		time.Sleep(3 * time.Second)
		require.True(t, c.listener.ep.incastOf(0).On())
		r := c.measure(2 * time.Second)
		require.Greater(t, r.slowest, 0.3*r.mean)
		require.Greater(t, r.mean*60, 2*20000*1448*0.7)
		require.Zero(t, c.failed.Load())
	})
}

// takeTurns has senders take turns for ever at the first socket of e.
func takeTurns(e *Endpoint) *socketIncast {
	i := e.incastOf(0)
	i.Set(16<<20, 1000, 1, 8<<20, true)
	return i
}

// A session that ends gives up its turn.
func TestTurnsOfEndedSessions(t *testing.T) {
	inWorld(t, 4, clean, func(t *testing.T, w *world) {
		_, c, l := w.pair(nil, nil)
		i := takeTurns(l.ep)
		c.mu.Lock()
		c.in.sending.Segments(incast.Least)
		g, ok := i.Arrived(&c.session, 1, l.ep.now())
		c.mu.Unlock()
		require.True(t, ok)
		require.True(t, g.Shut)
		i.Advance(l.ep.now())
		c.mu.Lock()
		require.Positive(t, c.kcp.wndUnused(), "its turn has begun")
		c.mu.Unlock()
		c.Abort()
		synctest.Wait()
		require.False(t, i.Forget(&c.session), "it has a turn")
	})
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
		c.in.sending.Segments(incast.Least)
		g, _ := i.Arrived(&c.session, 1, l.ep.now())
		c.limitWindow(g, false)
		require.Zero(t, c.kcp.wndUnused())
		require.True(t, c.changeShard(0))
		require.Positive(t, c.kcp.wndUnused())
		require.True(t, c.kcp.windowReopened(), "the peer is told")
		require.False(t, c.changeShard(0))
	})
}

// Clients upload, pause and upload again, beside others that send a byte meanwhile. What
// they had sent before the pause does not count, however long it is.
func TestIncastAfterPauses(t *testing.T) {
	t.Parallel()
	const clients = 4
	pauses := []time.Duration{64, 127, 128, 129, 256, 384}
	for name, config := range map[string]*Config{"plain": nil, "TLS": {TLS: testTLS()}} {
		t.Run(name, func(t *testing.T) {
			for seed, pause := range pauses {
				inWorld(t, uint64(seed), netsim.LinkConfig{Delay: 2 * time.Millisecond}, func(t *testing.T, w *world) {
					c := newCrowd(w, config, 64<<10, 20*time.Microsecond)
					begin := time.Now()
					var done sync.WaitGroup
					for i := range clients {
						data := content(uint64(i), 300<<10)
						e, _ := w.endpoint(fmt.Sprintf("10.1.0.%d:0", i+1), config)
						conn := w.dial(e)
						_, err := conn.Write(data[:1])
						require.NoError(t, err)
						server := accepted(t, c.listener)
						done.Go(func() {
							time.Sleep(time.Until(begin.Add(10 * time.Second)))
							_, err := conn.Write(data[1 : 200<<10])
							require.NoError(t, err)
							if i%2 == 1 {
								time.Sleep(pause * time.Second / 2)
								_, err = conn.Write(data[200<<10:][:1])
								require.NoError(t, err)
							}
							time.Sleep(time.Until(begin.Add((10 + pause) * time.Second)))
							_, err = conn.Write(data[200<<10+i%2:])
							require.NoError(t, err)
							require.NoError(t, conn.CloseWrite())
						})
						done.Go(func() {
							got, err := io.ReadAll(server)
							require.NoError(t, err)
							require.True(t, bytes.Equal(data, got))
						})
					}
					done.Wait()
				})
			}
		})
	}
}
