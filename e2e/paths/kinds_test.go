package paths

import (
	"math"
	"time"

	"github.com/arqnet/kcp/netsim"
)

// path is both ways of a path.
type path struct {
	up, down netsim.LinkConfig
	large    float64 // the share of packets above 1300 bytes that is lost besides
}

// kind is a path with a name.
type kind struct {
	name string
	path
}

// delay returns a path of a round-trip time.
func delay(rtt time.Duration) path {
	link := netsim.LinkConfig{Delay: rtt / 2}
	return path{up: link, down: link}
}

// kinds are paths of every kind.
var kinds = []kind{
	{"0.1 ms", delay(100 * time.Microsecond)},
	{"20 ms", delay(20 * time.Millisecond)},
	{"80 ms", delay(80 * time.Millisecond)},
	{"300 ms", delay(300 * time.Millisecond)},
	{"600 ms", delay(600 * time.Millisecond)},
	{"3 s", delay(3 * time.Second)},
	{"64 kbit/s", bothNarrow(0.064, time.Second, 100*time.Millisecond)},
	{"256 kbit/s, 10 s", bothNarrow(0.256, 10*time.Second, 300*time.Millisecond)},
	{"1 Mbit/s, no queue", both(delay(40*time.Millisecond), func(l *netsim.LinkConfig) { l.Rate, l.QueuePackets = megabits(1), 1 })},
	{"1 Gbit/s", bothNarrow(1000, 10*time.Millisecond, 10*time.Millisecond)},
	{"loss of 1 %", lossy(0.01, netsim.GilbertElliott{})},
	{"loss of 10 %", lossy(0.1, netsim.GilbertElliott{})},
	{"loss of 30 %", lossy(0.3, netsim.GilbertElliott{})},
	{"bursts", lossy(0, netsim.BurstLoss(0.05, 4))},
	{"loss by size", path{up: delay(60 * time.Millisecond).up, down: delay(60 * time.Millisecond).down, large: 0.3}},
	{"jitter", jittery(100 * time.Millisecond)},
	{"reordered", both(jittery(60*time.Millisecond), func(l *netsim.LinkConfig) { l.Reorder = 0.3 })},
	{"bunches of 5 ms", bunched(5*time.Millisecond, 5*time.Millisecond)},
	{"bunches of 102 ms", bunched(102*time.Millisecond, 0)},
	{"bunches of 250 ms", bunched(250*time.Millisecond, 250*time.Millisecond)},
	{"576 bytes", sized(576)},
	{"1232 bytes", sized(1232)},
	{"9000 bytes", sized(9000)},
	{"policer", both(delay(30*time.Millisecond), func(l *netsim.LinkConfig) { l.Rate, l.Bucket, l.Queue = megabits(1), 8000, 1 })},
	{"way back", changed(delay(40*time.Millisecond), func(p *path) { p.up.Rate, p.up.Queue = megabits(0.064), 16<<10 })},
	{"varying", changed(delay(40*time.Millisecond), func(p *path) { p.down.Recording, p.down.Queue = varying(1, 20, 200*time.Millisecond, 1), 1<<20 })},
}

func both(p path, change func(*netsim.LinkConfig)) path {
	change(&p.up)
	change(&p.down)
	return p
}

func bothNarrow(rate float64, queue, rtt time.Duration) path {
	p := narrow(rate, queue, rtt)
	p.up = p.down
	return p
}

func lossy(share float64, burst netsim.GilbertElliott) path {
	return both(delay(60*time.Millisecond), func(l *netsim.LinkConfig) { l.Loss, l.Burst = share, burst })
}

func jittery(most time.Duration) path {
	return both(delay(60*time.Millisecond), func(l *netsim.LinkConfig) { l.Jitter = most })
}

func bunched(down, up time.Duration) path {
	p := delay(20 * time.Millisecond)
	p.up.Bunch, p.down.Bunch = up, down
	return p
}

// sized returns a path that takes so many bytes of UDP payload.
func sized(mtu int) path {
	return both(delay(40*time.Millisecond), func(l *netsim.LinkConfig) { l.MTU = mtu })
}

// change is what may happen to a path during a call.
type change struct {
	name  string
	to    func(p path) path
	gone  time.Duration // how long nothing passes
	moves bool          // the client has another address
	back  bool          // after two seconds it is as before
}

// changes are of every kind.
var changes = []change{
	{name: "none"},
	{name: "longer", to: longer},
	{name: "much longer", to: func(p path) path { return stretched(p, 2*time.Second) }},
	{name: "shorter", to: func(p path) path { return both(p, func(l *netsim.LinkConfig) { l.Delay /= 4 }) }},
	{name: "narrower", to: narrowed},
	{name: "wider", to: func(p path) path {
		return both(p, func(l *netsim.LinkConfig) { l.Rate, l.Recording = 8*l.Rate, nil })
	}},
	{name: "lossier", to: func(p path) path { return both(p, func(l *netsim.LinkConfig) { l.Loss = 0.3 }) }},
	{name: "smaller", to: smaller},
	{name: "gone for 100 ms", gone: 100 * time.Millisecond},
	{name: "gone for 1 s", gone: time.Second},
	{name: "gone for 5 s", gone: 5 * time.Second},
	{name: "gone for 60 s", gone: time.Minute},
	{name: "another address", moves: true},
	{name: "longer, narrower", to: func(p path) path { return narrowed(longer(p)) }},
	{name: "there and back", to: func(p path) path { return narrowed(longer(p)) }, back: true},
	{name: "all at once", gone: time.Second, moves: true, to: func(p path) path {
		return both(smaller(narrowed(longer(p))), func(l *netsim.LinkConfig) { l.Loss = max(l.Loss, 0.05) })
	}},
}

func longer(p path) path { return stretched(p, 400*time.Millisecond) }

func stretched(p path, by time.Duration) path {
	return both(p, func(l *netsim.LinkConfig) { l.Delay += by / 2 })
}

func narrowed(p path) path {
	p.down.Rate, p.down.Queue, p.down.Recording = megabits(0.128), 8000, nil
	return p
}

func smaller(p path) path {
	return both(p, func(l *netsim.LinkConfig) {
		if l.MTU == 0 || l.MTU > 1232 {
			l.MTU = 1232
		}
	})
}

// round returns how long a packet and its answer take, unless they wait for others.
func (p path) round() (d time.Duration) {
	for _, l := range []netsim.LinkConfig{p.up, p.down} {
		d += l.Delay + l.Jitter + l.Bunch
		if l.Rate > 0 {
			d += time.Duration(1500 * float64(time.Second) / float64(l.Rate))
		}
	}
	return d
}

// carries returns how long the narrower way takes for so many bytes, with what is lost of
// them.
func (p path) carries(bytes int) (d time.Duration) {
	for _, l := range []netsim.LinkConfig{p.up, p.down} {
		rate := float64(l.Rate)
		if l.Recording != nil {
			rate = float64(megabits(1)) // at least
		}
		if rate > 0 {
			d = max(d, time.Duration(float64(bytes)/(1-l.Loss)/(1-l.Loss)*float64(time.Second)/rate))
		}
	}
	return d
}

// overflows returns how many segments of so many bytes a queue may drop that leave at
// once.
func (p path) overflows(bytes int) (segments int) {
	for _, l := range []netsim.LinkConfig{p.up, p.down} {
		if l.Rate > 0 && (l.QueuePackets > 0 || l.Queue > 0 && l.Queue < bytes) {
			segments = min(bytes, 20_000) / 1400
		}
	}
	return segments
}

// tries returns how often something has to be sent until it is answered, but for one time
// in a million. A burst lasts for a number of packets, however rare they are.
func (p path) tries() float64 {
	passes, ends := (1-p.large)*(1-p.large), 1.0
	for _, l := range []netsim.LinkConfig{p.up, p.down} {
		passes *= (1 - l.Loss) * (1 - l.Burst.Mean())
		if l.Burst.ToGood > 0 {
			ends = l.Burst.ToGood
		}
	}
	if passes == 1 {
		return 1
	}
	return math.Log(1e-6) / math.Log(1-min(passes, ends))
}

// set changes the path.
func (w *world) set(p path) {
	w.net.SetLink("", serverHost, p.up)
	w.net.SetLink(serverHost, "", p.down)
	if p.large > 0 {
		w.losing(1300, p.large)
	}
}

// happens has a change happen within two round trips.
func (w *world) happens(c change) {
	was, to := w.paths[0], w.paths[0]
	if c.to != nil {
		to = c.to(was)
	}
	w.paths, w.gone = []path{was, to}, c.gone
	at := w.net.Elapsed() + time.Duration(w.random.Int64N(int64(2*was.round())))
	w.net.At(at, func() {
		w.set(to)
		if c.gone > 0 {
			w.set(both(to, func(l *netsim.LinkConfig) { l.Down = true }))
			w.net.At(at+c.gone, func() { w.set(to) })
		}
		if c.back {
			w.net.At(at+2*time.Second, func() { w.set(was) })
		}
		if c.moves {
			_ = w.sockets[1].Rebind("10.0.0.3:6000")
		}
	})
}

// patience returns how long a call may take that moves so many bytes, whatever else is
// under way: the time without a path; three times what a narrow link takes; and round
// trips, of the longer of the paths before and after a change. Some more pass until a
// session knows that a path is for small packets only. Each packet that is lost may take
// a time-out, and if the path loses packets by chance, many.
func (w *world) patience(bytes int) time.Duration {
	carry, round, tries, lost, rounds, more := time.Duration(0), time.Duration(0), 1.0, 0, 8, 4*time.Second
	for _, p := range w.paths {
		carry = max(carry, 3*p.carries(bytes))
		round, tries, lost = max(round, p.round()), max(tries, p.tries()), max(lost, p.overflows(bytes))
		if p.up.MTU > 0 && p.up.MTU < 1400 {
			rounds, more = 18, 8*time.Second
		}
	}
	timeouts := time.Duration(1.5 * (tries - 1) * float64(max(2*round, time.Second)))
	return w.gone + carry + more + time.Duration(rounds)*round + timeouts + time.Duration(lost)*max(2*round, 2*time.Second)
}

// slowest returns how long the narrowest of the paths takes for so many bytes.
func (w *world) slowest(bytes int) (d time.Duration) {
	for _, p := range w.paths {
		d = max(d, p.carries(bytes))
	}
	return d
}
