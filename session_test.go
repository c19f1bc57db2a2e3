package kcp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
)

// Flush takes a round trip, and no longer: the acknowledgement wakes it, also if
// the write buffer is full by then.
func TestFlushReturnsWithTheAcknowledgement(t *testing.T) {
	inWorld(t, 2, netsim.LinkConfig{Delay: 100 * time.Millisecond}, func(t *testing.T, w *world) {
		a, _, _ := w.pair(small(true), nil)
		time.Sleep(time.Second)
		require.NoError(t, a.WriteMessage(make([]byte, 1000), nil))
		time.AfterFunc(time.Millisecond, func() { _ = a.WriteMessage(make([]byte, 100000), nil) })
		start := time.Now()
		require.NoError(t, a.Flush(context.Background()))
		require.Less(t, time.Since(start), 300*time.Millisecond)
		require.Zero(t, available(a))
	})
}

// available returns how many bytes TryWrite would queue now.
func available(c *Conn) int {
	c.mu.Lock()
	defer c.unlock()
	return c.session.Inside().Available(&session.WriteCall{Late: c.io.writeDeadline.err()})
}

// isDone reports whether a channel of Done is closed.
func isDone(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// Done is closed, Err is set, and the endpoint has counted the cause, however a
// session ends.
func TestDoneErrAndTheirCount(t *testing.T) {
	mortal := Config{KeepAlive: time.Second, PeerTimeout: 2 * time.Second, Linger: time.Second, ReceiveWindow: 128}
	idle, stalls := Config{IdleTimeout: 3 * time.Second}, Config{StallTimeout: 3 * time.Second, ReceiveWindow: 128}
	unread := make([]byte, 1<<20) // more than the peer's window
	for name, c := range map[string]struct {
		config               *Config
		end                  func(w *world, a *Conn) error
		ours, theirs         error  // nil: not looked at
		ourCounter, theirOne string // in stats.Ended; "": not looked at
	}{
		"close":    {&mortal, func(_ *world, a *Conn) error { return a.Close() }, net.ErrClosed, ErrPeerClosed, "Closed", "PeerClosed"},
		"abort":    {&mortal, func(_ *world, a *Conn) error { return a.Abort(0, "") }, net.ErrClosed, ErrReset, "Aborted", "Reset"},
		"endpoint": {&mortal, func(_ *world, a *Conn) error { return a.Endpoint().Close() }, net.ErrClosed, ErrReset, "Aborted", "Reset"},
		"memory": {&mortal, func(_ *world, a *Conn) error {
			a.mu.Lock()
			a.session.Inside().Machine().Compact() // without spare memory there is nothing to give up
			a.mu.Unlock()
			require.True(t, a.shedMemory())
			return nil
		}, ErrMemoryPressure, ErrReset, "Memory", "Reset"},
		"lost": {&mortal, func(w *world, _ *Conn) error {
			w.deaf()
			return nil
		}, nil, nil, "Lost", "Lost"},
		"idle": {&idle, func(*world, *Conn) error { return nil }, nil, ErrReset, "Idle", "Reset"},
		"stalled": {&stalls, func(_ *world, a *Conn) error {
			_, err := a.Write(unread)
			return err
		}, nil, ErrReset, "Stalled", "Reset"},
		"not delivered": {&mortal, func(_ *world, a *Conn) error {
			_, err := a.Write(unread)
			if closed := a.Close(); !errors.Is(closed, ErrNotDelivered) {
				return errors.Join(err, closed)
			}
			return err
		}, ErrNotDelivered, nil, "NotDelivered", ""},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				server := *c.config
				server.IdleTimeout = 0
				a, b, l := w.pair(c.config, &server)
				done := a.Done()
				require.False(t, isDone(done))
				require.NoError(t, a.Err())
				require.Equal(t, done, a.Done())
				require.NoError(t, c.end(w, a))
				<-done
				<-b.Done()
				require.Error(t, a.Err())
				if c.ours != nil {
					require.Equal(t, c.ours, a.Err())
				}
				if c.theirs != nil {
					require.Equal(t, c.theirs, b.Err())
				}
				require.True(t, isDone(a.Done()), "asked for after the end")
				checkEnds(t, a.Endpoint(), c.ourCounter)
				if c.theirOne != "" {
					checkEnds(t, l.Endpoint(), c.theirOne)
				}
			})
		})
	}
}

// checkEnds checks that the only session of e is counted by one counter, and by no
// other.
func checkEnds(t *testing.T, e *Endpoint, counter string) {
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

// The handler of a session in a group comes before the group's events.
func TestHandlerInGroup(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, g := w.grouped(nil)
		var calls atomic.Int32
		b.handleDatagrams(func(p []byte) {
			calls.Add(1)
			_ = b.Abort(0, "") // does not wait
		})
		require.NoError(t, a.SendDatagram([]byte("x")))
		require.NoError(t, a.SendDatagram([]byte("y")))
		time.Sleep(time.Second)
		require.EqualValues(t, 1, calls.Load(), "dropped after Abort")
		for _, e := range take(t, g) {
			require.NotEqual(t, EventDatagram, e.Kind)
		}
	})
}

// What arrived in the batch in which the session was closed is dropped.
func TestHandlerOfClosedSession(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		_, b, _ := w.pair(nil, nil)
		b.handleDatagrams(func([]byte) { t.Error("called after Abort") })
		require.NoError(t, b.Abort(0, ""))
		b.handleDatagram([]byte("x"))
		require.Equal(t, stats.Datagrams{Received: 1, Dropped: 1}, b.Stats().Datagrams)
	})
}

// loopbackPair returns the two ends of a session over sockets of the system.
func loopbackPair(config *Config, address string) (a, b *Conn, stop func(), err error) {
	l, err := Listen("udp", address, config)
	if err != nil {
		return nil, nil, nil, err
	}
	a, err = Dial("udp", l.Addr().String(), config)
	if err != nil {
		return nil, nil, nil, err
	}
	if b, err = l.AcceptKCP(context.Background()); err != nil {
		return nil, nil, nil, err
	}
	stop = func() {
		var wg sync.WaitGroup
		for _, c := range []*Conn{a, b} {
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
		config        Config
	}{
		{"session", "127.0.0.1:0", false, Config{}},
		{"session, tls+fec+message", "[::1]:0", false, *secured(Config{FEC: FEC{Data: 10, Parity: 3}, MessageMode: true})},
		{"session, fec+aead", "127.0.0.1:0", false, Config{Cipher: testAEAD(t), FEC: FEC{Data: 10, Parity: 3}}},
		{"stream", "127.0.0.1:0", true, Config{}},
		{"stream, tls", "127.0.0.1:0", true, *secured(Config{})},
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
			a, b, _ := w.pair(&Config{PeerTimeout: 4 * limit, KeepAlive: -1}, &Config{ReceiveWindow: machine.MinRcvWnd, KeepAlive: -1})
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

// An idle session does nothing at all: no packet, no wake-up, spare memory
// given back; and it works when it is needed again.
func TestIdleSessionCostsNothing(t *testing.T) {
	long(t)
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(&Config{KeepAlive: -1}, &Config{KeepAlive: -1})
		want := content(3, 1<<20)
		send(t, a, want)
		receive(t, b, want)
		time.Sleep(10 * time.Second)
		for _, c := range []*Conn{a, b} {
			c.mu.Lock()
			require.Zero(t, c.session.Inside().WakeAt())
			inside := c.session.Inside().Machine().Inspect()
			require.Zero(t, inside.Send+inside.Recv)
			_, outbox := c.session.Inside().Writing()
			require.False(t, outbox)
			require.False(t, inside.Samples)
			c.mu.Unlock()
			require.True(t, c.ep.wakes.Idle())
		}
		sent := l.Endpoint().Stats().PacketsSent
		time.Sleep(24 * time.Hour)
		require.Equal(t, sent, l.Endpoint().Stats().PacketsSent)
		send(t, b, want)
		receive(t, a, want)
	})
}

// Listener: context, deadline and Close end Accept; accepted sessions survive.
func TestListener(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		_, err := l.Endpoint().Listen()
		require.ErrorIs(t, err, errListening)

		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err = l.AcceptKCP(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, l.SetDeadline(time.Now().Add(time.Second)))
		_, err = l.Accept()
		requireTimeout(t, err)
		require.NoError(t, l.SetDeadline(time.Time{}))

		errs := make(chan error)
		go func() {
			_, err := l.Accept()
			errs <- err
		}()
		time.Sleep(time.Second)
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-errs, net.ErrClosed)
		require.ErrorIs(t, l.Close(), net.ErrClosed)
		require.ErrorIs(t, l.SetDeadline(time.Now()), net.ErrClosed)

		want := content(3, 10000)
		send(t, a, want)
		receive(t, b, want)
		again, err := b.ep.Listen()
		require.NoError(t, err)
		require.NoError(t, again.Close())
	})
}

// A dialled session owns its socket, a listener shares it with what it has
// accepted; sockets close with the last use.
func TestSocketsCloseWithTheirLastUse(t *testing.T) {
	t.Parallel()
	l, err := Listen("udp", "127.0.0.1:0", nil)
	require.NoError(t, err)
	c, err := (&Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}}).
		DialContext(context.Background(), "tcp", l.Addr().String())
	require.NoError(t, err)
	require.Equal(t, l.Addr().String(), c.RemoteAddr().String())
	writeAll(t, c, []byte("x"))
	s, err := l.Accept()
	require.NoError(t, err)
	receive(t, s, []byte("x"))
	require.NoError(t, l.Close())
	require.NoError(t, c.Close())
	require.NoError(t, s.Close())
	c.(*Conn).ep.socket.readers.Wait()
	s.(*Conn).ep.socket.readers.Wait()
	require.True(t, c.(*Conn).ep.closed)
	require.True(t, s.(*Conn).ep.closed)
}

// Every field of Config has an effect on the session that it is given to.
func TestSettingsTakeEffect(t *testing.T) {
	inWorld(t, 33, clean, func(t *testing.T, w *world) {
		cfg := &Config{
			MTU: 600, SendWindow: 77, ReceiveWindow: 333, Tuning: Tuning{NoDelay: NoDelayTurbo, MinRTO: 55 * time.Millisecond, Interval: 20 * time.Millisecond, FastResend: 4, FastResendLimit: 9, DeadLink: 3},
			CongestionControl: congestion.NewNone, MessageMode: true, Redundancy: 0.5,
		}
		a, _, _ := w.pair(cfg, nil)
		k := a.session.Inside().Machine().Inspect()
		require.EqualValues(t, 50, k.Extensions.Redundancy)
		k.Extensions = machine.Extensions{}
		require.Equal(t, machine.Settings{
			MTU: 600, SendWindow: 77, ReceiveWindow: 333, NoDelay: machine.NoDelayTurbo,
			MinRTO: 55, Interval: 20, FastResend: 4, FastResendLimit: 9, DeadLink: 3, Data: machine.MessageData,
		}, k.Settings)
		require.IsType(t, congestion.NewNone(), k.Control)
	})
}

// A network that is not of UDP is refused with the error of package net, but for
// the TCP names in Dialer.DialContext, which takes the place of that of a net.Dialer.
func TestOtherNetworksAreRefused(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"", "tcp", "tcp4", "tcp6", "tcp5", "ip", "unix", "udp5"} {
		_, dialled := Dial(network, "127.0.0.1:1", nil)
		_, listened := Listen(network, "127.0.0.1:0", nil)
		for op, err := range map[string]error{"dial": dialled, "listen": listened} {
			require.Equal(t, &net.OpError{Op: op, Net: network, Err: net.UnknownNetworkError(network)}, err)
			require.EqualError(t, err, strings.TrimSpace(op+" "+network)+": unknown network "+network)
		}
	}
	_, err := new(Dialer).DialContext(t.Context(), "tcp5", "127.0.0.1:1")
	require.ErrorIs(t, err, net.UnknownNetworkError("tcp5"))
}

// What is nil and cannot be does harm where it is given, and not at the first packet.
func TestNilIsFoundWhereItIsGiven(t *testing.T) {
	require.PanicsWithValue(t, "kcp: New: nil output", func() { machine.New(1, nil) })
	g := NewGroup()
	err := g.Handle(nil)
	require.ErrorIs(t, err, errNoHandler)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.NoError(t, g.Close())
}
