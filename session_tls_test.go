package kcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// Sessions with TLS work in programs that are held to FIPS 140-3, between two of
// them and with others, and offer no cipher that is not approved. They run over
// real sockets: the FIPS module needs a clock that moves to collect entropy.
func TestTLSUnderFIPS(t *testing.T) {
	t.Parallel()
	long(t)
	config := secured(Config{FEC: FEC{Data: 10, Parity: 3}, MaxMTU: 9000})
	config.TLS = config.TLS.Clone()
	config.TLS.Time = func() time.Time { return bubbleTime }
	config.TLS.ClientAuth = tls.RequireAnyClientCert
	config.TLS.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	if addr := os.Getenv("KCP_TEST_FIPS"); addr != "" {
		require.True(t, protect.OwnNonces())
		// crypto/tls of Go 1.25.0 offers X25519, which crypto/ecdh then refuses.
		config.TLS.CurvePreferences = []tls.CurveID{tls.CurveP256}
		echoOver(t, addr, &Config{TLS: &tls.Config{InsecureSkipVerify: true, Certificates: config.TLS.Certificates, CurvePreferences: config.TLS.CurvePreferences}})
		l := echoServer(t, config)
		for range 2 { // the second is resumed
			echoOver(t, l.Addr().String(), config)
		}
		require.Zero(t, l.Endpoint().Stats().DropCipher)
		return
	}
	var offered []uint16
	config.TLS.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		offered = hello.CipherSuites
		return nil, nil
	}
	l := echoServer(t, config)
	test := exec.Command(os.Args[0], "-test.run=^TestTLSUnderFIPS$")
	test.Env = append(os.Environ(), "GODEBUG=fips140=only", "KCP_TEST_FIPS="+l.Addr().String())
	out, err := test.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Zero(t, l.Endpoint().Stats().DropCipher)
	require.True(t, slices.Contains(offered, tls.TLS_AES_128_GCM_SHA256))
	require.False(t, slices.Contains(offered, tls.TLS_CHACHA20_POLY1305_SHA256))
}

// echoServer returns a listener whose sessions send back what they receive, and
// change their keys often.
func echoServer(t *testing.T, config *Config) *Listener {
	l, err := Listen("udp", "127.0.0.1:0", config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Endpoint().Close() })
	go func() {
		for {
			c, err := l.AcceptKCP(context.Background())
			if err != nil {
				return
			}
			c.session.Inside().Keys().Keys.SetUpdateAfter(20)
			c.handleDatagrams(func(b []byte) { _ = c.SendDatagram(b) })
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return l
}

// echoOver dials a server of echoServer, and checks its answers.
func echoOver(t *testing.T, addr string, config *Config) {
	c, err := Dial("udp", addr, config)
	require.NoError(t, err)
	c.session.Inside().Keys().Keys.SetUpdateAfter(20)
	want := content(1, 500_000)
	go func() { _, _ = c.Write(want) }()
	receive(t, c, want)
	datagram := content(2, 1000) // whatever either end has found of the path
	require.NoError(t, c.SendDatagram(datagram))
	got, err := c.ReceiveDatagram(context.Background())
	require.NoError(t, err)
	require.Equal(t, datagram, got)
	sent, received := c.session.Inside().Keys().Keys.Generations()
	require.Greater(t, min(sent, received), uint64(3))
	require.NoError(t, c.Close())
}

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
			config := secured(Config{DialTimeout: 3 * time.Second, PeerTimeout: 5 * time.Second})
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

// FuzzTLSContent has a peer seal whatever it likes. The session may end; nothing
// else suffers.
func FuzzTLSContent(f *testing.F) {
	f.Add([]byte("content"), false)
	f.Add(bytesOf(wire.Signal{Code: wire.Ping, SN: 1, TS: 2}), true)
	f.Add(packetOf(0, push(0, 0, "x"), push(1, 0, "y")), false)
	f.Add(append(bytesOf(wire.Signal{Code: wire.Crypto, SN: 0, TS: 0}), 1, 2, 3), true)
	f.Add([]byte{0, 0, 0, 0, 0xf1, 0, 30, 0, 1, 2, 3, 4}, false)
	f.Add([]byte{0, 0, 0, 0, 0xf2, 0, 30, 0, 1, 2, 3, 4}, true)
	f.Fuzz(func(t *testing.T, content []byte, fromServer bool) {
		content = content[:min(len(content), 1400)]
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			a, b, l, pc := w.movable(secured(Config{PeerTimeout: 5 * time.Second, Linger: time.Second}))
			from, to := a, b
			if fromServer {
				from, to = b, a
			}
			client, server := pc.AddrPort(), netip.MustParseAddrPort(serverAddr)
			for _, conv := range []bool{true, false} {
				packet := make([]byte, protect.KeyedOverhead+len(content))
				copy(packet[protect.HeaderSize:], content)
				if inner := packet[protect.HeaderSize : protect.HeaderSize+len(content)]; conv && len(inner) >= wire.HeaderSize {
					h := wire.DecodeHeader(inner)
					h.Conv = a.Conv()
					h.Encode(inner)
				}
				require.NoError(t, from.session.Inside().Keys().Seal(packet, nil))
				if fromServer {
					w.net.Inject(server, client, packet)
				} else {
					w.net.Inject(client, server, packet)
				}
				time.Sleep(100 * time.Millisecond)
			}
			require.NoError(t, to.SetReadDeadline(time.Now().Add(time.Second)))
			_, _ = to.Read(make([]byte, 2000))
			_, _ = a.Close(), b.Close()
			time.Sleep(2 * time.Minute)
			require.Zero(t, l.Endpoint().Stats().Sessions)
			require.Zero(t, l.Endpoint().Stats().Buffered)
			e, _ := w.endpoint("10.0.0.4:0", secured(Config{}))
			c := w.dial(e)
			bothWays(t, c, accepted(t, l), []byte("up"), []byte("down"))
		})
	})
}

// A session whose peer changes its keys again before this end has followed ends,
// with an error that says so.
func TestTLSKeyUpdateTooFast(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(secured(Config{}), secured(Config{}))
		time.Sleep(time.Second)
		var batch []udp.Datagram // in one, so that b sends nothing in between
		w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
			if to.String() == serverAddr {
				batch = append(batch, udp.Datagram{Buf: bytes.Clone(p), Addr: from})
			}
			return false
		})
		for range 2 {
			require.NoError(t, a.session.Inside().Keys().Keys.Update())
			require.NoError(t, a.SendDatagram([]byte("under new keys")))
		}
		require.Len(t, batch, 2)
		b.ep.take(batch, new(readState), nil)
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Second)))
		wantReadErr(t, b, errKeyUpdate)
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
				outageConfigs(t, func(t *testing.T, config *Config) {
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
	c   *Conn
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
func (w *world) becomes(l *Listener, d dialOutcome) string {
	var none *NoAnswerError
	var lost *PeerLostError
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
	case errors.Is(err, ErrReset):
		return "reset"
	case errors.As(err, &lost):
		return "lost"
	}
	require.NoError(w.t, err)
	return string(b[:n])
}

// secured returns config with TLS, for both ends.
func secured(config Config) *Config {
	config.TLS = testTLS()
	return &config
}
