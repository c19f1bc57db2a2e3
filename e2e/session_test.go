package e2e

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
)

// A bad packet is counted by reason and leaves other sessions alone.
func TestBadPacketsAreCounted(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		good := header{conv: a.Conv(), cmd: cmdWins, wnd: 100}
		bad := func(change func(h *header)) []byte {
			h := good
			change(&h)
			return h.append(nil)
		}
		other := header{conv: a.Conv() + 1, cmd: cmdWins}
		for _, p := range [][]byte{
			bad(func(h *header) { h.len = 1 }),
			bad(func(h *header) { h.cmd = 88 }),
			bad(func(h *header) { h.una = 1000 }),
			other.append(good.append(nil)),
			make([]byte, 23),
			bad(func(h *header) { h.conv++ }),
			{},
		} {
			w.net.Inject(addrPort(a.LocalAddr()), addrPort(b.LocalAddr()), p)
		}
		w.settle()
		require.Equal(t, stats.Drops{Length: 1, Command: 1, Una: 1, Conv: 1}, b.Stats().Dropped)
		require.Equal(t, uint64(2), l.Endpoint().Stats().DropShort)
		require.Equal(t, uint64(1), l.Endpoint().Stats().DropUnknown)
		w.move(a, b, 1, 100000)
	})
}

// DeadLink ends a silent session after so many transmissions.
func TestDeadLink(t *testing.T) {
	inWorld(t, 12, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(&kcp.Config{Tuning: kcp.Tuning{DeadLink: 5}, PeerTimeout: -1}, nil)
		time.Sleep(time.Second) // nothing is in flight
		w.deaf()
		w.say(a, "x")
		isLost(t, end(a))
		require.EqualValues(t, 4, a.Stats().TimeoutRetransmits)
	})
}

// Close does not wait for ever, and says what was not delivered. If the peer reads, it
// takes a round trip and not more.
func TestLingerIsBounded(t *testing.T) {
	inWorld(t, 21, clean, func(t *testing.T, w *world) {
		a, _, l := w.pair(&kcp.Config{Linger: 3 * time.Second}, nil)
		time.Sleep(time.Second)
		w.deaf()
		w.say(a, "nobody will read this")
		start := time.Now()
		require.ErrorIs(t, a.Close(), kcp.ErrNotDelivered)
		require.Equal(t, 3*time.Second, time.Since(start))
		require.ErrorIs(t, a.Close(), net.ErrClosed)
		w.hearing()
		a = w.dial(a.Endpoint())
		time.Sleep(time.Second)
		start = time.Now()
		w.say(a, "bye")
		require.NoError(t, a.Close())
		require.Equal(t, roundTrip, time.Since(start))
		w.hear(accepted(t, l), "bye")
	})
}

// With a full backlog Dial gets no answer, and is let in when there is room. Sessions of
// a Dial that does not wait are not lost.
func TestFullBacklog(t *testing.T) {
	inWorld(t, 23, clean, func(t *testing.T, w *world) {
		l := w.listen(&kcp.Config{Limits: kcp.Limits{Backlog: 2}})
		e, patient := w.client(&kcp.Config{DialTimeout: 4 * time.Second}), w.client(&kcp.Config{DialTimeout: -1})
		for i := range 2 {
			w.say(w.dial(e), string(rune('a'+i)))
		}
		time.Sleep(time.Second)
		start := time.Now()
		_, err := e.Dial(context.Background(), l.Addr(), nil)
		require.ErrorAs(t, err, new(*kcp.NoAnswerError))
		require.Equal(t, 4*time.Second, time.Since(start))
		require.Positive(t, l.Endpoint().Stats().DropBacklog)
		require.Equal(t, 2, l.Endpoint().Stats().Sessions)
		for i := range 8 {
			w.say(w.dial(patient), string(rune('c'+i)))
		}
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, 2, l.Endpoint().Stats().Backlog)
		seen := make(map[byte]bool)
		for range 10 {
			b := make([]byte, 2)
			n, err := accepted(t, l).Read(b)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			seen[b[0]] = true
		}
		require.Len(t, seen, 10)
		for range 2 {
			w.dial(e)
		}
		time.Sleep(time.Second)
		time.AfterFunc(500*time.Millisecond, func() { accepted(t, l) })
		start = time.Now()
		w.dial(e)
		require.Equal(t, 600*time.Millisecond+roundTrip, time.Since(start)) // the third hello
	})
}

// Errors of the socket concern one packet; sessions and listener go on.
func TestSocketErrors(t *testing.T) {
	inWorld(t, 25, clean, func(t *testing.T, w *world) {
		l, serverPC := w.server(nil)
		client, clientPC := w.endpoint("10.0.0.2:0", nil)
		a := w.dial(client)
		w.say(a, "first")
		b := accepted(t, l)
		w.hear(b, "first")
		fail := []error{syscall.ECONNREFUSED, syscall.ENOBUFS, syscall.EPERM, errors.New("10052")}
		for i, err := range fail {
			serverPC.FailReads(err, 20)
			clientPC.FailReads(err, 20)
			serverPC.FailWrites(err, 5)
			clientPC.FailWrites(err, 5)
			w.move(a, b, uint64(i), 40000)
			time.Sleep(time.Second)
		}
		require.GreaterOrEqual(t, l.Endpoint().Stats().ReadErrors, uint64(20*len(fail)-20))
		// What is left over would only delay the next dial.
		serverPC.FailReads(nil, 0)
		clientPC.FailReads(nil, 0)
		serverPC.FailWrites(nil, 0)
		clientPC.FailWrites(nil, 0)
		w.say(w.dial(client), "next")
		w.hear(accepted(t, l), "next")
	})
}

// A huge Write does not end up in memory.
func TestHugeWrite(t *testing.T) {
	long(t)
	inWorld(t, 27, clean, func(t *testing.T, w *world) {
		const buffer = 256 << 10
		a, b, _ := w.pair(&kcp.Config{SendWindow: 32, WriteBuffer: buffer, CongestionControl: congestion.NewNone}, nil)
		want := content(27, 4<<20)
		most := 0
		done := make(chan error)
		go func() {
			_, err := a.Write(want)
			done <- err
		}()
		for rest := want; len(rest) > 0; rest = rest[len(want)/64:] {
			receive(t, b, rest[:len(want)/64])
			s := a.Stats()
			most = max(most, s.WriteBuffered)
			require.LessOrEqual(t, s.InFlight, 32)
		}
		require.NoError(t, <-done)
		require.LessOrEqual(t, most, buffer+1400)
		require.Greater(t, most, buffer/2)
	})
}

// checkEnds checks that the only session of e is counted by one counter, and by no
// other.
func checkEnds(t *testing.T, e *kcp.Endpoint, counter string) {
	t.Helper()
	s := e.Stats()
	require.EqualValues(t, 1, reflect.ValueOf(s.Ended).FieldByName(counter).Uint(), "%+v", s.Ended)
	require.EqualValues(t, 1, s.Ended.Total())
	require.EqualValues(t, 1, s.Dialled+s.Accepted)
	require.Equal(t, 1, s.Peak)
	require.Zero(t, s.Sessions)
}

// Sessions that Dial does not return are counted as well.
func TestEndsOfDial(t *testing.T) {
	for name, counter := range map[string]string{"refused": "Refused", "silent": "NoAnswer", "cancelled": "Aborted"} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			if name == "refused" {
				w.endpoint(serverAddr, nil)
			}
			e, _ := w.endpoint("10.0.0.2:0", nil)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if name == "cancelled" {
				time.AfterFunc(time.Second, cancel)
			}
			_, err := e.Dial(ctx, udpAddr(serverAddr), nil)
			require.Error(t, err)
			synctest.Wait()
			checkEnds(t, e, counter)
		})
	}
}

// loopbackPair returns the two ends of a session over sockets of the system.
func loopbackPair(config *kcp.Config, address string) (a, b *kcp.Conn, stop func(), err error) {
	l, err := kcp.Listen("udp", address, config)
	if err != nil {
		return nil, nil, nil, err
	}
	a, err = kcp.Dial("udp", l.Addr().String(), config)
	if err != nil {
		return nil, nil, nil, err
	}
	if b, err = l.AcceptKCP(context.Background()); err != nil {
		return nil, nil, nil, err
	}
	stop = func() {
		var wg sync.WaitGroup
		for _, c := range []*kcp.Conn{a, b} {
			wg.Go(func() { _ = c.Close() }) // most cases leave data unread
		}
		wg.Wait()
		_ = l.Close()
	}
	return a, b, stop, nil
}

// The judge of net.Conn, for sessions and streams, with what changes a packet's way.
func TestNetConn(t *testing.T) { // by itself: nettest ends each case after a minute
	var wg sync.WaitGroup // all at once, as the cases mostly wait
	for _, v := range []struct {
		name, address string
		stream        bool
		config        kcp.Config
	}{
		{"session", "127.0.0.1:0", false, kcp.Config{}},
		{"session, tls+fec+message", "[::1]:0", false, *secured(kcp.Config{FEC: kcp.FEC{Data: 10, Parity: 3}, MessageMode: true})},
		{"session, fec+aead", "127.0.0.1:0", false, kcp.Config{Cipher: testAEAD(t), FEC: kcp.FEC{Data: 10, Parity: 3}}},
		{"stream", "127.0.0.1:0", true, kcp.Config{}},
		{"stream, tls", "127.0.0.1:0", true, *secured(kcp.Config{})},
	} {
		if repeated() && v.config.TLS == nil {
			continue
		}
		v.config.Linger = 2 * time.Second // one case closes while nobody reads
		wg.Go(func() {
			t.Run(v.name, func(t *testing.T) {
				nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
					a, b, stop, err := loopbackPair(&v.config, v.address)
					if err != nil || !v.stream {
						return a, b, stop, err
					}
					s, err := a.OpenStream(context.Background(), nil)
					if err != nil {
						return nil, nil, nil, err
					}
					r, err := b.AcceptStream(context.Background())
					return s, r, stop, err
				})
			})
		})
	}
	wg.Wait()
}

// While the peer's window is zero it is probed after 200 ms, and then at intervals
// that grow by half each time, up to 5 s or a quarter of PeerTimeout.
func TestZeroWindowProbes(t *testing.T) {
	long(t)
	for _, limit := range []time.Duration{5 * time.Second, time.Second} {
		inWorld(t, 2, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&kcp.Config{PeerTimeout: 4 * limit, KeepAlive: -1}, &kcp.Config{ReceiveWindow: machine.MinRcvWnd, KeepAlive: -1})
			closed := make(chan time.Time, 1) // when the window of zero arrives
			var mu sync.Mutex
			var probes []time.Time
			from := a.LocalAddr().(*net.UDPAddr).AddrPort()
			w.net.SetFilter(func(src, _ netip.AddrPort, p []byte) bool {
				mu.Lock()
				defer mu.Unlock()
				for rest := p; len(rest) >= wire.HeaderSize; {
					h := wire.DecodeHeader(rest)
					switch {
					case src == from && h.Cmd == wire.CmdWask && h.Frg == 0:
						probes = append(probes, time.Now())
					case src != from && h.Wnd == 0:
						select {
						case closed <- time.Now().Add(clean.Delay):
						default:
						}
					}
					rest = rest[wire.HeaderSize+int(h.Len):]
				}
				return true
			})
			want := content(1, 1<<20) // more than the window
			send(t, a, want)
			time.Sleep(time.Minute)
			last, interval := <-closed, 200*time.Millisecond
			mu.Lock()
			seen := slices.Clone(probes)
			mu.Unlock()
			require.Greater(t, len(seen), 10)
			for i, at := range seen {
				require.InDelta(t, interval, at.Sub(last), float64(5*time.Millisecond), "probe %d", i)
				last, interval = at, min(interval*3/2, limit)
			}
			require.Equal(t, limit, interval)
			receive(t, b, want)
		})
	}
}

// A network that is not of UDP is refused with the error of package net, but for
// the TCP names in Dialer.DialContext, which takes the place of that of a net.Dialer.
func TestOtherNetworksAreRefused(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"", "tcp", "tcp4", "tcp6", "tcp5", "ip", "unix", "udp5"} {
		_, dialled := kcp.Dial(network, "127.0.0.1:1", nil)
		_, listened := kcp.Listen(network, "127.0.0.1:0", nil)
		for op, err := range map[string]error{"dial": dialled, "listen": listened} {
			require.Equal(t, &net.OpError{Op: op, Net: network, Err: net.UnknownNetworkError(network)}, err)
			require.EqualError(t, err, strings.TrimSpace(op+" "+network)+": unknown network "+network)
		}
	}
	_, err := new(kcp.Dialer).DialContext(t.Context(), "tcp5", "127.0.0.1:1")
	require.ErrorIs(t, err, net.UnknownNetworkError("tcp5"))
}

// A HELLO that is sent once more, when its session is forgotten, opens none.
func TestReplayedHelloOpensNothing(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		config := &kcp.Config{Cipher: testAEAD(t)}
		l := w.listen(config)
		e, _ := w.endpoint("10.0.0.2:0", config)
		seen := w.watched()
		a := w.dial(e)
		b := accepted(t, l)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		time.Sleep(70 * time.Second)
		hello := seen.all(w)[0]
		require.Zero(t, l.Endpoint().Stats().DropReplay)
		w.net.Inject(hello.from, hello.to, hello.data)
		time.Sleep(time.Second)
		require.EqualValues(t, 1, l.Endpoint().Stats().DropReplay)
		require.Zero(t, l.Endpoint().Stats().Sessions)
	})
}

// A listener with TLS drops a HELLO without CRYPTO, of which nothing could open.
func TestTLSHelloWithoutCrypto(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(&kcp.Config{TLS: testenv.TLS()})
		pc, err := w.net.Listen("10.0.0.9:9")
		require.NoError(t, err)
		defer pc.Close()
		packet := packetOf(77, segment(wire.CmdWask, 1, 12345, 0, 0, ""), segment(wire.CmdWins, 2, session.CapTLS, handshake.Version, 0, ""))
		_, err = pc.WriteTo(packet, l.Addr())
		require.NoError(t, err)
		time.Sleep(time.Second)
		s := l.Endpoint().Stats()
		require.EqualValues(t, []uint64{1, 0}, []uint64{s.DropHandshake, s.DropCipher})
	})
}

// A session that has ended sends nothing more when it is aborted, or closed.
func TestNothingLeavesAnEndedSession(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		time.Sleep(time.Second)
		require.NoError(t, a.Abort(0, ""))
		time.Sleep(time.Second)
		_, err := b.Read(make([]byte, 1))
		require.ErrorIs(t, err, kcp.ErrReset)
		seen := w.watched()
		require.NoError(t, b.Abort(0, ""))
		time.Sleep(time.Second)
		require.Empty(t, seen.all(w))
	})
}

// A Tracer may want nothing of a session.
func TestTracerOfNothing(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		asked := 0
		config := &kcp.Config{Tracer: func(*kcp.Conn) *kcp.Trace { asked++; return nil }}
		a, b, _ := w.pair(config, config)
		send(t, a, []byte("hello"))
		receive(t, b, []byte("hello"))
		require.Equal(t, 2, asked)
		require.NoError(t, a.Abort(0, ""))
	})
}

// An endpoint that does not listen answers nobody, of whatever version.
func TestNoAnswerToOldVersionWithoutListener(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		e, pc := w.endpoint("10.0.0.2:5000", &kcp.Config{TLS: testenv.TLS()})
		packet := packetOf(77, segment(wire.CmdWask, 1, 12345, 0, 0, ""), segment(wire.CmdWins, 2, session.CapTLS, 1, 0, ""), segment(wire.CmdWask, 0, 0, 0, 0, ""))
		to := pc.LocalAddr().(*net.UDPAddr).AddrPort()
		w.net.Inject(netip.MustParseAddrPort("10.0.0.9:9"), to, packet)
		time.Sleep(time.Second)
		require.Zero(t, e.Stats().HandshakeErrors)
	})
}

// The flight of a listener, and its repetitions, are within three times what has
// arrived from an address that is not validated.
func TestTLSFlightIsWithinCredit(t *testing.T) {
	inWorld(t, 1, netsim.LinkConfig{Delay: 20 * time.Millisecond}, func(t *testing.T, w *world) {
		config := &kcp.Config{TLS: testenv.TLS(), DialTimeout: 20 * time.Second}
		l := w.listen(config)
		begin := time.Now()
		in, out := 0, 0
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
			if from == netip.MustParseAddrPort(serverAddr) {
				out += len(p)
				return true
			}
			if time.Since(begin) > 20*time.Millisecond {
				return false
			}
			in += len(p)
			return true
		})
		e, _ := w.endpoint("10.0.0.2:0", config)
		_, err := e.Dial(t.Context(), l.Addr(), nil)
		require.NoError(t, err)
		time.Sleep(15 * time.Second)
		w.net.SetFilter(nil)
		require.Greater(t, out, in)
		require.LessOrEqual(t, out, 3*in)
	})
}

// A second plain window update shows a dialled session that its peer is a legacy one.
// The first does not.
func TestTwoWindowUpdatesShowALegacyPeer(t *testing.T) {
	for updates := range 4 {
		inWorld(t, 3, clean, func(t *testing.T, w *world) {
			pc, err := w.net.Listen(serverAddr)
			require.NoError(t, err)
			defer pc.Close()
			e, _ := w.endpoint("10.0.0.2:5000", &kcp.Config{DialTimeout: -1})
			c := w.dial(e)
			time.Sleep(100 * time.Millisecond) // before the second HELLO
			for range updates {
				w.net.Inject(netip.MustParseAddrPort(serverAddr), netip.MustParseAddrPort("10.0.0.2:5000"), packetOf(c.Conv(), segment(wire.CmdWins, 0, 0, 0, 0, "")))
				time.Sleep(20 * time.Millisecond)
			}
			require.Equal(t, updates >= 2, c.Peer().Legacy, "after %d", updates)
			require.NoError(t, c.Abort(0, ""))
		})
	}
}

// Each error of a packet has a count of its own.
func TestDropsByTheirErrors(t *testing.T) {
	var d stats.Drops
	for i, err := range []error{machine.ErrPacketShort, machine.ErrConv, machine.ErrSegmentLength, machine.ErrCommand, machine.ErrForgedUna, machine.ErrPiece, machine.ErrRequests} {
		for range i + 1 {
			session.CountDrop(&d, err)
		}
	}
	require.Equal(t, stats.Drops{Short: 1, Conv: 2, Length: 3, Command: 4, Una: 5, Piece: 6, Requests: 7}, d)
}

// What follows a question and its answer is the initial window, in bytes, however
// small those were. While nothing is known of the path it is not paced.
func TestFirstWindow(t *testing.T) {
	inWorld(t, 2, netsim.LinkConfig{Delay: 100 * time.Millisecond}, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		bothWays(t, a, b, []byte("ask"), []byte("answer"))
		time.Sleep(50 * time.Millisecond)
		start, data := time.Now(), content(3, 200_000)
		go func() { _, _ = a.Write(data) }()
		receive(t, b, data[:13_000])
		require.Less(t, time.Since(start), 150*time.Millisecond)
		first := a.Stats()
		require.LessOrEqual(t, first.InFlight, 10+1)
		receive(t, b, data[13_000:])
	})
}
