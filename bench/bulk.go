package main

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// The bulk suite moves bytes one way over one connection, as fast as they go:
// one sender and one receiver in this process, joined by the loopback
// interface, with packets of 1400 bytes. Processor time is of the whole
// process, both ends and the kernel's work for them included; so is what is
// allocated. What arrives is compared with what was sent, to the byte.
//
// The windows suite is the same without encryption, over the size of both
// windows. A socket's buffer holds what a window holds, as far as the system
// lets it.

const (
	metricGoodput = "goodput"
	metricCPU     = "cpu"
)

func init() {
	register(&suite{
		name:    "bulk",
		about:   "one connection over loopback, one way, 1400-byte packets, window 1024",
		cases:   []string{plain, aesGCM, overTLS, aesCFB, fecMix},
		impls:   []string{ours, kcpGoAPI, kcpGo, quicGo, kernelTCP, bareUDP},
		metrics: []metric{{metricGoodput, "MB/s"}, {metricCPU, "s/GB"}, {metricAllocs, "per MB"}},
		charts: []chart{
			{name: "goodput", title: "One bulk transfer over loopback", metric: metricGoodput},
			{name: "cpu", title: "Processor time of both ends", metric: metricCPU},
		},
		lacks: func(c, impl string) bool {
			switch impl {
			case quicGo:
				return c != plain && c != aesGCM && c != overTLS
			case kcpGo, kcpGoAPI:
				return c == overTLS
			case kernelTCP, bareUDP:
				return c != plain
			}
			return false
		},
		measure: func(c, impl string, d time.Duration) (figures, error) {
			return measureBulk(impl, settings{mode: c, window: bulkWindow, buffer: bulkBuffer}, d)
		},
	})
	register(&suite{
		name:    "windows",
		about:   "as bulk, plain, over the size of the windows in segments",
		cases:   []string{"w64", "w512", "w4096", "w16384"},
		impls:   []string{ours, kcpGo},
		metrics: []metric{{metricGoodput, "MB/s"}},
		charts: []chart{{name: "goodput", title: "Bulk transfer over the size of the window", metric: metricGoodput,
			place: func(c string) float64 { return float64(windowCases[c]) }, axis: "window, segments", log: true}},
		measure: func(c, impl string, d time.Duration) (figures, error) {
			window, ok := windowCases[c]
			if !ok {
				return nil, fmt.Errorf("no case %q", c)
			}
			buffer := max(bulkBuffer, 2*window*wireMTU)
			f, err := measureBulk(impl, settings{mode: plain, window: window, buffer: buffer}, d)
			if err != nil {
				return nil, err
			}
			return figures{metricGoodput: f[metricGoodput]}, nil
		},
	})
}

var windowCases = map[string]int{"w64": 64, "w512": 512, "w4096": 4096, "w16384": 16384}

// measureBulk moves bytes for d.
func measureBulk(impl string, s settings, d time.Duration) (f figures, err error) {
	fl, closer, err := bulkFlow(impl, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	before, after, err := watch([]*flow{fl}, d)
	if err != nil {
		return nil, err
	}
	moved := float64(after.moved[0] - before.moved[0])
	return figures{
		metricGoodput: moved / 1e6 / after.at.Sub(before.at).Seconds(),
		metricCPU:     (after.cpu - before.cpu).Seconds() / (moved / 1e9),
		metricAllocs:  float64(after.mallocs-before.mallocs) / (moved / 1e6),
	}, nil
}

// bulkFlow opens a connection of impl and puts a flow on it.
func bulkFlow(impl string, s settings) (*flow, io.Closer, error) {
	if impl == bareUDP {
		return udpFlow(s.buffer, newRope())
	}
	p, err := newPeer(impl, s)
	if err != nil {
		return nil, nil, err
	}
	client, server, err := connect(p)
	if err != nil {
		return nil, nil, errors.Join(err, p.Close())
	}
	// kcp-go's Close of a session whose peer is gone has nothing to wait for.
	return newFlow(streamSource{client}, newStreamSink(server), newRope()), closers{p, server, client}, nil
}
