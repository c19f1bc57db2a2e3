package kcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/liveness"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Endings in which one side knows less of the other than it believes.

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
				time.Sleep(liveness.DefaultPeerTimeout)
				require.Zero(t, e.Stats().Sessions)
			})
		}
	}
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

// ACKs wait for answers once the peer is known to be one of this package.
func TestOnlyExtendedPeersWaitForACKs(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		for _, c := range []*Conn{a, b, newConn(l.Endpoint(), session.Key{}, nil, false)} {
			c.mu.Lock()
			require.Equal(t, c == a || c == b, c.session.Inside().Machine().Inspect().Extensions.AwaitReplies)
			c.mu.Unlock()
		}
	})
}

// What a CLOSE carries counts only if the CLOSE does, once, and if it is neither
// too short nor too long.
func TestForgedCloseReasons(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		b.mu.Lock()
		defer func() { _ = a.Abort(0, "") }()
		defer b.mu.Unlock()
		token, next := ourToken(b), b.session.Inside().Machine().Position().Received
		forge := func(token uint32, payload []byte) {
			p := make([]byte, wire.HeaderSize+len(payload))
			wire.Signal{Code: wire.Close, SN: uint32(next), TS: token}.Encode(wire.Header{Conv: b.Conv(), Wnd: 128}, p)
			wire.PutPayload(p, payload)
			require.NoError(t, b.session.Inside().Machine().Input(p))
		}
		forge(token+1, content(1, closing.ReasonCode)) // with another token it is nothing
		_, said := b.session.Inside().Reasons()
		require.False(t, said)
		require.False(t, b.session.Inside().Closing().Read == closing.ReadClosed)
		forge(token, content(1, closing.ReasonCode-1))
		forge(token, content(1, closing.ReasonCode+closing.MaxReasonText+1))
		_, said = b.session.Inside().Reasons()
		require.False(t, said)
		require.True(t, b.session.Inside().Closing().Read == closing.ReadClosed)
		forge(token, append(make([]byte, closing.ReasonCode), "first"...))
		forge(token, append(make([]byte, closing.ReasonCode), "second"...))
		text, _ := b.session.Inside().Reasons()
		require.Equal(t, "first", text)
	})
}

// A peer that has not announced that it takes reasons gets a CLOSE without.
func TestCloseReasonOfEarlierPeer(t *testing.T) {
	inWorld(t, 3, netsim.LinkConfig{Delay: 5 * time.Millisecond}, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		a.mu.Lock()
		*a.session.Inside().Capabilities() &^= session.CapReason
		a.mu.Unlock()
		require.NoError(t, a.CloseWithError(9, "not for you"))
		_, err := b.Read(make([]byte, 1))
		require.True(t, errors.Is(err, io.EOF), "%v", err)
		require.NoError(t, b.Close())
	})
}

// A bad packet that begins with a signal from outside says nothing of the good
// one that comes after it.
func TestGoodPacketAfterABadOne(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{KeepAlive: -1}, &Config{KeepAlive: -1})
		time.Sleep(time.Minute)
		from, to := b.LocalAddr().(*net.UDPAddr).AddrPort(), a.LocalAddr().(*net.UDPAddr).AddrPort()
		outside, bad := make([]byte, wire.HeaderSize), make([]byte, wire.HeaderSize)
		wire.Signal{Code: wire.Reset, SN: 1, TS: 2}.Encode(wire.Header{Conv: a.Conv()}, outside)
		h := wire.Header{Conv: a.Conv(), Cmd: wire.CmdWins, Una: 1000} // acknowledges what was never sent
		h.Encode(bad)
		w.net.Inject(from, to, append(outside, bad...))
		writeAll(t, b, []byte("good"))
		time.Sleep(time.Second)
		synctest.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		require.EqualValues(t, 1, a.session.Inside().Drops().Una)
		require.Greater(t, a.session.Inside().LastHeard(), time.Minute)
	})
}

// The peer has ended in order, its last answers were lost, and it has forgotten the
// session since. RESET says so, of whichever request it comes first; of PING, too, the
// session has ended in order.
func TestResetOfPingAfterClose(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		go func() { _, _ = io.Copy(io.Discard, b) }()
		time.Sleep(time.Second) // until all is acknowledged
		from, to := b.LocalAddr().(*net.UDPAddr).AddrPort(), a.LocalAddr().(*net.UDPAddr).AddrPort()
		w.net.SetFilter(func(_, at netip.AddrPort, _ []byte) bool { return at != to })
		closed := make(chan error, 1)
		go func() { closed <- a.Close() }()
		time.Sleep(2 * time.Second)
		a.mu.Lock()
		ping := a.session.Inside().Opening().Of(opening.Ping).Signal
		require.True(t, a.session.Inside().Opening().Asked(opening.Ping))
		require.NotZero(t, a.session.Inside().Opening().Unanswered&opening.Finish)
		a.mu.Unlock()
		w.net.SetFilter(nil)
		w.net.Inject(from, to, packetOf(a.Conv(), testenv.SegmentOf(wire.Signal{Code: wire.Reset, SN: ping.SN, TS: ping.TS})))
		synctest.Wait()
		require.NoError(t, <-closed)
		require.ErrorIs(t, a.Err(), net.ErrClosed)
	})
}

// What the application sees of a peer that does not behave, and when. Both ends
// are ours and time is virtual, so the times are exact; interop_test has the
// same with kcp-go in real time.

// roundTrip is that of the link clean.
const roundTrip = 20 * time.Millisecond

func udpAddr(s string) *net.UDPAddr { return net.UDPAddrFromAddrPort(netip.MustParseAddrPort(s)) }

// A listener gives up a handshake that takes too long. Its client, which knows
// nothing of that, learns of it from the answer to its next packet.

// outageTime is longer than a listener waits for a handshake to go on.
const outageTime = session.HandshakeTime + 2*time.Second

// An outage within Dial is over before Dial gives up: it succeeds, whatever had
// arrived before. Or it has succeeded by then, and the session learns of its end.
func TestDialOutlivesOutage(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*Config{
		"plain": {}, "AEAD": {Cipher: testAEAD(t)}, "shared": {SharedConvs: true},
		"validated": {AddressValidation: ValidateAlways}, "TLS": secured(Config{}), "TLS with a key": resettable(Config{}),
	} {
		config.DialTimeout = 25 * time.Second
		for up := range 3 {
			for down := range 3 {
				if config.TLS == nil && (up != 1 || down != 0) {
					continue
				}
				inWorld(t, 1, clean, func(t *testing.T, w *world) {
					l := w.listen(config)
					pc, err := w.net.Listen("10.0.0.2:5000")
					require.NoError(t, err)
					e := newEndpoint(config, true, w.socket(pc)) // which it closes once it has no session
					defer e.Close()
					testenv.Outage(w.net, serverAddr, up, down)
					time.AfterFunc(outageTime, func() { w.net.SetFilter(nil) })
					start := time.Now()
					a, err := e.Dial(context.Background(), udpAddr(serverAddr), nil)
					require.NoError(t, err, "%s: %d up, %d down", name, up, down)
					if time.Since(start) < outageTime { // it has had the whole flight of the server
						require.LessOrEqual(t, wantReadErr(t, a, ErrReset), outageTime+opening.MaxWait+roundTrip)
						return
					}
					require.Less(t, time.Since(start), outageTime+opening.MaxWait+4*roundTrip)
					bothWays(t, a, accepted(t, l), []byte("here"), []byte("there"))
					require.Equal(t, 1, l.Endpoint().Stats().Sessions)
					require.Equal(t, 1, e.Stats().Sessions)
				})
			}
		}
	}
}

// What does not come from the server, and for this session, ends no handshake; and
// an end that has dropped one does not answer answers.
func TestForgedEndsOfHandshakes(t *testing.T) {
	server, client := netip.MustParseAddrPort(serverAddr), netip.MustParseAddrPort("10.0.0.2:5000")
	inWorld(t, 1, clean, func(t *testing.T, w *world) { // not in the clear, once there are keys; nor under others
		l := w.listen(secured(Config{}))
		e, _ := w.endpoint("10.0.0.2:5000", secured(Config{}))
		testenv.Outage(w.net, serverAddr, 2, 1000)
		a := w.dial(e)
		for _, s := range []wire.Signal{{Code: wire.Abort, SN: ourToken(a), TS: 0}, {Code: wire.Reset, SN: 0, TS: ourToken(a)}, {Code: wire.Alert, SN: 40, TS: ourToken(a)}} {
			for _, under := range []byte{0, 0xa1, 0xa2, 0xa3} {
				p := packetOf(a.Conv(), testenv.SegmentOf(s))
				if under != 0 {
					p = append(append(make([]byte, protect.HeaderSize), p...), make([]byte, protect.TagSize)...)
					copy(p, p[protect.HeaderSize:][:4])
					p[4] = under
				}
				w.net.Inject(server, client, p)
			}
		}
		time.Sleep(time.Second)
		w.net.SetFilter(nil)
		bothWays(t, a, accepted(t, l), []byte("here"), []byte("there"))
	})
	for _, config := range []*Config{{}, secured(Config{})} { // nor with another token, or after the handshake has gone on
		inWorld(t, 2, clean, func(t *testing.T, w *world) {
			l := w.listen(config)
			e, _ := w.endpoint("10.0.0.2:5000", config)
			w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
				if from == client {
					for token := range uint32(100) {
						w.net.Inject(to, from, packetOf(wire.DecodeHeader(p).Conv, testenv.SegmentOf(wire.Signal{Code: wire.Abort, SN: token, TS: 0})))
					}
				}
				return true
			})
			a := w.dial(e)
			require.EqualValues(t, 1, e.Stats().Dialled)
			bothWays(t, a, accepted(t, l), []byte("here"), []byte("there"))
		})
	}
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		l := w.listen(secured(Config{}))
		e, _ := w.endpoint("10.0.0.2:5000", secured(Config{}))
		testenv.Outage(w.net, serverAddr, 2, 1000)
		a := w.dial(e)
		time.Sleep(outageTime)
		var answers [][]byte
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
			if from == server {
				answers = append(answers, bytes.Clone(p))
			}
			return true
		})
		wantReadErr(t, a, ErrReset)
		time.Sleep(time.Second)
		w.settle()
		sent := len(answers)
		w.net.Inject(client, server, bytes.Clone(answers[0]))
		time.Sleep(time.Second)
		w.settle()
		require.Len(t, answers, sent)
		p := content(2, protect.KeyedOverhead+wire.HeaderSize+1) // what may go on with the handshake is answered
		copy(p, answers[0][:4])
		p[4] = 0xa2
		w.net.Inject(client, server, p)
		time.Sleep(time.Second)
		w.settle()
		require.Len(t, answers, sent+1)
		require.Less(t, len(answers[sent]), len(p))
		require.Zero(t, l.Endpoint().Stats().Sessions)
	})
}
