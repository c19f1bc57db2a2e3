package kcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/packetkeys"
	"github.com/stretchr/testify/require"
)

// resealed opens a packet in the clear, has change change it, and seals it again,
// as anybody can who sees it. Other packets are changed as they are.
func resealed(t *testing.T, packet []byte, change func(packet []byte) []byte) []byte {
	t.Helper()
	if _, ok := handshake.InitialAt(packet); !ok || packetkeys.LevelOf(packet) != packetkeys.Clear {
		return change(packet)
	}
	keys := func(packet []byte, seals bool) *packetkeys.Initial {
		m, _ := handshake.Parse(packet, binary.LittleEndian.Uint32(packet))
		dialled := m.Hello.Code != 0 // the packet is of the dialling end
		return packetkeys.NewInitial(binary.LittleEndian.Uint32(packet), m.Hello.TS|m.Welcome.TS, dialled == seals)
	}
	packet, err := handshake.OpenInitial(keys(packet, false), packet)
	require.NoError(t, err)
	packet = change(packet)
	at, ok := handshake.InitialAt(packet)
	if !ok {
		return packet
	}
	packet = append(packet, make([]byte, packetkeys.InitialOverhead)...)
	h := decodeHeader(packet[at-headerSize:])
	h.len = uint32(len(packet) - at)
	h.encode(packet[at-headerSize:])
	keys(packet, true).Seal(packet, at)
	return packet
}

// flip changes 1 to 8 bits of a packet.
func flip(random *rand.Rand, packet []byte) {
	for range 1 + random.IntN(8) {
		packet[random.IntN(len(packet))] ^= 1 << random.IntN(8)
	}
}

// A handshake goes on over a path that changes bits of packets: what was damaged
// is dropped, counted and repeated, whatever it was.
func TestTLSHandshakeOverADamagingPath(t *testing.T) {
	t.Parallel()
	for _, config := range []Config{{}, {AddressValidation: ValidateAlways}} {
		damaged := 0
		for seed := range fewer(200) {
			inWorld(t, seed, clean, func(t *testing.T, w *world) {
				random := rand.New(rand.NewPCG(seed, 1))
				var mu sync.Mutex
				w.rewriter(func(_ bool, packet []byte) []byte {
					mu.Lock()
					defer mu.Unlock()
					if random.Float64() < 0.07 {
						damaged++
						flip(random, packet)
					}
					return packet
				})
				_, dialErr, acceptErr := w.dialTLS(secured(config), secured(config))
				require.NoError(t, dialErr)
				require.NoError(t, acceptErr)
			})
		}
		t.Logf("%d damaged", damaged)
		require.Positive(t, damaged)
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
				drops := func(s EndpointStats) uint64 {
					return s.DropCipher + s.DropHandshake + s.DropUnknown + s.DropShort + s.DropReplay + s.DropEnded
				}
				require.Positive(t, drops(l.Stats())+drops(e.Stats()))
			})
		}
	}
}

// A first packet that damage makes look like one of a handshake that has gone on,
// or of a peer without TLS, or like another request, is not answered, as the answer
// would end the Dial. Nor does one of the server that looks like one without TLS.
func TestTLSDamageLooksLikeAnother(t *testing.T) {
	const info, crypto = headerSize, 2 * headerSize
	cases := map[string]struct {
		toServer bool
		packets  int // of ClientHello, or of ServerHello
		flips    map[int]byte
	}{
		"una":             {true, 2, map[int]byte{crypto + 16: 1}},
		"without TLS":     {true, 2, map[int]byte{info + 8: capTLS}},
		"CONFIRM":         {true, 2, map[int]byte{5: byte(sigHello ^ sigConfirm)}},
		"a plain WELCOME": {false, 1, map[int]byte{info + 8: capTLS, crypto + 5: 1}},
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

// Nothing that is forged ends a Dial, unless its sender has seen the handshake: at
// each moment of it an attacker sends what would end it, with the right addresses
// and conversation id, and a token that it guesses.
func TestTLSForgedByTheBlindDoesNotEndADial(t *testing.T) {
	client := netip.MustParseAddrPort("10.0.0.2:5000")
	server := netip.MustParseAddrPort(serverAddr)
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		var once sync.Once
		var conv, token uint32
		forge := func() {
			guess := token ^ 1
			welcome := bytesOf(signal{sigHello | sigAnswer, 7, guess})
			for _, kind := range [][][]byte{
				{bytesOf(signal{sigAbort, guess, 0})},
				{bytesOf(signal{sigReset, 0, guess})},
				{bytesOf(infoSignal()), bytesOf(signal{sigReset, 0, guess})},
				{welcome, bytesOf(infoSignal())},
				{welcome, bytesOf(signal{sigInfo, handshake.VersionUnsealed, capTLS}), bytesOf(signal{sigAlert, 40, guess})},
				{welcome, bytesOf(signal{sigInfo, signalVersion, capTLS}), bytesOf(signal{sigAlert, 40, guess}), bytesOf(signal{sigCrypto, 0, 0})},
			} {
				packet := packetOf(conv, kind...)
				w.net.Inject(server, client, packet)
				sealed := bytes.Clone(packet)
				if _, ok := handshake.InitialAt(sealed); ok {
					sealed = append(sealed, make([]byte, packetkeys.InitialOverhead)...)
					at, _ := handshake.InitialAt(sealed)
					packetkeys.NewInitial(conv, guess, false).Seal(sealed, at)
					w.net.Inject(server, client, sealed)
				}
			}
			for _, level := range []byte{0xa1, 0xa2} {
				packet := content(1, 60)
				binary.LittleEndian.PutUint32(packet, conv)
				packet[4] = level
				w.net.Inject(server, client, bytes.Clone(packet))
				w.net.Inject(client, server, packet)
			}
			hello := packetOf(conv, bytesOf(signal{sigHello, 0, guess}), bytesOf(signal{sigInfo, signalVersion, capTLS}), bytesOf(signal{sigCrypto, 0, 0}))
			w.net.Inject(client, server, append(hello, make([]byte, 1100)...))
		}
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
			once.Do(func() {
				m, ok := handshake.Parse(p, binary.LittleEndian.Uint32(p))
				require.True(t, ok)
				conv, token = binary.LittleEndian.Uint32(p), m.Hello.TS
				for i := range 50 {
					time.AfterFunc(time.Duration(i)*time.Millisecond, forge)
				}
			})
			return true
		})
		l := w.listen(secured(Config{}))
		e, _ := w.endpoint(client.String(), secured(Config{}))
		a := w.dial(e)
		b := accepted(t, l)
		time.Sleep(100 * time.Millisecond)
		bothWays(t, a, b, []byte("up"), []byte("down"))
	})
}

// unsealedHello returns the first packet of a peer of the version before packets
// in the clear were sealed.
func unsealedHello(conv, token uint32, clientHello []byte) []byte {
	crypto := header{conv: conv, cmd: cmdWins, frg: uint8(sigCrypto), wnd: minRcvWnd, ts: seq(len(clientHello)), len: uint32(len(clientHello))}
	b := packetOf(conv, bytesOf(signal{sigHello, 0, token}), bytesOf(signal{sigInfo, handshake.VersionUnsealed, capTLS | capPMTU}), make([]byte, headerSize))
	crypto.encode(b[2*headerSize:])
	return append(b, clientHello...)
}

// Peers of the version that did not seal packets in the clear get an error that
// says so, at once, whichever end dials.
func TestTLSVersionBefore(t *testing.T) {
	const conv, token = 77, 0x1234
	t.Run("dials", func(t *testing.T) {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			failures := make(chan error, 1)
			l := w.listen(secured(Config{HandshakeFailed: func(_ net.Addr, err error) { failures <- err }}))
			old, err := w.net.Listen("10.0.0.2:5000")
			require.NoError(t, err)
			defer old.Close()
			hello := unsealedHello(conv, token, content(1, 1128))
			start := time.Now()
			_, err = old.WriteTo(hello, l.Addr())
			require.NoError(t, err)
			answer := make([]byte, 2000)
			n, _, err := old.ReadFrom(answer)
			require.NoError(t, err)
			require.Equal(t, roundTrip, time.Since(start))
			require.Less(t, n, len(hello))
			m, ok := handshake.Parse(answer[:n], conv)
			require.True(t, ok)
			require.EqualValues(t, token, m.Welcome.TS)
			require.NotZero(t, m.Info.TS&capTLS)
			require.Equal(t, signal{sigAlert, alertProtocolVersion, token}, signalOf(m.Alert))
			require.ErrorContains(t, <-failures, "the peer speaks version 1, this end 2")
			require.EqualValues(t, 1, l.Stats().HandshakeErrors)
			require.Zero(t, l.Stats().Sessions)
		})
	})
	t.Run("listens", func(t *testing.T) {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			old, err := w.net.Listen(serverAddr)
			require.NoError(t, err)
			defer old.Close()
			refused := make(chan signal, 1)
			go func() {
				hello := make([]byte, 2000)
				n, from, err := old.ReadFrom(hello)
				if err != nil {
					return
				}
				conv := binary.LittleEndian.Uint32(hello)
				m, _ := handshake.Parse(hello[:n], conv)
				answer := packetOf(conv, bytesOf(signal{sigHello | sigAnswer, 99, m.Hello.TS}),
					bytesOf(signal{sigInfo, handshake.VersionUnsealed, capTLS}), bytesOf(signal{sigAlert, alertDecodeError, m.Hello.TS}))
				_, _ = old.WriteTo(answer, from)
				for signalOf(m.Alert).code == 0 {
					if n, _, err = old.ReadFrom(hello); err != nil {
						return
					}
					m, _ = handshake.Parse(hello[:n], conv)
				}
				refused <- signalOf(m.Alert)
			}()
			e, _ := w.endpoint("10.0.0.2:5000", secured(Config{}))
			start := time.Now()
			_, err = e.Dial(context.Background(), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(serverAddr)))
			requireAlert(t, err, false, alertProtocolVersion)
			require.ErrorContains(t, err, "the peer speaks version 1, this end 2")
			require.Equal(t, roundTrip, time.Since(start))
			require.Equal(t, signal{sigAlert, alertProtocolVersion, 99}, <-refused)
		})
	})
}

// internal/handshake reads and writes the signals of this package.
func TestHandshakeSignals(t *testing.T) {
	const conv = 0x04030201
	var signals [][]byte
	for _, code := range []signalCode{sigHello, sigHello | sigAnswer, sigInfo, sigCookie, sigReset, sigAbort, sigAlert} {
		signals = append(signals, bytesOf(signal{code, uint32(code) + 1, uint32(code) + 2}))
	}
	m, ok := handshake.Parse(packetOf(conv, signals...), conv)
	require.True(t, ok)
	for i, s := range []handshake.Signal{m.Hello, m.Welcome, m.Info, m.Cookie, m.Reset, m.Abort, m.Alert} {
		require.Equal(t, signals[i], bytesOf(signalOf(s)))
		require.Equal(t, s, signalOf(s).toHandshake())
		require.Equal(t, s.SN, uint32(s.Code)+1)
	}
	require.EqualValues(t, sigCrypto, handshake.CodeCrypto)
	require.EqualValues(t, headerSize, handshake.SegmentSize)
	require.EqualValues(t, signalVersion, handshake.Version)
	x := handshake.NewExchange(conv, nil, nil, nil)
	require.Zero(t, x.Pending(), "it has not begun")
}
