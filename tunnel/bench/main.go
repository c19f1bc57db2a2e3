//go:build linux

// Command bench compares tunnels over one bad link: kcptunnel, the program kcptun,
// chisel and ssh -L.
//
//	go run . -out results/tunnel.txt
//
// It needs root, for two network namespaces. Two TUN devices join them by the link
// model of package netsim, which `kcp relay` has too, so that TCP and UDP meet the
// same link. Debian's packages kcptun and openssh-server have two of the programs;
// what is not installed is left out. chisel comes by its Go module.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	linkRate = 100                   // Mbit/s
	linkRTT  = 50 * time.Millisecond // without a queue
	warmUp   = 3 * time.Second       // of each transfer, before it is measured
	manyConn = 1000                  // connections for the measurement of memory
)

func main() {
	losses := flag.String("loss", "0,1,5,10", "`PERCENT` of packets lost each way, with commas")
	each := flag.Duration("d", 20*time.Second, "how long each transfer is measured")
	out := flag.String("out", "", "`FILE` for the table")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	text, err := run(ctx, strings.Split(*losses, ","), *each)
	if err == nil && *out != "" {
		err = os.WriteFile(*out, []byte(text), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures every tunnel at every loss, and returns the table.
func run(ctx context.Context, losses []string, each time.Duration) (string, error) {
	l, err := newLab()
	if err != nil {
		return "", err
	}
	defer l.close()
	text := fmt.Sprintf(about, linkRate, linkRTT, runtime.NumCPU(), runtime.Version(), each, manyConn)
	text += fmt.Sprintf("%6s  %-18s %9s %9s %9s %9s %8s %9s %9s\n", "loss", "tunnel", "1 Mbit/s", "10 Mbit/s", "p50 ms", "p99 ms", "s/GB", "idle MB", "busy MB")
	fmt.Print(text)
	for _, loss := range losses {
		percent, err := strconv.ParseFloat(loss, 64)
		if err != nil {
			return "", fmt.Errorf("-loss %q is not a number", loss)
		}
		l.up.setLoss(percent / 100)
		l.down.setLoss(percent / 100)
		for _, p := range l.peers() {
			r, err := l.measure(ctx, p, each)
			if ctx.Err() != nil {
				return "", ctx.Err()
			}
			if err != nil {
				fmt.Fprintf(os.Stderr, "%s at %s %%: %v\n", p.name, loss, err)
			}
			row := fmt.Sprintf("%4s %%  %-18s", loss, p.name)
			for i, n := range []float64{r.one, r.ten, r.p50, r.p99, r.cpu, r.idle, r.busy} {
				width := 10
				if i == 4 {
					width = 9
				}
				if n == 0 {
					row += fmt.Sprintf("%*s", width, "-")
				} else {
					row += fmt.Sprintf("%*.1f", width, n)
				}
			}
			fmt.Println(row)
			text += row + "\n"
		}
	}
	return text, nil
}

// about says how the figures were taken.
const about = `Tunnels over a link of %d Mbit/s, %v there and back, a drop-tail queue of one
bandwidth-delay product, and independent loss each way; TCP with cubic. %d processors,
%s. Goodput of one and of ten downloads over %v; the time of a request of 1 KB
every 100 ms beside one download; processor time of the programs at both ends for
each GB, without what the kernel does for TCP; memory of both ends with %d
connections, idle and all downloading. A figure is missing (-) if the tunnel did not
get so far.

`
