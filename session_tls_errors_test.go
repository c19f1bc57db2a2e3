package kcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
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

	"github.com/arqnet/kcp/internal/fairqueue"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Alerts of TLS (RFC 8446 §6).
const (
	alertBadCertificate         = 42
	alertUnsupportedCertificate = 43
	alertDecryptError           = 51
	alertDecodeError            = 50
	alertProtocolVersion        = 70
	alertInternalError          = 80
)

// dialTLS dials the server, and returns the errors of both ends, that of the
// server from HandshakeFailed or AcceptKCP. If there are none, the session
// carries a byte each way.
func (w *world) dialTLS(client, server *Config) (took time.Duration, dialErr, acceptErr error) {
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
	addr, err := net.ResolveUDPAddr("udp", serverAddr)
	require.NoError(w.t, err)
	c, err := e.Dial(context.Background(), addr)
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
	var failed *HandshakeError
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
	authenticate := func(client, server *tls.Config) {
		server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, roots
	}
	cases := []struct {
		name   string
		change func(client, server *tls.Config)
		local  bool // the client's own error
		alert  tls.AlertError
		check  func(t *testing.T, err error)
	}{
		{"unknown authority", func(c, s *tls.Config) { c.RootCAs = roots }, true, 42, func(t *testing.T, err error) {
			var untrusted *tls.CertificateVerificationError
			require.ErrorAs(t, err, &untrusted)
			var unknown x509.UnknownAuthorityError
			require.ErrorAs(t, err, &unknown)
		}},
		{"expired", func(c, s *tls.Config) {
			c.Time = func() time.Time { return bubbleTime.AddDate(200, 0, 0) }
		}, true, 42, func(t *testing.T, err error) {
			var invalid x509.CertificateInvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, x509.Expired, invalid.Reason)
		}},
		{"wrong name", func(c, s *tls.Config) { c.ServerName = "other" }, true, 42, func(t *testing.T, err error) {
			var name x509.HostnameError
			require.ErrorAs(t, err, &name)
		}},
		{"no common protocol", func(c, s *tls.Config) {
			c.NextProtos, s.NextProtos = []string{"game/1"}, []string{"game/2"}
		}, false, 120, nil},
		{"no certificate of the client", func(c, s *tls.Config) {
			authenticate(c, s)
			c.Certificates = nil
		}, false, 116, nil},
		{"unknown client", func(c, s *tls.Config) {
			authenticate(c, s)
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &stranger, nil }
		}, false, 48, func(t *testing.T, err error) {
			var untrusted *tls.CertificateVerificationError
			require.ErrorAs(t, err, &untrusted)
		}},
		{"expired client", func(c, s *tls.Config) {
			authenticate(c, s)
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &client, nil }
			s.Time = func() time.Time { return bubbleTime.AddDate(200, 0, 0) }
		}, false, 45, func(t *testing.T, err error) {
			var invalid x509.CertificateInvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, x509.Expired, invalid.Reason)
		}},
	}
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			inWorld(t, 0, clean, func(t *testing.T, w *world) {
				a, b := secured(Config{}), secured(Config{})
				a.TLS, b.TLS = a.TLS.Clone(), b.TLS.Clone()
				test.change(a.TLS, b.TLS)
				took, dialErr, acceptErr := w.dialTLS(a, b)
				requireAlert(t, dialErr, !test.local, test.alert)
				requireAlert(t, acceptErr, test.local, test.alert)
				if own := map[bool]error{true: dialErr, false: acceptErr}[test.local]; test.check != nil {
					test.check(t, own)
				}
				require.Less(t, took, 100*time.Millisecond, "within the handshake")
			})
		})
	}
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b := secured(Config{}), secured(Config{})
		a.TLS, b.TLS = a.TLS.Clone(), b.TLS.Clone()
		authenticate(a.TLS, b.TLS)
		a.TLS.Certificates = []tls.Certificate{stranger, client}
		_, dialErr, acceptErr := w.dialTLS(a, b)
		require.NoError(t, dialErr)
		require.NoError(t, acceptErr)
	})
}

// strangers returns a server, and clients whose handshakes with it fail: they do
// not trust its certificate, bring one that has expired, or speak another
// protocol.
func strangers(t *testing.T) (server *Config, clients []*Config) {
	authority := certificate(t, nil, true, "authority")
	client := certificate(t, &authority, false, "client")
	server = secured(Config{})
	server.TLS = server.TLS.Clone()
	server.TLS.ClientAuth, server.TLS.ClientCAs = tls.VerifyClientCertIfGiven, x509.NewCertPool()
	server.TLS.ClientCAs.AddCert(authority.Leaf)
	server.TLS.Time = func() time.Time { return bubbleTime.AddDate(200, 0, 0) }
	server.TLS.NextProtos = []string{"game/1"}
	for _, change := range []func(*tls.Config){
		func(c *tls.Config) { c.RootCAs = x509.NewCertPool() },
		func(c *tls.Config) { c.Certificates = []tls.Certificate{client} },
		func(c *tls.Config) { c.NextProtos = []string{"game/2"} },
	} {
		c := secured(Config{})
		c.TLS = c.TLS.Clone()
		c.TLS.Certificates, c.TLS.NextProtos = nil, []string{"game/1"}
		change(c.TLS)
		clients = append(clients, c)
	}
	return server, clients
}

// Failed handshakes of strangers do not end a loop that accepts, however that is
// done. HandshakeFailed, the Logger and the counter have them.
func TestTLSAcceptGoesOn(t *testing.T) {
	ways := map[string]func(w *world, l *Listener, accepted chan<- *Conn){
		"Accept": func(w *world, l *Listener, accepted chan<- *Conn) {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				accepted <- c.(*Conn)
			}
		},
		"AcceptKCP": func(w *world, l *Listener, accepted chan<- *Conn) {
			for {
				c, err := l.AcceptKCP(context.Background())
				if err != nil {
					return
				}
				accepted <- c
			}
		},
		"Group": func(w *world, l *Listener, accepted chan<- *Conn) {
			g := NewGroup()
			defer g.Close()
			assert.NoError(w.t, l.AcceptInto(g))
			events := make([]Event, 1)
			for {
				if n, _ := g.Wait(context.Background(), events); n == 1 && events[0].Kind == EventAccepted {
					accepted <- events[0].Conn
					return
				}
			}
		},
	}
	server, clients := strangers(t)
	for name, accept := range ways {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 0, clean, func(t *testing.T, w *world) {
				var log records
				var alerts []error
				config := *server
				config.Logger = log.Logger()
				config.HandshakeFailed = func(_ net.Addr, err error) { alerts = append(alerts, err) } // one after another
				l := w.listen(&config)
				accepted := make(chan *Conn)
				go accept(w, l, accepted)
				addr, err := net.ResolveUDPAddr("udp", serverAddr)
				require.NoError(t, err)
				for range 2 {
					for _, config := range clients {
						e, _ := w.endpoint("10.0.0.3:0", config)
						c, err := e.Dial(context.Background(), addr)
						if err == nil { // the server fails later
							_, err = c.Read(make([]byte, 1))
						}
						var failed *HandshakeError
						require.ErrorAs(t, err, &failed)
						require.NoError(t, e.Close())
					}
				}
				good := secured(Config{})
				good.TLS = good.TLS.Clone()
				good.TLS.Certificates, good.TLS.NextProtos = nil, server.TLS.NextProtos
				e, _ := w.endpoint("10.0.0.2:0", good)
				c := w.dial(e)
				select {
				case got := <-accepted:
					require.Equal(t, c.Conv(), got.Conv())
				case <-time.After(time.Minute):
					require.Fail(t, "the loop has ended")
				}
				time.Sleep(2 * failedTime)
				w.settle()
				require.Len(t, alerts, 2*len(clients))
				for _, err := range alerts {
					var failed *HandshakeError
					require.ErrorAs(t, err, &failed)
				}
				require.EqualValues(t, 2*len(clients), l.Stats().HandshakeErrors)
				require.EqualValues(t, 1, l.Stats().Sessions)
				require.Len(t, log.Of("TLS handshake of a peer failed"), 1, "within a second")
				require.NoError(t, l.Endpoint().Close())
			})
		})
	}
}

// A flood of failed handshakes that HandshakeFailed does not keep up with is cut
// off: one call runs, and 16 wait.
func TestTLSFailuresAreBounded(t *testing.T) {
	t.Parallel()
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		var calls atomic.Int32
		slow := make(chan struct{})
		server, clients := strangers(t)
		server.HandshakeFailed = func(net.Addr, error) {
			calls.Add(1)
			<-slow
		}
		l := w.listen(server)
		addr, err := net.ResolveUDPAddr("udp", serverAddr)
		require.NoError(t, err)
		const dials = 3 * maxFailures
		for range dials {
			e, _ := w.endpoint("10.0.0.3:0", clients[0])
			_, err := e.Dial(context.Background(), addr)
			require.Error(t, err)
			require.NoError(t, e.Close())
		}
		time.Sleep(time.Second)
		require.EqualValues(t, 1, calls.Load(), "one after another")
		require.EqualValues(t, dials, l.Stats().HandshakeErrors)
		close(slow)
		w.settle()
		require.EqualValues(t, 1+maxFailures, calls.Load())
	})
}

// An end with TLS and one without refuse each other, with an error that says so.
func TestTLSMismatch(t *testing.T) {
	for _, mode := range []AddressValidation{ValidateUnderPressure, ValidateAlways} {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			took, dialErr, acceptErr := w.dialTLS(secured(Config{}), &Config{AddressValidation: mode})
			require.ErrorIs(t, dialErr, ErrNoTLS)
			var failed *HandshakeError
			require.False(t, errors.As(dialErr, &failed), "the peer has refused before a handshake")
			require.ErrorIs(t, acceptErr, context.DeadlineExceeded)
			require.Less(t, took, 50*time.Millisecond)
		})
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			took, dialErr, acceptErr := w.dialTLS(&Config{}, secured(Config{AddressValidation: mode}))
			require.ErrorIs(t, dialErr, ErrTLSRequired)
			require.ErrorIs(t, dialErr, syscall.ECONNREFUSED)
			require.ErrorIs(t, acceptErr, context.DeadlineExceeded)
			require.Less(t, took, 50*time.Millisecond)
		})
	}
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		e, _ := w.endpoint("10.0.0.2:0", secured(Config{}))
		w.endpoint(serverAddr, secured(Config{}))
		addr, err := net.ResolveUDPAddr("udp", serverAddr)
		require.NoError(t, err)
		_, err = e.Dial(context.Background(), addr)
		require.ErrorIs(t, err, ErrRefused)
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
	for rest := packet; len(rest) >= headerSize; {
		h := decodeHeader(rest)
		if h.cmd < cmdPush || h.cmd > cmdPiece {
			break // protected
		}
		change(rest)
		rest = rest[min(headerSize+int(h.len), len(rest)):]
	}
	return packet
}

// Whatever is changed on the way in what the ends say in the clear, and sealed
// again, the handshake fails, and says why if it does not look like damage.
func TestTLSDowngrade(t *testing.T) {
	set := func(at int, value uint32) func(segment []byte) {
		return func(segment []byte) {
			if signalCode(segment[5]) == sigInfo {
				binary.LittleEndian.PutUint32(segment[at:], value)
			}
		}
	}
	const tsAt, snAt = 8, 12
	cases := []struct {
		name     string
		toServer bool
		change   func(segment []byte)
		want     []error
	}{
		{"capability of the client", true, set(tsAt, capPMTU), []error{&NoAnswerError{}}},
		{"capability of the server", false, set(tsAt, capPMTU), []error{ErrHandshakeChanged}},
		{"path MTU of the client", true, set(tsAt, capTLS), []error{ErrHandshakeChanged}},
		{"path MTU of the server", false, set(tsAt, capTLS), []error{ErrHandshakeChanged}},
		{"version of the client", true, set(snAt, 7), []error{ErrHandshakeChanged}},
		{"version of the server", false, set(snAt, 0), []error{ErrHandshakeChanged}},
		{"INFO of the client", true, func(s []byte) {
			if signalCode(s[5]) == sigInfo {
				s[5] = 0x7f
			}
		}, []error{&NoAnswerError{}}},
		{"INFO of the server", false, func(s []byte) {
			if signalCode(s[5]) == sigInfo {
				s[5] = 0x7f
			}
		}, []error{ErrHandshakeChanged}},
		{"token of the client", true, func(s []byte) {
			if signalCode(s[5]) == sigHello {
				s[tsAt] ^= 1
			}
		}, []error{&NoAnswerError{}}},
		{"a legacy peer's answer", false, func(s []byte) { s[5] = 0 }, []error{ErrNoTLS}},
		{"TLS itself", false, func(s []byte) {
			if signalCode(s[5]) == sigCrypto && len(s) > headerSize+50 {
				s[headerSize+50] ^= 1
			}
		}, nil},
	}
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			inWorld(t, 0, clean, func(t *testing.T, w *world) {
				w.rewriter(func(toServer bool, packet []byte) []byte {
					if toServer == test.toServer {
						return resealed(t, packet, func(packet []byte) []byte { return withSignals(packet, test.change) })
					}
					return packet
				})
				_, dialErr, acceptErr := w.dialTLS(secured(Config{}), secured(Config{}))
				require.Error(t, dialErr)
				require.Error(t, acceptErr)
				for _, want := range test.want {
					if timeout := (*NoAnswerError)(nil); errors.As(want, &timeout) {
						require.ErrorAs(t, dialErr, &timeout)
					} else {
						var failed *HandshakeError
						require.ErrorAs(t, dialErr, &failed)
						require.ErrorIs(t, dialErr, want)
					}
				}
			})
		})
	}
}

// Once there are handshake keys, nothing in the clear ends a handshake, though it
// shows the right tokens.
func TestTLSForgedInTheClear(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		var forged atomic.Int32
		var done atomic.Bool
		w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
			switch {
			case done.Load() || from.String() != serverAddr:
				return true
			case p[4] == 0xa1:
				return false // so that the handshake takes longer
			}
			m, ok := handshake.Parse(p, binary.LittleEndian.Uint32(p))
			require.True(t, ok)
			token := m.Welcome.TS
			conv := binary.LittleEndian.Uint32(p)
			time.AfterFunc(20*time.Millisecond, func() { // the client has ServerHello
				forged.Add(1)
				w.net.Inject(from, to, packetOf(conv, bytesOf(signalOf(m.Welcome)), bytesOf(signal{sigInfo, 1, 0}), bytesOf(signal{sigAlert, 40, token})))
				w.net.Inject(from, to, packetOf(conv, bytesOf(signal{sigReset, 0, token})))
			})
			return true
		})
		time.AfterFunc(100*time.Millisecond, func() { done.Store(true) })
		_, dialErr, acceptErr := w.dialTLS(secured(Config{}), secured(Config{}))
		require.NoError(t, dialErr)
		require.NoError(t, acceptErr)
		require.Positive(t, forged.Load())
	})
}

// A server whose certificates exceed what may be sent to an address that is not
// validated goes on once a packet under the handshake keys has arrived.
func TestTLSLongChain(t *testing.T) {
	for _, link := range []netsim.LinkConfig{clean, lossy} {
		inWorld(t, 0, link, func(t *testing.T, w *world) {
			a, b := secured(Config{}), secured(Config{})
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
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range fewer(20) {
				failed := make(chan error, 1)
				l, err := Listen("udp", "127.0.0.1:0", secured(Config{
					HandshakeFailed: func(_ net.Addr, err error) { failed <- err },
				}))
				if !assert.NoError(t, err) {
					return
				}
				_, err = Dial("udp", l.Addr().String(), &Config{TLS: &tls.Config{ServerName: "test"}})
				assert.ErrorContains(t, err, "unknown authority")
				<-failed // so the alert has arrived
				assert.NoError(t, l.Endpoint().Close())
			}
		})
	}
	all.Wait()
}

// Callbacks of the application that block hold up their own handshake alone, and nothing
// of it is left once they have returned. HandshakeFailed may block, or end its goroutine.
func TestTLSCallbacksThatDoNotReturn(t *testing.T) {
	for name, callback := range map[string]func(){
		"blocks": func() { time.Sleep(time.Minute) },
		"exits":  runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 0, clean, func(t *testing.T, w *world) {
				var failed atomic.Int32
				server := secured(Config{HandshakeFailed: func(net.Addr, error) {
					failed.Add(1)
					callback()
				}})
				server.TLS = server.TLS.Clone()
				server.TLS.ClientAuth = tls.RequestClientCert
				calls := func(does bool) error {
					switch {
					case !does:
						return nil
					case name == "blocks": // crypto/tls waits for ever for a goroutine that has ended
						callback()
					}
					return errors.New("refused")
				}
				server.TLS.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
					return nil, calls(hello.ServerName == "callback")
				}
				server.TLS.VerifyPeerCertificate = func(certs [][]byte, _ [][]*x509.Certificate) error {
					return calls(len(certs) > 0)
				}
				l := w.listen(server)
				honest := secured(Config{})
				honest.TLS = honest.TLS.Clone()
				honest.TLS.Certificates = nil
				e, _ := w.endpoint("10.0.0.2:5000", honest)
				unnamed := secured(Config{DialTimeout: 5 * time.Second})
				unnamed.TLS = &tls.Config{InsecureSkipVerify: true, ServerName: "callback"}
				certified := secured(Config{DialTimeout: 5 * time.Second})
				certified.TLS = certified.TLS.Clone()
				certified.TLS.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					return &certified.TLS.Certificates[0], nil
				}
				refusing := secured(Config{})
				refusing.TLS = &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "other"}
				for i, config := range []*Config{unnamed, certified, refusing, refusing} {
					x, _ := w.endpoint("10.0.0.3:"+strconv.Itoa(6000+i), config)
					_, err := x.Dial(context.Background(), l.Addr())
					require.Error(t, err)
					start := time.Now()
					a := w.dial(e)
					bothWays(t, a, accepted(t, l), []byte("up"), []byte("down"))
					require.Less(t, time.Since(start), 2*fairqueue.Lease+10*roundTrip)
					require.NoError(t, a.Close())
				}
				time.Sleep(10 * time.Minute)
				require.GreaterOrEqual(t, failed.Load(), int32(2))
				require.Zero(t, l.Stats().Sessions)
				require.Zero(t, l.Stats().Buffered)
			})
		})
	}
}

// What a peer has said, or has in its certificate, is printed on one line, and not all of
// it if it is long.
func TestTextsOfPeersAreCut(t *testing.T) {
	for _, unit := range []string{"a", "\x1b", "\n", "\u202e", "é"} {
		long := strings.Repeat(unit, 64<<10/len(unit))
		for _, err := range []error{
			&PeerCloseError{Code: 1, Text: long}, &HandshakeError{Err: errors.New(long)}, &HandshakeError{Err: errors.New(long), Remote: true},
		} {
			text := err.Error()
			require.Less(t, len(text), 100+6*maxPrinted)
			require.False(t, strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }), text)
		}
	}
	require.ErrorContains(t, &PeerCloseError{Text: strings.Repeat("a", maxPrinted)}, strings.Repeat("a", maxPrinted))
}
