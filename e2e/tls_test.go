package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// FuzzTLSHandshake puts a packet of the handshake, with the right tokens and well
// sealed, in front of one that is on its way, in each state of either end. The handshake
// fails with an error of its own, or the session is as good as any.
func FuzzTLSHandshake(f *testing.F) {
	f.Add([]byte{1, 0, 0, 4, 0, 0, 0, 0}, uint8(0), uint32(0), uint32(0), uint32(0), uint8(wire.Crypto))
	f.Add([]byte{2, 0, 0, 4, 0, 0, 0, 0}, uint8(2), uint32(1), uint32(9), uint32(8), uint8(wire.Crypto))
	f.Add([]byte{}, uint8(3), uint32(40), uint32(0), uint32(0), uint8(wire.Alert))
	f.Add(make([]byte, 1000), uint8(5), uint32(1<<31), uint32(1<<32-1), uint32(1<<32-1), uint8(wire.Crypto))
	f.Add([]byte{1, 2, 3}, uint8(1), uint32(0), uint32(0), uint32(0), uint8(wire.Cookie))
	f.Fuzz(func(t *testing.T, payload []byte, at uint8, sn, ts, una uint32, code uint8) {
		payload = payload[:min(len(payload), 1200)]
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			config := secured(kcp.Config{DialTimeout: 3 * time.Second, PeerTimeout: 5 * time.Second})
			l := w.listen(config)
			go echoOnce(l)
			e, _ := w.endpoint("10.0.0.2:5000", config)
			seen := uint8(0)
			w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
				if seen++; seen == 1+at%8 {
					w.net.Inject(from, to, inFront(t, p, wire.Header{Cmd: wire.CmdWins, Frg: code, SN: machine.Seq(sn), TS: machine.Seq(ts), Una: machine.Seq(una)}, payload))
				}
				return true
			})
			w.dialsOrFails(e, []byte("question"))
			time.Sleep(time.Minute)
			require.Zero(t, l.Endpoint().Stats().Sessions)
			require.Zero(t, l.Endpoint().Stats().Buffered)
		})
	})
}

// inFront returns a packet with a segment behind the signals of p, and a CRYPTO
// segment at the end if there is one in p, if p is in the clear; or else p.
func inFront(t *testing.T, p []byte, h wire.Header, payload []byte) []byte {
	if len(p) < 2*wire.HeaderSize || protect.LevelOf(p) != protect.Clear {
		return p
	}
	return resealed(t, bytes.Clone(p), func(p []byte) []byte {
		h.Conv, h.Len = wire.DecodeHeader(p).Conv, uint32(len(payload))
		b := bytes.Clone(p[:2*wire.HeaderSize])
		b = append(b, make([]byte, wire.HeaderSize)...)
		h.Encode(b[2*wire.HeaderSize:])
		b = append(b, payload...)
		if h.Cmd != wire.CmdWins || wire.Code(h.Frg) != wire.Crypto {
			b = append(b, p[2*wire.HeaderSize:]...)
		}
		return b
	})
}

// What of a handshake arrives at an end. More than the last has nothing else.
const (
	firstPacket   = iota // the first packet
	initialLevel         // what is under the initial keys
	handshakeKeys        // and under the handshake keys
)

// tlsStates are the states of a server's session with TLS while its client
// knows nothing of it beyond a level, and what becomes of the client's call once
// packets arrive again: Dial, or what goes on over the session that it has
// returned.
//   - served: that session
//   - anew: Dial begins anew, and succeeds
//   - reset: ErrReset
//   - lost: nothing is known; NoAnswerError, or PeerLostError
var tlsStates = []struct {
	name           string
	server, client int           // what has arrived
	outage         time.Duration // after that
	restart        bool          // the server knows nothing of the session any more

	stays, moves string // the client is at its address, or has moved during the outage
}{
	{"half open, initial", firstPacket, -1, time.Second, false, "served", "served"},
	{"handshake running, initial", initialLevel, -1, time.Second, false, "served", "served"},
	{"handshake running, ServerHello in part", initialLevel, firstPacket, time.Second, false, "served", "served"},
	{"handshake running, handshake", initialLevel, initialLevel, time.Second, false, "served", "served"},
	{"handshake running, application", initialLevel, handshakeKeys, time.Second, false, "served", "served"},
	{"not accepted, application", handshakeKeys, handshakeKeys, time.Second, false, "served", "served"},

	{"dropped when half open, initial", firstPacket, -1, outageTime, false, "anew", "served"},
	{"dropped, initial", initialLevel, -1, outageTime, false, "anew", "served"},
	{"dropped, ServerHello in part", initialLevel, firstPacket, outageTime, false, "anew", "anew"},
	{"dropped, handshake", initialLevel, initialLevel, outageTime, false, "anew", "anew"},
	{"dropped, application", initialLevel, handshakeKeys, outageTime, false, "reset", "reset"},

	{"forgotten, initial", initialLevel, -1, time.Second, true, "served", "served"},
	{"forgotten, ServerHello in part", initialLevel, firstPacket, time.Second, true, "anew", "anew"},
	{"forgotten, handshake", initialLevel, initialLevel, time.Second, true, "lost", "lost"},
	{"forgotten, application", initialLevel, handshakeKeys, time.Second, true, "lost", "lost"},
}

// A client learns at once what a server has left of its session, at whatever
// level it is, from wherever it asks, with a key of stateless resets and without.
func TestTLSStates(t *testing.T) {
	t.Parallel()
	for _, test := range tlsStates {
		for _, moved := range []bool{false, true} {
			want, name := test.stays, test.name
			if moved {
				want, name = test.moves, name+", moved"
			}
			t.Run(name, func(t *testing.T) {
				outageConfigs(t, func(t *testing.T, config *kcp.Config) {
					inWorld(t, 1, clean, func(t *testing.T, w *world) {
						w.passUpTo(test.server, test.client)
						l, server := w.server(config)
						e, pc := w.endpoint("10.0.0.2:5000", config)
						dialled := make(chan dialOutcome, 1)
						go func() {
							c, err := e.Dial(context.Background(), udpAddr(serverAddr), nil)
							dialled <- dialOutcome{c, err}
						}()
						time.Sleep(100 * time.Millisecond)
						w.net.SetFilter(func(netip.AddrPort, netip.AddrPort, []byte) bool { return false })
						if moved {
							require.NoError(t, pc.Rebind("10.0.0.3:6000"))
						}
						time.Sleep(test.outage)
						if test.restart {
							l = w.restarted(server, config)
						}
						w.net.SetFilter(nil)
						healed := time.Now()
						got := w.becomes(l, <-dialled)
						if n := e.Stats().Dialled; got == "served" && n > 1 {
							got = "anew"
						}
						require.Equal(t, want, got)
						if want != "lost" {
							require.Less(t, time.Since(healed), opening.MaxWait+6*roundTrip)
						}
					})
				})
			})
		}
	}
}

// dialOutcome is what Dial has returned.
type dialOutcome struct {
	c   *kcp.Conn
	err error
}

// passUpTo lets through what a state says has arrived at the server, and at the
// client.
func (w *world) passUpTo(server, client int) {
	seen := make(map[netip.AddrPort]int)
	w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
		seen[to]++
		upTo := client
		if to.String() == serverAddr {
			upTo = server
		}
		switch protect.LevelOf(p) {
		case protect.Clear:
			return upTo >= initialLevel || upTo == firstPacket && seen[to] == 1
		case protect.Handshake:
			return upTo >= handshakeKeys
		}
		return false
	})
}

// becomes returns what becomes of a dialled session.
func (w *world) becomes(l *kcp.Listener, d dialOutcome) string {
	var none *kcp.NoAnswerError
	var lost *kcp.PeerLostError
	if errors.As(d.err, &none) {
		return "lost"
	}
	require.NoError(w.t, d.err)
	go func() {
		if b, err := l.AcceptKCP(context.Background()); err == nil {
			_, _ = b.Write([]byte("served"))
		}
	}()
	_, err := d.c.Write([]byte("x"))
	require.NoError(w.t, err)
	b := make([]byte, 6)
	n, err := d.c.Read(b)
	switch {
	case errors.Is(err, kcp.ErrReset):
		return "reset"
	case errors.As(err, &lost):
		return "lost"
	}
	require.NoError(w.t, err)
	return string(b[:n])
}

// resealed opens a packet in the clear, has change change it, and seals it again,
// as anybody can who sees it. Other packets are changed as they are.
func resealed(t *testing.T, packet []byte, change func(packet []byte) []byte) []byte {
	t.Helper()
	if _, ok := handshake.InitialAt(packet); !ok || protect.LevelOf(packet) != protect.Clear {
		return change(packet)
	}
	keys := func(packet []byte, seals bool) *protect.Initial {
		m, _ := handshake.Parse(packet, binary.LittleEndian.Uint32(packet))
		dialled := m.Hello.Code != 0 // the packet is of the dialling end
		return protect.NewInitial(binary.LittleEndian.Uint32(packet), m.Hello.TS|m.Welcome.TS, dialled == seals)
	}
	packet, err := handshake.OpenInitial(keys(packet, false), packet)
	require.NoError(t, err)
	packet = change(packet)
	at, ok := handshake.InitialAt(packet)
	if !ok {
		return packet
	}
	packet = append(packet, make([]byte, protect.InitialOverhead)...)
	h := wire.DecodeHeader(packet[at-wire.HeaderSize:])
	h.Len = uint32(len(packet) - at)
	h.Encode(packet[at-wire.HeaderSize:])
	keys(packet, true).Seal(packet, at)
	return packet
}

// flip changes 1 to 8 bits of a packet.
func flip(random *rand.Rand, packet []byte) {
	for range 1 + random.IntN(8) {
		packet[random.IntN(len(packet))] ^= 1 << random.IntN(8)
	}
}

// Each bit of each packet of a handshake may be changed, and the handshake goes on
// with the next one. Each change is counted as a drop.
func TestTLSDamagedPacketsAreRepeated(t *testing.T) {
	t.Parallel()
	for at := range 6 {
		for seed := range fewer(32) {
			inWorld(t, seed, clean, func(t *testing.T, w *world) {
				random := rand.New(rand.NewPCG(seed, uint64(at)))
				seen := 0
				w.rewriter(func(_ bool, packet []byte) []byte {
					if seen++; seen-1 == at {
						flip(random, packet)
					}
					return packet
				})
				l := w.listen(secured(kcp.Config{}))
				e, _ := w.endpoint("10.0.0.2:5000", secured(kcp.Config{}))
				a := w.dial(e)
				b := accepted(t, l)
				bothWays(t, a, b, []byte("up"), []byte("down"))
				drops := func(s stats.Endpoint) uint64 {
					return s.DropCipher + s.DropHandshake + s.DropUnknown + s.DropShort + s.DropReplay + s.DropEnded
				}
				require.Positive(t, drops(l.Endpoint().Stats())+drops(e.Stats()))
			})
		}
	}
}

// A first packet that damage makes look like one of a handshake that has gone on,
// or of a peer without TLS, or like another request, is not answered, as the answer
// would end the Dial. Nor does one of the server that looks like one without TLS.
func TestTLSDamageLooksLikeAnother(t *testing.T) {
	const info, crypto = wire.HeaderSize, 2 * wire.HeaderSize
	cases := map[string]struct {
		toServer bool
		packets  int // of ClientHello, or of ServerHello
		flips    map[int]byte
	}{
		"una":             {true, 2, map[int]byte{crypto + 16: 1}},
		"without TLS":     {true, 2, map[int]byte{info + 8: session.CapTLS}},
		"CONFIRM":         {true, 2, map[int]byte{5: byte(wire.Hello ^ wire.Confirm)}},
		"a plain WELCOME": {false, 1, map[int]byte{info + 8: session.CapTLS, crypto + 5: 1}},
		"no INFO":         {false, 2, map[int]byte{info + 5: 4, crypto + 5: 1}},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 0, clean, func(t *testing.T, w *world) {
				left := test.packets
				w.rewriter(func(toServer bool, packet []byte) []byte {
					if toServer == test.toServer && left > 0 {
						left--
						for at, bits := range test.flips {
							packet[at] ^= bits
						}
					}
					return packet
				})
				l := w.listen(secured(kcp.Config{}))
				e, _ := w.endpoint("10.0.0.2:5000", secured(kcp.Config{}))
				a := w.dialWith(e, serverAddr, kcp.DialOptions{Conv: id(7)})
				bothWays(t, a, accepted(t, l), []byte("up"), []byte("down"))
				require.EqualValues(t, 1, e.Stats().Dialled)
			})
		})
	}
}

// A server under pressure runs TLS only behind a cookie.
func TestTLSFloodMakesNoWork(t *testing.T) {
	t.Parallel()
	long(t)
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		const flood = 500
		config := secured(kcp.Config{Limits: kcp.Limits{MaxHalfOpen: 256}})
		l := w.listen(config)
		hello := w.recordHello(config)
		from := netip.MustParseAddr("10.0.9.9")
		for i := range flood {
			for _, p := range hello {
				p = resealed(t, bytes.Clone(p), func(p []byte) []byte { return packetOf(uint32(i), p) })
				w.net.Inject(netip.AddrPortFrom(from, uint16(1000+i)), netip.MustParseAddrPort(serverAddr), p)
			}
			if i%50 == 0 {
				w.settle()
			}
		}
		w.settle()
		s := l.Endpoint().Stats()
		require.LessOrEqual(t, s.HalfOpen, 32+1)
		require.Greater(t, s.CookiesSent, uint64(flood-100))
		require.LessOrEqual(t, s.HandshakeErrors, uint64(33), "each stands for one that ran TLS")
		require.Less(t, s.BytesSent, 3*s.BytesReceived)
		e, _ := w.endpoint("10.0.0.2:0", config)
		bothWays(t, w.dial(e), accepted(t, l), []byte("up"), []byte("down"))
		time.Sleep(time.Minute)
		require.Equal(t, 1, l.Endpoint().Stats().Sessions)
		require.Zero(t, l.Endpoint().Stats().HalfOpen)
		require.Less(t, l.Endpoint().Stats().Buffered, 4096)
	})
}

// recordHello returns the first packets of a session that nobody answers.
func (w *world) recordHello(config *kcp.Config) (packets [][]byte) {
	e, _ := w.endpoint("10.0.7.7:7777", config)
	w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool {
		packets = append(packets, bytes.Clone(p))
		return false
	})
	defer w.net.SetFilter(nil)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := e.Dial(ctx, udpAddr("10.0.7.8:1"), nil)
	require.Error(w.t, err)
	require.Len(w.t, packets, 2)
	require.Len(w.t, packets[0], handshake.PacketSize)
	return packets
}

// A peer of the version that did not seal packets in the clear gets an answer that says
// so, at once.
func TestTLSVersionBefore(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		const conv, token = 77, 0x1234
		failures := make(chan error, 1)
		l := w.listen(secured(kcp.Config{HandshakeFailed: func(_ net.Addr, err error) { failures <- err }}))
		var answers []handshake.Message
		w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool {
			m, ok := handshake.Parse(p, conv)
			require.True(t, ok)
			answers = append(answers, m)
			return true
		})
		hello := testenv.SegmentOf(wire.Signal{Code: wire.Crypto, SN: 0, TS: 1128})
		binary.LittleEndian.PutUint32(hello[20:], 1128)
		info := wire.Signal{Code: wire.Info, SN: handshake.VersionUnsealed, TS: session.CapTLS | session.CapPMTU}
		hello = packetOf(conv, testenv.SegmentOf(wire.Signal{Code: wire.Hello, SN: 0, TS: token}), testenv.SegmentOf(info), append(hello, content(1, 1128)...))
		w.net.Inject(netip.MustParseAddrPort("10.0.0.2:5000"), netip.MustParseAddrPort(serverAddr), hello)
		require.ErrorContains(t, <-failures, "the peer speaks version 1, this end 2")
		w.settle()
		require.Len(t, answers, 1)
		require.EqualValues(t, token, answers[0].Welcome.TS)
		require.NotZero(t, answers[0].Info.TS&session.CapTLS)
		require.Equal(t, wire.Signal{Code: wire.Alert, SN: alertProtocolVersion, TS: token}, answers[0].Alert)
		require.EqualValues(t, 1, l.Endpoint().Stats().HandshakeErrors)
		require.Zero(t, l.Endpoint().Stats().Sessions)
	})
}

// Package admission reads segments and signals as the machine writes them.
func TestFirstPacketsAreReadAsWritten(t *testing.T) {
	for n := range 256 {
		cmd, code := uint8(n), wire.Code(n)
		_, ok := admission.Parse(session.PlainPacket, segment(cmd, 0, 0, 0, 0, ""), 7)
		require.Equal(t, wire.IsReference(cmd) || cmd == wire.CmdPiece || wire.IsStream(cmd), ok, cmd)
		s := wire.Signal{Code: code, SN: 8, TS: 9}
		for _, payload := range []string{"", "x"} {
			cmd := uint8(wire.CmdWins)
			if s.Asks() {
				cmd = wire.CmdWask
			}
			h := wire.Header{Cmd: cmd, Frg: uint8(code), SN: 8, TS: 9, Len: uint32(len(payload))}
			read, is := h.Signal()
			f, ok := admission.Parse(session.PlainPacket, segment(cmd, uint8(code), 9, 8, 0, payload), 7)
			require.True(t, ok)
			require.Equal(t, is && s.Asks(), f.Request.Code != 0, code)
			for code, of := range map[wire.Code]wire.Signal{wire.Hello: f.Hello, wire.Cookie: f.Cookie, wire.Info: f.Info} {
				require.Equal(t, is && s.Code == code, of == read && is, code)
			}
		}
	}
}
