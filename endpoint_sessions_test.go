package kcp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"reflect"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// Requests are answered with one packet for a batch, and no more of them are
// looked at, however many a packet holds. What follows is taken as ever.
func TestAnswersAreBounded(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		var answered atomic.Int32
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
			for ; from.Port() == 4000 && len(p) >= wire.HeaderSize; p = p[wire.HeaderSize:] {
				if h := wire.DecodeHeader(p); h.Frg == uint8(wire.Pong) {
					answered.Add(1)
				}
			}
			return true
		})
		var questions []byte
		for i := range uint32(2000) {
			questions = append(questions, packetOf(a.Conv(), bytesOf(wire.Signal{Code: wire.Ping, SN: i, TS: i}))...)
		}
		from, to := a.LocalAddr().(*net.UDPAddr).AddrPort(), l.Addr().(*net.UDPAddr).AddrPort()
		before := b.Stats().ProbesReceived
		w.net.Inject(from, to, questions)
		time.Sleep(time.Second)
		require.EqualValues(t, wire.MaxSignals, answered.Load())
		require.EqualValues(t, wire.MaxSignals, b.Stats().ProbesReceived-before)
		require.Equal(t, stats.Drops{Requests: 1}, b.Stats().Dropped)
		send(t, a, content(1, 50000))
		receive(t, b, content(1, 50000))
	})
}

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

// Endpoints of one Repetition do not draw the same numbers.
func TestEndpointsDrawTheirOwn(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		config := Config{Repetition: netsim.NewRepetition(1)}
		a, _ := w.endpoint("10.0.0.2:0", &config)
		b, _ := w.endpoint("10.0.0.3:0", &config)
		require.NotEqual(t, a.shared.Env.Uint32(), b.shared.Env.Uint32())
	})
}

// Totals are the sums of the sessions' own figures, those of live ones and of
// ended ones.
func TestTotalsAreTheSums(t *testing.T) {
	inWorld(t, 1, lossy, func(t *testing.T, w *world) {
		l := w.listen(nil)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		var conns []*Conn
		for range 3 {
			a := w.dial(e)
			send(t, a, content(1, 50000))
			receive(t, accepted(t, l), content(1, 50000))
			require.NoError(t, a.SendDatagram([]byte("beside")))
			conns = append(conns, a)
		}
		require.NoError(t, conns[1].Close())
		w.settle()
		var want stats.Totals
		for _, c := range conns {
			s := c.Stats()
			want.Counters.Add(&s.Counters)
			want.Datagrams.Add(&s.Datagrams)
			want.Dropped.Add(&s.Dropped)
			want.Probes.Sent += s.PathMTU.Sent
			want.Probes.Lost += s.PathMTU.Lost
			for i, d := range s.Limited {
				want.Limited[i] += d
			}
		}
		require.Equal(t, want, e.Totals())
		require.EqualValues(t, 3*50000, want.BytesSent)
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

// number gives each count in a struct a number of its own, and returns their sum.
func number(v reflect.Value, next uint64) (last, sum uint64) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Struct:
			var n uint64
			next, n = number(f, next)
			sum += n
		case reflect.Uint64:
			next++
			f.SetUint(next)
			sum += next
		}
	}
	return next, sum
}

// Every count is added up, those of fields to come included.
func TestSumsLeaveNothingOut(t *testing.T) {
	for _, of := range []any{new(stats.Counters), new(stats.Drops), new(stats.Datagrams), new(stats.Streams), new(stats.FEC)} {
		part := reflect.ValueOf(of)
		number(part.Elem(), 0)
		sum := reflect.New(part.Type().Elem())
		sum.MethodByName("Add").Call([]reflect.Value{part})
		require.Equal(t, of, sum.Interface())
	}
	var n stats.Ended
	_, sum := number(reflect.ValueOf(&n).Elem(), 0)
	require.Equal(t, sum, n.Total())
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
		sent := a.ep.Stats().PacketsSent
		a.do(func(s *session.Session) { s.Rerouted(true) })
		require.Less(t, a.Stats().CongestionWindow, cwnd)
		w.settle()
		require.Greater(t, a.ep.Stats().PacketsSent, sent)
		w.move(a, b, 2, 200_000)
		require.NoError(t, a.Close())
		sent = a.ep.Stats().PacketsSent
		a.do(func(s *session.Session) { s.Rerouted(true) })
		w.settle()
		require.Equal(t, sent, a.ep.Stats().PacketsSent)
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
