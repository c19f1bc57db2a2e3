//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// table returns results as text, a line each.
func table(results []result, head bool) string {
	var b strings.Builder
	if head {
		fmt.Fprintf(&b, "%6s  %-10s %9s %9s %9s %9s %8s %9s %9s\n", "loss", "tunnel", "1 Mbit/s", "10 Mbit/s", "p50 ms", "p99 ms", "s/GB", "idle MB", "busy MB")
	}
	for _, r := range results {
		fmt.Fprintf(&b, "%4g %%  %-10s", r.Loss, r.Tunnel)
		for i, n := range []float64{r.One, r.Ten, r.P50, r.P99, r.CPU, r.Idle, r.Busy} {
			width := 10
			if i == 4 {
				width = 9
			}
			if n == 0 {
				fmt.Fprintf(&b, "%*s", width, "-")
				continue
			}
			fmt.Fprintf(&b, "%*.1f", width, n)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// about says how the figures were taken.
func about(o *options) string {
	return fmt.Sprintf(`Tunnels over a link of %d Mbit/s, %v there and back, a drop-tail queue of one
bandwidth-delay product, and independent loss each way; TCP with %s. %d processors,
%s. Goodput of one and of ten downloads over %v; the time of a request of 1 KB
every 100 ms beside one download; processor time of the programs at both ends for
each GB, without what the kernel does for TCP; memory of both ends with %d
connections, idle and all downloading. A figure is missing (-) if the tunnel did not
get so far.

`, o.rate, o.rtt, o.control, runtime.NumCPU(), runtime.Version(), o.time, o.conns)
}

// write writes tunnel.json and tunnel.txt.
func write(o *options, results []result) error {
	text, err := json.MarshalIndent(results, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.out, "tunnel.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, "tunnel.txt"), []byte(about(o)+table(results, true)), 0o644)
}
