package kcp

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/incast"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// dialWith opens a session from e to addr.
func (w *world) dialWith(e *Endpoint, addr string, o DialOptions) *Conn {
	w.t.Helper()
	c, err := e.Dial(context.Background(), udpAddr(addr), &o)
	require.NoError(w.t, err)
	return c
}

// say writes s, and hear reads it.
func (w *world) say(c *Conn, s string) {
	w.t.Helper()
	_, err := c.Write([]byte(s))
	require.NoError(w.t, err)
}

func (w *world) hear(c *Conn, s string) {
	w.t.Helper()
	receive(w.t, c, []byte(s))
}

// Who comes later is served: RESET does not end a quiet session, and neither does
// the system's report of a closed port.
func TestQuietDialIsNotRefused(t *testing.T) {
	for _, config := range []*Config{nil, secured(Config{})} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			server, _ := w.endpoint(serverAddr, config)
			e, pc := w.endpoint("10.0.0.2:5000", config)
			e.mu.Lock()
			e.socket.connected = true
			e.mu.Unlock()
			pc.FailWrites(syscall.ECONNREFUSED, 2)
			c := w.dialWith(e, serverAddr, DialOptions{Quiet: true})
			w.say(c, "is there ")
			w.say(c, "anyone?")
			time.Sleep(5 * time.Second)
			require.Positive(t, server.Stats().PacketsSent, "it has sent RESET")
			require.NoError(t, c.Err())
			l, err := server.Listen()
			require.NoError(t, err)
			w.hear(accepted(t, l), "is there anyone?")
		})
	}
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		e, _ := w.endpoint("10.0.0.2:5000", &Config{PeerTimeout: 5 * time.Second})
		c := w.dialWith(e, serverAddr, DialOptions{Quiet: true})
		w.say(c, "no one comes")
		_, err := c.Read(make([]byte, 1))
		var lost *PeerLostError
		require.ErrorAs(t, err, &lost)
	})
}

// A session whose new address is taken by another session of the same
// conversation id stays where it is.
func TestMoveDoesNotCollide(t *testing.T) {
	inWorld(t, 28, clean, func(t *testing.T, w *world) {
		e, _ := w.endpoint(serverAddr, &Config{Cipher: testAEAD(t), DialTimeout: -1})
		at := func(port int) net.Addr { return &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2).To4(), Port: port} }
		x, err := e.Dial(context.Background(), at(1), nil)
		require.NoError(t, err)
		key := x.session.Inside().Entry().Key()
		key.Addr = netip.AddrPortFrom(key.Addr.Addr(), 2)
		_, err = e.openSession(key, at(2), false)
		require.NoError(t, err)
		require.False(t, e.rekey(x, key))
		require.Equal(t, x, e.table.Get(x.session.Inside().Entry().Key()))
	})
}

// When there is a route again, a session sends at once: what is in flight, and a PING
// that had backed off. Without an event it waits for its next probe.
func TestReroutedSendsAtOnce(t *testing.T) {
	for _, rerouted := range []bool{true, false} {
		inWorld(t, 31, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			send(t, a, []byte("before"))
			receive(t, b, []byte("before"))
			w.settle()
			var down atomic.Bool
			down.Store(true)
			seen := make(chan time.Time, 1)
			w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
				if down.Load() {
					return false
				}
				if from.String() != serverAddr {
					select {
					case seen <- time.Now():
					default:
					}
				}
				return true
			})
			writeAll(t, a, []byte("in the outage"))
			time.Sleep(12*time.Second + 123*time.Millisecond)
			down.Store(false)
			again := time.Now()
			if rerouted {
				a.do(func(s *session.Session) { s.Rerouted(false) })
			}
			receive(t, b, []byte("in the outage"))
			if took := time.Since(again); rerouted {
				require.Zero(t, (<-seen).Sub(again))
				require.Equal(t, roundTrip/2, took)
			} else {
				require.Greater(t, took, roundTrip)
			}
		})
	}
}

// On another path congestion control and the round-trip time begin anew, and a session that
// waits for nothing asks its peer. One that was closed here and there does not.
func TestReroutedBeginsPathAnew(t *testing.T) {
	inWorld(t, 33, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		w.move(a, b, 1, 200_000)
		w.settle()
		cwnd := a.Stats().CongestionWindow
		a.do(func(s *session.Session) { s.Rerouted(false) })
		require.Equal(t, cwnd, a.Stats().CongestionWindow)
		w.settle()
		sent := a.Endpoint().Stats().PacketsSent
		a.do(func(s *session.Session) { s.Rerouted(true) })
		require.Less(t, a.Stats().CongestionWindow, cwnd)
		w.settle()
		require.Greater(t, a.Endpoint().Stats().PacketsSent, sent)
		w.move(a, b, 2, 200_000)
		require.NoError(t, a.Close())
		sent = a.Endpoint().Stats().PacketsSent
		a.do(func(s *session.Session) { s.Rerouted(true) })
		w.settle()
		require.Equal(t, sent, a.Endpoint().Stats().PacketsSent)
	})
}

// The error of a lost peer names that of the socket, if it was in the silence, and of
// that peer.
func TestPeerLostNamesTheSocket(t *testing.T) {
	write := func(to string, errno syscall.Errno) error {
		return &net.OpError{Op: "write", Net: "udp", Addr: udpAddr(to), Err: os.NewSyscallError("sendto", errno)}
	}
	for name, tc := range map[string]struct {
		note  error
		heard bool // the peer was heard after the error
		want  error
	}{
		"none":               {nil, false, nil},
		"of the peer":        {write(serverAddr, syscall.EHOSTUNREACH), false, syscall.EHOSTUNREACH},
		"of another peer":    {write("10.9.9.9:9", syscall.EHOSTUNREACH), false, nil},
		"before the silence": {write(serverAddr, syscall.EHOSTUNREACH), true, nil},
		"that names no peer": {io.ErrUnexpectedEOF, false, nil},
	} {
		inWorld(t, 34, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&Config{PeerTimeout: 5 * time.Second}, nil)
			time.Sleep(time.Second)
			if tc.note != nil {
				a.ep.noteSocketError(tc.note)
			}
			if tc.heard {
				time.Sleep(time.Second)
				send(t, b, []byte("x"))
				receive(t, a, []byte("x"))
			}
			w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false })
			send(t, a, []byte("x"))
			_, err := a.Read(make([]byte, 1))
			var lost *PeerLostError
			require.ErrorAs(t, err, &lost, name)
			if tc.want == nil {
				require.NoError(t, lost.Socket, name)
				require.NotContains(t, err.Error(), "host", name)
				return
			}
			require.ErrorIs(t, err, tc.want, name)
			require.Contains(t, err.Error(), tc.want.Error(), name)
		})
	}
}

// A lingering socket is given up: at once if it is only there for peers of ended
// sessions, even if such a session drains, and not if it is in use again.
func TestGiveUp(t *testing.T) {
	inWorld(t, 35, clean, func(t *testing.T, w *world) {
		pc, err := w.net.Listen("10.0.0.2:5000")
		require.NoError(t, err)
		e := newEndpoint(nil, true, pc)
		l := w.listen(nil)
		a := w.dial(e)
		b := accepted(t, l)
		require.NoError(t, b.CloseWrite())
		_, err = a.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		e.giveUp()
		require.False(t, e.isClosed(), "there is a session")
		require.NoError(t, a.Close())
		require.False(t, e.isClosed(), "it lingers")
		again, err := e.Dial(context.Background(), udpAddr(serverAddr), nil)
		require.NoError(t, err)
		e.giveUp()
		require.False(t, e.isClosed(), "it is in use again")
		require.NoError(t, again.Abort(0, ""))
		e.giveUp()
		require.True(t, e.isClosed())
		e.giveUp()
	})
	inWorld(t, 36, clean, func(t *testing.T, w *world) {
		pc, err := w.net.Listen(serverAddr)
		require.NoError(t, err)
		e := newEndpoint(nil, true, pc)
		l, err := e.Listen()
		require.NoError(t, err)
		w.legacyPeer("10.0.0.3:1", 7, []byte("hello"))
		c := accepted(t, l)
		receive(t, c, []byte("hello"))
		require.NoError(t, l.Close())
		require.NoError(t, c.Close())
		time.Sleep(500 * time.Millisecond)
		c.mu.Lock()
		require.Equal(t, closing.Draining, c.session.Inside().Closing().Phase)
		c.mu.Unlock()
		require.False(t, e.isClosed())
		e.giveUp()
		require.True(t, e.isClosed())
		<-c.Done()
		require.ErrorIs(t, c.Err(), net.ErrClosed)
	})
}

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
// ACK for a loss. What passes, either way, is what its processor time allows. Senders that
// the process does not read retransmit, and how much is chance: the sum of four networks
// counts. In one of 200 networks the process retransmits one segment: no count has a packet
// that a reader has just taken out of the socket.
func TestLateWakeUps(t *testing.T) {
	t.Parallel()
	long(t)
	for _, most := range []time.Duration{50, 200, 1000} {
		most *= time.Millisecond
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			var sum starvedFlows
			for seed := range uint64(4) {
				sum.run(t, seed, most)
			}
			require.Greater(t, sum.sent, 0.9*sum.whole)
			require.Greater(t, sum.got, 0.9*sum.whole)
			require.LessOrEqual(t, sum.retransmits, 5)
		})
	}
}

// starvedFlows is what a starved process sends and gets.
type starvedFlows struct {
	sent, got   float64 // bytes
	whole       float64 // that the link would carry in its processor time
	retransmits int     // of what it sends
}

// run adds 20 seconds of a process that is interrupted for up to most.
func (f *starvedFlows) run(t *testing.T, seed uint64, most time.Duration) {
	const rate, length = 2 << 20, 20 * time.Second
	link := netsim.LinkConfig{Delay: 10 * time.Millisecond, Rate: rate, Queue: 1 << 20}
	inWorld(t, seed, link, func(t *testing.T, w *world) {
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
		ended.Go(func() { s.interrupt(rand.New(rand.NewPCG(seed, uint64(most))), most) })
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
		f.whole += share * rate * length.Seconds()
		f.sent, f.got = f.sent+float64(down.Load()), f.got+float64(up.Load())
		f.retransmits += int(ends[0][1].Stats().Retransmits())
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
		i := takeTurns(l.Endpoint())
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

// Endpoints of one Repetition do not draw the same numbers.
func TestEndpointsDrawTheirOwn(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		config := Config{Repetition: netsim.NewRepetition(1)}
		a, _ := w.endpoint("10.0.0.2:0", &config)
		b, _ := w.endpoint("10.0.0.3:0", &config)
		require.NotEqual(t, a.shared.Env.Uint32(), b.shared.Env.Uint32())
	})
}
