package main

import (
	"bytes"
	"errors"
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
		metrics: []metric{{metricP50, "µs"}, {metricP99, "µs"}, {metricP999, "µs"}},
		measure: measureEcho,
		goals: []goal{
			{c: "64B", impl: ours, metric: metricP50, max: 1.2, of: kernelTCP},
			{c: "64B", impl: ours, metric: metricP99, max: 1.5, of: kernelTCP},
		},
	})
}

var echoSizes = map[string]int{"64B": 64, "4KB": 4096}

// measureEcho plays ping-pong for d.
func measureEcho(c, impl string, d time.Duration) (f figures, err error) {
	size := echoSizes[c]
	client, server, end, err := echoEnds(impl)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end.Close()) }()
	go answerAll(server, size)
	if _, err := pingPong(client, size, d/8); err != nil {
		return nil, err
	}
	times, err := pingPong(client, size, d)
	if err != nil {
		return nil, err
	}
	slices.Sort(times)
	return figures{metricP50: quantile(times, 0.5), metricP99: quantile(times, 0.99), metricP999: quantile(times, 0.999)}, nil
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

// pingPong returns the times of the round trips of d in µs, of one at least.
func pingPong(c io.ReadWriter, size int, d time.Duration) ([]float64, error) {
	times := make([]float64, 0, 1<<16)
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
		times = append(times, float64(time.Since(start))/float64(time.Microsecond))
		if !bytes.Equal(b, message) {
			return nil, errContent
		}
	}
	return times, nil
}

// echoEnds opens a connection of impl.
func echoEnds(impl string) (client, server io.ReadWriteCloser, end io.Closer, err error) {
	if impl == bareUDP {
		s, end, err := udpSockets()
		if err != nil {
			return nil, nil, nil, err
		}
		c, err := net.Dial("udp4", s[1].LocalAddr().String())
		return c, &udpEcho{UDPConn: s[1]}, append(end, c), err
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
