package kcp

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"math/big"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/arqnet/kcp/internal/fairqueue"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/packetkeys"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// longChain returns a certificate for "test" of about size bytes in all, unlike
// any other of another serial number.
func longChain(t testing.TB, serial int64, size int) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := tls.Certificate{PrivateKey: key}
	const each = 15_000
	for i := 0; size > 0; i++ {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(serial<<8 + int64(i)),
			Subject:      pkix.Name{CommonName: "test"}, DNSNames: []string{"test"},
			NotBefore: bubbleTime.AddDate(-1, 0, 0), NotAfter: bubbleTime.AddDate(100, 0, 0),
			ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: make([]byte, min(size, each))}},
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		require.NoError(t, err)
		cert.Certificate = append(cert.Certificate, der)
		size -= each
	}
	return cert
}

// withCertificate returns config with TLS, in which both ends ask for a
// certificate that they do not verify, and this one has cert.
func withCertificate(config Config, cert tls.Certificate) *Config {
	config.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, ClientAuth: tls.RequireAnyClientCert}
	return &config
}

// The certificates of a peer count as long as the session is open. The
// application has them after Close, and TIME-WAIT does not.
func TestTLSCertificatesAreCounted(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		const size = 40_000
		a, b, l := w.pair(withCertificate(Config{}, longChain(t, 1, size)), withCertificate(Config{}, longChain(t, 2, size)))
		w.settle()
		require.Greater(t, l.Stats().Buffered, size)
		require.Greater(t, a.Endpoint().Stats().Buffered, size)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		w.settle()
		require.Zero(t, l.Stats().Buffered)
		require.Zero(t, a.Endpoint().Stats().Buffered)
		tw, ok := l.Endpoint().table.TimeWaits.At(b.entry.Key(), l.Endpoint().now())
		require.True(t, ok)
		require.NotEmpty(t, a.ConnectionState().TLS.PeerCertificates)
		require.NotEmpty(t, b.ConnectionState().TLS.PeerCertificates)
		cert := weak.Make(b.ConnectionState().TLS.PeerCertificates[0])
		a, b = nil, nil
		for range 5 {
			runtime.GC()
			time.Sleep(time.Second)
		}
		require.Nil(t, cert.Value())
		require.NotNil(t, tw.Protection)
		runtime.KeepAlive(tw)
	})
}

// What a handshake takes from a peer is bounded, and the error says so.
func TestTLSTooManyCertificates(t *testing.T) {
	long, short := longChain(t, 1, (64<<10)), longChain(t, 2, (64<<10)-10_000)
	for _, test := range []struct{ client, server tls.Certificate }{{short, short}, {long, short}, {short, long}} {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			_, dialErr, acceptErr := w.dialTLS(withCertificate(Config{}, test.client), withCertificate(Config{}, test.server))
			switch {
			case len(test.client.Certificate) == len(long.Certificate):
				requireAlert(t, dialErr, true, alertBadCertificate)
				requireAlert(t, acceptErr, false, alertBadCertificate)
				require.ErrorContains(t, acceptErr, "more than 65536 bytes of certificates")
			case len(test.server.Certificate) == len(long.Certificate):
				requireAlert(t, dialErr, false, alertBadCertificate)
				requireAlert(t, acceptErr, true, alertBadCertificate)
			default:
				require.NoError(t, dialErr)
				require.NoError(t, acceptErr)
			}
		})
	}
}

// A peer with more than ten certificates is refused, at either end, and both learn why.
func TestTLSManyCertificates(t *testing.T) {
	ten, eleven := longChain(t, 1, 15_000), longChain(t, 2, 15_000)
	for len(ten.Certificate) < 10 {
		ten.Certificate = append(ten.Certificate, longChain(t, 3, 100).Certificate...)
	}
	eleven.Certificate = append(eleven.Certificate, ten.Certificate...)
	for _, test := range []struct{ client, server tls.Certificate }{{ten, ten}, {eleven, ten}, {ten, eleven}} {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			_, dialErr, acceptErr := w.dialTLS(withCertificate(Config{}, test.client), withCertificate(Config{}, test.server))
			clients, servers := len(test.client.Certificate), len(test.server.Certificate)
			if max(clients, servers) == 10 {
				require.NoError(t, dialErr)
				require.NoError(t, acceptErr)
				return
			}
			requireAlert(t, dialErr, clients > servers, alertBadCertificate)
			requireAlert(t, acceptErr, servers > clients, alertBadCertificate)
			if clients > servers {
				dialErr = acceptErr
			}
			require.ErrorContains(t, dialErr, "more than 10 certificates")
		})
	}
}

// halfOpen returns the one session of a listener, whose peer has sent the first
// part of its ClientHello, or all of it.
func (w *world) halfOpen(l *Listener, config *Config, packets int) *Conn {
	for _, p := range w.recordHello(config)[:packets] {
		w.net.Inject(netip.MustParseAddrPort("10.0.9.9:9"), netip.MustParseAddrPort(serverAddr), p)
	}
	w.settle()
	return l.Endpoint().only(w.t)
}

// only returns the one session of e.
func (e *Endpoint) only(t *testing.T) *Conn {
	e.mu.RLock()
	defer e.mu.RUnlock()
	require.Equal(t, 1, e.table.Len())
	for _, c := range e.table.Sessions() {
		return c
	}
	return nil
}

// What an address that is not validated makes a server hold is 16 KiB at most, in
// proportion to what has arrived, whatever comes at whatever level. A handshake
// that runs counts besides.
func TestTLSUnvalidatedPeersHoldLittle(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		config := secured(Config{})
		l := w.listen(config)
		c := w.halfOpen(l, config, 1)
		c.mu.Lock()
		unlock := sync.OnceFunc(c.mu.Unlock)
		defer unlock()
		x := c.tlsHandshake()
		c.inputHandshake(cryptoOf(c, 16<<10-1, []byte{1}), c.ep.now())
		require.Positive(t, x.Received())
		require.Less(t, x.Held(), 2<<10, "1 byte, far ahead")
		require.False(t, x.Started)
		for i := range 1000 {
			c.inputHandshake(cryptoOf(c, 2000+2*i, []byte{1}), c.ep.now())
			c.inputHandshake(sealedJunk(c, 1200), c.ep.now())
		}
		require.LessOrEqual(t, x.Held(), unvalidatedBytes)
		require.Empty(t, x.Early(), "there can be no keys yet")
		c.account()
		unlock()
		require.LessOrEqual(t, l.Stats().Buffered, unvalidatedBytes)
	})
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		config := secured(Config{})
		l := w.listen(config)
		c := w.halfOpen(l, config, 2)
		c.mu.Lock()
		unlock := sync.OnceFunc(c.mu.Unlock)
		defer unlock()
		x := c.tlsHandshake()
		require.True(t, x.Started)
		for i := range 100 { // TLS reads nothing of it
			before := x.Received()
			c.inputHandshake(cryptoOf(c, 3000+1000*i, make([]byte, 1000)), c.ep.now())
			require.True(t, i > 0 || x.Received() > before)
			before = x.Received()
			c.inputHandshake(sealedJunk(c, 500+10*i), c.ep.now())
			require.True(t, i > 0 || x.Received() > before)
			require.LessOrEqual(t, x.Received(), unvalidatedBytes)
		}
		require.GreaterOrEqual(t, x.Held(), x.Received()+handshake.TLSBytes)
		require.NotEmpty(t, x.Early())
		unlock()
		time.Sleep(handshakeTime + time.Second)
		require.Zero(t, l.Stats().Sessions)
		require.Zero(t, l.Stats().Buffered)
	})
}

// cryptoOf returns a packet of the dialling end with bytes of the ClientHello, as
// it is once opened.
func cryptoOf(c *Conn, offset int, data []byte) *inPacket {
	h := header{conv: c.Conv(), cmd: cmdWins, frg: uint8(sigCrypto), sn: seq(offset), ts: seq(len(data)), len: uint32(len(data))}
	b := packetOf(c.Conv(), bytesOf(signal{sigHello, 0, c.hs.peerToken}), make([]byte, headerSize))
	h.encode(b[headerSize:])
	return &inPacket{Packet: protect.Packet{Data: append(b, data...)}, conv: c.Conv(), kind: openedPacket}
}

// sealedJunk returns what looks like a packet under the application keys.
func sealedJunk(c *Conn, n int) *inPacket {
	p := make([]byte, n)
	p[4] = 0xa2
	return &inPacket{Packet: protect.Packet{Data: p}, conv: c.Conv(), kind: sealedPacket}
}

// stall keeps a server's handshakes with a network from completing: of the
// clients' packets those under the handshake keys are lost.
func (w *world) stall(network netip.Addr) {
	w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool { return from.Addr() != network || p[4] != 0xa1 })
}

// The handshakes in progress with a network are limited, those that began with a
// cookie too, and leave room for other networks. The limit is not for the
// handshakes of a day, but for those of a moment.
func TestTLSHandshakesInProgressAreLimited(t *testing.T) {
	t.Parallel()
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		config := secured(Config{MaxHalfOpen: 32, AddressValidation: ValidateAlways})
		l := w.listen(config)
		stalled := netip.MustParseAddr("10.0.9.9")
		w.stall(stalled)
		e, _ := w.endpoint("10.0.9.9:0", config)
		for range 64 {
			go func() { _, _ = e.Dial(context.Background(), l.Addr()) }()
		}
		for range 5 {
			time.Sleep(time.Second)
			require.Equal(t, 11, l.Stats().Sessions, "as many as are left for one other network, twice")
		}
		require.Greater(t, l.Stats().Buffered, 11*handshake.TLSBytes)
		require.Positive(t, l.Stats().DropHandshake)
		other, _ := w.endpoint("10.0.0.2:0", config)
		start := time.Now()
		for range 50 { // one after the other
			w.dial(other)
			accepted(t, l)
		}
		require.Less(t, time.Since(start), 10*time.Second)
		require.NoError(t, e.Close())
		w.net.SetFilter(nil)
		time.Sleep(time.Minute)
		e2, _ := w.endpoint("10.0.9.9:0", config)
		bothWays(t, w.dial(e2), accepted(t, l), []byte("up"), []byte("down"))
		w.settle()
		l.Endpoint().mu.RLock()
		defer l.Endpoint().mu.RUnlock()
		require.Zero(t, l.Endpoint().table.Shaking())
	})
}

// TLS works on fewer handshakes at a time than there are processors, but on one at
// least, and the networks of its peers take turns: many handshakes of one delay that of
// another by one. Callbacks that do not return delay it by little.
func TestTLSHandshakesTakeTurns(t *testing.T) {
	const work, many = 10 * time.Millisecond, 40
	for _, stuck := range []bool{false, true} {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			config := secured(Config{AddressValidation: ValidateAlways})
			server := *config
			server.TLS = config.TLS.Clone()
			var mu sync.Mutex // guards the next
			var working, most int
			count := func(n int) {
				mu.Lock()
				defer mu.Unlock()
				working += n
				most = max(most, working)
			}
			server.TLS.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
				count(1)
				defer count(-1)
				if stuck && strings.HasPrefix(hello.ServerName, "stuck") {
					time.Sleep(time.Minute)
				}
				time.Sleep(work)
				return nil, nil
			}
			l := w.listen(&server)
			dial := func(addr, name string) {
				config := *config
				config.TLS = config.TLS.Clone()
				config.TLS.InsecureSkipVerify, config.TLS.ServerName = true, name
				e, _ := w.endpoint(addr, &config)
				_, _ = e.Dial(context.Background(), l.Addr())
			}
			for i := range many {
				name := "many"
				if i < 2 {
					name = "stuck"
				}
				go dial("10.0.9.9:0", name)
			}
			time.Sleep(2*roundTrip + 3*work) // they have cookies, and wait
			start := time.Now()
			dial("10.0.0.2:0", "one")
			took := time.Since(start)
			time.Sleep(2 * time.Minute)
			if stuck {
				require.Less(t, took, 2*roundTrip+3*fairqueue.Lease)
				return
			}
			require.Less(t, took, 2*roundTrip+4*work)
			require.Equal(t, max(1, runtime.GOMAXPROCS(0)-1), most)
		})
	}
}

// What a handshake in progress takes is counted, be it that the server's
// certificates wait for room, or that those of the client are on the way.
func TestTLSHandshakeMemory(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		t.Skip("the race detector takes memory of its own")
	}
	long(t)
	if !alone(t) {
		return
	}
	for _, test := range []struct{ chain, upTo int }{{100, 0}, {40_000, 0}, {40_000, 40}} {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			const sessions = 100
			server := withCertificate(Config{AddressValidation: ValidateAlways}, longChain(t, 1, test.chain))
			l := w.listen(server)
			passed := make(map[uint32]int)
			w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
				if from.Addr() == netip.MustParseAddr("10.0.0.2") && p[4] == 0xa1 {
					passed[binary.LittleEndian.Uint32(p)]++
					return passed[binary.LittleEndian.Uint32(p)] <= test.upTo
				}
				return true
			})
			e, _ := w.endpoint("10.0.0.2:0", withCertificate(Config{}, longChain(t, 2, 50_000)))
			before := memoryInUse()
			var all atomic.Int32
			for range sessions {
				go func() {
					ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
					defer cancel()
					_, _ = e.Dial(ctx, l.Addr())
					all.Add(1)
				}()
			}
			time.Sleep(5100 * time.Millisecond)
			synctest.Wait()
			require.EqualValues(t, sessions, all.Load())
			held, counted, n := memoryInUse()-before, int64(l.Stats().Buffered), int64(l.Stats().Sessions)
			t.Logf("%d sessions: %d bytes held, %d counted", n, held/n, counted/n)
			require.EqualValues(t, sessions, n)
			require.LessOrEqual(t, held, counted*3/2+n*16<<10)
			require.LessOrEqual(t, counted, 3*held)
		})
	}
}

// A dialled session keeps nothing under the application keys that comes before
// its TLS is done, although the peer has those keys: no server sends that, and
// only the reader of the socket may take datagrams for a handler.
func TestTLSApplicationDataBeforeFinished(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		l := w.listen(secured(Config{}))
		var server *Conn
		forged, finished := 0, false
		w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
			if finished = finished || from.String() != serverAddr && p[4] == 0xa1; finished || p[4] != 0xa1 {
				return true
			}
			if server == nil {
				server = l.Endpoint().only(t)
			}
			b := make([]byte, packetkeys.Overhead+datagramHeader+3)
			content := b[packetkeys.HeaderSize:]
			binary.LittleEndian.PutUint16(content[4:], fec.TypeOOB)
			binary.LittleEndian.PutUint16(content[6:], datagramHeader+3-6)
			binary.LittleEndian.PutUint32(content[8:], server.Conv())
			if assert.NoError(t, server.tls.app.Seal(b, nil)) {
				forged++
				w.net.Inject(from, to, b)
			}
			return true
		})
		e, _ := w.endpoint("10.0.0.2:0", secured(Config{}))
		a, err := e.DialWith(context.Background(), l.Addr(), DialOptions{Quiet: true})
		require.NoError(t, err)
		handled := 0
		a.HandleDatagrams(func([]byte) { handled++ })
		_, err = a.Write([]byte("x"))
		require.NoError(t, err)
		receive(t, accepted(t, l), []byte("x"))
		w.settle()
		require.Positive(t, forged)
		require.Zero(t, handled)
		require.EqualValues(t, forged, e.Stats().DropHandshake)
	})
}

// Forged packets of a session in TIME-WAIT cost no derivation of keys each.
func TestTLSForgedInTimeWait(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(secured(Config{}), secured(Config{}))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		w.settle()
		e := l.Endpoint()
		key, now := b.entry.Key(), e.now()
		packet := make([]byte, 200)
		for phase := range byte(2) {
			allocations := testing.AllocsPerRun(100, func() {
				clear(packet)
				binary.LittleEndian.PutUint32(packet, key.Conv)
				packet[4] = 0xa2 + phase
				p := inPacket{Packet: protect.Packet{Data: packet}, conv: key.Conv, kind: sealedPacket, from: source{addr: key.Addr}, size: len(packet)}
				require.Nil(t, e.admit(key, &p, now))
			})
			require.LessOrEqual(t, allocations, 1.0)
		}
	})
}
