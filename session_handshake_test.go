package kcp

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/liveness"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// What the application sees of a peer that does not behave, and when. Both ends
// are ours and time is virtual, so the times are exact; interop_test has the
// same with kcp-go in real time.

// roundTrip is that of the link clean.
const roundTrip = 20 * time.Millisecond

func udpAddr(s string) *net.UDPAddr { return net.UDPAddrFromAddrPort(netip.MustParseAddrPort(s)) }

// Close says that what was written is lost, where nothing else has.
func TestCloseAfterTheEnd(t *testing.T) {
	for _, restarted := range []bool{true, false} {
		for _, told := range []bool{true, false} {
			inWorld(t, 21, clean, func(t *testing.T, w *world) {
				a, pc := w.firstLife(5000, true)
				require.NoError(t, pc.Close())
				if restarted {
					w.listen(nil)
				}
				_, err := a.Write(content(2, 10000))
				require.NoError(t, err)
				time.Sleep(time.Minute)
				if told {
					_, err = a.Read(make([]byte, 1))
					require.NoError(t, a.Close())
				} else {
					err = a.Close()
				}
				if restarted {
					require.ErrorIs(t, err, ErrReset)
				} else {
					require.ErrorAs(t, err, new(*PeerLostError))
				}
				require.ErrorIs(t, a.Close(), net.ErrClosed)
			})
		}
	}
}

// restarted replaces the server's endpoint by another on the same port, which
// knows nothing.
func (w *world) restarted(pc *netsim.PacketConn, config *Config) *Listener {
	require.NoError(w.t, pc.Close())
	return w.listen(config)
}

// firstLife opens a server that is going to be restarted, and a session with it
// that has moved n bytes up and one down if answers is true.
func (w *world) firstLife(n int, answers bool) (a *Conn, pc *netsim.PacketConn) {
	l, pc := w.server(nil)
	e, _ := w.endpoint("10.0.0.2:5000", nil)
	a = w.dial(e)
	data := content(1, n)
	send(w.t, a, data)
	b, err := l.AcceptKCP(context.Background())
	require.NoError(w.t, err)
	receive(w.t, b, data)
	if answers {
		send(w.t, b, []byte("x"))
		receive(w.t, a, []byte("x"))
	}
	time.Sleep(time.Second)
	return a, pc
}

// The server is restarted on its port. A client that writes learns of it soon,
// however little the old server has said, and nothing of the old session is
// taken for a new one.
func TestServerRestarted(t *testing.T) {
	t.Parallel()
	for _, answers := range []bool{true, false} {
		for _, n := range []int{1, 50_000} {
			for _, closes := range []bool{false, true} {
				inWorld(t, 22, clean, func(t *testing.T, w *world) {
					a, pc := w.firstLife(n, answers)
					l := w.restarted(pc, nil)
					start := time.Now()
					_, err := a.Write(content(2, 10000))
					require.NoError(t, err)
					if closes {
						require.ErrorIs(t, a.Close(), ErrReset)
						require.Equal(t, roundTrip, time.Since(start))
					} else {
						require.Equal(t, liveness.ProbeAfter+roundTrip, wantReadErr(t, a, ErrReset))
					}
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					_, err = l.AcceptKCP(ctx)
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.Zero(t, l.Endpoint().Stats().Sessions)
				})
			}
		}
	}
}

// A listener gives up a handshake that takes too long. Its client, which knows
// nothing of that, learns of it from the answer to its next packet.

// outageTime is longer than a listener waits for a handshake to go on.
const outageTime = session.HandshakeTime + 2*time.Second

// outage drops everything between client and server from now on, but for the
// first packets in each direction.
func (w *world) outage(up, down int) {
	server := netip.MustParseAddrPort(serverAddr)
	w.net.SetFilter(func(_, to netip.AddrPort, _ []byte) bool {
		passes := &down
		if to == server {
			passes = &up
		}
		*passes--
		return *passes >= 0
	})
}

// outageConfigs are the settings with which a session survives an outage or
// not, whatever they are.
func outageConfigs(t *testing.T, f func(t *testing.T, config *Config)) {
	for name, config := range map[string]*Config{
		"no key of resets": secured(Config{}),
		"key of resets":    resettable(Config{}),
	} {
		config.DialTimeout = 25 * time.Second
		t.Run(name, func(t *testing.T) { f(t, config) })
	}
}

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
					w.outage(up, down)
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

// A Dial with a conversation id of the caller's choice cannot begin anew with
// another: it fails as soon as the path works. With Config.SharedConvs the server
// takes the id again.
func TestDialOfChosenConvInOutage(t *testing.T) {
	for _, shared := range []bool{false, true} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			config := &Config{DialTimeout: 25 * time.Second, SharedConvs: shared}
			w.listen(config)
			e, _ := w.endpoint("10.0.0.2:5000", config)
			w.outage(1, 0)
			time.AfterFunc(outageTime, func() { w.net.SetFilter(nil) })
			start := time.Now()
			_, err := e.Dial(context.Background(), udpAddr(serverAddr), &DialOptions{Conv: id(7)})
			if shared {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, ErrReset)
			}
			require.Less(t, time.Since(start), outageTime+opening.MaxWait+roundTrip)
		})
	}
}

// A server that always drops what is dialled does not keep a Dial busy.
func TestDialBeginsAnewSometimes(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		hellos := 0
		pc, err := w.net.Listen(serverAddr)
		require.NoError(t, err)
		defer pc.Close()
		w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
			f, _ := admission.Parse(session.PlainPacket, p, wire.DecodeHeader(p).Conv)
			hellos++
			abort := packetOf(wire.DecodeHeader(p).Conv, bytesOf(wire.Signal{Code: wire.Abort, SN: f.Hello.TS, TS: 0}))
			time.AfterFunc(roundTrip, func() { w.net.Inject(to, from, abort) })
			return false
		})
		e, _ := w.endpoint("10.0.0.2:5000", nil)
		_, err = e.Dial(context.Background(), udpAddr(serverAddr), nil)
		require.ErrorIs(t, err, ErrReset)
		require.Equal(t, maxDials, hellos)
		require.Zero(t, e.Stats().Sessions)
	})
}

// What does not come from the server, and for this session, ends no handshake; and
// an end that has dropped one does not answer answers.
func TestForgedEndsOfHandshakes(t *testing.T) {
	server, client := netip.MustParseAddrPort(serverAddr), netip.MustParseAddrPort("10.0.0.2:5000")
	inWorld(t, 1, clean, func(t *testing.T, w *world) { // not in the clear, once there are keys; nor under others
		l := w.listen(secured(Config{}))
		e, _ := w.endpoint("10.0.0.2:5000", secured(Config{}))
		w.outage(2, 1000)
		a := w.dial(e)
		for _, s := range []wire.Signal{{Code: wire.Abort, SN: ourToken(a), TS: 0}, {Code: wire.Reset, SN: 0, TS: ourToken(a)}, {Code: wire.Alert, SN: 40, TS: ourToken(a)}} {
			for _, under := range []byte{0, 0xa1, 0xa2, 0xa3} {
				p := packetOf(a.Conv(), bytesOf(s))
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
						w.net.Inject(to, from, packetOf(wire.DecodeHeader(p).Conv, bytesOf(wire.Signal{Code: wire.Abort, SN: token, TS: 0})))
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
		w.outage(2, 1000)
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

// A PING that arrives before the WELCOME, since all of those were lost, does not make
// Dial return: the session would take its peer for a legacy one, and not tell it of Close.
func TestPingBeforeWelcome(t *testing.T) {
	inWorld(t, 475, clean, func(t *testing.T, w *world) {
		start, pings := time.Now(), 0
		w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool {
			at := time.Since(start)
			switch h := wire.DecodeHeader(p); wire.Code(h.Frg) {
			case wire.Ping:
				pings++
			case wire.Hello:
				return at < 100*time.Millisecond || at > 4*time.Second
			case wire.Welcome:
				return at > 4*time.Second
			}
			return true
		})
		l := w.listen(&Config{KeepAlive: time.Second})
		e, _ := w.endpoint("10.0.0.2:5000", &Config{DialTimeout: 20 * time.Second})
		a := w.dial(e)
		require.Positive(t, pings)
		require.True(t, a.Peer().Known)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		require.NoError(t, a.Close())
		_, err = b.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
	})
}
