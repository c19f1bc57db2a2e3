package e2e

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"math/big"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const alertBadCertificate = 42

const alertUnsupportedCertificate = 43

const alertProtocolVersion = 70

// dialTLS dials the server, and returns the errors of both ends, that of the
// server from HandshakeFailed or AcceptKCP. If there are none, the session
// carries a byte each way.
func (w *world) dialTLS(client, server *kcp.Config) (took time.Duration, dialErr, acceptErr error) {
	accepted := make(chan error, 2)
	reporting := *server
	reporting.HandshakeFailed = func(remote net.Addr, err error) {
		assert.Equal(w.t, "10.0.0.2", remote.(*net.UDPAddr).IP.String())
		accepted <- err
	}
	l := w.listen(&reporting)
	defer l.Endpoint().Close()
	e, _ := w.endpoint("10.0.0.2:0", client)
	defer e.Close()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		c, err := l.AcceptKCP(ctx)
		if err == nil {
			_, _ = io.Copy(c, c)
		}
		accepted <- err
	}()
	start := time.Now()
	c, err := e.Dial(context.Background(), l.Addr(), nil)
	took = time.Since(start)
	if err == nil {
		_, err = c.Write([]byte("x"))
		require.NoError(w.t, err)
		receive(w.t, c, []byte("x"))
		require.NoError(w.t, c.CloseWrite())
	}
	return took, err, <-accepted
}

// requireAlert checks that err is that of a peer's alert, or of an own one.
func requireAlert(t *testing.T, err error, remote bool, alert tls.AlertError) {
	t.Helper()
	var failed *kcp.HandshakeError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, remote, failed.Remote, "%v", err)
	var got tls.AlertError
	require.ErrorAs(t, err, &got)
	require.Equal(t, alert, got)
}

// Each end of a handshake that fails has the error of crypto/tls: its own, or
// the alert of the other.
func TestTLSCertificates(t *testing.T) {
	authority := certificate(t, nil, true, "authority")
	roots := x509.NewCertPool()
	roots.AddCert(authority.Leaf)
	client := certificate(t, &authority, false, "client")
	stranger := certificate(t, nil, false, "stranger")
	authenticate := func(s *tls.Config) { s.ClientAuth, s.ClientCAs = tls.RequireAndVerifyClientCert, roots }
	untrusted := new(*tls.CertificateVerificationError)
	for _, test := range []struct {
		name   string
		change func(client, server *tls.Config)
		local  bool // the client's own error
		alert  tls.AlertError
		own    any // the type of the own error; nil: any
	}{
		{"unknown authority", func(c, s *tls.Config) { c.RootCAs = roots }, true, 42, untrusted},
		{"wrong name", func(c, s *tls.Config) { c.ServerName = "other" }, true, 42, new(x509.HostnameError)},
		{"no common protocol", func(c, s *tls.Config) {
			c.NextProtos, s.NextProtos = []string{"game/1"}, []string{"game/2"}
		}, false, 120, nil},
		{"unknown client", func(c, s *tls.Config) {
			authenticate(s)
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &stranger, nil }
		}, false, 48, untrusted},
		{"client of the authority", func(c, s *tls.Config) {
			authenticate(s)
			c.Certificates = []tls.Certificate{stranger, client}
		}, false, 0, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			inWorld(t, 0, clean, func(t *testing.T, w *world) {
				a, b := secured(kcp.Config{}), secured(kcp.Config{})
				a.TLS, b.TLS = a.TLS.Clone(), b.TLS.Clone()
				test.change(a.TLS, b.TLS)
				took, dialErr, acceptErr := w.dialTLS(a, b)
				if test.alert == 0 {
					require.NoError(t, errors.Join(dialErr, acceptErr))
					return
				}
				requireAlert(t, dialErr, !test.local, test.alert)
				requireAlert(t, acceptErr, test.local, test.alert)
				if own := map[bool]error{true: dialErr, false: acceptErr}[test.local]; test.own != nil {
					require.ErrorAs(t, own, test.own)
				}
				require.Less(t, took, 100*time.Millisecond, "within the handshake")
			})
		})
	}
}

// strangers returns a server, and clients whose handshakes with it fail: they do
// not trust its certificate, or speak another protocol.
func strangers() (server *kcp.Config, clients []*kcp.Config) {
	server = secured(kcp.Config{})
	server.TLS = server.TLS.Clone()
	server.TLS.ClientAuth, server.TLS.NextProtos = tls.NoClientCert, []string{"game/1"}
	for _, change := range []func(*tls.Config){
		func(c *tls.Config) { c.RootCAs = x509.NewCertPool() },
		func(c *tls.Config) { c.NextProtos = []string{"game/2"} },
	} {
		c := secured(kcp.Config{})
		c.TLS = c.TLS.Clone()
		c.TLS.NextProtos = []string{"game/1"}
		change(c.TLS)
		clients = append(clients, c)
	}
	return server, clients
}

// Failed handshakes of strangers do not end a loop that accepts, however that is
// done. HandshakeFailed, the Logger and the counter have them.
func TestTLSAcceptGoesOn(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		var log records
		var alerts []error
		config, clients := strangers()
		config.Logger = log.Logger()
		config.HandshakeFailed = func(_ net.Addr, err error) { alerts = append(alerts, err) } // one after another
		l := w.listen(config)
		g := kcp.NewGroup()
		require.NoError(t, l.AcceptInto(g))
		for _, c := range append(clients, clients...) {
			e, _ := w.endpoint("10.0.0.3:0", c)
			_, err := e.Dial(context.Background(), l.Addr(), nil)
			require.ErrorAs(t, err, new(*kcp.HandshakeError))
			require.NoError(t, e.Close())
		}
		good := secured(kcp.Config{})
		good.TLS = good.TLS.Clone()
		good.TLS.NextProtos = []string{"game/1"}
		e, _ := w.endpoint("10.0.0.2:0", good)
		c := w.dial(e)
		time.Sleep(time.Second)
		require.Equal(t, c.Conv(), takeOne(t, g, kcp.EventAccepted).Conn.Conv())
		require.NoError(t, l.AcceptInto(nil))
		c = w.dial(e)
		require.Equal(t, c.Conv(), accepted(t, l).Conv())
		time.Sleep(2 * session.FailedTime)
		w.settle()
		require.Len(t, alerts, 2*len(clients))
		for _, err := range alerts {
			require.ErrorAs(t, err, new(*kcp.HandshakeError))
		}
		require.EqualValues(t, 2*len(clients), l.Endpoint().Stats().HandshakeErrors)
		require.EqualValues(t, 2, l.Endpoint().Stats().Sessions)
		require.Len(t, log.Of("TLS handshake of a peer failed"), 1, "within a second")
		require.NoError(t, l.Endpoint().Close())
	})
}

// A flood of failed handshakes that HandshakeFailed does not keep up with is cut
// off: one call runs, and 16 wait.
func TestTLSFailuresAreBounded(t *testing.T) {
	t.Parallel()
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		var calls atomic.Int32
		slow := make(chan struct{})
		server, clients := strangers()
		server.HandshakeFailed = func(net.Addr, error) {
			calls.Add(1)
			<-slow
		}
		l := w.listen(server)
		const failures = 16 // TLS handshakes of one address that fail
		const dials = 2 * failures
		for range dials {
			e, _ := w.endpoint("10.0.0.3:0", clients[0])
			_, err := e.Dial(context.Background(), l.Addr(), nil)
			require.Error(t, err)
			require.NoError(t, e.Close())
		}
		time.Sleep(time.Second)
		require.EqualValues(t, 1, calls.Load(), "one after another")
		require.EqualValues(t, dials, l.Endpoint().Stats().HandshakeErrors)
		close(slow)
		w.settle()
		require.EqualValues(t, 1+failures, calls.Load())
	})
}

// An end with TLS and one without refuse each other, with an error that says so.
func TestTLSMismatch(t *testing.T) {
	for _, mode := range []kcp.AddressValidation{kcp.ValidateUnderPressure, kcp.ValidateAlways} {
		for _, client := range []*kcp.Config{secured(kcp.Config{}), {}} {
			inWorld(t, 0, clean, func(t *testing.T, w *world) {
				server, want := secured(kcp.Config{AddressValidation: mode}), kcp.ErrTLSRequired
				if client.TLS != nil {
					server, want = &kcp.Config{AddressValidation: mode}, kcp.ErrNoTLS
				}
				took, dialErr, acceptErr := w.dialTLS(client, server)
				require.ErrorIs(t, dialErr, want)
				require.Equal(t, client.TLS == nil, errors.Is(dialErr, syscall.ECONNREFUSED))
				require.False(t, errors.As(dialErr, new(*kcp.HandshakeError)), "the peer has refused before a handshake")
				require.ErrorIs(t, acceptErr, context.DeadlineExceeded)
				require.Less(t, took, 50*time.Millisecond)
			})
		}
	}
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		e, _ := w.endpoint("10.0.0.2:0", secured(kcp.Config{}))
		w.endpoint(serverAddr, secured(kcp.Config{}))
		_, err := e.Dial(context.Background(), udpAddr(serverAddr), nil)
		require.ErrorIs(t, err, kcp.ErrRefused)
	})
}

// rewriter puts a relay on the way that changes packets.
func (w *world) rewriter(change func(toServer bool, packet []byte) []byte) {
	w.net.SetFilter(func(from, to netip.AddrPort, packet []byte) bool {
		changed := change(to.String() == serverAddr, bytes.Clone(packet))
		time.AfterFunc(10*time.Millisecond, func() { w.net.Inject(from, to, changed) })
		return false
	})
}

// withSignals calls change for each segment of a packet in the clear.
func withSignals(packet []byte, change func(segment []byte)) []byte {
	for rest := packet; len(rest) >= wire.HeaderSize; {
		h := wire.DecodeHeader(rest)
		if h.Cmd < wire.CmdPush || h.Cmd > wire.CmdPiece {
			break // protected
		}
		change(rest)
		rest = rest[min(wire.HeaderSize+int(h.Len), len(rest)):]
	}
	return packet
}

// Whatever is changed on the way in what the ends say in the clear, and sealed
// again, the handshake fails, and says why if it does not look like damage.
func TestTLSDowngrade(t *testing.T) {
	const tsAt, snAt = 8, 12
	set := func(at int, value uint32) func(segment []byte) {
		return func(segment []byte) {
			if wire.Code(segment[5]) == wire.Info {
				binary.LittleEndian.PutUint32(segment[at:], value)
			}
		}
	}
	noInfo := func(s []byte) {
		if wire.Code(s[5]) == wire.Info {
			s[5] = 0x7f
		}
	}
	for _, test := range []struct {
		name     string
		toServer bool
		change   func(segment []byte)
		want     error // of a *HandshakeError; nil: no answer
	}{
		{"capability of the client", true, set(tsAt, session.CapPMTU), nil},
		{"capability of the server", false, set(tsAt, session.CapPMTU), handshake.ErrChanged},
		{"path MTU of the client", true, set(tsAt, session.CapTLS), handshake.ErrChanged},
		{"path MTU of the server", false, set(tsAt, session.CapTLS), handshake.ErrChanged},
		{"version of the client", true, set(snAt, 7), handshake.ErrChanged},
		{"version of the server", false, set(snAt, 0), handshake.ErrChanged},
		{"INFO of the client", true, noInfo, nil},
		{"INFO of the server", false, noInfo, handshake.ErrChanged},
		{"token of the client", true, func(s []byte) {
			if wire.Code(s[5]) == wire.Hello {
				s[tsAt] ^= 1
			}
		}, nil},
		{"a legacy peer's answer", false, func(s []byte) { s[5] = 0 }, kcp.ErrNoTLS},
	} {
		t.Run(test.name, func(t *testing.T) {
			inWorld(t, 0, clean, func(t *testing.T, w *world) {
				w.rewriter(func(toServer bool, packet []byte) []byte {
					if toServer == test.toServer {
						return resealed(t, packet, func(packet []byte) []byte { return withSignals(packet, test.change) })
					}
					return packet
				})
				_, dialErr, acceptErr := w.dialTLS(secured(kcp.Config{}), secured(kcp.Config{}))
				require.Error(t, acceptErr)
				if test.want == nil {
					require.ErrorAs(t, dialErr, new(*kcp.NoAnswerError))
					return
				}
				require.ErrorAs(t, dialErr, new(*kcp.HandshakeError))
				require.ErrorIs(t, dialErr, test.want)
			})
		})
	}
}

// A server whose certificates exceed what may be sent to an address that is not
// validated goes on once a packet under the handshake keys has arrived.
func TestTLSLongChain(t *testing.T) {
	for _, link := range []netsim.LinkConfig{clean, lossy} {
		inWorld(t, 0, link, func(t *testing.T, w *world) {
			a, b := secured(kcp.Config{}), secured(kcp.Config{})
			a.TLS, b.TLS = a.TLS.Clone(), b.TLS.Clone()
			a.TLS.InsecureSkipVerify = true
			b.TLS.Certificates = []tls.Certificate{longChain(t, 1, 20_000)}
			took, dialErr, acceptErr := w.dialTLS(a, b)
			require.NoError(t, dialErr)
			require.NoError(t, acceptErr)
			if link == clean {
				require.Less(t, took, 150*time.Millisecond)
			}
		})
	}
}

// Dial returns, and the caller closes the socket, only when the alert that says
// why has left.
func TestAlertLeavesBeforeDialReturns(t *testing.T) {
	for range fewer(40) {
		failed := make(chan error, 1)
		l, err := kcp.Listen("udp", "127.0.0.1:0", secured(kcp.Config{
			HandshakeFailed: func(_ net.Addr, err error) { failed <- err },
		}))
		require.NoError(t, err)
		_, err = kcp.Dial("udp", l.Addr().String(), &kcp.Config{TLS: &tls.Config{ServerName: "test"}})
		require.ErrorContains(t, err, "unknown authority")
		<-failed // so the alert has arrived
		require.NoError(t, l.Endpoint().Close())
	}
}

// What a peer has said, or has in its certificate, is printed on one line, and not all of
// it if it is long.
func TestTextsOfPeersAreCut(t *testing.T) {
	for _, unit := range []string{"a", "\x1b", "\n", "\u202e", "é"} {
		long := strings.Repeat(unit, 64<<10/len(unit))
		for _, err := range []error{
			&kcp.PeerCloseError{Code: 1, Text: long}, &kcp.HandshakeError{Err: errors.New(long)}, &kcp.HandshakeError{Err: errors.New(long), Remote: true},
		} {
			text := err.Error()
			require.Less(t, len(text), 100+6*session.MaxPrinted)
			require.False(t, strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }), text)
		}
	}
	require.ErrorContains(t, &kcp.PeerCloseError{Text: strings.Repeat("a", session.MaxPrinted)}, strings.Repeat("a", session.MaxPrinted))
}

// withCertificate returns config with TLS, in which both ends ask for a
// certificate that they do not verify, and this one has cert.
func withCertificate(config kcp.Config, cert tls.Certificate) *kcp.Config {
	config.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, ClientAuth: tls.RequireAnyClientCert}
	return &config
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
				_, dialErr, acceptErr := w.dialTLS(withCertificate(kcp.Config{}, chains[0]), withCertificate(kcp.Config{}, chains[1]))
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

// TLS works on fewer handshakes at a time than there are processors, but on one at
// least, and the networks of its peers take turns: many handshakes of one delay that of
// another by one. Callbacks that do not return delay it by little.
func TestTLSHandshakesTakeTurns(t *testing.T) {
	const work, many = 10 * time.Millisecond, 20
	for _, stuck := range []bool{false, true} {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			config := secured(kcp.Config{AddressValidation: kcp.ValidateAlways})
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
		w.listen(withCertificate(kcp.Config{HandshakeFailed: func(_ net.Addr, err error) { failed <- err }}, good))
		dial := func(cert tls.Certificate) error {
			e, _ := w.endpoint("10.0.1.1:0", withCertificate(kcp.Config{}, cert))
			defer e.Close()
			_, err := e.Dial(context.Background(), udpAddr(serverAddr), nil)
			return err
		}
		require.NoError(t, dial(good))
		requireAlert(t, dial(never), true, alertUnsupportedCertificate)
		require.ErrorContains(t, <-failed, "the key is RSA with 8192 bits and the exponent 2147483647")
	})
}
