package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// The echo suite sends a message to and fro over the loopback interface, the
// next when the last has come back, and takes the time of each round trip. Bare
// UDP does it with one datagram and the plain calls of package net.

func init() {
	register(&suite{
		name:    "echo",
		about:   "ping-pong of one message over loopback, time of a round trip",
		cases:   []string{"64B", "4KB"},
		impls:   []string{ours, kcpGo, quicGo, kernelTCP, bareUDP},
		metrics: []metric{{"p50", "µs"}, {"p99", "µs"}, {"p99.9", "µs"}},
		charts: []chart{
			{name: "p50", title: "Ping-pong over loopback, median", metric: "p50"},
			{name: "p99", title: "Ping-pong over loopback, 99 of 100", metric: "p99"},
			{name: "cdf", title: "Ping-pong of 64 bytes over loopback", cases: []string{"64B"},
				samples: echoSamples, unit: "µs"},
		},
		measure: measureEcho,
	})
}

var echoSizes = map[string]int{"64B": 64, "4KB": 4096}

// measureEcho plays ping-pong for d.
func measureEcho(c, impl string, d time.Duration) (f figures, err error) {
	size, ok := echoSizes[c]
	if !ok {
		return nil, fmt.Errorf("no case %q", c)
	}
	client, server, closer, err := echoEnds(impl)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	go answerAll(server, size)
	if _, err := pingPong(client, size, d/8); err != nil {
		return nil, err
	}
	times, err := pingPong(client, size, d)
	if err != nil {
		return nil, err
	}
	slices.Sort(times)
	echoTimes[[2]string{c, impl}] = times
	at := func(quantile float64) float64 {
		i := min(int(quantile*float64(len(times))), len(times)-1)
		return float64(times[i].Nanoseconds()) / 1e3
	}
	return figures{"p50": at(0.5), "p99": at(0.99), "p99.9": at(0.999)}, nil
}

// echoTimes are the round trips of the last measurement of a case.
var echoTimes = map[[2]string][]time.Duration{}

func echoSamples(c, impl string) []float64 {
	var v []float64
	for _, t := range echoTimes[[2]string{c, impl}] {
		v = append(v, float64(t.Nanoseconds())/1e3)
	}
	return v
}

// answerAll sends back every message until the connection fails, which it does when
// the measurement is over.
func answerAll(c io.ReadWriter, size int) {
	b := make([]byte, size)
	for {
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}

// pingPong returns the times of the round trips of d, of one at least.
func pingPong(c io.ReadWriter, size int, d time.Duration) ([]time.Duration, error) {
	times := make([]time.Duration, 0, 1<<16)
	r := newRope()
	b := make([]byte, size)
	for end, n := time.Now().Add(d), uint64(0); len(times) == 0 || time.Now().Before(end); n += 7 {
		message := r.at(n, size)
		start := time.Now()
		if _, err := c.Write(message); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(c, b); err != nil {
			return nil, err
		}
		times = append(times, time.Since(start))
		if !bytes.Equal(b, message) {
			return nil, errContent
		}
	}
	return times, nil
}

// echoEnds opens a connection of impl.
func echoEnds(impl string) (client, server io.ReadWriteCloser, closer io.Closer, err error) {
	if impl == bareUDP {
		return udpEchoEnds()
	}
	p, err := newPeer(impl, settings{mode: plain, window: bulkWindow, buffer: bulkBuffer})
	if err != nil {
		return nil, nil, nil, err
	}
	client, server, err = connect(p)
	if err != nil {
		return nil, nil, nil, errors.Join(err, p.Close())
	}
	return client, server, closers{p, server, client}, nil
}

// udpEchoEnds returns two sockets connected to each other.
func udpEchoEnds() (client, server io.ReadWriteCloser, closer io.Closer, err error) {
	pc, err := openSocket(bulkBuffer)
	if err != nil {
		return nil, nil, nil, err
	}
	c, err := net.Dial("udp4", pc.LocalAddr().String())
	if err != nil {
		return nil, nil, nil, errors.Join(err, pc.Close())
	}
	return c, &udpAnswerer{UDPConn: pc}, closers{pc, c}, nil
}

// udpAnswerer is an unconnected socket that writes to whoever it read from.
type udpAnswerer struct {
	*net.UDPConn
	peer *net.UDPAddr
}

func (a *udpAnswerer) Read(b []byte) (int, error) {
	n, from, err := a.ReadFromUDPAddrPort(b)
	if a.peer == nil && err == nil {
		a.peer = net.UDPAddrFromAddrPort(from)
	}
	return n, err
}

func (a *udpAnswerer) Write(b []byte) (int, error) {
	return a.WriteToUDPAddrPort(b, a.peer.AddrPort())
}
