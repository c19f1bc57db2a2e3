package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"reflect"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// alwaysLate is a socket whose reads time out for ever.
type alwaysLate struct {
	*netsim.PacketConn
	reads *atomic.Int32
}

func (a alwaysLate) ReadFromAddrPort([]byte) (int, netip.AddrPort, error) {
	a.reads.Add(1)
	return 0, netip.AddrPort{}, os.ErrDeadlineExceeded
}

// Time-outs without end do not keep a processor busy, and do not end the
// endpoint.
func TestEndlessTimeouts(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		var reads atomic.Int32
		e, _ := w.endpointOn(serverAddr, nil, func(pc *netsim.PacketConn) net.PacketConn { return alwaysLate{pc, &reads} })
		time.Sleep(time.Minute)
		require.Less(t, reads.Load(), int32(4000))
		_, err := e.Listen()
		require.NoError(t, err)
		require.NoError(t, e.Close())
	})
}

// An error of a net.PacketConn that lasts ends its endpoint, and Read, Write and
// Accept return it. One that passes does not, and neither does an error of the
// system.
func TestLastingSocketErrors(t *testing.T) {
	broken := errors.New("tunnel is down")
	for name, test := range map[string]struct {
		err   error
		times int
		ends  bool
	}{
		"lasting": {broken, 1 << 30, true},
		"EOF":     {io.EOF, 1 << 30, true},
		"passing": {broken, neterr.ManyFailures + 20, false},
		"system":  {&net.OpError{Op: "read", Err: os.NewSyscallError("recvmsg", syscall.ECONNREFUSED)}, 1 << 30, false},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 2, clean, func(t *testing.T, w *world) {
				l, pc := w.server(nil)
				e, _ := w.endpoint("10.0.0.2:0", &kcp.Config{KeepAlive: -1})
				a := w.dial(e)
				b := accepted(t, l)
				failed := make(chan error, 2)
				go func() {
					_, err := b.Read(make([]byte, 1))
					failed <- err
				}()
				go func() {
					_, err := l.Accept()
					failed <- err
				}()
				pc.FailReads(test.err, test.times)
				time.Sleep(neterr.LastingErrors - 200*time.Millisecond)
				synctest.Wait()
				require.Empty(t, failed)
				time.Sleep(time.Second)
				if !test.ends {
					require.Empty(t, failed)
					pc.FailReads(nil, 0)
					w.say(a, "x")
					require.NoError(t, <-failed)
					require.NoError(t, l.Close())
					require.ErrorIs(t, <-failed, net.ErrClosed)
					return
				}
				for range 2 {
					err := <-failed
					var socket *kcp.SocketError
					require.ErrorAs(t, err, &socket)
					require.ErrorIs(t, err, test.err)
					require.NotErrorIs(t, err, net.ErrClosed)
				}
				_, err := b.Write([]byte("x"))
				require.ErrorIs(t, err, test.err)
				require.ErrorIs(t, b.Err(), test.err)
				_, err = l.Accept()
				require.ErrorIs(t, err, test.err, "later calls, too")
				_, err = l.Endpoint().Dial(context.Background(), e.LocalAddr(), nil)
				require.ErrorIs(t, err, net.ErrClosed)
				pc.FailReads(nil, 0)
				require.ErrorIs(t, l.Endpoint().Close(), net.ErrClosed)
				w.net.Inject(pc.AddrPort(), pc.AddrPort(), []byte("x"))
				_, _, err = pc.ReadFrom(make([]byte, 100))
				require.NoError(t, err, "the deadline is cleared, and the socket is its owner's")
			})
		})
	}
}

// The errors after a socket was closed under its endpoint name the addresses once.
func TestSocketIsClosedByItsOwner(t *testing.T) {
	l, err := kcp.Listen("udp", "127.0.0.1:0", nil)
	require.NoError(t, err)
	defer l.Endpoint().Close()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	e, err := kcp.NewEndpoint(pc, nil)
	require.NoError(t, err)
	c, err := e.Dial(context.Background(), l.Addr(), nil)
	require.NoError(t, err)
	require.NoError(t, pc.Close())
	const cause = "kcp: the socket of the endpoint: use of closed network connection"
	between := fmt.Sprintf(" kcp %v->%v: ", pc.LocalAddr(), l.Addr())
	_, err = c.Read(make([]byte, 1))
	require.EqualError(t, err, "read"+between+cause)
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = c.Write(make([]byte, 1))
	require.EqualError(t, err, "write"+between+cause)
	require.EqualError(t, c.Err(), cause)
}

// A conversation id can be chosen, and is then used or refused.
func TestChosenConv(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		e, _ := w.endpoint("10.0.0.2:5000", nil)
		for _, o := range []kcp.DialOptions{{Conv: id(7)}, {Conv: new(uint32)}, {Conv: id(1<<32 - 1)}} {
			c := w.dialWith(e, serverAddr, o)
			require.Equal(t, *o.Conv, c.Conv())
			w.say(c, "hello")
			b := accepted(t, l)
			require.Equal(t, *o.Conv, b.Conv())
			w.hear(b, "hello")
		}
		again := func() error {
			c, err := e.Dial(context.Background(), l.Addr(), &kcp.DialOptions{Conv: id(7)})
			if err == nil {
				require.EqualValues(t, 7, c.Conv())
				require.NoError(t, c.Abort(0, ""))
			}
			return err
		}
		require.ErrorIs(t, again(), kcp.ErrInUse)
		require.ErrorIs(t, again(), syscall.EADDRINUSE)
		for c := range e.Sessions() {
			require.NoError(t, c.Close())
		}
		require.ErrorIs(t, again(), kcp.ErrInUse, "in TIME-WAIT")
		time.Sleep(timeWaitTime)
		require.NoError(t, again())
		_, err := e.Dial(context.Background(), udpAddr("10.0.0.3:1"), &kcp.DialOptions{Conv: id(7), Quiet: true})
		require.NoError(t, err, "another peer")
		require.NotZero(t, w.dialWith(e, serverAddr, kcp.DialOptions{}).Conv())
	})
}

// Without data a quiet session sends nothing, and Close has nothing to wait for.
// Accept returns with the first data, or with CloseWrite.
func TestQuietDial(t *testing.T) {
	for _, cfg := range []kcp.Config{{}, {Cipher: testAEAD(t)}, {FEC: kcp.FEC{Data: 2, Parity: 1}}, *secured(kcp.Config{})} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			l := w.listen(&cfg)
			e, _ := w.endpoint("10.0.0.2:5000", &cfg)
			silent := w.dialWith(e, serverAddr, kcp.DialOptions{Quiet: true})
			c := w.dialWith(e, serverAddr, kcp.DialOptions{Quiet: true})
			time.Sleep(10 * time.Minute)
			require.NoError(t, silent.SetWindow(100, 0))
			require.NoError(t, silent.Close())
			require.Zero(t, e.Stats().PacketsSent)
			w.say(c, "first data")
			if cfg.TLS == nil {
				require.EqualValues(t, 1, e.Stats().PacketsSent, "HELLO travels with the data")
			}
			b := accepted(t, l)
			w.hear(b, "first data")
			w.say(b, "answer")
			w.hear(c, "answer")
			require.False(t, c.Peer().Legacy)
			require.NoError(t, c.Close())
			require.Equal(t, io.EOF, end(b))
			half := w.dialWith(e, serverAddr, kcp.DialOptions{Quiet: true})
			require.NoError(t, half.CloseWrite())
			b = accepted(t, l)
			require.Equal(t, io.EOF, end(b))
			w.say(b, "answer")
			w.hear(half, "answer")
		})
	}
}

// An endpoint that dials itself knows what it has sent, with a listener and without.
func TestDialOwnAddress(t *testing.T) {
	configs := []kcp.Config{{}, {FEC: kcp.FEC{Data: 2, Parity: 1}}, {Cipher: testCiphers(t, 1)["aes-cfb"]}}
	for seed, cfg := range configs {
		inWorld(t, uint64(seed), clean, func(t *testing.T, w *world) {
			e, _ := w.endpoint(serverAddr, &cfg)
			start := time.Now()
			ownAddress(t, e, e.LocalAddr())
			require.Less(t, time.Since(start), 2*time.Second)
			l, err := e.Listen()
			require.NoError(t, err)
			start = time.Now()
			ownAddress(t, e, e.LocalAddr())
			require.Less(t, time.Since(start), 2*time.Second)
			require.NoError(t, l.SetDeadline(time.Now().Add(time.Second)))
			_, err = l.Accept()
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)

			for _, o := range []kcp.DialOptions{{Quiet: true}, {Quiet: true, Conv: id(9)}} {
				c := w.dialWith(e, serverAddr, o)
				w.say(c, "hello")
				require.ErrorContains(t, end(c), "own address")
			}
		})
	}
}

// Peers at several addresses have one conversation id: those of this package,
// and legacy ones. Each has its session, and none moves.
func TestSharedConvs(t *testing.T) {
	for _, aead := range []bool{false, true} {
		for _, shared := range []bool{false, true} {
			inWorld(t, 2, clean, func(t *testing.T, w *world) {
				cfg := kcp.Config{SharedConvs: shared}
				if aead {
					cfg.Cipher = testAEAD(t)
				}
				l := w.listen(&cfg)
				var conns []*kcp.Conn
				for _, addr := range []string{"10.0.0.2:5000", "10.0.0.3:5000", "10.0.0.2:5001"} {
					e, _ := w.endpoint(addr, &cfg)
					a := w.dialWith(e, serverAddr, kcp.DialOptions{Conv: id(77)})
					w.say(a, "hello")
					b := accepted(t, l)
					w.hear(b, "hello")
					conns = append(conns, a, b)
				}
				if !aead {
					p := newLegacyPeer(w, "10.0.0.7:7", l.Addr(), false)
					p.write([]byte("legacy"))
					time.Sleep(10 * time.Second)
					if require.NoError(t, l.SetDeadline(time.Now().Add(time.Second))); !shared {
						_, err := l.Accept()
						requireTimeout(t, err)
						return
					}
					b := accepted(t, l)
					w.hear(b, "legacy")
				}
				for i := 0; i < len(conns); i += 2 {
					bothWays(t, conns[i], conns[i+1], content(uint64(i), 50_000), content(uint64(i+1), 50_000))
				}
				for i := 1; i < len(conns) && shared; i += 2 {
					require.Zero(t, conns[i].Stats().Moves)
				}
			})
		}
	}
	inWorld(t, 2, clean, func(t *testing.T, w *world) { // no challenge goes to another address
		a, b, _, pc := w.movable(&kcp.Config{Cipher: testAEAD(t), SharedConvs: true, PeerTimeout: 5 * time.Second})
		require.NoError(t, pc.Rebind("10.0.0.3:6000"))
		w.say(a, "from elsewhere")
		require.Error(t, end(a))
		require.Zero(t, b.Stats().Moves)
	})
}

// The peer of a session that has ended opens another with the same address and
// conversation id, any number of times. Nothing of one is read in another, and
// nothing is lost.
func TestSharedConvsBeginAgain(t *testing.T) {
	for seed := range fewer(24) {
		for _, shared := range []bool{true, false} {
			if !shared && seed > 0 {
				continue
			}
			inWorld(t, seed, lossy, func(t *testing.T, w *world) {
				cfg := kcp.Config{SharedConvs: shared}
				if seed%3 == 1 {
					cfg.Cipher = testAEAD(t)
				}
				l := w.listen(&cfg)
				for life := range uint64(5) {
					e, pc := w.endpoint("10.0.0.2:5000", &cfg)
					a := w.dialWith(e, serverAddr, kcp.DialOptions{Conv: id(5), Quiet: true})
					send(t, a, content(life, 30_000))
					if !shared && life == 1 {
						require.NoError(t, l.SetDeadline(time.Now().Add(20*time.Second)))
						_, err := l.Accept()
						requireTimeout(t, err)
						return
					}
					b := accepted(t, l)
					receive(t, b, content(life, 30_000))
					send(t, b, content(life+100, 5000))
					receive(t, a, content(life+100, 5000))
					switch seed % 4 {
					case 0:
						_ = a.Close()
						require.Equal(t, io.EOF, end(b))
						require.NoError(t, b.Close())
					case 1:
						closed := closing(b)
						require.Equal(t, io.EOF, end(a))
						_ = a.Close()
						<-closed
					case 2:
						require.NoError(t, b.Abort(0, ""))
						_ = a.Close()
					default:
						_ = a.Close() // the server learns of the end
						_ = b.Close()
					}
					<-b.Done()
					require.NoError(t, e.Close()) // of the one process; the next one has the port again
					require.NoError(t, pc.Close())
					time.Sleep(lossy.Delay + lossy.Jitter) // until nothing of it is on its way
				}
			})
		}
	}
}

// In TIME-WAIT, what may be of the next session gets no reply that would
// acknowledge its data: not even if its HELLO and first segment are lost.
func TestSharedConvsTimeWaitIsSilent(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		cfg := kcp.Config{SharedConvs: true}
		l, _ := w.server(&cfg)
		e, pc := w.endpoint("10.0.0.2:5000", &cfg)
		a := w.dialWith(e, serverAddr, kcp.DialOptions{Conv: id(5)})
		w.say(a, string(content(1, 100_000))) // rcv_nxt is well beyond 0
		b := accepted(t, l)
		w.hear(b, string(content(1, 100_000)))
		require.NoError(t, a.Close())
		require.Equal(t, io.EOF, end(b))
		require.NoError(t, e.Close())
		require.NoError(t, pc.Close())

		var count atomic.Int32
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
			// HELLO with the first data, and what follows at once but for its
			// last packets, is lost.
			return from.Addr() == netip.MustParseAddr("10.0.0.1") || count.Add(1) > 20
		})
		e, _ = w.endpoint("10.0.0.2:5000", &kcp.Config{SharedConvs: true, CongestionControl: congestion.NewNone})
		a = w.dialWith(e, serverAddr, kcp.DialOptions{Conv: id(5), Quiet: true})
		w.say(a, string(content(2, 60_000)))
		b = accepted(t, l)
		w.hear(b, string(content(2, 60_000)))
		time.Sleep(time.Second)
		require.Zero(t, a.Stats().Dropped.Total())
	})
}

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
			questions = append(questions, packetOf(a.Conv(), testenv.SegmentOf(wire.Signal{Code: wire.Ping, SN: i, TS: i}))...)
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

// Totals are the sums of the sessions' own figures, those of live ones and of
// ended ones.
func TestTotalsAreTheSums(t *testing.T) {
	inWorld(t, 1, lossy, func(t *testing.T, w *world) {
		l := w.listen(nil)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		var conns []*kcp.Conn
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
