package main

import (
	"errors"
	"io"
	"runtime"
	"sync/atomic"
	"time"
)

// The bulk suite moves bytes one way over one connection, as fast as they go:
// one sender and one receiver in this process, joined by the loopback
// interface, with packets of 1400 bytes. Processor time is of the whole
// process, both ends and the kernel's work for them included; so is what is
// allocated. What arrives is compared with what was sent, to the byte.

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
		measure: measureBulk,
		goals: []goal{
			{c: plain, impl: ours, metric: metricGoodput, min: 0.6, of: bareUDP},
			{c: plain, impl: ours, metric: metricCPU, max: 1.7, of: bareUDP},
			{c: aesGCM, impl: ours, metric: metricGoodput, min: 3, of: quicGo},
			{c: overTLS, impl: ours, metric: metricGoodput, min: 3, of: quicGo},
			{c: aesCFB, impl: ours, metric: metricGoodput, min: 1, of: kcpGoAPI},
		},
	})
}

// measureBulk moves bytes for d, after some time in which windows open and buffers
// are made. All of it is checked to the last byte.
func measureBulk(mode, impl string, d time.Duration) (fig figures, err error) {
	f, end, err := bulkFlow(mode, impl)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end.Close()) }()
	go func() { f.done <- f.write() }()
	go func() { f.done <- f.read() }()
	if err := f.letRun(max(d/8, 10*time.Millisecond)); err != nil {
		return nil, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start, cpu, received := time.Now(), cpuTime(), f.received.Load()
	if err := f.letRun(d); err != nil {
		return nil, err
	}
	took, cpu, moved := time.Since(start), cpuTime()-cpu, float64(f.received.Load()-received)
	runtime.ReadMemStats(&after)
	f.stop.Store(true)
	for range 2 {
		if err := <-f.done; err != nil {
			return nil, err
		}
	}
	return figures{
		metricGoodput: moved / 1e6 / took.Seconds(),
		metricCPU:     cpu.Seconds() / (moved / 1e9),
		metricAllocs:  float64(after.Mallocs-before.Mallocs) / (moved / 1e6),
	}, nil
}

// bulkFlow opens a connection of impl and puts a flow on it.
func bulkFlow(mode, impl string) (*flow, io.Closer, error) {
	if impl == bareUDP {
		return udpFlow()
	}
	p, err := newPeer(impl, settings{mode: mode, window: bulkWindow, buffer: bulkBuffer})
	if err != nil {
		return nil, nil, err
	}
	client, server, err := connect(p)
	if err != nil {
		return nil, nil, errors.Join(err, p.Close())
	}
	b := make([]byte, readSize)
	return newFlow(
		func(r *rope, at uint64, n int) error { _, err := client.Write(r.at(at, n)); return err },
		func() ([]byte, error) { n, err := server.Read(b); return b[:n], err },
		writeSize,
	), closers{p, server, client}, nil
}

// writeSize and readSize are what one call writes and has room for. The kernel's
// TCP is two to three times as fast over loopback where what is written is a
// little less than its largest segment there, such as 32 KiB, and not a little
// more; 64 KiB is what it is commonly measured with.
const (
	writeSize = 64 << 10
	readSize  = 64 << 10
)

// flow moves bytes one way for as long as it is let.
type flow struct {
	send     func(r *rope, at uint64, n int) error // sends n bytes at a position
	receive  func() ([]byte, error)                // valid until the next call
	rope     *rope
	size     int // of what is sent with one call
	received atomic.Uint64
	total    atomic.Uint64 // what will have been sent; 0: not yet known
	stop     atomic.Bool
	done     chan error // both ends report here
}

func newFlow(send func(*rope, uint64, int) error, receive func() ([]byte, error), size int) *flow {
	return &flow{send: send, receive: receive, rope: newRope(), size: size, done: make(chan error, 2)}
}

// write sends until it is stopped. The last call is announced before, so that
// the reader knows when it has everything, and no call of it waits for more.
func (f *flow) write() error {
	for sent := uint64(0); ; sent += uint64(f.size) {
		last := f.stop.Load()
		if last {
			f.total.Store(sent + uint64(f.size))
		}
		if err := f.send(f.rope, sent, f.size); err != nil || last {
			return err
		}
	}
}

// read receives everything and checks that it is what was sent.
func (f *flow) read() error {
	for received := uint64(0); ; {
		b, err := f.receive()
		if err != nil {
			return err
		}
		if err := f.rope.check(received, b); err != nil {
			return err
		}
		received += uint64(len(b))
		f.received.Store(received)
		if total := f.total.Load(); total > 0 && received >= total {
			if received > total {
				return errContent
			}
			return nil
		}
	}
}

// letRun waits for d, and longer if nothing has arrived by then.
func (f *flow) letRun(d time.Duration) error {
	first, end := f.received.Load(), time.Now().Add(d)
	for time.Now().Before(end) || f.received.Load() == first {
		select {
		case err := <-f.done:
			return err
		case <-time.After(min(max(time.Until(end), time.Millisecond), 50*time.Millisecond)):
		}
	}
	return nil
}
