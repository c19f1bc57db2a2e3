package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
)

// pings returns what a pinger does with the session of b in the time of the bubble.
func pings(t *testing.T, b *bench, edit func(*pinger)) (string, error) {
	var out bytes.Buffer
	p := &pinger{out: &out, peer: "peer", ping: b.dialed.Ping, count: 3, interval: time.Second}
	edit(p)
	err := p.run(t.Context())
	return out.String(), err
}

func TestPing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		out, err := pings(t, b, func(*pinger) {})
		require.NoError(t, err)
		require.Equal(t, `seq=1 time=40.000 ms
seq=2 time=40.000 ms
seq=3 time=40.000 ms

--- peer ---
3 sent, 3 answered, 0.0% lost, in 2.04s
rtt min/avg/max/mdev = 40.000/40.000/40.000/0.000 ms
`, out)
	})
}

// A ping that the network has lost is repeated. One that stays without an answer is
// lost, and the next is sent.
func TestPingOnABadNetwork(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		start, n := time.Now(), 0
		out, err := pings(t, b, func(p *pinger) {
			p.ping = func(ctx context.Context) (time.Duration, error) {
				from, heal := dialler.IP.String(), func() {}
				switch n++; n {
				case 2: // forever
					b.network.SetLink(from, "", netsim.LinkConfig{Loss: 1})
				case 3:
					b.network.SetLink(from, "", netsim.LinkConfig{Loss: 1})
					later := time.AfterFunc(10*time.Millisecond, func() { b.network.SetLink(from, "", b.link) })
					heal = func() { later.Stop() }
				}
				defer heal()
				return b.dialed.Ping(ctx)
			}
		})
		require.NoError(t, err)
		lines := strings.Split(out, "\n")
		require.Equal(t, "seq=1 time=40.000 ms", lines[0])
		require.Equal(t, "seq=2 no answer in 2.00s", lines[1])
		require.Regexp(t, `^seq=3 time=40\.000 ms answered after \d{3}ms$`, lines[2])
		require.Regexp(t, `\n3 sent, 2 answered, 33\.3% lost, in \S+; 1 answered only when repeated, after up to \d{3}ms\n`, out)
		require.Contains(t, out, "= 40.000/40.000/40.000/0.000 ms\n")
		require.Less(t, time.Since(start), 4*time.Second, "a lost ping delays the next only while it waits")
	})
}

func TestPingWithoutAnyAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.cut(dialler)
		out, err := pings(t, b, func(p *pinger) { p.interval = 3 * time.Second })
		require.EqualError(t, err, "no answer from peer")
		require.Contains(t, out, "seq=3 no answer in 3.00s\n\n--- peer ---\n3 sent, 0 answered, 100.0% lost, in 9.00s\n")
		require.NotContains(t, out, "rtt")
	})
}

func TestPingALegacyPeer(t *testing.T) {
	inLegacyBubble(t, false, func(t *testing.T, b *bench, conn *kcp.Conn, _ *legacyPeer) {
		b.dialed = conn
		out, err := pings(t, b, func(*pinger) {})
		require.EqualError(t, err, "peer does not answer pings: it is a peer such as kcp-go or the C reference")
		require.Empty(t, out)
	})
}

// An interrupt is the end that a ping without -count has, if there was an answer.
func TestPingInterrupted(t *testing.T) {
	for _, c := range []struct {
		count, answers int
		want           error
	}{{0, 2, nil}, {0, 0, errInterrupted}, {9, 2, errInterrupted}} {
		ctx, cancel := context.WithCancel(t.Context())
		var out bytes.Buffer
		n := 0
		p := &pinger{out: &out, peer: "peer", count: c.count, interval: time.Microsecond}
		p.ping = func(ctx context.Context) (time.Duration, error) {
			if n++; n <= c.answers {
				return 100 * time.Microsecond, nil
			}
			cancel()
			return 0, ctx.Err()
		}
		require.Equal(t, c.want, p.run(ctx))
		require.Equal(t, c.answers, strings.Count(out.String(), "time=0.100 ms\n"))
		require.Contains(t, out.String(), "--- peer ---", "no summary")
		require.Equal(t, c.answers, p.result.Sent)
	}
}

func TestPingStdoutErrors(t *testing.T) {
	p := &pinger{out: failingWriter{io.ErrClosedPipe}, interval: time.Second}
	p.ping = func(context.Context) (time.Duration, error) { return time.Millisecond, nil }
	var local *localError
	require.True(t, errors.As(p.run(t.Context()), &local))
	require.Equal(t, 1, p.result.Sent)
}

// kcp ping works with what kcp listen has, with its settings.
func TestPingCommand(t *testing.T) {
	t.Parallel()
	cert, key := writeTLS(t, "test")
	for name, args := range map[string][2][]string{
		"plain":  {},
		"cipher": {{"-cipher", "aes-256-gcm", "-key", "x"}, {"-cipher", "aes-256-gcm", "-key", "x"}},
		"tls":    {{"-tls-cert", cert, "-tls-key", key}, {"-tls", "-ca", cert, "-tls-name", "test"}},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		l, addr := listen(ctx, t, strings.NewReader(""), append(args[0], "-k")...)
		got := runWith(t.Context(), nil, append([]string{"ping", addr, "-count", "2", "-interval", "1ms"}, args[1]...)...)
		require.Equal(t, exitOK, got.code, "%s: %s", name, got.err)
		require.Empty(t, got.err)
		require.Regexp(t, `^seq=1 time=\S+ ms.*\nseq=2 time=\S+ ms.*\n\n--- `+addr+` ---\n2 sent, 2 answered, 0\.0% lost`, got.out)
		if name == "tls" {
			got = runWith(t.Context(), nil, "ping", addr)
			require.Equal(t, exitFailed, got.code)
			require.Contains(t, got.err, "kcp ping: "+addr+" wants TLS (-tls)")
		}
		cancel()
		l.wait(t)
	}
}
