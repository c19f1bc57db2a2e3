package kcp

import (
	"context"
	"net"
	"net/netip"
	"reflect"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// KeepAlive follows a short PeerTimeout, so that a vanished peer is noticed in
// two and a half times that.
func TestKeepAliveFollowsPeerTimeout(t *testing.T) {
	for _, c := range []struct{ set, timeout, want time.Duration }{
		{0, 0, 25 * time.Second},
		{0, 3 * time.Second, 1500 * time.Millisecond},
		{0, 30 * time.Second, 25 * time.Second},
		{0, 10 * time.Millisecond, minKeepAlive},
		{0, -1, 25 * time.Second},
		{7 * time.Second, 3 * time.Second, 7 * time.Second},
		{-1, 3 * time.Second, 0},
	} {
		d := (&Config{KeepAlive: c.set, PeerTimeout: c.timeout}).withDefaults()
		require.Equal(t, c.want, d.KeepAlive, "%+v", c)
	}
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(&Config{PeerTimeout: 3 * time.Second}, nil)
		w.deaf()
		start := time.Now()
		_, err := a.Read(make([]byte, 1))
		require.ErrorAs(t, err, new(*PeerLostError))
		require.Less(t, time.Since(start), 5*time.Second)
	})
}

// Requests are answered with one packet for a batch, and no more of them are
// looked at, however many a packet holds. What follows is taken as ever.
func TestAnswersAreBounded(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		var answered atomic.Int32
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
			for ; from.Port() == 4000 && len(p) >= headerSize; p = p[headerSize:] {
				if h := decodeHeader(p); h.frg == uint8(sigPing|sigAnswer) {
					answered.Add(1)
				}
			}
			return true
		})
		var questions []byte
		for i := range uint32(2000) {
			questions = append(questions, packetOf(a.Conv(), bytesOf(signal{sigPing, i, i}))...)
		}
		from, to := a.LocalAddr().(*net.UDPAddr).AddrPort(), l.Addr().(*net.UDPAddr).AddrPort()
		before := b.Stats().ProbesReceived
		w.net.Inject(from, to, questions)
		time.Sleep(time.Second)
		require.EqualValues(t, maxSignals, answered.Load())
		require.EqualValues(t, maxSignals, b.Stats().ProbesReceived-before)
		require.Equal(t, Drops{Requests: 1}, b.Stats().Dropped)
		send(t, a, content(1, 50000))
		receive(t, b, content(1, 50000))
	})
}

// An unvalidated peer has few requests answered, however many packets bring them.
func TestUnvalidatedPeersAskLittle(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		from, to := floodAddr(1), l.Addr().(*net.UDPAddr).AddrPort()
		replies := 0
		w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
			if to == from {
				replies += len(p) / headerSize
			}
			return true
		})
		w.net.Inject(from, to, packetOf(5, hello(9)))
		time.Sleep(time.Second)
		w.settle()
		replies = 0
		for range 10 {
			for i := range uint32(100) {
				w.net.Inject(from, to, packetOf(5, bytesOf(signal{sigPing, i, i})))
				time.Sleep(time.Millisecond)
			}
		}
		w.settle()
		require.Equal(t, 10*maxSignals, replies)
		require.Equal(t, 1, l.Stats().HalfOpen)
		w.net.Inject(from, to, packetOf(5, bytesOf(signal{sigPing, 1, 1})))
		time.Sleep(time.Second)
		w.settle()
		require.Equal(t, 10*maxSignals+1, replies)
	})
}

// dialWith opens a session from e to addr.
func (w *world) dialWith(e *Endpoint, addr string, o DialOptions) *Conn {
	w.t.Helper()
	c, err := e.DialWith(context.Background(), udpAddr(addr), o)
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

// In TIME-WAIT of a session with an extended peer the first segment opens
// nothing: that peer may be repeating it. A HELLO with another token does.
func TestSharedConvsTimeWaitOfExtendedPeer(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, &Config{SharedConvs: true})
		from, to := a.LocalAddr().(*net.UDPAddr).AddrPort(), l.Addr().(*net.UDPAddr).AddrPort()
		token := a.hs.token
		require.NoError(t, a.Close())
		<-b.Done()
		inject := func(h header, payload []byte) {
			p := make([]byte, headerSize)
			h.len = uint32(len(payload))
			h.encode(p)
			w.net.Inject(from, to, append(p, payload...))
			w.settle()
		}
		hello := func(token uint32) header {
			p := make([]byte, headerSize)
			signal{sigHello, 0, token}.encode(header{conv: a.Conv(), wnd: 100}, p)
			return decodeHeader(p)
		}
		inject(header{conv: a.Conv(), cmd: cmdPush, wnd: 100}, []byte("again"))
		require.Zero(t, l.Stats().Sessions)
		inject(hello(token), nil)
		require.Zero(t, l.Stats().Sessions)
		inject(hello(token+1), nil)
		require.Equal(t, 1, l.Stats().Sessions)
	})
}

// An answer to CLOSE that shows another token than the peer's is of an earlier
// session of the id, and acknowledges nothing.
func TestAnswerOfEarlierSession(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		from, to := b.LocalAddr().(*net.UDPAddr).AddrPort(), a.LocalAddr().(*net.UDPAddr).AddrPort()
		w.net.SetFilter(func(f, _ netip.AddrPort, _ []byte) bool { return f != to })
		w.say(a, "lost")
		a.mu.Lock()
		token, end := a.hs.peerToken, uint32(a.kcp.position().end)
		a.mu.Unlock()
		for i, code := range []signalCode{sigClose, sigFin, sigFin} {
			answer := signal{code | sigAnswer, 1, token + 1}
			if i == 2 {
				answer.ts = token
			}
			p := make([]byte, headerSize)
			answer.encode(header{conv: a.Conv(), wnd: 100, una: seq(end)}, p)
			w.net.Inject(from, to, p)
			w.settle()
			require.Equal(t, i < 2, a.Stats().InFlight > 0, i)
		}
	})
}

// Opening a session takes as many packets, and about as much memory in all, at
// the thousandth as at the first: nothing is walked or copied for each.
func TestOpeningManySessions(t *testing.T) {
	sequential(t)
	if !alone(t) {
		return
	}
	inWorld(t, 0, netsim.LinkConfig{Delay: time.Millisecond}, func(t *testing.T, w *world) {
		const n = 64
		config := Config{MaxSessions: 1 << 16}
		l := w.listen(&config)
		e, _ := w.endpoint("10.0.0.2:0", &config)
		open := func() (packets, bytes uint64) {
			var before, after runtime.MemStats
			sent := e.Stats().PacketsSent + l.ep.Stats().PacketsSent
			runtime.ReadMemStats(&before)
			for range n {
				w.dial(e)
				accepted(t, l)
			}
			synctest.Wait()
			runtime.ReadMemStats(&after)
			return e.Stats().PacketsSent + l.ep.Stats().PacketsSent - sent, after.TotalAlloc - before.TotalAlloc
		}
		open() // what is made once
		packets, bytes := open()
		const rounds = 16
		var total uint64
		for range rounds {
			p, b := open()
			require.Equal(t, packets, p)
			total += b
		}
		require.Less(t, total, rounds*bytes*5/4)
	})
}

// Endpoints of one Repetition do not draw the same numbers.
func TestEndpointsDrawTheirOwn(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		config := Config{Repetition: NewRepetition(1)}
		a, _ := w.endpoint("10.0.0.2:0", &config)
		b, _ := w.endpoint("10.0.0.3:0", &config)
		require.NotEqual(t, a.env.Uint32(), b.env.Uint32())
	})
}

// figures returns the counts in a struct, whatever their depth.
func figures(v reflect.Value) (all []uint64) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Struct:
			all = append(all, figures(f)...)
		case reflect.Uint64:
			all = append(all, f.Uint())
		}
	}
	return all
}

// setFigures sets each count in a struct to the next number.
func setFigures(v reflect.Value, next *uint64) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Struct:
			setFigures(f, next)
		case reflect.Uint64:
			*next++
			f.SetUint(*next)
		}
	}
}

// Every count is added up, those of fields to come included.
func TestSumsLeaveNothingOut(t *testing.T) {
	add := map[string]func() (sum, part any){
		"Counters": func() (any, any) {
			var s, o Counters
			number(&o)
			s.Add(&o)
			return s, o
		},
		"Drops": func() (any, any) {
			var s, o Drops
			number(&o)
			s.Add(&o)
			return s, o
		},
		"DatagramStats": func() (any, any) {
			var s, o DatagramStats
			number(&o)
			s.Add(&o)
			return s, o
		},
		"stats.Streams": func() (any, any) {
			var s, o stats.Streams
			number(&o)
			s.Add(&o)
			return s, o
		},
		"FECStats": func() (any, any) {
			var s, o FECStats
			number(&o)
			s.Add(&o)
			return s, o
		},
	}
	for name, f := range add {
		sum, part := f()
		require.Equal(t, part, sum, name)
	}
	var n EndedSessions
	number(&n)
	sum := uint64(0)
	for _, f := range figures(reflect.ValueOf(n)) {
		sum += f
	}
	require.Equal(t, sum, n.Total())
}

// number gives each count that p points to a number of its own.
func number(p any) {
	next := uint64(0)
	setFigures(reflect.ValueOf(p).Elem(), &next)
}

// No figure of Totals ever falls, whatever sessions do meanwhile, and at the
// end they are the sums over all sessions.
func TestTotalsNeverFall(t *testing.T) {
	for seed := range fewer(8) {
		config := &Config{FEC: FEC{Data: 4, Parity: 1}, Linger: -1, KeepAlive: time.Second, PeerTimeout: 3 * time.Second}
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			l := w.listen(config)
			server := l.Endpoint()
			var last [2][]uint64
			check := func(e *Endpoint, at *[]uint64) {
				now := figures(reflect.ValueOf(e.Totals()))
				for i := range *at {
					require.GreaterOrEqual(t, now[i], (*at)[i], "figure %d", i)
				}
				*at = now
			}
			e, _ := w.endpoint("10.0.0.2:0", config)
			for i := range 6 {
				a := w.dial(e)
				data := content(seed, 30000+5000*i)
				send(t, a, data)
				b := accepted(t, l)
				receive(t, b, data)
				require.NoError(t, b.SendDatagram(data[:100]))
				for range 10 {
					check(e, &last[0])
					check(server, &last[1])
					time.Sleep(time.Millisecond)
				}
				switch i % 3 {
				case 0:
					_ = a.Abort()
				case 1:
					_ = b.Close()
				default:
					b.shedMemory()
				}
				check(e, &last[0])
				check(server, &last[1])
			}
			time.Sleep(time.Minute)
			check(e, &last[0])
			check(server, &last[1])
			for _, s := range []EndpointStats{e.Stats(), server.Stats()} {
				require.EqualValues(t, 6, s.Dialled+s.Accepted)
				require.EqualValues(t, s.Dialled+s.Accepted, uint64(s.Sessions)+s.Ended.Total(), "%+v", s)
			}
			require.NotZero(t, server.Totals().FEC.DataReceived, "of decoders that are gone")
		})
	}
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
		var want SessionTotals
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

// What the loop over many sessions holds the table for is the copy of a slice.
func BenchmarkSessions(b *testing.B) {
	e := &Endpoint{}
	e.table.Init((*Conn).tableEntry, 0)
	for i := range uint32(100_000) {
		c := &Conn{ep: e}
		c.hs.Role = opening.Offered
		c.entry.Conv = i
		e.table.Add(c)
	}
	for b.Loop() {
		n := 0
		for range e.Sessions() {
			n++
		}
		if n != 100_000 {
			b.Fatal(n)
		}
	}
}

// A session whose new address is taken by another session of the same
// conversation id stays where it is.
func TestMoveDoesNotCollide(t *testing.T) {
	inWorld(t, 28, clean, func(t *testing.T, w *world) {
		e, _ := w.endpoint(serverAddr, &Config{Cipher: testAEAD(t), DialTimeout: -1})
		at := func(port int) net.Addr { return &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2).To4(), Port: port} }
		x, err := e.Dial(context.Background(), at(1))
		require.NoError(t, err)
		key := x.entry.Key()
		key.Addr = netip.AddrPortFrom(key.Addr.Addr(), 2)
		_, err = e.openSession(key, at(2), false)
		require.NoError(t, err)
		require.False(t, e.rekey(x, key))
		require.Equal(t, x, e.table.Get(x.entry.Key()))
	})
}

// The conversation id may be asked for while the session moves.
func TestConvWhileMoving(t *testing.T) {
	inWorld(t, 28, clean, func(t *testing.T, w *world) {
		e, _ := w.endpoint(serverAddr, &Config{Cipher: testAEAD(t), DialTimeout: -1})
		c, err := e.Dial(context.Background(), &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2).To4(), Port: 1})
		require.NoError(t, err)
		conv := c.Conv()
		done := make(chan uint32)
		go func() { done <- c.Conv() }()
		key := c.entry.Key()
		key.Addr = netip.AddrPortFrom(key.Addr.Addr(), 2)
		require.True(t, e.rekey(c, key))
		require.Equal(t, conv, <-done)
		require.Equal(t, c, e.table.Get(key))
	})
}
