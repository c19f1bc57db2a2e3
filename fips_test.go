package kcp

import (
	"bytes"
	"context"
	"crypto/fips140"
	"crypto/tls"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/packetkeys"
	"github.com/stretchr/testify/require"
)

// AES-GCM works in programs that are held to FIPS 140-3, and packets are those
// of other programs.
func TestAESGCMUnderFIPS(t *testing.T) {
	long(t)
	const want = "the same packets"
	key := bytes.Repeat([]byte{1}, 32)
	if path := os.Getenv("KCP_TEST_FIPS"); path != "" {
		require.True(t, fips140.Enabled())
		c, err := crypt.AESGCM(key)
		require.NoError(t, err)
		packet, err := os.ReadFile(path)
		require.NoError(t, err)
		got, err := c.Open(packet)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
		require.NoError(t, os.WriteFile(path, sealed(t, c, []byte(want+want)), 0o600))
		return
	}
	c, err := crypt.AESGCM(key)
	require.NoError(t, err)
	path := t.TempDir() + "/packet"
	require.NoError(t, os.WriteFile(path, sealed(t, c, []byte(want)), 0o600))
	test := exec.Command(os.Args[0], "-test.run=^TestAESGCMUnderFIPS$")
	test.Env = append(os.Environ(), "GODEBUG=fips140=only", "KCP_TEST_FIPS="+path)
	out, err := test.CombinedOutput()
	require.NoError(t, err, "%s", out)
	packet, err := os.ReadFile(path)
	require.NoError(t, err)
	got, err := c.Open(packet)
	require.NoError(t, err)
	require.Equal(t, want+want, string(got))
}

// Sessions with TLS work in programs that are held to FIPS 140-3, between two of
// them and with others, and offer no cipher that is not approved. They run over
// real sockets: the FIPS module needs a clock that moves to collect entropy.
func TestTLSUnderFIPS(t *testing.T) {
	long(t)
	config := secured(Config{FEC: FEC{10, 3}, MaxMTU: 9000})
	config.TLS = config.TLS.Clone()
	config.TLS.Time = func() time.Time { return bubbleTime }
	config.TLS.ClientAuth = tls.RequireAnyClientCert
	config.TLS.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	if addr := os.Getenv("KCP_TEST_FIPS"); addr != "" {
		require.True(t, packetkeys.OwnNonces())
		echoOver(t, addr, &Config{TLS: &tls.Config{InsecureSkipVerify: true, Certificates: config.TLS.Certificates}})
		l := echoServer(t, config)
		for range 2 { // the second is resumed
			echoOver(t, l.Addr().String(), config)
		}
		require.Zero(t, l.Stats().DropCipher)
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
	require.Zero(t, l.Stats().DropCipher)
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
			c.tls.app.Keys.SetUpdateAfter(20)
			c.HandleDatagrams(func(b []byte) { _ = c.SendDatagram(b) })
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
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	c.tls.app.Keys.SetUpdateAfter(20)
	want := content(1, 500_000)
	go func() { _, _ = c.Write(want) }()
	receive(t, c, want)
	datagram := content(2, 1000) // whatever either end has found of the path
	require.NoError(t, c.SendDatagram(datagram))
	got, err := c.ReceiveDatagram(context.Background())
	require.NoError(t, err)
	require.Equal(t, datagram, got)
	sent, received := c.tls.app.Keys.Generations()
	require.Greater(t, min(sent, received), uint32(3))
	require.NoError(t, c.Close())
}
