package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/netsim"
)

// relayed runs kcp relay to an echo server until use returns, and returns what
// it printed.
func relayed(t *testing.T, use func(c *net.UDPConn), args ...string) string {
	t.Helper()
	echo, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer echo.Close()
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := echo.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			answer := fmt.Appendf(nil, "%v %s", from.Port(), buf[:n])
			_, _ = echo.WriteToUDPAddrPort(answer, from)
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := start(ctx, nil, append([]string{"relay", "-to", echo.LocalAddr().String()}, args...)...)
	to, err := net.ResolveUDPAddr("udp", p.out.Find(t, `Relaying (\S+) to`))
	require.NoError(t, err)
	c, err := net.DialUDP("udp", nil, to)
	require.NoError(t, err)
	defer c.Close()
	use(c)
	cancel()
	require.Equal(t, exitOK, p.wait(t), &p.err)
	return p.out.String()
}

// ask sends a packet and returns the answer, and from where it was given.
func ask(t *testing.T, c *net.UDPConn, s string) (port, answer string) {
	t.Helper()
	_, err := c.Write([]byte(s))
	require.NoError(t, err)
	buf := make([]byte, 1<<16)
	n, err := c.Read(buf)
	require.NoError(t, err)
	port, answer, _ = strings.Cut(string(buf[:n]), " ")
	return port, answer
}

func TestRelay(t *testing.T) {
	t.Parallel()
	out := relayed(t, func(c *net.UDPConn) {
		for i := range 20 {
			_, answer := ask(t, c, fmt.Sprint("packet ", i))
			require.Equal(t, fmt.Sprint("packet ", i), answer)
		}
		_, err := c.Write(make([]byte, 1001))
		require.NoError(t, err)
		_, answer := ask(t, c, "last")
		require.Equal(t, "last", answer)
	}, "-seed", "7", "-delay", "1ms", "-direction", "up", "-mtu", "1000", "-rate", "80mbit")
	require.Contains(t, out, ", seed 7.\n")
	// The last packet of each direction may be counted only after it has arrived.
	require.Regexp(t, regexp.MustCompile(`(?m)^ *up +22 +1\.2 kB +2[01] +0 +0 +1 +0 `), out)
	require.Regexp(t, regexp.MustCompile(`(?m)^ *down +21 +\d+ B +2[01] +0 +0 +0 +0 `), out)
}

func TestRelayRebinds(t *testing.T) {
	t.Parallel()
	relayed(t, func(c *net.UDPConn) {
		for first, now := "", ""; now == first; {
			// A packet or its answer may get lost in a rebind.
			_, err := c.Write([]byte("hello"))
			require.NoError(t, err)
			require.NoError(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
			buf := make([]byte, 100)
			if n, err := c.Read(buf); err == nil {
				now, _, _ = strings.Cut(string(buf[:n]), " ")
				first = cmp.Or(first, now)
			}
		}
	}, "-rebind", "50ms", "-every", "50ms")
}

func TestRelayEndsByItself(t *testing.T) {
	t.Parallel()
	got := runWith(t.Context(), nil, "relay", "-to", "127.0.0.1:9", "-time", "1ms", "-outage", "1h+1s")
	require.Equal(t, exitOK, got.code, got.err)
	require.Contains(t, got.out, "queued p50")
	got = runWith(t.Context(), nil, "relay", "-to", "no port")
	require.Equal(t, exitUsage, got.code)
}

func TestRelayErrors(t *testing.T) {
	taken := newUDP(t)
	got := runWith(t.Context(), nil, "relay", "-to", "127.0.0.1:9", "-listen", taken.LocalAddr().String())
	require.Equal(t, exitFailed, got.code)
	require.Regexp(t, `^kcp relay: .*listen udp 127.0.0.1:\d+: `, got.err)
	failing := failingWriter{errTimeout}
	var stderr bytes.Buffer
	require.Equal(t, exitFailed, run(t.Context(), strings.Fields("relay -to 127.0.0.1:9 -every 1ms"), nil, failing, &stderr))
	require.Contains(t, stderr.String(), "kcp relay: timeout")
}

func TestRelayFlags(t *testing.T) {
	parse := func(line string) (up, down netsim.LinkConfig, err error) {
		r := newRelay(streams{out: io.Discard, err: io.Discard})
		if _, err = r.options().parse(r.std, strings.Fields(line), 0); err != nil {
			return
		}
		if up, err = r.ends[0].config("up"); err == nil {
			down, err = r.ends[1].config("down")
		}
		return
	}
	up, down, err := parse("-loss 5% -delay 30ms -jitter 10ms -shape pareto -duplicate 1% -reorder 2% -corrupt 3% " +
		"-rate 10mbit -queue 64kB -mtu 1400 -direction down -rate 1MB/s -loss 2% -burst 8")
	require.NoError(t, err)
	want := netsim.LinkConfig{
		Loss: 0.05, Delay: 30 * time.Millisecond, Jitter: 10 * time.Millisecond, JitterShape: netsim.JitterPareto,
		Duplicate: 0.01, Reorder: 0.02, Corrupt: 0.03, Rate: 1_250_000, Overhead: 28, Queue: 64_000,
		MTU: 1400,
	}
	require.Equal(t, want, up)
	want.Rate, want.Loss, want.Burst = 1_000_000, 0, netsim.BurstLoss(0.02, 8)
	require.Equal(t, want, down)

	up, down, err = parse("-profile satellite -direction up -rate 500kbit")
	require.NoError(t, err)
	require.Equal(t, netsim.LinkConfig{Delay: 279 * time.Millisecond, Rate: 62_500, Overhead: 28}, up)
	require.Equal(t, netsim.LinkConfig{Delay: 279 * time.Millisecond, Overhead: 28}, down)

	for _, name := range networks().names() {
		_, _, err := parse("-profile " + name)
		require.NoError(t, err, name)
	}

	_, _, err = parse("-loss 95% -burst 2")
	require.ErrorAs(t, err, new(usageError))
	for _, bad := range []string{
		"-rate 0", "-rate fast", "-rate 8Bbit", "-burst 0.5", "-burst x", "-shape round", "-direction left",
		"-profile none", "-outage 10s", "-outage 10s+x", "-rebind 0s", "-mtu=perhaps",
	} {
		_, _, err := parse(bad)
		require.Error(t, err, bad)
	}
}
