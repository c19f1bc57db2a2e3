package network

import (
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
)

// tbf returns what a token bucket at the root of an interface has sent and dropped, in
// packets.
func (h *host) tbf(t *testing.T, dev string) (sent, dropped int) {
	t.Helper()
	require.NoError(t, h.Do(func() error {
		out, err := exec.Command("tc", "-s", "qdisc", "show", "dev", dev).CombinedOutput()
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(out)) {
			var bytes int
			if n, _ := fmt.Sscanf(strings.TrimSpace(line), "Sent %d bytes %d pkt (dropped %d,", &bytes, &sent, &dropped); n == 3 {
				return nil
			}
		}
		return fmt.Errorf("tc shows no counts: %s", out)
	}))
	return sent, dropped
}

// Behind Linux's token bucket with a queue of two packets few are dropped. On a quiet
// machine it is a fifth of what passes; timers that are late cause bursts.
func TestTokenBucket(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for _, test := range []struct {
		rate, burst string
		bytes, most int // bytes, and how many are dropped for each packet sent
	}{{"1mbit", "2kb", 400_000, 1}, {"20mbit", "3kb", 2_000_000, 2}} {
		t.Run(test.rate, func(t *testing.T) {
			c, s := client(t), newHost(t)
			cable(t, c, "q", s, "s")
			c.Must(t, "ip addr add 10.9.0.1/24 dev q")
			s.Must(t, "ip addr add 10.9.0.2/24 dev s")
			c.Try(t, fmt.Sprintf("tc qdisc add dev q root tbf rate %s burst %s limit 3000", test.rate, test.burst))
			var l *kcp.Listener
			require.NoError(t, s.Do(func() (err error) {
				l, err = kcp.Listen("udp", "10.9.0.2:4000", nil)
				return err
			}))
			defer l.Close()
			conn, err := kcp.Dial("udp", "10.9.0.2:4000", nil)
			require.NoError(t, err)
			defer conn.Close()
			go func() {
				_, _ = conn.Write(make([]byte, test.bytes))
				_ = conn.CloseWrite()
			}()
			peer, err := l.Accept()
			require.NoError(t, err)
			defer peer.Close()
			n, err := io.Copy(io.Discard, peer)
			require.NoError(t, err)
			require.EqualValues(t, test.bytes, n)
			sent, dropped := c.tbf(t, "q")
			t.Logf("%d packets sent, %d dropped", sent, dropped)
			require.Less(t, dropped, test.most*sent)
		})
	}
}
