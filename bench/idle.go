package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"time"
)

// The idle suite opens many connections, lets a byte go each way over each, and
// leaves them alone. A pair is both ends of a connection.
//
// The sessions of kcp are dialled from 16 endpoints; kcp-go, which has one
// session a dialled socket, gets as many sockets as it needs. So does kcpgo, whose
// dialling ends are bare state machines: what is of interest is a server.
// Memory is what the Go heap and the stacks of goroutines occupy
// (MemStats.HeapInuse+StackInuse), after garbage collection, with the sessions,
// less the same without them but with all sockets open, and in kcp's case with
// the endpoints on them. Neither counts what the kernel holds. Goroutines are
// counted alike. Each of kcp's endpoints has one session before, which is not
// counted: with it the buffers come that its socket is read into.
//
// Before, there is some time in which what is only needed in use can be given
// back.

const (
	metricPairBytes  = "bytes a pair"
	metricGoroutines = "goroutines a pair"
	idleEndpoints    = 16
	idleSettle       = 3 * time.Second
	idleWindow       = 128
)

func init() {
	register(&suite{
		name:    "idle",
		about:   "connected pairs that do nothing; memory beyond the sockets",
		cases:   []string{"1000", "4000", "16000"},
		impls:   []string{ours, kcpGoAPI, kcpGo},
		metrics: []metric{{metricPairBytes, "bytes"}, {metricGoroutines, "count"}, {metricCPU, "cores"}},
		charts: []chart{
			{name: "bytes", title: "Memory of connections that do nothing", metric: metricPairBytes, ratios: true},
			{name: "cpu", title: "Processor time of connections that do nothing", metric: metricCPU},
		},
		lacks:   func(c, impl string) bool { return impl != ours && c == "16000" },
		measure: measureIdle,
	})
}

// idleDialer dials the n-th session.
type idleDialer func(n int) (io.ReadWriteCloser, error)

// measureIdle watches pairs for d.
func measureIdle(c, impl string, d time.Duration) (f figures, err error) {
	pairs, err := strconv.Atoi(c)
	if err != nil {
		return nil, err
	}
	p, dial, sockets, err := idleSockets(impl, pairs)
	defer func() { err = errors.Join(err, sockets.Close()) }()
	if err != nil {
		return nil, err
	}
	// A first session of each endpoint has the sockets get the buffers that they
	// read into; they go with the sockets.
	first := 0
	switch impl {
	case ours:
		first = idleEndpoints
	case kcpGoAPI:
		first = 1
	}
	ends := make(closers, 0, 2*(first+pairs))
	defer func() { err = errors.Join(err, ends.Close()) }()
	var before uint64
	var goroutines int
	for n := range first + pairs {
		if n == first {
			before, goroutines = memoryInUse(), runtime.NumGoroutine()
		}
		client, server, err := connect(dialling{p, func() (io.ReadWriteCloser, error) { return dial(n) }})
		if err != nil {
			return nil, err
		}
		ends = append(ends, server, client)
	}
	time.Sleep(min(idleSettle, 10*d))
	after := memoryInUse()
	cpu, start := cpuTime(), time.Now()
	time.Sleep(d)
	cpu = cpuTime() - cpu
	return figures{
		metricPairBytes:  max(0, float64(after)-float64(before)) / float64(pairs),
		metricGoroutines: max(0, float64(runtime.NumGoroutine()-goroutines)) / float64(pairs),
		metricCPU:        cpu.Seconds() / time.Since(start).Seconds(),
	}, nil
}

// dialling is a peer that dials in another way.
type dialling struct {
	peer
	dial func() (io.ReadWriteCloser, error)
}

func (d dialling) Dial() (io.ReadWriteCloser, error) { return d.dial() }

// idleSockets opens everything but the sessions.
func idleSockets(impl string, pairs int) (p peer, dial idleDialer, all closers, err error) {
	s := settings{mode: plain, window: idleWindow, buffer: bulkBuffer}
	switch impl {
	case ours:
		kp, err := newKCPPeer(s)
		if err != nil {
			return nil, nil, nil, err
		}
		all = closers{kp}
		var ends []*kcpEnd
		for range idleEndpoints {
			e, err := newKCPEnd(kp.config, s.buffer)
			if err != nil {
				return nil, nil, all, err
			}
			ends, all = append(ends, e), append(all, e)
		}
		return kp, func(n int) (io.ReadWriteCloser, error) { return kp.dialFrom(ends[n%len(ends)]) }, all, nil
	case kcpGo:
		gp, err := newKCPGoPeer(s)
		if err != nil {
			return nil, nil, nil, err
		}
		sockets, all, err := manySockets(pairs, s.buffer)
		all = append(closers{gp}, all...)
		return gp, func(n int) (io.ReadWriteCloser, error) { return gp.dialFrom(sockets[n]) }, all, err
	case kcpGoAPI:
		ap, err := newKCPGoAPIPeer(s)
		if err != nil {
			return nil, nil, nil, err
		}
		sockets, all, err := manySockets(pairs+1, s.buffer)
		all = append(closers{ap}, all...)
		to, in := ap.listener.Addr(), make([]byte, 2*wireMTU)
		return ap, func(n int) (io.ReadWriteCloser, error) {
			return newMachineEnd(uint32(n)+1, sockets[n], to, in), nil
		}, all, err
	}
	return nil, nil, nil, fmt.Errorf("no implementation %q", impl)
}

// manySockets opens n sockets.
func manySockets(n, buffer int) (sockets []*net.UDPConn, all closers, err error) {
	for range n {
		socket, err := openSocket(buffer)
		if err != nil {
			return nil, all, err
		}
		sockets, all = append(sockets, socket), append(all, socket)
	}
	return sockets, all, nil
}

// memoryInUse returns the bytes that heap and stacks occupy when what is
// garbage has been collected, in pools too.
func memoryInUse() uint64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
