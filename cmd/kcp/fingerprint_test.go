package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/identity"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// listenTLS accepts sessions with an application protocol, and ends each after a time.
func listenTLS(t *testing.T, protocol string, life time.Duration) (addr, fingerprint string, accepted func() int) {
	t.Helper()
	cert, key := writeTLS(t, "test")
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	config := &tls.Config{Certificates: []tls.Certificate{pair}}
	if protocol != "" {
		config.NextProtos = []string{protocol}
	}
	l, err := kcp.Listen("udp", "127.0.0.1:0", &kcp.Config{TLS: config})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.AcceptKCP(context.Background())
			if err != nil {
				return
			}
			time.AfterFunc(life, func() { _ = conn.Abort(0, "") })
		}
	}()
	return l.Addr().String(), identity.Fingerprint(pair.Leaf), func() int { return int(l.Endpoint().Stats().Accepted) }
}

// kcp ping reaches a server that wants the protocol of kcptunnel, one that wants none,
// and no server with another key.
func TestPingByFingerprint(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{tunnelProtocol, ""} {
		addr, fingerprint, _ := listenTLS(t, protocol, time.Minute)
		got := runWith(t.Context(), nil, "ping", addr, "-fingerprint", fingerprint, "-count", "2", "-interval", "1ms")
		require.Equal(t, exitOK, got.code, "%q: %s", protocol, got.err)
		require.Contains(t, got.out, "2 sent, 2 answered, 0.0% lost")
		other := "SHA256:" + strings.Repeat("A", 43)
		got = runWith(t.Context(), nil, "ping", addr, "-fingerprint", other, "-count", "1")
		require.Equal(t, exitFailed, got.code)
		require.Contains(t, got.err, fingerprint)
		require.Contains(t, got.err, other)
	}
	addr, fingerprint, _ := listenTLS(t, "other/1", time.Minute)
	got := runWith(t.Context(), nil, "ping", addr, "-fingerprint", fingerprint, "-count", "1")
	require.Equal(t, exitFailed, got.code)
	got = runWith(t.Context(), nil, "ping", addr, "-fingerprint", fingerprint, "-alpn", "other/1", "-count", "1")
	require.Equal(t, exitOK, got.code, got.err)
	got = runWith(t.Context(), nil, "ping", addr, "-fingerprint", "SHA256:x")
	require.Equal(t, exitUsage, got.code)
	require.Contains(t, got.err, "43 characters")
}

// With a server of kcptunnel, which ends sessions without a user after 10 s, pings go on
// in further sessions.
func TestPingRenewsSessions(t *testing.T) {
	t.Parallel()
	addr, fingerprint, accepted := listenTLS(t, tunnelProtocol, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := newNetcat(streams{in: strings.NewReader(""), out: new(bytes.Buffer), err: new(bytes.Buffer)}, "ping")
	require.NoError(t, n.parse(pingOptions(n, new(pinger)), []string{addr, "-fingerprint", fingerprint}))
	conn, err := n.openAny(ctx)
	require.NoError(t, err)
	r := &renewal{n: n, conn: conn, opened: time.Now()}
	defer func() { _ = r.conn.Close() }()
	require.True(t, r.withTunnel())
	require.NoError(t, r.renew(ctx))
	require.Equal(t, 1, accepted())
	r.opened = r.opened.Add(-tunnelSession)
	require.NoError(t, r.renew(ctx))
	require.NotEqual(t, conn, r.conn)
	_, err = r.ping(ctx)
	require.NoError(t, err)
	testenv.Await(t, func() bool { return accepted() == 2 && conn.Err() != nil })
}

// While no further session can be opened, pings are lost; a refusal ends them.
func TestPingWhileRenewalFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		n := 0
		p := &pinger{out: &out, peer: "peer", interval: 5 * time.Second}
		p.ping = func(context.Context) (time.Duration, error) { return time.Millisecond, nil }
		p.renew = func(ctx context.Context) error {
			switch n++; n {
			case 2:
				<-ctx.Done()
				return ctx.Err()
			case 3:
				return &kcp.NoAnswerError{}
			case 5:
				return errors.New("refused")
			}
			return nil
		}
		require.ErrorContains(t, p.run(t.Context()), "refused")
		require.Contains(t, out.String(), "seq=2 no answer in 2.00s\nseq=3 no answer in 0s\nseq=4 time=1.000 ms\n")
		require.Contains(t, out.String(), "4 sent, 2 answered, 50.0% lost")
	})
}
