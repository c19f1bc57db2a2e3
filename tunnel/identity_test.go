package tunnel

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// run runs a client to its end.
func run(t *testing.T, config *ClientConfig) error {
	t.Helper()
	c := startClient(t, config)
	<-c.ended
	return c.err
}

// runAttended runs a client to its end that ends when it is turned away: one with stdio.
func runAttended(t *testing.T, config *ClientConfig) error {
	t.Helper()
	config.Remotes = append(config.Remotes, Remote{Stdio: true, Target: "host:80"})
	config.Stdin, config.Stdout = strings.NewReader(""), io.Discard
	return run(t, config)
}

// Whoever is not who it says is turned away, and learns why. The log of the server
// has the address and the name, and no password.
func TestTurnedAway(t *testing.T) {
	t.Parallel()
	s := startServer(t, `{"me:secret": ["^host:80$", "^R:0\\.0\\.0\\.0:0$"], "other:word": []}`, nil)
	for _, c := range []struct {
		user, password, remote, want string
	}{
		{"me", "wrong-word", "0:host:80", "wrong user or password"},
		{"nobody", "secret", "0:host:80", "wrong user or password"},
		{"", "", "0:host:80", "wants a user and a password"},
		{"me", "secret", "0:host:81", "does not allow host:81"},
		{"me", "secret", "0:host:80/udp", "does not allow host:80/udp"},
		{"me", "secret", "R:127.0.0.1:0:host:80", "does not allow R:127.0.0.1:0"},
		{"me", "secret", "R:0:host:80/udp", "does not allow R:0.0.0.0:0/udp"},
		{"other", "word", "0:host:80", "does not allow host:80"},
	} {
		config := clientConfig(t, s, c.remote)
		config.User, config.Password = c.user, c.password
		err := runAttended(t, config)
		var away *HelloError
		require.ErrorAs(t, err, &away)
		require.True(t, TurnedAway(err), "for good")
		assert.ErrorContains(t, err, c.want)
		assert.ErrorContains(t, err, s.Addr().String())
	}
	log := s.log.String()
	require.Contains(t, log, `client=127.0.0.1:`)
	require.Contains(t, log, `user \"nobody\"`)
	require.NotContains(t, log, "secret")
	require.NotContains(t, log, "wrong-word")

	config := clientConfig(t, s, "0:host:80")
	config.User = strings.Repeat("\x7f", 60000)
	require.ErrorContains(t, runAttended(t, config), "wrong user or password")
	require.Less(t, len(s.log.String())-len(log), 10*loggedSize)

	// Their sessions end in order, and count as no reset.
	if overTCP(t) {
		return // no session has an endpoint
	}
	waitFor(t, func() bool { return s.Endpoint().Stats().Sessions == 0 })
	ended := s.Endpoint().Stats().Ended
	require.Zero(t, ended.Reset, "%+v", ended)
	require.EqualValues(t, 9, ended.Closed+ended.PeerClosed, "%+v", ended)
}

// After some failed attempts, those of an address are no longer looked at, the
// right password neither.
func TestAttemptsAreLimited(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	for range guardAttempts {
		config := clientConfig(t, s, "0:host:80")
		config.Password = "wrong"
		require.ErrorContains(t, runAttended(t, config), "wrong user")
	}
	config := clientConfig(t, s, "0:host:80")
	config.MaxRetries = 1
	require.ErrorContains(t, run(t, config), "too many failed attempts")
	require.Zero(t, s.Status().Sessions)
	me := s.Figures().of(t, "me")
	require.EqualValues(t, guardAttempts, me.WrongPasswords)
	require.NotZero(t, me.Lockouts)
	require.Zero(t, me.Logins)
	require.Contains(t, s.log.String(), `msg="client turned away" client=127.0.0.1`)
	require.Contains(t, s.log.String(), ` user=me error=`)
}

// A client does not talk to a server of another key, and says which it has.
func TestWrongFingerprint(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	config := clientConfig(t, s, "0:host:80")
	config.Fingerprints = []string{"SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}
	err := runAttended(t, config)
	var wrong *FingerprintError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, s.Fingerprint(), wrong.Got)

	config = clientConfig(t, s, "0:host:80")
	config.Fingerprints = nil // an authority of the system
	var unknown *tls.CertificateVerificationError
	err = runAttended(t, config)
	require.ErrorAs(t, err, &unknown)
	require.True(t, TurnedAway(err), "for good")
	require.NotContains(t, s.log.String(), "secret")

	// A client without stdio says so, and goes on trying: the key may come back.
	config = clientConfig(t, s, "0:"+testenv.Target(t, testenv.Echo))
	right := s.config.Certificate
	require.NoError(t, s.SetCertificate(key(t)))
	c := startClient(t, config)
	waitFor(t, func() bool { return strings.Count(c.log.String(), "level=ERROR msg=\"no session, trying again\"") > 1 })
	require.NoError(t, s.SetCertificate(right))
	exchange(t, dial(t, c.address(t)), 1000)
	config.Fingerprints, config.MaxRetries = []string{wrong.Want[0]}, 1
	err = run(t, config)
	require.ErrorContains(t, err, "given up after 1 retry")
	require.True(t, TurnedAway(err))
}

// authority is one that signs certificates for tests.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	return over(t, nil, "authority", nil, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
}

// issue returns a certificate for name, which ends after d.
func (a *authority) issue(t *testing.T, name string, d time.Duration) *tls.Certificate {
	cert := a.between(t, name, time.Now().Add(-time.Hour), time.Now().Add(d))
	return &cert
}

// Client certificates take the place of passwords, and authorities that of
// fingerprints.
func TestCertificates(t *testing.T) {
	t.Parallel()
	servers, clients, others := newAuthority(t), newAuthority(t), newAuthority(t)
	echoes := testenv.Target(t, testenv.Echo)
	s := startServer(t, `{"laptop": [""], "me:secret": [""]}`, func(c *ServerConfig) {
		c.Certificate, c.ClientCAs = *servers.issue(t, "tunnel.example", time.Hour), clients.pool
	})
	with := func(cert *tls.Certificate) *ClientConfig {
		config := clientConfig(t, s, "0:"+echoes)
		config.Fingerprints, config.User, config.Password = nil, "", ""
		config.RootCAs, config.ServerName, config.Certificate = servers.pool, "tunnel.example", cert
		return config
	}
	c := startClient(t, with(clients.issue(t, "laptop", time.Hour)))
	exchange(t, dial(t, c.address(t)), 1000)
	waitFor(t, func() bool { return strings.Contains(s.log.String(), "user=laptop") })

	err := runAttended(t, with(clients.issue(t, "stranger", time.Hour)))
	require.ErrorContains(t, err, "knows no user stranger")
	err = runAttended(t, with(clients.issue(t, "me", time.Hour)))
	require.ErrorContains(t, err, "knows no user me", "a user with a password is no owner of a certificate")
	require.ErrorContains(t, runAttended(t, with(nil)), "wants a user and a password (-auth), or a client certificate")
	require.Error(t, runAttended(t, with(others.issue(t, "laptop", time.Hour))))

	config := with(clients.issue(t, "laptop", time.Hour))
	config.ServerName = "other.example"
	var name x509.HostnameError
	require.ErrorAs(t, runAttended(t, config), &name)
}

// raw opens a session with a server, as an attacker does that has read this package.
func raw(t *testing.T, s *testServer) *kcp.Conn {
	t.Helper()
	conn, err := kcp.Dial("udp", s.Addr().String(), &kcp.Config{
		Limits: kcp.Limits{MaxStreams: 1024},
		TLS:    &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Abort(0, "") })
	return conn
}

// start opens a stream that begins with b.
func start(t *testing.T, conn *kcp.Conn, b []byte) *kcp.Stream {
	t.Helper()
	stream, err := conn.OpenStream(context.Background(), nil)
	require.NoError(t, err)
	_, err = stream.Write(b)
	require.NoError(t, err)
	return stream
}

// Without an identity nothing is reached: not before a hello, not with a wrong one,
// not behind it.
func TestAttackerReachesNothing(t *testing.T) {
	t.Parallel()
	reached := make(chan struct{}, 1)
	at := testenv.Target(t, func(*net.TCPConn) { reached <- struct{}{} })
	s := startServer(t, everything, nil)
	want := opening{kind: kindTCP, target: at}.append(nil)
	greet := opening{kind: kindHello}.append(nil)
	for _, first := range map[string][]byte{
		"no hello":       want,
		"empty":          {},
		"other version":  {99, 1},
		"broken hello":   append(greet, 0, 0, 0, 1, '{'),
		"huge hello":     append(greet, 0xff, 0xff, 0xff, 0xff),
		"wrong password": append(greet, "\x00\x00\x00\x20{\"user\":\"me\",\"password\":\"guess\"}"...),
	} {
		conn := raw(t, s)
		stream := start(t, conn, first)
		if len(first) == 0 {
			require.NoError(t, stream.CloseWrite())
		}
		for range 5 { // unless the session has ended
			if stream, err := conn.OpenStream(context.Background(), nil); err == nil {
				_, _ = stream.Write(want)
			}
		}
		<-conn.Done()
	}
	require.Empty(t, reached)
	require.Zero(t, s.Status().Sessions)
}

// login opens a session as a user.
func login(t *testing.T, s *testServer, user, password string) *kcp.Conn {
	t.Helper()
	conn := raw(t, s)
	stream := start(t, conn, opening{kind: kindHello}.append(nil))
	require.NoError(t, writeJSON(stream, hello{User: user, Password: password}))
	var w welcome
	require.NoError(t, readJSON(stream, &w))
	require.Zero(t, w)
	return conn
}

// refusalOf returns why the peer refuses a stream.
func refusalOf(t *testing.T, stream carrier.Stream) refusal {
	t.Helper()
	var why refusal
	require.ErrorAs(t, awaitOpen(stream), &why)
	return why
}

// A client that does not keep to the protocol reaches what its rules allow, in that
// one spelling, and nothing else.
func TestRulesHoldAtTheServer(t *testing.T) {
	t.Parallel()
	at := testenv.Target(t, testenv.Echo)
	_, port, _ := net.SplitHostPort(at)
	s := startServer(t, `{"me:secret": ["^127\\.0\\.0\\.1:`+port+`$"]}`, nil)
	conn := login(t, s, "me", "secret")
	require.NoError(t, awaitOpen(start(t, conn, opening{kind: kindTCP, target: at}.append(nil))))
	mapped := opening{kind: kindTCP, target: "[::ffff:127.0.0.1]:0" + port}
	require.NoError(t, awaitOpen(start(t, conn, mapped.append(nil))), "it is the same address")

	for _, host := range []string{"localhost", "127.0.0.2", "[::1]", "0.0.0.0", "localhost."} {
		o := opening{kind: kindTCP, target: host + ":" + port}
		assert.Equal(t, codeForbidden, refusalOf(t, start(t, conn, o.append(nil))), host)
	}
	for _, host := range []string{"127.1", "2130706433", "0x7f000001", "127.0.0.01", "", " 127.0.0.1", "127.0.0.1\n", "R:127.0.0.1"} {
		o := opening{kind: kindTCP, target: host + ":" + port}
		assert.Equal(t, codeMalformed, refusalOf(t, start(t, conn, o.append(nil))), host)
	}
	for k, want := range map[kind]refusal{
		kindHello: codeMalformed, kindReverseTCP: codeMalformed, 99: codeMalformed, 0: codeMalformed, kindUDP: codeMalformed,
		kindListenTCP: codeForbidden, kindListenUDP: codeForbidden, kindListenSocks: codeForbidden,
	} {
		assert.Equal(t, want, refusalOf(t, start(t, conn, opening{kind: k, target: at}.append(nil))), k)
	}
	other := append([]byte{2}, opening{kind: kindTCP, target: at}.append(nil)[1:]...)
	assert.Equal(t, codeVersion, refusalOf(t, start(t, conn, other)))
	require.NoError(t, conn.Err(), "the session goes on")
}

// A session ends when its user does, and not otherwise. New rules hold at once.
func TestUsersChange(t *testing.T) {
	t.Parallel()
	at := testenv.Target(t, testenv.Echo)
	s := startServer(t, `{"me:secret": [""], "you:word": [""]}`, nil)
	me, you := login(t, s, "me", "secret"), login(t, s, "you", "word")
	waitFor(t, func() bool { return s.Status().Sessions == 2 })
	users := parsed(t, `{"me:secret": ["^127\\.0\\.0\\.1:1$"], "you:other": [""]}`)
	require.NoError(t, s.SetUsers(users))
	<-you.Done()
	var closed *kcp.PeerCloseError
	require.ErrorAs(t, you.Err(), &closed)
	require.EqualValues(t, closeRevoked, closed.Code)
	require.Equal(t, codeForbidden, refusalOf(t, start(t, me, opening{kind: kindTCP, target: at}.append(nil))))
	require.NoError(t, me.Err())
}

// The server asks for what the client has not offered, and gets none of it.
func TestClientIsNoOpenDoor(t *testing.T) {
	t.Parallel()
	at := testenv.Target(t, testenv.Echo)
	s, c := connected(t, "R:127.0.0.1:0:"+at)
	exchange(t, dial(t, c.address(t)), 1000)
	conn := theSession(t, s)
	for _, o := range []opening{
		{kind: kindTCP, target: at}, {kind: kindSocksTCP, target: at}, {kind: kindReverseTCP, target: at},
		{kind: kindReverseTCP, listener: 999}, {kind: kindListenTCP, target: "127.0.0.1:0"},
	} {
		stream, err := conn.open(context.Background(), o)
		require.NoError(t, err)
		assert.Equal(t, codeForbidden, refusalOf(t, stream), "%v", o)
	}
}

// What nobody could use is refused at once.
func TestConfigsRefused(t *testing.T) {
	cert := key(t)
	_, err := Listen(&ServerConfig{Addr: "127.0.0.1:0", Certificate: cert})
	require.ErrorContains(t, err, "no users")
	users := parsed(t, `{"laptop": [""]}`)
	_, err = Listen(&ServerConfig{Addr: "127.0.0.1:0", Certificate: cert, Users: users})
	require.ErrorContains(t, err, "no authority")
	users = parsed(t, everything)
	s, err := Listen(&ServerConfig{Addr: "127.0.0.1:0", Certificate: cert, Users: users})
	require.NoError(t, err)
	defer s.Close()
	_, err = Listen(&ServerConfig{Addr: s.Addr().String(), Certificate: cert, Users: users})
	require.True(t, neterr.Is(err, syscall.EADDRINUSE), "%v", err)
	_, err = Listen(&ServerConfig{Addr: "127.0.0.1:0", Certificate: cert, Users: users, DialTimeout: -1})
	require.ErrorContains(t, err, "DialTimeout is -1ns: must be in [0s, 8760h0m0s]")

	remote := Remote{Listen: "127.0.0.1:1", Target: "host:80"}
	stdio := Remote{Stdio: true, Target: "host:80"}
	for want, config := range map[string]*ClientConfig{
		"no server":           {Remotes: []Remote{remote}},
		"no remote":           {Servers: []string{"a:1"}},
		"not a fingerprint":   {Servers: []string{"a:1"}, Remotes: []Remote{remote}, Fingerprints: []string{"MD5:x"}},
		"one remote":          {Servers: []string{"a:1"}, Remotes: []Remote{stdio, stdio}, Stdin: strings.NewReader(""), Stdout: io.Discard},
		"which are not given": {Servers: []string{"a:1"}, Remotes: []Remote{stdio}},
		"want host:port":      {Servers: []string{"a:1"}, Remotes: []Remote{{Listen: "127.0.0.1:0", Target: "x"}}},
		"is no valid":         {Servers: []string{"a:1"}, Remotes: []Remote{remote}, KCP: &kcp.Config{MTU: 1}},
	} {
		_, err := NewClient(config)
		var bad *kcp.ConfigError
		if !errors.As(err, &bad) {
			require.ErrorContains(t, err, want)
		}
	}
	for want, c := range map[string]ClientConfig{
		"RetryAfter is -1ns": {RetryAfter: -1}, "MaxRetryAfter is -1ns": {MaxRetryAfter: -1}, "OpenTimeout is -1ns": {OpenTimeout: -1},
		"DialTimeout is -1ns": {DialTimeout: -1}, "UDPTimeout is 8760h0m0.000000001s": {UDPTimeout: maxTime + 1}, "": {UDPTimeout: maxTime},
	} {
		c.Servers, c.Remotes = []string{"a:1"}, []Remote{remote}
		if _, err := NewClient(&c); want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "tunnel: "+want)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	r, err := ParseRemote(l.Addr().String() + ":host:80")
	require.NoError(t, err)
	c, err := NewClient(&ClientConfig{Servers: []string{"127.0.0.1:1"}, Remotes: []Remote{r}})
	require.NoError(t, err)
	err = c.Run(context.Background())
	require.True(t, neterr.Is(err, syscall.EADDRINUSE), "%v", err)
	require.ErrorContains(t, err, l.Addr().String())
}
