package kcp

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"io"
	"math/big"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wire"
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
		require.Greater(t, l.Endpoint().Stats().Buffered, size)
		require.Greater(t, a.Endpoint().Stats().Buffered, size)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		w.settle()
		require.Zero(t, l.Endpoint().Stats().Buffered)
		require.Zero(t, a.Endpoint().Stats().Buffered)
		tw, ok := l.Endpoint().table.TimeWaits.At(b.session.Inside().Entry().Key(), l.Endpoint().now())
		require.True(t, ok)
		require.NotEmpty(t, a.Peer().TLS.PeerCertificates)
		require.NotEmpty(t, b.Peer().TLS.PeerCertificates)
		cert := weak.Make(b.Peer().TLS.PeerCertificates[0])
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

// What a handshake takes from a peer is bounded, in bytes and in number, and the error
// says so, at both ends.
func TestTLSTooManyCertificates(t *testing.T) {
	for text, size := range map[string]int{"more than 65536 bytes of certificates": 64 << 10, "more than 10 certificates": 15_000} {
		most, more := longChain(t, 1, size-10_000), longChain(t, 2, size)
		if size < 64<<10 {
			for len(most.Certificate) < 10 {
				most.Certificate = append(most.Certificate, longChain(t, 3, 100).Certificate...)
			}
			more.Certificate = append(more.Certificate, most.Certificate...)
		}
		for i, chains := range [][2]tls.Certificate{{most, most}, {more, most}, {most, more}} {
			inWorld(t, 0, clean, func(t *testing.T, w *world) {
				_, dialErr, acceptErr := w.dialTLS(withCertificate(Config{}, chains[0]), withCertificate(Config{}, chains[1]))
				if i == 0 {
					require.NoError(t, errors.Join(dialErr, acceptErr))
					return
				}
				requireAlert(t, dialErr, i == 1, alertBadCertificate)
				requireAlert(t, acceptErr, i == 2, alertBadCertificate)
				require.ErrorContains(t, []error{acceptErr, dialErr}[i-1], text)
			})
		}
	}
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
	for _, packets := range []int{1, 2} { // of the ClientHello
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			config := secured(Config{})
			l := w.listen(config)
			for _, p := range w.recordHello(config)[:packets] {
				w.net.Inject(netip.MustParseAddrPort("10.0.9.9:9"), netip.MustParseAddrPort(serverAddr), p)
			}
			w.settle()
			c := l.Endpoint().only(t)
			c.mu.Lock()
			unlock := sync.OnceFunc(c.mu.Unlock)
			defer unlock()
			x := c.session.Inside().Exchange()
			require.Equal(t, packets == 2, x.Started)
			if !x.Started {
				c.session.Inside().InputHandshake(cryptoOf(c, 16<<10-1, []byte{1}), c.ep.now())
				require.Positive(t, x.Received())
				require.Less(t, x.Held(), 2<<10, "1 byte, far ahead")
			}
			for i := range 1000 {
				c.session.Inside().InputHandshake(cryptoOf(c, 2000+200*i, make([]byte, 100)), c.ep.now())
				c.session.Inside().InputHandshake(sealedJunk(c, 500+i), c.ep.now())
				require.LessOrEqual(t, x.Received(), machine.UnvalidatedBytes)
			}
			require.Equal(t, x.Started, len(x.Early()) > 0, "without a handshake there can be no keys")
			held := x.Received()
			if x.Started {
				held += handshake.TLSBytes
				require.GreaterOrEqual(t, x.Held(), held)
			} else {
				require.LessOrEqual(t, x.Held(), machine.UnvalidatedBytes)
				c.session.Inside().Account()
			}
			unlock()
			if !x.Started {
				require.LessOrEqual(t, l.Endpoint().Stats().Buffered, machine.UnvalidatedBytes)
			}
			time.Sleep(session.HandshakeTime + time.Second)
			require.Zero(t, l.Endpoint().Stats().Sessions)
			require.Zero(t, l.Endpoint().Stats().Buffered)
		})
	}
}

// cryptoOf returns a packet of the dialling end with bytes of the ClientHello, as
// it is once opened.
func cryptoOf(c *Conn, offset int, data []byte) *session.InPacket {
	h := wire.Header{Conv: c.Conv(), Cmd: wire.CmdWins, Frg: uint8(wire.Crypto), SN: machine.Seq(offset), TS: machine.Seq(len(data)), Len: uint32(len(data))}
	b := packetOf(c.Conv(), bytesOf(wire.Signal{Code: wire.Hello, SN: 0, TS: peerToken(c)}), make([]byte, wire.HeaderSize))
	h.Encode(b[wire.HeaderSize:])
	return &session.InPacket{Packet: protect.Packet{Data: append(b, data...)}, Conv: c.Conv(), Kind: session.OpenedPacket}
}

// sealedJunk returns what looks like a packet under the application keys.
func sealedJunk(c *Conn, n int) *session.InPacket {
	p := make([]byte, n)
	p[4] = 0xa2
	return &session.InPacket{Packet: protect.Packet{Data: p}, Conv: c.Conv(), Kind: session.SealedPacket}
}

// The handshakes in progress with a network are limited, those that began with a
// cookie too, and leave room for other networks. The limit is not for the
// handshakes of a day, but for those of a moment.
func TestTLSHandshakesInProgressAreLimited(t *testing.T) {
	t.Parallel()
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		config := secured(Config{Limits: Limits{MaxHalfOpen: 32}, AddressValidation: ValidateAlways})
		l := w.listen(config)
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool { // none of these is completed
			return from.Addr() != netip.MustParseAddr("10.0.9.9") || p[4] != 0xa1
		})
		e, _ := w.endpoint("10.0.9.9:0", config)
		for range 64 {
			go func() { _, _ = e.Dial(context.Background(), l.Addr(), nil) }()
		}
		for range 5 {
			time.Sleep(time.Second)
			require.Equal(t, 11, l.Endpoint().Stats().Sessions, "as many as are left for one other network, twice")
		}
		require.Greater(t, l.Endpoint().Stats().Buffered, 11*handshake.TLSBytes)
		require.Positive(t, l.Endpoint().Stats().DropHandshake)
		other, _ := w.endpoint("10.0.0.2:0", config)
		start := time.Now()
		for range 20 { // one after the other
			w.dial(other)
			accepted(t, l)
		}
		require.Less(t, time.Since(start), 4*time.Second)
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
	const work, many = 10 * time.Millisecond, 20
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
				if stuck && hello.ServerName == "stuck" {
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
				_, _ = e.Dial(context.Background(), l.Addr(), nil)
			}
			for i := range many {
				go dial("10.0.9.9:0", []string{"stuck", "many"}[min(i/2, 1)])
			}
			time.Sleep(2*roundTrip + 3*work) // they have cookies, and wait
			start := time.Now()
			dial("10.0.0.2:0", "one")
			took := time.Since(start)
			time.Sleep(2 * time.Minute)
			if stuck {
				require.Less(t, took, 2*roundTrip+3*fair.Lease)
				return
			}
			require.Less(t, took, 2*roundTrip+4*work)
			require.Equal(t, max(1, runtime.GOMAXPROCS(0)-1), most)
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
			b := make([]byte, protect.KeyedOverhead+session.DatagramHeader+3)
			content := b[protect.HeaderSize:]
			binary.LittleEndian.PutUint16(content[4:], fec.TypeOOB)
			binary.LittleEndian.PutUint16(content[6:], session.DatagramHeader+3-6)
			binary.LittleEndian.PutUint32(content[8:], server.Conv())
			if assert.NoError(t, server.session.Inside().Keys().Seal(b, nil)) {
				forged++
				w.net.Inject(from, to, b)
			}
			return true
		})
		e, _ := w.endpoint("10.0.0.2:0", secured(Config{}))
		a, err := e.Dial(context.Background(), l.Addr(), &DialOptions{Quiet: true})
		require.NoError(t, err)
		handled := 0
		a.handleDatagrams(func([]byte) { handled++ })
		writeAll(t, a, []byte("x"))
		receive(t, accepted(t, l), []byte("x"))
		w.settle()
		require.Positive(t, forged)
		require.Zero(t, handled)
		require.EqualValues(t, forged, e.Stats().DropHandshake)
	})
}

// halfKey is the public half of a key; its signatures are noise.
type halfKey struct{ rsa.PublicKey }

func (k *halfKey) Public() crypto.PublicKey { return &k.PublicKey }

func (k *halfKey) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return make([]byte, k.Size()), nil
}

// ownCertificate returns a certificate for a key, by another key.
func ownCertificate(t *testing.T, key crypto.Signer, by crypto.Signer) tls.Certificate {
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), by)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// A client whose keys are dear to check gets in where keys are pinned. Keys that are dearer
// still are refused. Both ends say why.
func TestTLSDearClients(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		plain, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		key, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
		require.NoError(t, err)
		n := new(big.Int).Lsh(big.NewInt(1), 8192)
		never := ownCertificate(t, &halfKey{rsa.PublicKey{N: n.Sub(n, big.NewInt(1)), E: 1<<31 - 1}}, plain)
		good := ownCertificate(t, key, key)
		failed := make(chan error, 1)
		w.listen(withCertificate(Config{HandshakeFailed: func(_ net.Addr, err error) { failed <- err }}, good))
		dial := func(cert tls.Certificate) error {
			e, _ := w.endpoint("10.0.1.1:0", withCertificate(Config{}, cert))
			defer e.Close()
			_, err := e.Dial(context.Background(), udpAddr(serverAddr), nil)
			return err
		}
		require.NoError(t, dial(good))
		requireAlert(t, dial(never), true, alertUnsupportedCertificate)
		require.ErrorContains(t, <-failed, "the key is RSA with 8192 bits and the exponent 2147483647")
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
		key, now := b.session.Inside().Entry().Key(), e.now()
		packet := make([]byte, 200)
		for phase := range byte(2) {
			allocations := testing.AllocsPerRun(100, func() {
				clear(packet)
				binary.LittleEndian.PutUint32(packet, key.Conv)
				packet[4] = 0xa2 + phase
				p := session.InPacket{Packet: protect.Packet{Data: packet}, Conv: key.Conv, Kind: session.SealedPacket, From: session.Source{Addr: key.Addr}, Size: len(packet)}
				require.Nil(t, e.admit(key, &p, now))
			})
			require.LessOrEqual(t, allocations, 1.0)
		}
	})
}
