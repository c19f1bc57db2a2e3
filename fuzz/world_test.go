package fuzz_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/arqnet/kcp/stats"
)

// weather is what a link does to packets, the probabilities in 1/256.
type weather struct {
	delay, jitter   uint64 // milliseconds
	loss, double    int
	flip, recovered int // change a bit; deliver as if error correction had
}

// packet is one on its way.
type packet struct {
	data []byte
	at   uint64
}

// direction is one direction of a link.
type direction struct {
	packets []packet // in the order in which they will arrive
}

// insert puts p behind what arrives at the same time.
func (d *direction) insert(p packet) {
	i := len(d.packets)
	for i > 0 && d.packets[i-1].at > p.at {
		i--
	}
	d.packets = slices.Insert(d.packets, i, p)
}

// remove takes the k-th packet out.
func (d *direction) remove(k int) { d.packets = slices.Delete(d.packets, k, k+1) }

// maxOnTheWay bounds the packets in one direction; a router drops the rest.
const maxOnTheWay = 4096

// world is two ends and the link between them, on one clock of milliseconds
// that starts at 1, so that 0 is never. Each end shows its own machine another clock.
type world struct {
	t       testing.TB
	ends    [2]*end
	links   [2]direction // links[i] leads to ends[i]
	weather weather
	chance  *rand.Rand
	now     uint64
	events  int // at this millisecond
	budget  [2]int
}

// other returns the index of the other end.
func other(i int) int { return 1 - i }

// collect takes what end i has put out to the link.
func (w *world) collect(i int) {
	e := w.ends[i]
	for _, data := range e.out {
		w.put(other(i), data)
	}
	e.out = e.out[:0]
}

// put sends a packet to end i, through the weather.
func (w *world) put(i int, data []byte) {
	d := &w.links[i]
	hit := func(p int) bool { return w.chance.IntN(256) < p }
	if hit(w.weather.loss) || len(d.packets) >= maxOnTheWay {
		return
	}
	if hit(w.weather.flip) {
		data = slices.Clone(data)
		bit := w.chance.IntN(8 * len(data))
		data[bit/8] ^= 1 << (bit % 8)
	}
	copies := 1
	if hit(w.weather.double) {
		copies = 2
	}
	for range copies {
		at := w.now + w.weather.delay
		if w.weather.jitter > 0 {
			at += w.chance.Uint64N(w.weather.jitter)
		}
		d.insert(packet{data, at})
	}
}

// next returns the time of the next event; false if there will be none.
func (w *world) next() (at uint64, ok bool) {
	for i, e := range w.ends {
		if e.awake && (!ok || e.wake < at) {
			at, ok = e.wake, true
		}
		if p := w.links[i].packets; len(p) > 0 && (!ok || p[0].at < at) {
			at, ok = p[0].at, true
		}
	}
	return max(at, w.now), ok
}

// maxEvents is how much may happen in one millisecond, beyond which the two
// ends keep each other busy.
const maxEvents = 20000

// step lets all happen that is due now.
func (w *world) step() {
	for i, e := range w.ends {
		e.poll(w.now, w.arrive(i))
		w.collect(i)
		if e.reading && e.k.PeekSize() >= 0 {
			for e.recv() {
			}
			e.poll(w.now, true)
			w.collect(i)
		}
		e.checkModel()
	}
	w.events++
	if w.events > maxEvents {
		w.t.Fatalf("busy at %d", w.now)
	}
}

// arrive gives end i the packets that are due, and reports whether there were
// any.
func (w *world) arrive(i int) bool {
	d := &w.links[i]
	n := 0
	for n < len(d.packets) && d.packets[n].at <= w.now {
		w.ends[i].input(d.packets[n].data, w.chance.IntN(256) < w.weather.recovered)
		n++
	}
	d.packets = slices.Delete(d.packets, 0, n)
	return n > 0
}

// moveTo sets the time.
func (w *world) moveTo(at uint64) {
	if at > w.now {
		w.now, w.events = at, 0
	}
}

// run lets ms pass.
func (w *world) run(ms uint64) {
	until := w.now + ms
	for {
		at, ok := w.next()
		if !ok || at > until {
			break
		}
		w.moveTo(at)
		w.step()
	}
	w.moveTo(until)
}

// do is an operation of the application of end i, and what follows from it.
func (w *world) do(i int, operation func(e *end)) {
	e := w.ends[i]
	operation(e)
	w.collect(i)
	if e.started {
		e.poll(w.now, true)
		w.collect(i)
	}
	w.ends[0].checkModel()
	w.ends[1].checkModel()
}

// finish makes the link perfect and lets both ends read, and demands that all
// arrives, as fast as the time-outs and probes in force allow, and that both
// fall silent then.
func (w *world) finish() {
	w.weather = weather{delay: w.weather.delay}
	for i, e := range w.ends {
		e.reading = true
		w.do(i, func(e *end) {
			for e.recv() {
			}
		})
	}
	progress, since := w.progress(), w.now
	limit := w.patience()
	for !w.done() {
		at, ok := w.next()
		if !ok {
			w.t.Fatalf("hangs: nothing will happen any more\n%s", w.describe())
		}
		if at-since > limit {
			w.t.Fatalf("hangs: nothing has happened in %d ms\n%s", at-since, w.describe())
		}
		w.moveTo(at)
		w.step()
		if p := w.progress(); p != progress {
			progress, since = p, w.now
			limit = w.patience()
		}
	}
	w.checkArrival()
	w.checkSilence()
}

// progress changes whenever something is delivered or acknowledged.
func (w *world) progress() (sum [6]uint64) {
	for i, e := range w.ends {
		c := e.k.Counters()
		sum[3*i] = c.BytesReceived + c.SegmentsReceived - c.Duplicates - c.OutOfWindow
		sum[3*i+1] = uint64(e.k.WaitSend())
		sum[3*i+2] = c.SegmentsSent
	}
	return sum
}

// patience returns how long nothing may happen on a perfect link: until the
// segment with the longest back-off is repeated, or the next probe of a window
// that was shut, or the slowest pacing allows a packet.
func (w *world) patience() uint64 {
	const probe = 120000
	limit := uint64(0)
	for _, e := range w.ends {
		limit = max(limit, e.longestTimeout()+e.paceLimit()+4*uint64(e.slack()))
	}
	return limit + probe + 4*w.weather.delay + 100
}

func (w *world) done() bool {
	return w.ends[0].delivered() && w.ends[1].delivered() &&
		len(w.links[0].packets)+len(w.links[1].packets) == 0
}

// busy reports whether either end wants to send something.
func (w *world) busy() bool {
	_, a := w.ends[0].k.NextFlush()
	_, b := w.ends[1].k.NextFlush()
	return a || b
}

// checkArrival holds the counters of the two ends against each other.
func (w *world) checkArrival() {
	for i, e := range w.ends {
		c, p := e.k.Counters(), w.ends[other(i)].k.Counters()
		accepted := c.SegmentsReceived - c.Duplicates - c.OutOfWindow
		if accepted != p.SegmentsSent || c.BytesReceived != p.BytesSent || p.BytesSent != e.peer.queued {
			e.fatalf("accounts do not balance:\nreceived %+v\nsent %+v", c, p)
		}
		if e.k.PeekSize() != -1 || len(e.flights) != 0 {
			e.fatalf("something is left")
		}
	}
}

// checkSilence lets time pass in which nothing may happen but the last
// acknowledgements, and probes of a window that was shut when last heard of.
func (w *world) checkSilence() {
	w.run(4*uint64(w.ends[0].slack()+w.ends[1].slack()) + 4*w.weather.delay + 100)
	var before [2]stats.Counters
	for i, e := range w.ends {
		if at, ok := e.k.NextFlush(); ok {
			e.fatalf("idle, and yet wants a flush in %d ms", int32(at-e.clock(w.now)))
		}
		before[i] = e.k.Counters()
	}
	const silence = 20000
	w.run(silence)
	for i, e := range w.ends {
		c := e.k.Counters()
		if c.PacketsSent-before[i].PacketsSent > 16 || c.SegmentsSent+c.Retransmits() != before[i].SegmentsSent+before[i].Retransmits() {
			e.fatalf("not silent: before %+v, after %+v", before[i], c)
		}
	}
}

// describe says what the two ends wait for.
func (w *world) describe() string {
	text := ""
	for _, e := range w.ends {
		at, ok := e.k.NextFlush()
		text += fmt.Sprintf("%s: now %d, WaitSend %d, in flight %d, peer's window %d, NextFlush %v in %d ms, %d of %d bytes arrived, %+v\n",
			e.name, e.now, e.k.WaitSend(), len(e.flights), e.rmtWnd, ok, int32(at-e.clock(w.now)), e.arrived, e.queued, e.k.Counters())
	}
	return text
}
