package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/arqnet/kcp/netsim"
)

// The paths suite runs over paths that nobody chose: each of the cases is a path
// drawn by its number. A bulk transfer takes what it gets for pathsTime from its
// start, and sessions beside it send messages of 64 bytes, 30 a second each, one
// way. The same messages are sent over the path with nothing beside them too.
//
// drawPath has the ranges. Both directions of a path are alike. A figure is over
// several runs, which differ in what befalls the packets.
//
// The transfer has the default Config. Messages of kcp are from sessions with
// LowLatency, of kcp-default from sessions with the default Config. kcp-go has
// NoDelay(1, 10, 2, 1), and thus no congestion control.
//
// Goodput is what was read of the transfer, as a share of what the path can carry.
// A message takes from its Write to its being read. Messages of the first pathsSettle
// do not count: the links suite measures the start of a transfer. One that has not
// arrived pathsPatience after the end has taken until then.
//
// The two metrics of p99 are means of the 99th of each hundred messages of a
// session. The 99th of all would say little: where about 1 % of messages wait for a
// repair, it differs by a third between runs of the same build.
//
// A -d above the default makes as many times more runs, to tell what is due to a
// change from luck: figures of p99 differ by up to 6 % between seeds, and by 2 % with
// -d 5s.

const (
	metricAlone  = "p99-alone"
	metricBeside = "p99-beside"
)

const (
	pathsCount     = 30
	pathsAloneRuns = 8
	pathsRuns      = 3   // beside a transfer at pathsMost; more below, where they cost less
	pathsGoRuns    = 2   // of kcp-go, which costs ten times as much
	pathsMost      = 100 // Mbit/s
	pathsTime      = 23 * time.Second
	pathsAlone     = 63 * time.Second // without a transfer
	pathsSettle    = 3 * time.Second
	pathsQuick     = pathsSettle + time.Second // both, in a trial
	pathsPatience  = 10 * time.Second
	pathsFlows     = 3 // sessions with messages
	pathsSize      = 64
	pathsEvery     = time.Second / 30
)

func init() {
	s := &suite{
		name:     "paths",
		about:    "a bulk transfer, and messages of 64 bytes beside it or alone, over random paths, in virtual time",
		impls:    []string{ours, kcpDefault, kcpGo},
		metrics:  []metric{{metricGoodput, "share"}, {metricAlone, "ms"}, {metricBeside, "ms"}},
		describe: describePath,
		measure:  measurePath,
		exact:    true,
	}
	for i := range pathsCount {
		s.cases = append(s.cases, fmt.Sprint("path-", i+1))
	}
	register(s)
}

// drawPath returns the path of a number. On a logarithmic scale each, the rate is 1
// to 100 Mbit/s, the round-trip time 10 to 300 ms, and the queue 0.1 to 4
// bandwidth-delay products. Two of three paths lose 0.01 to 5 % of packets, one of
// three 0.1 to 3 % in bursts of 2 to 20. Half have a jitter of 1 to 30 ms, in order.
func drawPath(number uint64) netsim.LinkConfig {
	rng := rand.New(rand.NewPCG(number, 30))
	logarithmic := func(low, high float64) float64 {
		return low * math.Exp(rng.Float64()*math.Log(high/low))
	}
	oneIn := func(n int) bool { return rng.IntN(n) == 0 }
	rate := logarithmic(1, pathsMost) * 1e6 / 8
	rtt := logarithmic(0.010, 0.300)
	queue := rate * rtt * logarithmic(0.1, 4)
	cfg := netsim.LinkConfig{
		Rate:  int64(rate),
		Delay: time.Duration(rtt / 2 * 1e9).Round(100 * time.Microsecond),
		Queue: max(int(queue), 3000), // at least two packets
	}
	if loss := logarithmic(0.0001, 0.05); !oneIn(3) {
		cfg.Loss = loss
	}
	if mean, length := logarithmic(0.001, 0.03), logarithmic(2, 20); oneIn(3) {
		cfg.Burst = netsim.BurstLoss(mean, length)
	}
	if jitter := logarithmic(0.001, 0.030); oneIn(2) {
		cfg.Jitter = time.Duration(jitter * 1e9).Round(100 * time.Microsecond)
	}
	return cfg
}

// pathOf returns the path of a case.
func pathOf(name string) (number uint64, cfg netsim.LinkConfig, err error) {
	i := slices.Index(suites["paths"].cases, name)
	if i < 0 {
		return 0, cfg, fmt.Errorf("no case %q", name)
	}
	number = uint64(i + 1)
	return number, drawPath(number), nil
}

// describePath says what path a case has.
func describePath(name string) string {
	_, cfg, err := pathOf(name)
	if err != nil {
		return ""
	}
	product := float64(cfg.Rate) * 2 * cfg.Delay.Seconds()
	text := fmt.Sprintf("%.1f Mbit/s, RTT %.1f ms, queue %.2f BDP (%d kB)", float64(cfg.Rate)*8/1e6,
		2*cfg.Delay.Seconds()*1e3, float64(cfg.Queue)/product, cfg.Queue/1000)
	if cfg.Loss > 0 {
		text += fmt.Sprintf(", loss %.2f %%", 100*cfg.Loss)
	}
	if cfg.Burst.Mean() > 0 {
		text += fmt.Sprintf(", %.2f %% in bursts of %.1f", 100*cfg.Burst.Mean(), 1/cfg.Burst.ToGood)
	}
	if cfg.Jitter > 0 {
		text += fmt.Sprintf(", jitter %.1f ms", cfg.Jitter.Seconds()*1e3)
	}
	return text
}

// measurePath returns the figures of one path.
func measurePath(name, impl string, d time.Duration) (figures, error) {
	number, cfg, err := pathOf(name)
	if err != nil {
		return nil, err
	}
	bulk, err := linkImpl(strings.TrimSuffix(impl, "-default"), linkCase{})
	if err != nil {
		return nil, err
	}
	messages, err := latencyImpl(impl, false)
	if err != nil {
		return nil, err
	}
	length, aloneLength := pathsTime, pathsAlone
	runs, aloneRuns := pathRuns(cfg, impl, d)
	if d < quickRun {
		length, aloneLength = pathsQuick, pathsQuick
	}
	var alone, beside pathResult
	err = frozen(func() error {
		for n := range uint64(aloneRuns) {
			if err := newPathRun(cfg, number<<16|n, &alone).run(messages, nil, aloneLength); err != nil {
				return err
			}
		}
		for n := range uint64(runs) {
			if err := newPathRun(cfg, number<<16|n, &beside).run(messages, bulk, length); err != nil {
				return err
			}
		}
		return nil
	})
	return figures{
		metricGoodput: float64(beside.received) / (float64(cfg.Rate) * length.Seconds() * float64(runs)),
		metricAlone:   mean(alone.worst),
		metricBeside:  mean(beside.worst),
	}, err
}

// pathRuns returns how many runs there are over a path, beside a transfer and alone.
func pathRuns(cfg netsim.LinkConfig, impl string, d time.Duration) (beside, alone int) {
	factor := max(1, int(d/defaultDuration))
	switch {
	case d < quickRun:
		return 1, 1
	case impl == kcpGo:
		return pathsGoRuns * factor, pathsGoRuns * factor
	}
	slow := math.Sqrt(pathsMost * 1e6 / 8 / float64(cfg.Rate))
	return int(math.Round(pathsRuns*slow)) * factor, pathsAloneRuns * factor
}

// mean returns the mean of v.
func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// pathResult is what came of a number of runs.
type pathResult struct {
	worst    []float64 // the 99th of each hundred messages, in ms
	received int64     // of the transfers, until the end of each
}

// pathRun is one run over a path.
type pathRun struct {
	path
	result  *pathResult
	until   time.Duration
	due     int // messages that have not arrived
	senders []*messageFlow
}

// messageFlow is a session with messages.
type messageFlow struct {
	r       *pathRun
	a, b    *simEnd
	arrived stream
	written []time.Duration // when each message was
	times   []float64       // of those that count, in ms
	buf     []byte
}

func newPathRun(cfg netsim.LinkConfig, seed uint64, result *pathResult) *pathRun {
	return &pathRun{result: result, path: path{
		sim: new(sim), cfg: cfg, rate: cfg.Rate,
		forward: newSimLink(cfg, 2*seed), back: newSimLink(cfg, 2*seed+1),
	}}
}

// run sends messages for a time, beside a transfer if bulk is not nil.
func (r *pathRun) run(messages, bulk simImpl, length time.Duration) error {
	r.until = length
	if bulk != nil {
		if _, err := r.flow(bulk, linkCase{}, 0); err != nil {
			return err
		}
	}
	for i := range pathsFlows {
		if err := r.messages(messages, time.Duration(i)*pathsEvery/pathsFlows); err != nil {
			return err
		}
	}
	if err := r.runUntil(length); err != nil {
		return err
	}
	for _, f := range r.flows {
		r.result.received += f.received
	}
	over := false
	r.sim.at(length+pathsPatience, func() { over = true })
	if err := r.sim.run(length+2*pathsPatience, func() bool { return over || r.due == 0 }); err != nil {
		return err
	}
	for _, f := range r.senders {
		for n := f.arrived.number; n < uint64(len(f.written)); n++ {
			f.took(n)
		}
		for hundred := range slices.Chunk(f.times, 100) {
			slices.Sort(hundred)
			r.result.worst = append(r.result.worst, hundred[len(hundred)*98/100])
		}
	}
	return nil
}

// messages adds a session that sends messages from a time on.
func (r *pathRun) messages(impl simImpl, start time.Duration) error {
	f := &messageFlow{r: r, buf: make([]byte, 1<<16)}
	var err error
	if f.a, f.b, err = r.sim.pair(impl, r.forward, r.back); err != nil {
		return err
	}
	r.senders = append(r.senders, f)
	f.b.readable = func() {
		n := f.b.Read(f.buf)
		f.arrived.feed(r.sim, f.buf[:n], pathsSize, func(_ []byte, number uint64) { f.took(number) })
	}
	r.sim.every(start, pathsEvery, f.send)
	return nil
}

// send writes the next message.
func (f *messageFlow) send() {
	if f.r.sim.now >= f.r.until {
		return
	}
	f.r.due++
	f.written = append(f.written, f.r.sim.now)
	f.a.Write(message(pathsSize, uint64(len(f.written)-1)))
}

// took notes how long a message has taken if it counts.
func (f *messageFlow) took(number uint64) {
	f.r.due--
	if at := f.written[number]; at >= pathsSettle {
		f.times = append(f.times, float64(f.r.sim.now-at)/float64(time.Millisecond))
	}
}
