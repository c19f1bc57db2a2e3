package kcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

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
				l := w.listen(secured(Config{}))
				e, _ := w.endpoint("10.0.0.2:5000", secured(Config{}))
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
				l := w.listen(secured(Config{}))
				e, _ := w.endpoint("10.0.0.2:5000", secured(Config{}))
				a := w.dialWith(e, serverAddr, DialOptions{Conv: id(7)})
				bothWays(t, a, accepted(t, l), []byte("up"), []byte("down"))
				require.EqualValues(t, 1, e.Stats().Dialled)
			})
		})
	}
}

// With a ticket the second handshake has no certificates. Nothing else changes, and
// nothing is left of the handshakes.
func TestTLSResumption(t *testing.T) {
	for _, link := range []netsim.LinkConfig{clean, lossy} {
		inWorld(t, 2, link, func(t *testing.T, w *world) {
			l := w.listen(secured(Config{}))
			config := secured(Config{})
			config.TLS = config.TLS.Clone()
			config.TLS.ClientSessionCache = tls.NewLRUClientSessionCache(4)
			e, _ := w.endpoint("10.0.0.2:0", config)
			for i := range 3 {
				a := w.dial(e)
				b := accepted(t, l)
				bothWays(t, a, b, []byte("up"), []byte("down"))
				time.Sleep(20 * time.Second)
				require.NotEmpty(t, a.Peer().TLS.PeerCertificates)
				for _, c := range []*Conn{a, b} {
					require.Equal(t, i > 0, c.Peer().TLS.DidResume)
					c.mu.Lock()
					require.Nil(t, c.session.Inside().Exchange())
					require.Zero(t, c.session.Inside().Opening().Unanswered&opening.Hello)
					c.mu.Unlock()
				}
			}
		})
	}
}

// A server under pressure runs TLS only behind a cookie.
func TestTLSFloodMakesNoWork(t *testing.T) {
	t.Parallel()
	long(t)
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		const flood = 500
		config := secured(Config{Limits: Limits{MaxHalfOpen: 256}})
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
func (w *world) recordHello(config *Config) (packets [][]byte) {
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
		l := w.listen(secured(Config{HandshakeFailed: func(_ net.Addr, err error) { failures <- err }}))
		var answers []handshake.Message
		w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool {
			m, ok := handshake.Parse(p, conv)
			require.True(t, ok)
			answers = append(answers, m)
			return true
		})
		hello := bytesOf(wire.Signal{Code: wire.Crypto, SN: 0, TS: 1128})
		binary.LittleEndian.PutUint32(hello[20:], 1128)
		info := wire.Signal{Code: wire.Info, SN: handshake.VersionUnsealed, TS: session.CapTLS | session.CapPMTU}
		hello = packetOf(conv, bytesOf(wire.Signal{Code: wire.Hello, SN: 0, TS: token}), bytesOf(info), append(hello, content(1, 1128)...))
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
