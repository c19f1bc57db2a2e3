package tunnel

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptrace"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// What a user's remotes carry has figures at both ends, under one name. A client counts
// its attempts, and why they fail.
func TestFiguresByRemote(t *testing.T) {
	t.Parallel()
	at, packets := testenv.Target(t, testenv.Echo), udpTarget(t)
	s := startServer(t, everything, nil)
	c := startClient(t, clientConfig(t, s, "0:"+at, "0:"+packets+"/udp", "0:socks", "R:127.0.0.1:0:"+at))
	locals := []string{c.address(t), c.address(t), c.address(t)}
	exchange(t, dial(t, c.address(t)), 3000)
	exchange(t, dial(t, locals[0]), 10_000)
	testenv.ExchangePackets(t, dialUDP(t, locals[1]), 10)
	socks := dial(t, locals[2])
	host, port, err := net.SplitHostPort(at)
	require.NoError(t, err)
	require.NoError(t, socksConnectTo(socks, host, port))
	exchange(t, socks, 500)
	ended := func(f Carried) bool {
		for _, r := range f.Remotes {
			if r.Connections > 0 && !strings.HasSuffix(r.Remote, "/udp") {
				return false
			}
		}
		return true
	}
	waitFor(t, func() bool { return ended(c.Figures().Carried) && ended(s.Figures().Carried) })
	there := make(map[string]RemoteFigures)
	for _, r := range s.Figures().Remotes {
		there[r.Remote] = r
	}
	here := c.Figures()
	require.Len(t, here.Remotes, 4)
	for _, r := range here.Remotes {
		require.Equal(t, "me", r.User)
		require.Equal(t, uint64(1), r.Opened, r.Remote)
		if r.Remote == at {
			require.Equal(t, uint64(10_000), r.Sent)
		}
		if !strings.HasSuffix(r.Remote, "/udp") { // of which some come again
			other := there[r.Remote]
			other.Sent, other.Received = other.Received, other.Sent
			require.Equal(t, r, other)
		}
	}
	require.Contains(t, there, packets+"/udp")
	require.Equal(t, uint64(2), s.Figures().Connect.Count)
	require.Equal(t, uint64(1), here.Connect.Count)

	require.Equal(t, "me", s.Peers()[0].Name)
	require.Len(t, c.Peers()[0].Connections, 1) // the flow
	require.True(t, here.Servers[0].Connected)
	s.stop()
	waitFor(t, func() bool { return !c.Figures().Servers[0].Connected && c.Figures().Servers[0].Attempts > 1 })
	require.Equal(t, uint64(1), c.Figures().Servers[0].Failed["lost"])
	require.NotEmpty(t, c.Figures().Servers[0].Cause)
}

// socksConnectTo asks a SOCKS5 proxy for a target of IPv4.
func socksConnectTo(conn net.Conn, host, port string) error {
	var p uint16
	if _, err := fmt.Sscan(port, &p); err != nil {
		return err
	}
	ip := net.ParseIP(host).To4()
	_, err := conn.Write([]byte{5, 1, 0, 5, 1, 0, 1, ip[0], ip[1], ip[2], ip[3], byte(p >> 8), byte(p)})
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, 2+10))
	}
	return err
}

// A peer that names many targets has no more figures for that.
func TestRemotesAreBounded(t *testing.T) {
	var one tally
	for i := range 1000 {
		one.remote(fmt.Sprint("target", i)).opened.Add(1)
	}
	all := one.appendRemotes(nil, "me")
	require.Len(t, all, maxRemotes+1)
	require.Equal(t, RemoteFigures{User: "me", Remote: otherRemote, Opened: 1000 - maxRemotes}, all[0])
	require.Same(t, one.remote("target3"), one.remotes["target3"])
}

// stuck is a writer that takes nothing until it is closed.
type stuck chan struct{}

func (w stuck) Write(b []byte) (int, error) {
	<-w
	return len(b), nil
}

// A connection waits for who has taken nothing for a second.
func TestWaits(t *testing.T) {
	for want, held := range map[string]func(c *carried) *oneWay{
		"path":        func(c *carried) *oneWay { return &c.out },
		"application": func(c *carried) *oneWay { return &c.in },
		"target":      func(c *carried) *oneWay { c.dialled = true; return &c.in },
	} {
		synctest.Test(t, func(t *testing.T) {
			c := &carried{began: time.Now()}
			time.Sleep(time.Hour)
			w := make(stuck)
			go func() { _, _ = blockable{w, held(c), c.began}.Write([]byte("x")) }()
			time.Sleep(waitsAfter - 1)
			synctest.Wait()
			what, _ := c.waits()
			require.Empty(t, what)
			time.Sleep(2 * time.Second)
			what, lasts := c.waits()
			require.Equal(t, want, what)
			require.InDelta(t, 3*time.Second, lasts, 10)
			close(w)
			synctest.Wait()
			what, _ = c.waits()
			require.Empty(t, what)
		})
	}
	c := &carried{began: time.Now().Add(-time.Minute)}
	c.awaiting.Store(true)
	what, _ := c.waits()
	require.Equal(t, "answer", what)
}

// dialler returns a session that dials with connect.
func dialler(log *testenv.Records, connect func(context.Context, string, string) (net.Conn, error)) *session {
	return &session{account: newAccount(time.Minute), dials: new(dialTally), log: log.Logger(), connect: connect, failed: slog.LevelDebug}
}

// The time to look a name up and that to connect are told apart. What takes longer than a
// second is in the log, but not again and again.
func TestSlowTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testenv.Records
		s := dialler(&log, func(ctx context.Context, _, _ string) (net.Conn, error) {
			time.Sleep(300 * time.Millisecond)
			httptrace.ContextClientTrace(ctx).DNSDone(httptrace.DNSDoneInfo{})
			time.Sleep(800 * time.Millisecond)
			return nil, nil
		})
		for range 10 {
			_, err := s.connectAny(t.Context(), "tcp", []string{"intranet:80"})
			require.NoError(t, err)
		}
		require.Equal(t, []uint64{0, 0, 0, 0, 0, 0, 10, 10, 10, 10}, s.dials.resolve.figures().Counts) // up to 0.5 s
		require.Equal(t, []uint64{0, 0, 0, 0, 0, 0, 0, 10, 10, 10}, s.dials.connect.figures().Counts)  // up to 1 s
		require.InDelta(t, 8, s.dials.connect.figures().Sum, 1e-6)
		require.Len(t, log.Of("level=INFO", `msg="target slow"`, "target=intranet:80", "resolve=300ms", "connect=800ms"), saidAtOnce)
		time.Sleep(saidEvery)
		_, _ = s.connectAny(t.Context(), "tcp", []string{"intranet:80"})
		require.Equal(t, saidAtOnce+1, strings.Count(log.String(), "target slow"))
	})
}

// Package net says when a name was looked up.
func TestResolveIsSeen(t *testing.T) {
	s := dialler(new(testenv.Records), nil)
	_, port, err := net.SplitHostPort(testenv.Target(t, testenv.Echo))
	require.NoError(t, err)
	conn, err := s.connectAny(t.Context(), "tcp", []string{"localhost:" + port})
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.Equal(t, uint64(1), s.dials.resolve.figures().Count)
	conn, err = s.connectAny(t.Context(), "tcp", []string{"127.0.0.1:" + port})
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.Equal(t, uint64(1), s.dials.resolve.figures().Count)
	require.Equal(t, uint64(2), s.dials.connect.figures().Count)
}

// Targets fail by cause, and the log has a few of them at its default level.
func TestCausesOfTargets(t *testing.T) {
	var d dialTally
	failed := func(err error) error { return &dialError{dialRefusal(err), err} }
	for want, err := range map[string]error{
		"forbidden":   refusal(codeForbidden),
		"refused":     failed(&net.OpError{Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}),
		"timeout":     failed(os.ErrDeadlineExceeded),
		"unreachable": failed(os.NewSyscallError("connect", syscall.EHOSTUNREACH)),
		"resolve":     failed(&net.DNSError{IsTimeout: true}),
		"descriptors": failed(os.NewSyscallError("socket", syscall.EMFILE)),
		"other":       failed(errors.New("x")),
	} {
		require.Equal(t, want, d.fail(err))
		require.Equal(t, uint64(1), d.failures()[want])
	}
	require.Equal(t, "descriptors", d.fail(&dialError{codeFailed, errTooMany}))
	require.Empty(t, d.fail(context.Canceled))
	require.Len(t, d.failures(), 7)
	synctest.Test(t, func(t *testing.T) {
		s := dialler(new(testenv.Records), nil)
		for i := range 10 {
			want := slog.LevelDebug
			if i < saidAtOnce {
				want = slog.LevelInfo
			}
			require.Equal(t, want, s.failedLevel())
		}
	})
}

// A client's attempts fail by cause.
func TestCausesOfAttempts(t *testing.T) {
	for want, err := range map[string]error{
		"no-answer":      &kcp.NoAnswerError{},
		"resolve":        fmt.Errorf("x: %w", &net.DNSError{}),
		"unreachable":    &kcp.NoAnswerError{Socket: os.NewSyscallError("sendto", syscall.ENETUNREACH)},
		"certificate":    &kcp.HandshakeError{Err: x509.UnknownAuthorityError{}},
		"wrong-identity": &HelloError{Code: "wrong-identity"},
		"other":          &HelloError{Code: "of a peer that counts up"},
	} {
		require.Equal(t, want, attemptCause(err, false))
		require.Equal(t, "lost", attemptCause(err, true))
	}
	require.Equal(t, "no-answer", attemptCause(errNoWelcome, false))
	require.Equal(t, "unreachable", attemptCause(kcp.ErrRefused, false))
}
