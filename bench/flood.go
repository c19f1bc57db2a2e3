package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/udp"
)

// The flood suite has unvalidated senders, or peers with sessions of their own, send
// packets to the listening end that are meant to harm it. It shows what is left
// for honest sessions: of the goodput of one that sends as fast as it can, and
// then of the exchanges of one that waits for each answer. What they are compared
// with is measured under the same flood to a socket of nobody. The shares thus
// say what the listening end spends on the flood, and not what the machine spends
// on sending. Memory is what the listening end has kept, after garbage
// collection. The time is of the whole process for each packet that has
// reached the listening end, with nothing else going on, less the time of sending.
// Its floor is the same time if the flood goes to a socket that only reads: what
// the system takes for a packet, and wakes a reader for.
//
// The floods are in flood_kinds.go. In the cases named validated, ours asks
// everybody for cookies and refuses peers without signals; kcp-go has neither.

const (
	metricShare   = "share"
	metricEchoes  = "exchanges"
	metricGrowth  = "memory"
	metricPerItem = "cpu"
	metricFloor   = "cpu floor"

	floodPause    = time.Millisecond // between the bursts that a rate is made of
	floodEchoSize = 64
	floodShutdown = 15 * time.Second // beyond the time-out of Dial
)

func init() {
	s := &suite{
		name:  "flood",
		about: "honest sessions while the listening end is flooded; against the same flood to nobody",
		impls: []string{ours, kcpGo},
		metrics: []metric{
			{metricShare, "of the goodput"}, {metricGoodput, "MB/s"}, {metricGrowth, "MB"},
			{metricEchoes, "of the exchanges"}, {metricPerItem, "µs a packet"}, {metricFloor, "µs a packet"},
		},
		lacks: func(c, impl string) bool {
			f := findFlood(c)
			return impl == kcpGo && f != nil && !f.kcpGo
		},
		measure: measureFlood,
		thresholds: []threshold{
			{c: "hello", impl: ours, metric: metricGrowth, max: 16},
			{c: "push", impl: ours, metric: metricGrowth, max: 16},
			{c: "fec-ratio", impl: ours, metric: metricPerItem, max: 8},
		},
	}
	for i := range floods {
		s.cases = append(s.cases, floods[i].name)
	}
	for _, c := range []string{"hello", "push", "garbage", "hello-validated", "push-validated"} {
		s.thresholds = append(s.thresholds, threshold{c: c, impl: ours, metric: metricShare, min: 0.8})
	}
	register(s)
}

func findFlood(name string) *flood {
	for i := range floods {
		if floods[i].name == name {
			return &floods[i]
		}
	}
	return nil
}

// floodPeer returns the implementation of a case, and where its listening end is.
func floodPeer(f *flood, impl string) (peer, net.Addr, error) {
	s := settings{mode: plain, window: bulkWindow, buffer: bulkBuffer}
	switch impl {
	case kcpGo:
		p, err := newKCPGoPeer(s)
		if err != nil {
			return nil, nil, err
		}
		return p, p.socket.LocalAddr(), nil
	case ours:
		config, err := ourConfig(s)
		if err != nil {
			return nil, nil, err
		}
		if strings.HasSuffix(f.name, "validated") {
			config.AddressValidation, config.LegacyPeers = kcp.ValidateAlways, kcp.LegacyRefuse
		}
		if f.config != nil {
			f.config(config)
		}
		p, err := newKCPPeerOf(config, s.buffer)
		if err != nil {
			return nil, nil, err
		}
		return p, p.LocalAddr(), nil
	}
	return nil, nil, fmt.Errorf("no implementation %q", impl)
}

// besieged is a listening end, its honest sessions, and what floods it.
type besieged struct {
	flood    *flood
	peer     peer
	address  netip.AddrPort
	from, to io.ReadWriteCloser // of the session that sends as fast as it can
	honest   exchanges
}

// measureFlood measures honest sessions, first with the flood elsewhere, then
// with it here.
func measureFlood(c, impl string, d time.Duration) (figs figures, err error) {
	f := findFlood(c)
	if f == nil {
		return nil, fmt.Errorf("no case %q", c)
	}
	p, address, err := floodPeer(f, impl)
	if err != nil {
		return nil, err
	}
	all := closers{p}
	defer func() { err = errors.Join(err, all.Close()) }()
	b := &besieged{flood: f, peer: p, address: address.(*net.UDPAddr).AddrPort()}
	if b.from, b.to, err = connect(p); err != nil {
		return nil, err
	}
	caller, answerer, err := connect(p)
	if err != nil {
		return nil, err
	}
	all = append(all, b.to, b.from, answerer, caller)
	go answerAll(answerer, floodEchoSize)
	if f.serve != nil {
		go f.serve(p)
	}
	b.honest.start(b.exchange(caller))
	all = append(all, &b.honest)
	nobody, err := openSocket(0)
	if err != nil {
		return nil, err
	}
	all = append(all, nobody)
	alone, err := b.measure(nobody.LocalAddr().(*net.UDPAddr).AddrPort(), d)
	if err != nil {
		return nil, err
	}
	here, err := b.measure(b.address, d)
	if err != nil {
		return nil, err
	}
	floor, read, err := b.measureFloor(d)
	if err != nil {
		return nil, err
	}
	return figures{
		metricShare:   part(here.goodput, alone.goodput),
		metricGoodput: here.goodput,
		metricGrowth:  max(0, float64(here.memory)-float64(alone.memory)) / (1 << 20),
		metricEchoes:  part(here.exchanges, alone.exchanges),
		metricPerItem: max(0, 1e6*(here.cpu-alone.cpu).Seconds()/max(1, here.packets)),
		metricFloor:   max(0, 1e6*(floor-alone.cpu).Seconds()/max(1, read)),
	}, nil
}

// part returns a as a multiple of b, and 0 if b is nothing.
func part(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// exchange returns what the honest client does again and again.
func (b *besieged) exchange(caller io.ReadWriter) func() error {
	if b.flood.dials {
		return func() error { return visit(b.peer) }
	}
	return func() error {
		_, err := pingPong(caller, floodEchoSize, 0)
		return err
	}
}

// toll is what was measured under one flood.
type toll struct {
	goodput   float64       // MB/s
	exchanges float64       // a second
	cpu       time.Duration // of the process, with the flood alone
	packets   float64       // that came meanwhile
	memory    uint64
}

// measure has the flood go to an address, and measures goodput, exchanges and
// processor time one after the other, each for d.
func (b *besieged) measure(target netip.AddrPort, d time.Duration) (t toll, err error) {
	stop, sent, err := b.flood.start(b.address, target)
	if err != nil {
		return t, err
	}
	stopped := false
	defer func() {
		if !stopped {
			stop()
		}
	}()
	bulk := newFlow(streamSource{b.from}, newStreamSink(b.to), newRope())
	bulk.start()
	if err := pass(bulk, max(d/8, 10*time.Millisecond)); err != nil {
		return t, err
	}
	flows := []*flow{bulk}
	before := measureUsage(flows)
	if err := pass(bulk, d); err != nil {
		return t, err
	}
	after := measureUsage(flows)
	t.goodput = float64(after.moved[0]-before.moved[0]) / 1e6 / after.at.Sub(before.at).Seconds()
	bulk.stop.Store(true)
	time.Sleep(min(d/8, 100*time.Millisecond)) // for what is under way

	t.exchanges = b.honest.count(d)

	packets, cpu := packetsReceived(b.peer, sent), cpuTime()
	time.Sleep(d)
	t.packets, t.cpu = packetsReceived(b.peer, sent)-packets, cpuTime()-cpu

	stop()
	stopped = true
	if err := bulk.finish(); err != nil {
		return t, err
	}
	t.memory = memoryInUse()
	return t, nil
}

// measureFloor measures, for d, the processor time of the flood to a socket that is
// only read, and how many packets that were.
func (b *besieged) measureFloor(d time.Duration) (cpu time.Duration, packets float64, err error) {
	pc, err := openSocket(bulkBuffer)
	if err != nil {
		return 0, 0, err
	}
	var read atomic.Uint64
	done := make(chan struct{})
	go func() {
		defer close(done)
		s := udp.New(pc)
		for batch := make([]udp.Datagram, s.BatchSize()); ; {
			n, err := s.ReadBatch(batch)
			if err != nil {
				return
			}
			read.Add(uint64(n))
		}
	}()
	defer func() { err = errors.Join(err, pc.Close()); <-done }()
	stop, _, err := b.flood.start(b.address, pc.LocalAddr().(*net.UDPAddr).AddrPort())
	if err != nil {
		return 0, 0, err
	}
	defer stop()
	time.Sleep(d / 8)
	before, start := read.Load(), cpuTime()
	time.Sleep(d)
	return cpuTime() - start, float64(read.Load() - before), nil
}

// pass waits for d while a flow runs, and fails early if that does.
func pass(f *flow, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case err := <-f.done:
		return err
	case <-timer.C:
		return nil
	}
}

// packetsReceived is how many packets the listening end has received. Where it does not
// tell, it is how many were sent.
func packetsReceived(p peer, sent *atomic.Uint64) float64 {
	if p, ok := p.(*kcpPeer); ok {
		return float64(p.Stats().PacketsReceived)
	}
	return float64(sent.Load())
}

// exchanges counts how often an honest client gets what it wants.
type exchanges struct {
	n        atomic.Uint64
	on, quit atomic.Bool
	done     chan struct{}
}

// start has the client do one exchange after the other while they are counted.
func (e *exchanges) start(one func() error) {
	e.done = make(chan struct{})
	go func() {
		defer close(e.done)
		for !e.quit.Load() {
			if !e.on.Load() {
				time.Sleep(time.Millisecond)
			} else if one() == nil {
				e.n.Add(1)
			} else {
				time.Sleep(time.Millisecond)
			}
		}
	}()
}

// count returns how many exchanges a second there were in d.
func (e *exchanges) count(d time.Duration) float64 {
	n, start := e.n.Load(), time.Now()
	e.on.Store(true)
	time.Sleep(d)
	e.on.Store(false)
	return float64(e.n.Load()-n) / time.Since(start).Seconds()
}

// Close ends the client, after the exchange that is under way.
func (e *exchanges) Close() error {
	e.quit.Store(true)
	select {
	case <-e.done:
		return nil
	case <-time.After(floodShutdown):
		return errors.New("an honest client gets no answer after the flood")
	}
}
