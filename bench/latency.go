package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/arqnet/kcp"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/netsim"
)

// The latency suite is the test that comes with the KCP reference, on the
// simulator: one side sends a small message at a fixed rate, the other sends
// it back, the link loses and delays, and what counts is how long each echo
// took, from its Write to its being read. A run ends with its last echo.
//
// kcp is this module as its sessions run it with LowLatency, kcp-default with
// the default Config, the redundant cases with a Config.Redundancy of 1. kcp-go
// is driven as its sessions do, with its fastest settings, in the redundant
// cases with SetDUP(1). The references are our state machine without
// extensions, which is theirs byte for byte, driven by a tick of 10 ms as in
// the test it comes with.

const (
	metricMean  = "mean"
	metricP50   = "p50"
	metricP99   = "p99"
	metricP999  = "p99.9"
	metricMax   = "max"
	metricBytes = "bytes"
)

const (
	kcpDefault      = "kcp-default"
	referenceNormal = "reference-normal"
	referenceFast   = "reference-fast"
)

// latencyCase is what a case's name stands for.
type latencyCase struct {
	size      int           // of a message, at least 8
	every     time.Duration // between two messages
	link      netsim.LinkConfig
	bursts    bool // of loss, see schedule
	redundant bool
}

// kcpTestLink is the latency simulator of the reference's test: 30 to 61 ms
// each way in order, 5 % lost.
var kcpTestLink = netsim.LinkConfig{Delay: 30 * time.Millisecond, Jitter: 32 * time.Millisecond, Loss: 0.05}

var latencyCases = map[string]latencyCase{
	"kcp-test":           {size: 8, every: 20 * time.Millisecond, link: kcpTestLink},
	"kcp-test-redundant": {size: 8, every: 20 * time.Millisecond, link: kcpTestLink, redundant: true},
	"burst-60hz":         {size: 64, every: time.Second / 60, link: burstLink, bursts: true},
	"4KB-30hz": {size: 4096, every: time.Second / 30, link: netsim.LinkConfig{
		Delay: 37 * time.Millisecond, Jitter: 6 * time.Millisecond, Loss: 0.03,
		Rate: 20e6 / 8, Queue: 250e3,
	}},
}

// burstLink is a path of 80 ms that loses nothing between its bursts.
var burstLink = netsim.LinkConfig{Delay: 37 * time.Millisecond, Jitter: 6 * time.Millisecond}

// Bursts of loss: both directions lose burstLoss of all packets for a time,
// then nothing for another, both exponentially distributed.
const (
	burstLoss  = 0.3
	burstMean  = 500 * time.Millisecond
	burstPause = 2 * time.Second
)

const (
	latencyRuns   = 30
	latencyEchoes = 1000
	latencyWindow = 128
	latencyLimit  = time.Hour // of virtual time in one run
)

func init() {
	register(&suite{
		name:  "latency",
		about: "echoes of small messages over lossy paths, in virtual time, 30 runs of 1000; bytes are of one run, both ways, with 28 of IP and UDP a packet",
		cases: []string{"kcp-test", "kcp-test-redundant", "burst-60hz", "4KB-30hz"},
		impls: []string{ours, kcpDefault, kcpGo, referenceFast, referenceNormal},
		metrics: []metric{
			{metricMean, "ms"}, {metricP50, "ms"}, {metricP99, "ms"}, {metricP999, "ms"}, {metricMax, "ms"},
			{metricBytes, "bytes"},
		},
		measure: measureLatency,
		virtual: true,
		goals:   latencyGoals(),
	})
}

// latencyGoals returns what this module has to reach. The kcp-test is also
// measured against the reference's bytes with its fast settings; in the others
// it has to be ahead of that and of kcp-go.
func latencyGoals() (all []goal) {
	const plain, redundant = "kcp-test", "kcp-test-redundant"
	all = []goal{
		{c: plain, impl: ours, metric: metricMean, max: 115},
		{c: plain, impl: ours, metric: metricP99, max: 260},
		{c: plain, impl: ours, metric: metricMax, max: 330},
		{c: plain, impl: ours, metric: metricBytes, max: 1.05, of: referenceFast},
		{c: redundant, impl: ours, metric: metricMean, max: 97},
		{c: redundant, impl: ours, metric: metricP99, max: 145},
		{c: redundant, impl: ours, metric: metricMax, max: 200},
		{c: redundant, impl: ours, metric: metricBytes, max: 2.2, of: referenceFast},
	}
	for _, c := range []string{"burst-60hz", "4KB-30hz"} {
		for _, other := range []string{referenceFast, kcpGo} {
			for _, m := range []string{metricMean, metricP99, metricBytes} {
				all = append(all, goal{c: c, impl: ours, metric: m, max: 1, of: other})
			}
		}
	}
	return all
}

// measureLatency returns the figures of a case, over all runs
// together, but max and bytes, which are medians of the runs'. Virtual time
// costs what it costs: d only tells a trial, which is one run, from the whole.
func measureLatency(c, impl string, d time.Duration) (figures, error) {
	runs := latencyRuns
	if d < quickRun {
		runs = 1
	}
	r, err := runLatency(c, impl, runs)
	if err != nil {
		return nil, err
	}
	sum := 0.0
	for _, v := range r.echoes {
		sum += v
	}
	return figures{
		metricMean:  sum / float64(len(r.echoes)),
		metricP50:   quantile(r.echoes, 0.5),
		metricP99:   quantile(r.echoes, 0.99),
		metricP999:  quantile(r.echoes, 0.999),
		metricMax:   median(r.max),
		metricBytes: median(r.bytes),
	}, nil
}

// latencyResult is what came of a number of runs.
type latencyResult struct {
	echoes []float64 // ms, of all runs, sorted
	max    []float64 // of each run
	bytes  []float64 // of each run
}

// runLatency runs a case a number of times, with seeds that depend on nothing
// but the number of the run.
func runLatency(name, impl string, runs int) (r latencyResult, err error) {
	c := latencyCases[name]
	ends, err := latencyImpl(impl, c.redundant)
	if err != nil {
		return r, err
	}
	err = frozen(func() error {
		for run := range runs {
			e, err := newEcho(c, ends, uint64(run))
			if err == nil {
				err = e.sim.run(latencyLimit, func() bool { return len(e.times) == latencyEchoes })
			}
			if err != nil {
				return fmt.Errorf("run %d: %w", run, err)
			}
			r.echoes = append(r.echoes, e.times...)
			r.max = append(r.max, slices.Max(e.times))
			r.bytes = append(r.bytes, float64(e.client.bytes+e.server.bytes))
		}
		return nil
	})
	slices.Sort(r.echoes)
	return r, err
}

// latencyImpl returns an implementation with the settings of this suite.
func latencyImpl(impl string, redundant bool) (simImpl, error) {
	reference := func(setup func(k *kcp.KCP) error) simImpl {
		return newTickImpl(10*time.Millisecond, func(k *kcp.KCP) error {
			if err := setup(k); err != nil {
				return err
			}
			return k.SetWindow(latencyWindow, latencyWindow)
		})
	}
	switch impl {
	case ours, kcpDefault:
		config := kcp.LowLatency()
		if impl == kcpDefault {
			config = kcp.Config{}
		}
		config.MessageMode = true
		if redundant {
			config.Redundancy = 1
		}
		config.SendWindow, config.ReceiveWindow = latencyWindow, latencyWindow
		return newSessionImpl(config), nil
	case kcpGo:
		copies := 0
		if redundant {
			copies = 1
		}
		return newKCPGoImpl(1, 10, 2, 1, latencyWindow, copies), nil
	case referenceFast: // ikcp_nodelay(2, 10, 2, 1), rx_minrto 10, fastresend 1
		return reference(func(k *kcp.KCP) error {
			k.SetNoDelay(kcp.NoDelayTurbo)
			k.SetFastResend(1)
			k.SetCongestionControl(congestion.NewNone())
			return k.SetMinRTO(10)
		}), nil
	case referenceNormal: // ikcp_nodelay(0, 10, 0, 1)
		return reference(func(k *kcp.KCP) error {
			k.SetCongestionControl(congestion.NewNone())
			return nil
		}), nil
	}
	return nil, fmt.Errorf("no implementation %q", impl)
}

// echo is one run: client sends, server sends back.
type echo struct {
	latencyCase
	sim            *sim
	client, server *simEnd
	rng            *rand.Rand
	links          [2]*simLink

	written []time.Duration // when each message was
	times   []float64       // of the echoes so far, in ms
	buf     []byte
	atServer,
	atClient stream
}

func newEcho(c latencyCase, ends simImpl, seed uint64) (*echo, error) {
	e := &echo{latencyCase: c, sim: new(sim), rng: rand.New(rand.NewPCG(seed, 5)), buf: make([]byte, 1<<20)}
	for i := range e.links {
		e.links[i] = newSimLink(c.link, 2*seed+uint64(i))
	}
	var err error
	if e.client, e.server, err = e.sim.pair(ends, e.links[0], e.links[1]); err != nil {
		return nil, err
	}
	e.server.readable = e.serve
	e.client.readable = e.receive
	e.sim.every(c.every, c.every, e.send)
	if c.bursts {
		e.schedule(0, false)
	}
	return e, nil
}

// schedule has the links lose for a while, or not, from a time on.
func (e *echo) schedule(at time.Duration, losing bool) {
	e.sim.at(at, func() {
		cfg, mean := e.link, burstPause
		if losing {
			cfg.Loss, mean = burstLoss, burstMean
		}
		for _, l := range e.links {
			l.SetConfig(cfg)
		}
		e.schedule(at+time.Duration(e.rng.ExpFloat64()*float64(mean)), !losing)
	})
}

// send writes the next message: its number, and a pattern that depends on it.
func (e *echo) send() {
	e.client.Write(message(e.size, uint64(len(e.written))))
	e.written = append(e.written, e.sim.now)
}

// serve sends back what the server has.
func (e *echo) serve() {
	n := e.server.Read(e.buf)
	e.atServer.feed(e.sim, e.buf[:n], e.size, func(m []byte, _ uint64) { e.server.Write(m) })
}

// receive takes echoes.
func (e *echo) receive() {
	n := e.client.Read(e.buf)
	e.atClient.feed(e.sim, e.buf[:n], e.size, func(_ []byte, number uint64) {
		if len(e.times) < latencyEchoes {
			e.times = append(e.times, float64(e.sim.now-e.written[number])/float64(time.Millisecond))
		}
	})
}

// message returns message number of a stream.
func message(size int, number uint64) []byte {
	m := make([]byte, size)
	for i := range m {
		m[i] = byte(number + uint64(i))
	}
	binary.LittleEndian.PutUint64(m, number)
	return m
}

// stream cuts what arrives into messages again: kcp-go's sessions do not keep
// boundaries, and then a reader may see a part.
type stream struct {
	rest   []byte
	number uint64
}

// feed calls each with every message that is complete, after comparing it byte
// for byte with what was sent.
func (s *stream) feed(sim *sim, p []byte, size int, each func(m []byte, number uint64)) {
	s.rest = append(s.rest, p...)
	for len(s.rest) >= size {
		m := s.rest[:size]
		if want := message(size, s.number); !slices.Equal(m, want) {
			sim.fail(fmt.Errorf("message %d is %x, want %x", s.number, m, want))
			return
		}
		each(m, s.number)
		s.number++
		s.rest = s.rest[size:]
	}
}
