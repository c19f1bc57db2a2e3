package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/arqnet/kcp/netsim"
)

// The streams suite is a game's day on one path: a feed of its state, a chat,
// calls with answers, and the download of an asset that never ends, in virtual
// time. What counts is how long each message of the small flows takes, a call with
// its answer, and what is left for the download.
//
// kcp has each flow on a stream of one session, the small ones with higher
// priority. kcp-apart has a session for each flow, at the same time. kcp-bulk
// has nothing but the download. kcp-go-smux is smux over kcp-go as it is mostly
// run, quic-go has a stream for each flow.

const (
	kcpApart  = "kcp-apart"
	kcpBulk   = "kcp-bulk"
	kcpGoSmux = "kcp-go-smux"
)

// streamFlow is one flow of the mix.
type streamFlow struct {
	name     string
	size     int // bytes of a message
	every    time.Duration
	answered bool
	priority int
}

var streamFlows = []streamFlow{
	{"state", 100, time.Second / 60, false, 2},
	{"rpc", 2048, time.Second / 10, true, 1},
	{"chat", 200, time.Second / 2, false, 1},
	{"bulk", 16 << 10, 0, false, 0},
}

const (
	bulkOfMix     = 3
	streamsSettle = 5 * time.Second
	streamsTime   = 60 * time.Second
	streamsRTT    = 80 * time.Millisecond
	streamsRate   = 20_000_000 / 8 // bytes a second
)

// streamPattern is what messages hold behind the time.
var streamPattern = newRope().at(0, 16<<10)

// streamsSeed is the seed of the network. The published figures are of 1.
var streamsSeed uint64 = 1

// streamsCase is a path, and whether there is one more stream, whose writer always
// has more, and whose reader does not read.
type streamsCase struct {
	link   netsim.LinkConfig
	unread bool
}

var streamsCases = map[string]streamsCase{
	"loss0":  {link: streamsLink(0, netsim.GilbertElliott{})},
	"loss2":  {link: streamsLink(0.02, netsim.GilbertElliott{})},
	"loss5":  {link: streamsLink(0.05, netsim.GilbertElliott{})},
	"bursts": {link: streamsLink(0, netsim.BurstLoss(0.02, 5))},
	"unread": {link: streamsLink(0.02, netsim.GilbertElliott{}), unread: true}, // beside loss2
}

// streamsLink has a queue of 100 ms.
func streamsLink(loss float64, burst netsim.GilbertElliott) netsim.LinkConfig {
	return netsim.LinkConfig{
		Delay: streamsRTT / 2, Rate: streamsRate, Queue: streamsRate / 10, Overhead: netsim.OverheadIPv4,
		Loss: loss, Burst: burst, MTU: wireMTU,
	}
}

func init() {
	s := &suite{
		name:    "streams",
		about:   "a state feed, calls, a chat and a download beside each other at 20 Mbit/s, RTT 80 ms, in virtual time",
		cases:   []string{"loss0", "loss2", "loss5", "bursts", "unread"},
		impls:   []string{ours, kcpApart, kcpBulk, kcpGoSmux, quicGo},
		measure: measureStreams,
		virtual: true,
		lacks:   func(c, impl string) bool { return c == "unread" && impl != ours },
	}
	for _, f := range streamFlows[:bulkOfMix] {
		for _, q := range []string{metricP50, metricP99} {
			s.metrics = append(s.metrics, metric{f.name + "-" + q, "ms"})
		}
		for _, c := range s.cases {
			p99 := f.name + "-" + metricP99
			s.goals = append(s.goals,
				goal{c: c, impl: ours, metric: p99, max: 1.15, of: kcpApart},
				goal{c: c, impl: ours, metric: p99, max: 0.5, of: kcpGoSmux},
				goal{c: c, impl: ours, metric: p99, max: 1, of: quicGo})
		}
	}
	for _, c := range s.cases {
		s.goals = append(s.goals, goal{c: c, impl: ours, metric: metricGoodput, min: 0.9, of: kcpBulk})
	}
	s.goals = append(s.goals, goal{c: "unread", impl: ours, metric: metricGoodput, min: 0.95, ofCase: "loss2"})
	s.metrics = append(s.metrics, metric{metricGoodput, "Mbit/s"})
	register(s)
}

// flowEnds are the two ends of a flow: what is written to the first is read from
// the second, and answers come back.
type flowEnds struct{ near, far io.ReadWriter }

// smuxWindow is kcp-go's window, in segments: enough for the path and its queue.
const smuxWindow = 512

// openFlows opens the flows of the mix, and with unread one more.
func openFlows(w *world, impl string, unread bool) ([]flowEnds, error) {
	kinds := streamFlows
	if unread {
		kinds = append(slices.Clip(kinds), kinds[bulkOfMix])
	}
	flows := make([]flowEnds, len(kinds))
	var p *pair
	var err error
	for i, kind := range kinds {
		if impl == kcpBulk && i < bulkOfMix {
			continue
		}
		if p == nil || impl == kcpApart {
			if p, err = w.open(impl, smuxWindow); err != nil {
				return nil, err
			}
		}
		if impl == kcpApart {
			flows[i] = flowEnds{p.near, p.far}
			continue
		}
		near, far, err := p.stream(kind.priority)
		if err != nil {
			return nil, err
		}
		flows[i] = flowEnds{near, far}
	}
	return flows, nil
}

// streamsRun collects what arrives.
type streamsRun struct {
	mu    sync.Mutex
	start time.Time
	until time.Duration
	times [][]float64 // ms, by flow
	bulk  int64       // bytes that arrived between streamsSettle and until
	err   error
}

// measureStreams returns the figures of a case.
func measureStreams(name, impl string, d time.Duration) (figures, error) {
	c := streamsCases[name]
	r := &streamsRun{until: streamsSettle + streamsTime, times: make([][]float64, bulkOfMix)}
	if d < quickRun {
		r.until = streamsSettle + time.Second
	}
	err := frozen(func() error { return r.run(newWorld(streamsSeed, c.link), impl, c.unread) })
	if err != nil || r.err != nil {
		return nil, errors.Join(err, r.err)
	}
	f := figures{metricGoodput: float64(r.bulk) * 8 / 1e6 / (r.until - streamsSettle).Seconds()}
	for i, times := range r.times {
		if slices.Sort(times); len(times) > 0 {
			f[streamFlows[i].name+"-"+metricP50] = quantile(times, 0.5)
			f[streamFlows[i].name+"-"+metricP99] = quantile(times, 0.99)
		}
	}
	return f, nil
}

// run lets all flows go until the end. No two of their goroutines begin at the same
// instant.
func (r *streamsRun) run(w *world, impl string, unread bool) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer w.close()
	flows, err := openFlows(w, impl, unread)
	if err != nil {
		return err
	}
	r.start = time.Now()
	begin := func(f func()) {
		wg.Go(f)
		time.Sleep(time.Microsecond)
	}
	for i, ends := range flows {
		if ends.near == nil {
			continue
		}
		f := &streamFlows[min(i, bulkOfMix)]
		if i <= bulkOfMix {
			begin(func() { r.receive(i, ends.far, f.answered) })
		}
		if f.answered {
			begin(func() { r.receive(i, ends.near, false) })
		}
		begin(func() { r.send(f, time.Duration(i)*time.Microsecond, ends.near) })
	}
	time.Sleep(time.Until(r.start.Add(r.until)))
	return nil
}

// send writes messages, which begin with the time.
func (r *streamsRun) send(f *streamFlow, odds time.Duration, w io.Writer) {
	b := bytes.Clone(streamPattern[:f.size])
	for n := 0; ; n++ {
		if f.every > 0 {
			time.Sleep(time.Until(r.start.Add(time.Duration(n)*f.every + odds)))
		}
		binary.LittleEndian.PutUint64(b, uint64(time.Since(r.start)))
		if _, err := w.Write(b); err != nil {
			return
		}
	}
}

// receive reads messages of flow i. It answers them, or notes how old they are.
func (r *streamsRun) receive(i int, rw io.ReadWriter, answers bool) {
	b := make([]byte, streamFlows[i].size)
	for {
		if _, err := io.ReadFull(rw, b); err != nil {
			return
		}
		if answers {
			if _, err := rw.Write(b); err != nil {
				return
			}
			continue
		}
		r.note(i, b)
	}
}

// note takes a message that has arrived.
func (r *streamsRun) note(i int, b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !bytes.Equal(b[8:], streamPattern[8:len(b)]) {
		r.err = errContent
	}
	now, sent := time.Since(r.start), time.Duration(binary.LittleEndian.Uint64(b))
	switch {
	case now > r.until || now < streamsSettle:
	case i == bulkOfMix:
		r.bulk += int64(len(b))
	default:
		r.times[i] = append(r.times[i], float64(now-sent)/float64(time.Millisecond))
	}
}
