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
// The sessions of kcp are dialled from one endpoint; kcp-go and package kcpgo, which
// have one session a dialled socket, get as many sockets as they need. Memory is what the
// Go heap and the stacks of goroutines occupy, after garbage collection, with the
// sessions, less the same with the sockets and a first session: with that the buffers
// come that its socket is read into. Goroutines are counted alike. What the kernel
// holds is not counted.
//
// Before, there is some time in which what is only needed in use can be given
// back.

const (
	metricPairBytes  = "bytes a pair"
	metricGoroutines = "goroutines a pair"
	idleSettle       = 3 * time.Second
)

func init() {
	register(&suite{
		name:    "idle",
		about:   "connected pairs that do nothing; memory beyond the sockets",
		cases:   []string{"1000"},
		impls:   []string{ours, kcpGoAPI, kcpGo},
		metrics: []metric{{metricPairBytes, "bytes"}, {metricGoroutines, "count"}, {metricCPU, "cores"}},
		measure: measureIdle,
	})
}

// measureIdle watches pairs for d.
func measureIdle(c, impl string, d time.Duration) (f figures, err error) {
	pairs, err := strconv.Atoi(c)
	if err != nil {
		return nil, err
	}
	var all closers
	defer func() { err = errors.Join(err, all.Close()) }()
	p, dial, err := idlePeer(impl, 1+pairs, &all)
	if err != nil {
		return nil, err
	}
	var before uint64
	var goroutines int
	for n := range 1 + pairs {
		if n == 1 {
			before, goroutines = memoryInUse(), runtime.NumGoroutine()
		}
		client, server, err := connect(dialling{p, func() (io.ReadWriteCloser, error) { return dial(n) }})
		if err != nil {
			return nil, err
		}
		all = append(all, server, client)
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

// idlePeer opens everything but the sessions, and adds to all what is to be closed.
func idlePeer(impl string, sessions int, all *closers) (peer, func(n int) (io.ReadWriteCloser, error), error) {
	s := settings{mode: plain, window: 128, buffer: bulkBuffer}
	switch impl {
	case ours:
		p, err := newKCPPeer(s)
		if err != nil {
			return nil, nil, err
		}
		e, err := newKCPEnd(p.config, s.buffer)
		if err != nil {
			return nil, nil, errors.Join(err, p.Close())
		}
		*all = closers{p, e}
		return p, func(int) (io.ReadWriteCloser, error) { return p.dialFrom(e) }, nil
	case kcpGo, kcpGoAPI:
		open := newKCPGoPeer
		if impl == kcpGoAPI {
			open = newFacadePeer
		}
		p, err := open(s)
		if err != nil {
			return nil, nil, err
		}
		*all = closers{p}
		var sockets []*net.UDPConn
		for range sessions {
			socket, err := openSocket(s.buffer)
			if err != nil {
				return nil, nil, err
			}
			sockets, *all = append(sockets, socket), append(*all, socket)
		}
		return p, func(n int) (io.ReadWriteCloser, error) { return p.dialFrom(p.addr, sockets[n]) }, nil
	}
	return nil, nil, fmt.Errorf("no implementation %q", impl)
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
