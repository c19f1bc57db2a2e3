package netsim

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden transcripts anew")

// requireGolden compares a transcript with that in testdata. The model of a link
// is part of what users' figures rest on: a change of it shows as a diff.
func requireGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, strings.ReplaceAll(string(want), "\r\n", "\n"), got)
}

// flipped describes how a packet differs from number(i, size).
func flipped(packet []byte, i int) string {
	want := number(i, len(packet))
	for at := range packet {
		if d := packet[at] ^ want[at]; d != 0 {
			return fmt.Sprintf(" byte %d ^ %02x", at, d)
		}
	}
	return ""
}

func TestLinkGolden(t *testing.T) {
	base := LinkConfig{
		Delay: 10 * time.Millisecond, Jitter: 8 * time.Millisecond, Reorder: 0.2,
		Loss: 0.05, Burst: BurstLoss(0.1, 3), Duplicate: 0.1, Corrupt: 0.1,
		Rate: 100_000, Overhead: OverheadIPv4, Queue: 4000, MTU: 700,
	}
	var b strings.Builder
	for _, variant := range []struct {
		name   string
		change func(*LinkConfig)
	}{
		{"uniform jitter, drop-tail", func(*LinkConfig) {}},
		{"normal jitter, correlated", func(c *LinkConfig) { c.JitterShape, c.JitterCorrelation = JitterNormal, 0.8 }},
		{"Pareto jitter", func(c *LinkConfig) { c.JitterShape = JitterPareto }},
	} {
		fmt.Fprintf(&b, "# %s\n", variant.name)
		cfg := base
		variant.change(&cfg)
		l := NewLink(cfg, 42)
		require.NoError(t, l.Play(append(Outage(60*time.Millisecond, 10*time.Millisecond), rateChange(90*time.Millisecond, 200_000)...)))
		show := func(now time.Duration, deliveries []Delivery) {
			for _, d := range deliveries {
				// What was flipped is told only if the number is not.
				fmt.Fprintf(&b, "%v: packet %d of %d bytes at %v, queued %v%s\n", now, d.Data[3], len(d.Data), d.At, d.Queued, flipped(d.Data, int(d.Data[3])))
			}
		}
		for i := range 40 {
			now := time.Duration(i) * 3 * time.Millisecond
			show(now, l.Send(now, number(i, 100+i*137%613)))
		}
		fmt.Fprintf(&b, "%+v\n", l.Stats())
	}
	requireGolden(t, "link.txt", b.String())
}

func TestNetworkGolden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b strings.Builder
		n := NewNetwork(42, LinkConfig{Delay: 10 * time.Millisecond, Jitter: 20 * time.Millisecond, Loss: 0.1, Reorder: 0.3, Duplicate: 0.1})
		n.SetLink("10.0.0.2", "10.0.0.1", LinkConfig{Rate: 20_000})
		x, y := listen(t, n, "10.0.0.1:1"), listen(t, n, "10.0.0.2:1")
		n.At(40*time.Millisecond, func() { require.NoError(t, x.Rebind("10.0.0.3:0")) })
		n.At(60*time.Millisecond, func() { n.Cut("10.0.0.3", "10.0.0.2") })
		n.At(80*time.Millisecond, func() { n.Heal("10.0.0.3", "10.0.0.2") })
		start := time.Now()
		log := func(c *PacketConn, done chan<- []arrival) { done <- receiveAll(t, c, start) }
		atX, atY := make(chan []arrival, 1), make(chan []arrival, 1)
		go log(x, atX)
		go log(y, atY)
		for i := range 60 {
			send(t, x, y, number(i, 50))
			_, err := y.WriteToAddrPort(number(i, 100), netip.MustParseAddrPort("10.0.0.1:1"))
			require.NoError(t, err)
			time.Sleep(2 * time.Millisecond)
		}
		for _, side := range []struct {
			name string
			all  []arrival
		}{{"x", <-atX}, {"y", <-atY}} {
			fmt.Fprintf(&b, "# at %s\n", side.name)
			for _, a := range side.all {
				fmt.Fprintf(&b, "%v: packet %d from %v\n", a.at, numberOf([]byte(a.data)), a.from)
			}
		}
		fmt.Fprintf(&b, "%+v\n", n.Stats())
		requireGolden(t, "network.txt", b.String())
	})
}
