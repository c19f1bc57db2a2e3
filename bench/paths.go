package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/arqnet/kcp/netsim"
)

// The paths suite is a matrix of paths that are long, change, are slow, or deliver in
// bunches. Each row is a bulk transfer over one of them, in virtual time.
//
// kcp and kcp-cubic are this module with the default Config, and with CUBIC. kcp-go is
// driven as its sessions do, with NoDelay(1, 10, 2, 1) and thus no congestion control.
// kcp-go-smux is smux over it. quic-go has windows of 16 to 64 MB.
//
// Goodput is what the application has read, as a share of what passes: of the rate of
// the link, or of 1400 bytes for each packet that a recorded link lets pass. Packets of
// more than 1400 bytes do not pass. Resent is the share of segments that were sent again;
// with quic-go, of packets that it took for lost.

const (
	metricSent     = "sent"
	metricSlow     = "slow"
	metricSegments = "queue"
	metricWait     = "queue_p95"
	metricMessage  = "message_p95"
	metricRatio    = "ratio"
	metricRecovery = "recovery"
)

// pathWindow is the window of kcp-go, in segments, where a row says nothing else.
const pathWindow = 2048

// pathLinks are both directions of a path: of the data, and back.
type pathLinks struct{ there, back netsim.LinkConfig }

// pathRow is a row of the matrix.
type pathRow struct {
	links  pathLinks
	window int  // of kcp-go; 0: pathWindow
	stream bool // the transfer has a stream; the session itself otherwise

	// beside is who has a transfer beside this one. Empty means nobody, and same means
	// the implementation that is measured.
	beside string
	second bool // the one beside begins first

	warm    time.Duration // before it is measured
	measure func(r *pathRun) figures
}

const same = "same"

// delayed returns a path of a round-trip time.
func delayed(rtt time.Duration) pathLinks {
	link := netsim.LinkConfig{Delay: rtt / 2, MTU: wireMTU}
	return pathLinks{link, link}
}

// narrow returns a path of Mbit/s, with a queue that holds the packets of a time.
func narrow(rate float64, queue, rtt time.Duration) pathLinks {
	p := delayed(rtt)
	p.there.Rate = int64(rate * 1e6 / 8)
	p.there.Queue = max(int(float64(p.there.Rate)*queue.Seconds()), 3000)
	return p
}

// with returns a path with a change.
func (p pathLinks) with(change func(p *pathLinks)) pathLinks {
	change(&p)
	return p
}

const ms = time.Millisecond

// pathRows are the rows by name. Those of recorded links come from a flag.
var pathRows = map[string]*pathRow{
	"bunches-50ms":  bunches(50 * ms),
	"bunches-102ms": bunches(102 * ms),
	"bunches-205ms": bunches(205 * ms),

	"narrower-100-4":  narrower(narrow(100, 50*ms, 40*ms), narrow(4, 50*ms, 40*ms)),
	"narrower-20-1":   narrower(narrow(20, 100*ms, 40*ms), narrow(1, 100*ms, 40*ms)),
	"narrower-none-4": narrower(delayed(40*ms), narrow(4, 50*ms, 40*ms)),
	"longer": {
		links: narrow(20, 100*ms, 10*ms), warm: 5 * time.Second,
		measure: func(r *pathRun) figures {
			r.change(narrow(20, 100*ms, 200*ms))
			r.during(2 * time.Second)
			return figures{metricGoodput: r.during(8 * time.Second).share}
		},
	},

	"deep-0.2mbit": deep(0.2),
	"deep-1mbit":   deep(1),
	"deep-5mbit":   deep(5),
	"varying": {
		links: recorded(varying(1, 20, 200*ms)), warm: 5 * time.Second,
		measure: shareAndResent(time.Minute),
	},

	"back-256kbit": back(0.256),
	"back-64kbit":  back(0.064),

	"long-300ms":         long(300*ms, 0, false),
	"long-600ms":         long(600*ms, 0, false),
	"long-200ms-loss1":   long(200*ms, 0.01, false),
	"stream-300ms":       long(300*ms, 0, true),
	"stream-600ms":       long(600*ms, 0, true),
	"stream-200ms-loss1": long(200*ms, 0.01, true),

	"two-flows":       sharing(1, same, false),
	"before-cubic":    sharing(1, kcpCubic, false),
	"after-cubic":     sharing(1, kcpCubic, true),
	"with-cubic-2bdp": sharing(2, kcpCubic, false),

	"outage-50ms":  outage(50 * ms),
	"outage-200ms": outage(200 * ms),
}

func init() {
	register(&suite{
		name:  "paths",
		about: "a bulk transfer over paths that are long, change, are slow, or deliver in bunches, in virtual time",
		cases: []string{
			"bunches-50ms", "bunches-102ms", "bunches-205ms", "narrower-100-4", "narrower-20-1", "narrower-none-4", "longer",
			"deep-0.2mbit", "deep-1mbit", "deep-5mbit", "varying", "back-256kbit", "back-64kbit",
			"long-300ms", "long-600ms", "long-200ms-loss1", "stream-300ms", "stream-600ms", "stream-200ms-loss1",
			"two-flows", "before-cubic", "after-cubic", "with-cubic-2bdp", "outage-50ms", "outage-200ms",
		},
		impls: []string{ours, kcpCubic, kcpGo, kcpGoSmux, quicGo},
		metrics: []metric{
			{metricGoodput, "of the link"}, {metricResent, "share"}, {metricSent, "of what passes"}, {metricSlow, "seconds"},
			{metricSegments, "packets"}, {metricWait, "ms"}, {metricMessage, "ms"}, {metricRatio, "of rates"}, {metricRecovery, "ms"},
		},
		lacks: func(c, impl string) bool {
			r := pathRows[c]
			return impl == kcpGoSmux && !r.stream || impl == kcpGo && strings.HasPrefix(c, "stream-")
		},
		measure: measurePath,
		virtual: true,
		goals:   pathGoals(),
	})
}

// bunches is a path whose packets arrive at the multiples of a time.
func bunches(every time.Duration) *pathRow {
	return &pathRow{
		links: narrow(50, 100*ms, 20*ms).with(func(p *pathLinks) { p.there.Bunch = every }),
		warm:  5 * time.Second, measure: shareAndResent(20 * time.Second),
	}
}

func shareAndResent(d time.Duration) func(r *pathRun) figures {
	return func(r *pathRun) figures {
		s := r.during(d)
		return figures{metricGoodput: s.share, metricResent: s.resent}
	}
}

// narrower is a path that becomes narrower. Sent is what leaves in the ten seconds
// after that, and slow how many of the last eight have less than 0.8 of the link.
func narrower(from, to pathLinks) *pathRow {
	return &pathRow{
		links: from, warm: 5 * time.Second,
		measure: func(r *pathRun) figures {
			const seconds = 10
			r.change(to)
			f := figures{metricSent: 0, metricSlow: 0}
			for n := range seconds {
				s := r.during(time.Second)
				f[metricSent] += s.offered / seconds
				if n >= 2 && s.share < 0.8 {
					f[metricSlow]++
				}
			}
			return f
		},
	}
}

// deep is a slow link with a queue of 20 s.
func deep(rate float64) *pathRow {
	return &pathRow{
		links: narrow(rate, 20*time.Second, 40*ms), warm: 10 * time.Second,
		measure: func(r *pathRun) figures {
			s := r.during(time.Minute)
			return figures{metricGoodput: s.share, metricSegments: s.wait.Seconds() * rate * 1e6 / 8 / wireMTU}
		},
	}
}

// back is a path with a narrow way back.
func back(rate float64) *pathRow {
	return &pathRow{
		links: narrow(50, 100*ms, 40*ms).with(func(p *pathLinks) {
			p.back.Rate, p.back.Queue, p.back.Overhead = int64(rate*1e6/8), 32<<10, netsim.OverheadIPv4
		}),
		warm: 5 * time.Second, measure: shareOnly(10 * time.Second),
	}
}

func shareOnly(d time.Duration) func(r *pathRun) figures {
	return func(r *pathRun) figures { return figures{metricGoodput: r.during(d).share} }
}

// long is a path of 100 Mbit/s, after ten round trips. With a queue of less than a
// round trip quic-go v0.59 closes the connection: its receiver has too many gaps.
func long(rtt time.Duration, loss float64, stream bool) *pathRow {
	return &pathRow{
		links:  narrow(100, rtt, rtt).with(func(p *pathLinks) { p.there.Loss = loss }),
		window: 8192, stream: stream, warm: 10 * rtt, measure: shareOnly(10 * time.Second),
	}
}

// sharing is a link of 100 Mbit/s for two transfers, of which one begins 3 s after the
// other. The ratio is of the rate of the implementation that is measured to the other's.
func sharing(queue time.Duration, beside string, second bool) *pathRow {
	return &pathRow{
		links: narrow(100, queue*50*ms, 50*ms), beside: beside, second: second,
		warm: 10 * time.Second,
		measure: func(r *pathRun) figures {
			before := r.other.received.Load()
			s := r.during(20 * time.Second)
			return figures{metricRatio: s.received / float64(max(r.other.received.Load()-before, 1))}
		},
	}
}

// outage is a path that is gone for 10 s. Recovery is the time from its return until
// something is read.
func outage(rtt time.Duration) *pathRow {
	links := narrow(100, rtt, rtt)
	return &pathRow{
		links: links, warm: 5 * time.Second,
		measure: func(r *pathRun) figures {
			r.change(links.with(func(p *pathLinks) { p.there.Down, p.back.Down = true, true }))
			r.sleep(10 * time.Second)
			r.change(links)
			before, end := r.transfer.received.Load(), time.Now()
			for r.transfer.received.Load() == before && time.Since(end) < 20*time.Second {
				time.Sleep(ms)
			}
			return figures{metricRecovery: float64(time.Since(end)) / float64(ms)}
		},
	}
}

// recorded returns the path of a recorded link. A radio's queue is deep.
func recorded(r *netsim.Recording) pathLinks {
	return delayed(40 * ms).with(func(p *pathLinks) { p.there.Recording, p.there.Queue = r, 1<<20 })
}

// varying is a radio link, of least to most Mbit/s, anew each time.
func varying(least, most float64, each time.Duration) *netsim.Recording {
	random := rand.New(rand.NewPCG(1, 1))
	r := &netsim.Recording{Slot: 20 * ms}
	for range 600 {
		n := uint16((least + random.Float64()*(most-least)) * 1e6 / 8 / 1500 * r.Slot.Seconds())
		for range each / r.Slot {
			r.Counts = append(r.Counts, n)
		}
	}
	return r
}

// addRecordings adds a row for each of the named files, comma-separated. They hold how
// many packets could leave in each 20 ms.
func addRecordings(files string) error {
	s := suites["paths"]
	for _, name := range splitList(files) {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		r, err := netsim.ReadRecording(f, 20*ms)
		if err = cmp.Or(err, f.Close()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		row := "recorded-" + filepath.Base(name)
		s.cases = append(s.cases, row)
		pathRows[row] = &pathRow{
			links: recorded(r), stream: true, warm: 5 * time.Second,
			measure: measureRecorded,
		}
	}
	return nil
}

// measureRecorded takes the queue and small messages into account.
func measureRecorded(r *pathRun) figures {
	messages := r.message()
	f := figures{metricGoodput: r.during(100 * time.Second).share}
	f[metricWait] = float64(r.network.QueueDelays(senderHost, receiverHost).Quantile(0.95)) / float64(ms)
	if messages != nil {
		f[metricMessage] = messages.quantile(0.95)
	}
	return f
}

// pathGoals are what is aimed at.
func pathGoals() (all []goal) {
	least := func(metric string, min float64, rows ...string) {
		for _, c := range rows {
			all = append(all, goal{c: c, impl: ours, metric: metric, min: min})
		}
	}
	most := func(metric string, max float64, rows ...string) {
		for _, c := range rows {
			all = append(all, goal{c: c, impl: ours, metric: metric, max: max})
		}
	}
	least(metricGoodput, 0.92, "bunches-50ms", "bunches-102ms", "bunches-205ms")
	most(metricResent, 0.005, "bunches-50ms", "bunches-102ms", "bunches-205ms")
	most(metricSent, 1.25, "narrower-100-4", "narrower-20-1")
	most(metricSent, 1.9, "narrower-none-4")
	most(metricSlow, 0.5, "narrower-100-4", "narrower-20-1", "narrower-none-4")
	least(metricGoodput, 0.95, "longer", "deep-0.2mbit", "deep-1mbit", "deep-5mbit")
	least(metricGoodput, 0.85, "varying", "long-200ms-loss1", "stream-200ms-loss1")
	most(metricResent, 0.02, "varying")
	least(metricGoodput, 0.9, "back-256kbit", "long-300ms", "long-600ms", "stream-300ms", "stream-600ms")
	least(metricGoodput, 0.6, "back-64kbit")
	least(metricRatio, 0.33, "before-cubic", "after-cubic", "with-cubic-2bdp")
	most(metricRatio, 3, "before-cubic", "after-cubic", "with-cubic-2bdp")
	most(metricRecovery, 2*50+200, "outage-50ms")
	most(metricRecovery, 2*200+200, "outage-200ms")
	return all
}
