//go:build linux

// Command bench compares tunnels over one bad link: kcptunnel, the program kcptun,
// chisel and ssh -L.
//
//	go run . -out results
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
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options are what the flags say.
type options struct {
	losses  []float64 // percent
	peers   []string
	time    time.Duration
	warm    time.Duration
	conns   int
	rate    int           // Mbit/s
	rtt     time.Duration // of the link without a queue
	control string        // congestion control of TCP
	out     string
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	var o options
	losses := flag.String("loss", "0,1,5,10", "`PERCENT` of packets lost each way, with commas")
	names := flag.String("peers", "kcptunnel,kcptun,chisel,ssh", "`NAMES` of tunnels")
	flag.DurationVar(&o.time, "d", 20*time.Second, "how long each transfer is measured")
	flag.DurationVar(&o.warm, "warm", 3*time.Second, "how long each transfer runs before that")
	flag.IntVar(&o.conns, "conns", 1000, "connections for the measurement of memory; 0: leave it out")
	flag.IntVar(&o.rate, "rate", 100, "Mbit/s of the link")
	flag.DurationVar(&o.rtt, "rtt", 50*time.Millisecond, "round-trip time of the link without a queue")
	flag.StringVar(&o.control, "control", "cubic", "congestion control of TCP")
	flag.StringVar(&o.out, "out", "", "`FOLDER` for tunnel.json and tunnel.txt")
	flag.Parse()
	for _, text := range strings.Split(*losses, ",") {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("-loss %q is not a number", text)
		}
		o.losses = append(o.losses, n)
	}
	o.peers = strings.Split(*names, ",")
	if os.Getuid() != 0 {
		return fmt.Errorf("network namespaces need root")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return measureAll(ctx, &o)
}

// measureAll measures every tunnel at every loss.
func measureAll(ctx context.Context, o *options) error {
	l, err := newLab(o)
	if err != nil {
		return err
	}
	defer l.close()
	all, err := l.prepare(o.peers)
	if err != nil {
		return err
	}
	var results []result
	for _, loss := range o.losses {
		l.setLoss(loss / 100)
		for _, p := range all {
			r, err := l.measure(ctx, p, o)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				r.Failed = err.Error()
			}
			r.Tunnel, r.Loss = p.name, loss
			results = append(results, r)
			if r.Failed != "" {
				fmt.Fprintf(os.Stderr, "%s at %v %%: %s\n", p.name, loss, r.Failed)
			}
			fmt.Print(table(results[len(results)-1:], len(results) == 1))
		}
	}
	if o.out == "" {
		return nil
	}
	return write(o, results)
}
