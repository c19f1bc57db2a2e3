package kcp

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// Endings in which one side knows less of the other than it believes.

// mortal is the configuration of sessions whose peers are soon found out to be
// gone, and allAtAnEnd the time after which nothing of such a session may be left.
func mortal() *Config {
	return &Config{KeepAlive: 2 * time.Second, PeerTimeout: 3 * time.Second, Linger: time.Second}
}

func allAtAnEnd(c *Config) time.Duration {
	return c.KeepAlive*3/2 + c.PeerTimeout + c.Linger + time.Second // and time on the way
}

// Close with nothing unacknowledged is no failure, whatever became of the peer,
// and takes no time where the system says that nobody is there. With data under way it
// says that this is lost.
func TestCloseOfADeadPeer(t *testing.T) {
	for _, refused := range []bool{true, false} {
		for _, wrote := range []string{"nothing", "before", "under way"} {
			inWorld(t, 6, clean, func(t *testing.T, w *world) {
				w.listen(nil)
				e, pc := w.endpoint("10.0.0.2:5000", nil)
				e.socket.connected = refused
				a := w.dial(e)
				if wrote == "before" {
					writeAll(t, a, content(1, 5000))
				}
				time.Sleep(time.Second)
				w.net.Cut("10.0.0.1", "10.0.0.2")
				if wrote == "under way" {
					writeAll(t, a, content(1, 5000))
				}
				if refused {
					pc.FailWrites(syscall.ECONNREFUSED, 1)
				}
				start := time.Now()
				err := a.Close()
				switch {
				case wrote == "under way":
					require.ErrorIs(t, err, ErrNotDelivered)
				case refused:
					require.NoError(t, err)
					require.Zero(t, time.Since(start))
				default:
					require.NoError(t, err)
					require.Equal(t, session.DefaultLinger, time.Since(start))
				}
				time.Sleep(defaultPeerTimeout)
				require.Zero(t, e.Stats().Sessions)
			})
		}
	}
}

// What Close could not tell the peer in its time is told in the background, so
// the peer reads io.EOF and no error.
func TestCloseTellsThePeerLater(t *testing.T) {
	inWorld(t, 6, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		time.Sleep(time.Second)
		w.net.Cut("10.0.0.1", "10.0.0.2")
		require.NoError(t, a.Close())
		w.net.Heal("10.0.0.1", "10.0.0.2")
		_, err := b.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		require.NoError(t, b.Close())
		time.Sleep(time.Minute)
		require.Zero(t, a.ep.Stats().Sessions)
		require.Zero(t, b.ep.Stats().Sessions)
	})
}

// CloseWrite says of a peer whether it can be told, however early it is asked; a
// peer that cannot be is written to as before.
func TestCloseWriteOfAPeerNotYetKnown(t *testing.T) {
	for _, dialTimeout := range []time.Duration{0, -1} {
		for _, pause := range []time.Duration{0, 50 * time.Millisecond, time.Second} {
			inWorld(t, 9, clean, func(t *testing.T, w *world) {
				w.legacyPeer(serverAddr, 0, nil)
				e, _ := w.endpoint("10.0.0.2:5000", &Config{DialTimeout: dialTimeout})
				a := w.dial(e)
				time.Sleep(pause)
				require.ErrorIs(t, a.CloseWrite(), ErrLegacyPeer)
				require.LessOrEqual(t, w.net.Elapsed(), max(pause, 3*roundTrip)+opening.FirstHello)
				writeAll(t, a, []byte("still"))
				require.NoError(t, a.Close())
			})
			inWorld(t, 9, clean, func(t *testing.T, w *world) {
				l := w.listen(nil)
				e, _ := w.endpoint("10.0.0.2:5000", &Config{DialTimeout: dialTimeout})
				a := w.dial(e)
				time.Sleep(pause)
				require.NoError(t, a.CloseWrite())
				b := accepted(t, l)
				_, err := b.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err)
			})
		}
	}
	inWorld(t, 9, clean, func(t *testing.T, w *world) { // accepted
		l := w.listen(nil)
		w.legacyPeer("10.0.0.2:5000", 77, []byte("hello"))
		b := accepted(t, l)
		require.ErrorIs(t, b.CloseWrite(), ErrLegacyPeer)
		require.LessOrEqual(t, w.net.Elapsed(), session.HelloAfterData+roundTrip)
		receive(t, b, []byte("hello"))
	})
	inWorld(t, 9, clean, func(t *testing.T, w *world) { // nobody there
		e, _ := w.endpoint("10.0.0.2:5000", &Config{DialTimeout: -1})
		a := w.dial(e)
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Second)))
		requireTimeout(t, a.CloseWrite())
		require.Equal(t, time.Second, w.net.Elapsed())
	})
}

// A short session with a peer that knows no signals does not wait for what it
// will not say.
func TestCloseOfAShortLegacySession(t *testing.T) {
	inWorld(t, 9, clean, func(t *testing.T, w *world) {
		w.legacyPeer(serverAddr, 0, nil)
		e, _ := w.endpoint("10.0.0.2:5000", nil)
		a := w.dial(e)
		writeAll(t, a, []byte("x"))
		require.NoError(t, a.Close())
		require.LessOrEqual(t, w.net.Elapsed(), 2*roundTrip)
	})
}

// A session over which nothing new goes is idle, whatever its peer sends.
func TestIdleMeansNoNewData(t *testing.T) {
	empty := func(sn uint32) []byte { return push(sn, 0, "") }
	for name, next := range map[string]func(i uint32) []byte{
		"old":              func(uint32) []byte { return empty(0) },
		"empty":            func(i uint32) []byte { return empty(1 + i) },
		"beyond":           func(uint32) []byte { return push(1<<30, 0, "x") },
		"early":            func(i uint32) []byte { return push(100+i, 0, "x") },
		"empty datagram":   func(uint32) []byte { return []byte{0, 0, 0, 0, byte(fec.TypeOOB), fec.TypeOOB >> 8, 6, 0, 7, 0, 0, 0} },
		"acknowledgements": func(i uint32) []byte { return ack(i, 0, 0) },
	} {
		inWorld(t, 15, clean, func(t *testing.T, w *world) {
			l := w.listen(&Config{IdleTimeout: time.Minute})
			from, to := netip.MustParseAddrPort("10.0.0.2:5000"), netip.MustParseAddrPort(serverAddr)
			w.net.Inject(from, to, push(0, 0, "x"))
			b := accepted(t, l)
			receive(t, b, []byte("x"))
			for i := uint32(0); i < 20; i++ {
				w.net.At(time.Duration(10+20*i)*time.Second, func() { w.net.Inject(from, to, next(i)) })
			}
			var lost *PeerLostError
			_, err := b.Read(make([]byte, 1))
			require.ErrorAs(t, err, &lost, name)
			require.True(t, lost.Idle, name)
			require.InDelta(t, time.Minute, w.net.Elapsed(), float64(time.Second), name)
		})
	}
	inWorld(t, 15, clean, func(t *testing.T, w *world) { // what is new does count, in each direction
		cfg := &Config{IdleTimeout: time.Minute}
		a, b, _ := w.pair(cfg, cfg)
		for _, send := range []func(){
			func() { _, _ = a.Write([]byte("x")) }, func() { _, _ = b.Write([]byte("x")) },
			func() { _ = a.SendDatagram([]byte("x")) }, func() { _ = b.SendDatagram([]byte("x")) },
		} {
			time.Sleep(50 * time.Second)
			send()
		}
		time.Sleep(50 * time.Second)
		for _, c := range []*Conn{a, b} {
			require.Equal(t, 1, c.ep.Stats().Sessions)
		}
	})
}

// A peer that takes nothing of what waits for it has its time, however often it
// says that it is there; one that reads again before has more.
func TestStalledPeerHasItsTime(t *testing.T) {
	t.Parallel()
	long(t)
	inWorld(t, 15, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, &Config{ReceiveWindow: 128})
		wrote := make(chan error, 1)
		go func() {
			_, err := a.Write(make([]byte, 16<<20))
			wrote <- err
		}()
		time.Sleep(20 * time.Minute)
		_, err := b.Read(make([]byte, 1<<20))
		require.NoError(t, err)
		for range 100 {
			_, err := b.Read(make([]byte, 1<<20))
			require.NoError(t, err)
		}
		start := time.Now()
		var lost *PeerLostError
		require.ErrorAs(t, <-wrote, &lost)
		require.GreaterOrEqual(t, lost.Stalled, defaultStallTimeout)
		require.InDelta(t, defaultStallTimeout, time.Since(start), float64(10*time.Second))
	})
}

// A socket for one session stays as long as a peer of default settings goes on to
// ask.
func TestDialledSocketIsHeldForThePeer(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		pc, err := w.net.Listen("10.0.0.2:5000")
		require.NoError(t, err)
		e := newEndpoint(nil, true, pc)
		e.socket.disposable = true
		l := w.listen(nil)
		a := w.dial(e)
		b := accepted(t, l)
		writeAll(t, b, []byte("bye"))
		until := time.Now().Add(3 * time.Second)
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
			return from.String() == serverAddr || time.Now().After(until)
		})
		closed := make(chan error, 1)
		go func() { closed <- b.Close() }()
		got, err := io.ReadAll(a)
		require.NoError(t, err)
		require.Equal(t, "bye", string(got))
		a.mu.Lock()
		require.Equal(t, closing.DialledHold, a.session.Inside().HoldSocket())
		a.mu.Unlock()
		require.NoError(t, a.Close())
		require.NoError(t, <-closed)
		require.True(t, time.Now().After(until))
		time.Sleep(closing.DialledHold)
		require.True(t, e.isClosed())
	})
}

// owned opens the server on a socket that its endpoint closes, as that of Listen.
func (w *world) owned(config *Config) *Listener {
	w.t.Helper()
	pc, err := w.net.Listen(serverAddr)
	require.NoError(w.t, err)
	e := newEndpoint(config, true, w.socket(pc))
	w.t.Cleanup(func() { _ = e.Close() }) // the test may have closed it
	l, err := e.Listen()
	require.NoError(w.t, err)
	return l
}

// isClosed reports whether the endpoint is closed.
func (e *Endpoint) isClosed() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.closed
}

// dropping are the calls that end a listener with the sessions that it has not accepted.
var dropping = map[string]func(l *Listener) error{
	"Listener.Close": func(l *Listener) error { return l.Close() },
	"Shutdown":       func(l *Listener) error { return l.Endpoint().Shutdown(context.Background()) },
	"Endpoint.Close": func(l *Listener) error { return l.Endpoint().Close() },
}

// A client learns at once that its server has ended before it has accepted the
// session: within the handshake, and in the backlog.
func TestDroppedSessionIsTold(t *testing.T) {
	configs := map[string]*Config{
		"plain":    {},
		"validate": {AddressValidation: ValidateAlways},
		"FEC":      {FEC: FEC{Data: 10, Parity: 3}},
		"TLS":      {TLS: testTLS()},
	}
	for name, c := range testCiphers(t, 1) {
		configs[name] = &Config{Cipher: c}
	}
	for how, end := range dropping {
		for name, config := range configs {
			for _, pause := range []time.Duration{0, roundTrip / 4, roundTrip * 3 / 4} {
				for i := range 4 {
					write, loses := i&1 != 0, i&2 != 0
					if loses && (how == "Endpoint.Close" || pause > roundTrip/2 && !write) {
						continue // nothing of the client arrives that could be answered
					}
					t.Run(fmt.Sprint(how, " ", name, " after ", pause, " write ", write, " loses ", loses), func(t *testing.T) {
						inWorld(t, 21, clean, func(t *testing.T, w *world) {
							w.dropsSession(config, pause, write, loses, end)
						})
					})
				}
			}
		}
	}
}

// dropsSession dials a session, and ends the server after a pause. If loses is set, the
// first packet that the server sends afterwards is lost.
func (w *world) dropsSession(config *Config, pause time.Duration, write, loses bool, end func(*Listener) error) {
	l := w.owned(config)
	client, _ := w.endpoint("10.0.0.2:5000", config)
	a := w.dial(client)
	time.Sleep(pause)
	if loses {
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
			lost := loses && from.String() == serverAddr
			loses = loses && !lost
			return !lost
		})
	}
	start, ended := time.Now(), make(chan error, 1)
	go func() { ended <- end(l) }()
	if write {
		_, err := a.Write([]byte("question"))
		require.NoError(w.t, err)
	}
	require.NoError(w.t, a.SetReadDeadline(start.Add(time.Minute)))
	_, err := a.Read(make([]byte, 1))
	require.ErrorIs(w.t, err, ErrReset)
	require.Less(w.t, time.Since(start), time.Second)
	require.NoError(w.t, <-ended)
	time.Sleep(time.Until(start.Add(3*time.Second + time.Millisecond)))
	require.True(w.t, l.ep.isClosed())
}

// A client whose WELCOME is lost learns that the listener has been closed.
func TestDroppedDialIsRefused(t *testing.T) {
	for how, end := range dropping {
		for _, config := range []*Config{nil, {AddressValidation: ValidateAlways}, {TLS: testTLS()}} {
			if how == "Endpoint.Close" {
				continue // nobody is there any more
			}
			inWorld(t, 21, clean, func(t *testing.T, w *world) {
				l := w.owned(config)
				client, _ := w.endpoint("10.0.0.2:5000", config)
				heardFrom, ended := time.Now().Add(3*roundTrip+time.Millisecond), make(chan error, 1)
				w.net.SetFilter(func(from, _ netip.AddrPort, packet []byte) bool {
					return time.Now().After(heardFrom) || from.String() != serverAddr || len(packet) == wire.HeaderSize // a COOKIE
				})
				time.AfterFunc(3*roundTrip, func() { ended <- end(l) })
				_, err := client.Dial(context.Background(), udpAddr(serverAddr), nil)
				require.ErrorIs(t, err, ErrRefused, how)
				require.Less(t, w.net.Elapsed(), time.Second, how)
				require.NoError(t, <-ended)
			})
		}
	}
}

// Strangers that have opened sessions keep the socket for three seconds at most,
// whatever they send, and get no more bytes than they have sent. The last ABORT of
// Endpoint.Close is within the anti-amplification limit.
func TestStrangersHoldNoSocket(t *testing.T) {
	for how, end := range dropping {
		inWorld(t, 21, clean, func(t *testing.T, w *world) {
			l := w.owned(nil)
			sent, got := map[netip.AddrPort]int{}, map[netip.AddrPort]int{}
			w.net.SetFilter(func(from, to netip.AddrPort, packet []byte) bool {
				if from.String() == serverAddr {
					got[to] += len(packet)
				}
				return true
			})
			stranger := func(i int, signals ...wire.Signal) {
				packet := make([]byte, len(signals)*wire.HeaderSize)
				for n, s := range signals {
					s.Encode(wire.Header{Conv: uint32(i + 1), Wnd: 128}, packet[n*wire.HeaderSize:])
				}
				sent[floodAddr(i)] += len(packet)
				w.net.Inject(floodAddr(i), netip.MustParseAddrPort(serverAddr), packet)
			}
			for i := range 100 {
				stranger(i, wire.Signal{Code: wire.Hello, SN: 0, TS: uint32(i + 1)}, session.InfoSignal())
			}
			time.Sleep(roundTrip)
			require.Equal(t, 100, l.Endpoint().Stats().HalfOpen)
			start := time.Now()
			ended := make(chan error, 1)
			go func() { ended <- end(l) }()
			for i := 0; time.Since(start) < 3*time.Second; i++ {
				stranger(i%100, wire.Signal{Code: wire.Hello, SN: 0, TS: uint32(i%100 + 1)}, session.InfoSignal())
				stranger(i%100, wire.Signal{Code: wire.Ping, SN: 1, TS: 2})
				stranger(i%100, wire.Signal{Code: wire.Confirm, SN: 1, TS: uint32(i%100 + 1)})
				stranger(100+i, wire.Signal{Code: wire.Hello, SN: 0, TS: uint32(i + 1)}, session.InfoSignal())
				time.Sleep(roundTrip)
			}
			require.NoError(t, <-ended)
			require.LessOrEqual(t, time.Since(start), 3*time.Second+roundTrip)
			time.Sleep(time.Millisecond)
			require.True(t, l.ep.isClosed(), how)
			for addr, n := range got {
				if how == "Endpoint.Close" {
					n -= wire.HeaderSize
				}
				require.LessOrEqual(t, n, sent[addr], how)
			}
		})
	}
}

// Endpoint.Close ends a Shutdown that waits to answer the peers of dropped sessions.
func TestCloseCutsTheHoldOfShutdown(t *testing.T) {
	inWorld(t, 21, clean, func(t *testing.T, w *world) {
		l := w.owned(nil)
		client, _ := w.endpoint("10.0.0.2:5000", nil)
		w.dial(client)
		start, ended := time.Now(), make(chan error, 1)
		go func() { ended <- l.Endpoint().Shutdown(context.Background()) }()
		time.Sleep(roundTrip)
		require.NoError(t, l.Endpoint().Close())
		require.NoError(t, <-ended)
		require.Equal(t, roundTrip, time.Since(start))
	})
}
