package paths

import (
	"io"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

// flow is a transfer from the server to the client, which lasts for ever.
type flow struct {
	w        *world
	received atomic.Int64 // bytes that the client has read
}

// download starts a flow: of the session, or of a stream.
func (w *world) download(stream bool) *flow {
	f := &flow{w: w}
	to := io.Writer(w.server)
	if stream {
		s, err := w.server.OpenStream(w.t.Context(), nil)
		require.NoError(w.t, err)
		to = s
	}
	go func() {
		for chunk, err := make([]byte, 64<<10), error(nil); err == nil; {
			_, err = to.Write(chunk)
		}
	}()
	go f.drain(stream)
	return f
}

// drain reads until there is nothing more.
func (f *flow) drain(stream bool) {
	from, err := io.Reader(f.w.client), error(nil)
	if stream {
		from, err = f.w.client.AcceptStream(f.w.t.Context())
	}
	for chunk, n := make([]byte, 64<<10), 0; err == nil; f.received.Add(int64(n)) {
		n, err = from.Read(chunk)
	}
}

// span is what has happened in a time.
type span struct {
	rate    float64 // bytes a second that the application has received
	offered float64 // bytes a second given to the link
	resent  float64 // share of the segments that were sent again
}

// during returns what happens in a time.
func (f *flow) during(d time.Duration) span {
	count := func() (received, offered, segments, resent float64) {
		s, l := f.w.server.Stats(), f.w.net.LinkStats(serverHost, clientHost)
		return float64(f.received.Load()), float64(l.Sent.Bytes), float64(s.SegmentsSent + s.Retransmits()), float64(s.Retransmits())
	}
	received, offered, segments, resent := count()
	time.Sleep(d)
	r, o, s, a := count()
	return span{(r - received) / d.Seconds(), (o - offered) / d.Seconds(), (a - resent) / math.Max(s-segments, 1)}
}

// lasting returns how long something goes on: all of the time with KCP_LONG=1.
func lasting(long, short time.Duration) time.Duration {
	if testenv.InFull() {
		return long
	}
	return short
}

// fast returns a rate in Mbit/s: the high one with KCP_LONG=1.
func fast(high, low float64) float64 {
	if testenv.InFull() {
		return high
	}
	return low
}

// megabits is a rate in bytes a second.
func megabits(n float64) int64 { return int64(n * 1e6 / 8) }

// narrow returns a path of Mbit/s down, with a queue that holds that time's packets, and of
// a round-trip time.
func narrow(rate float64, queue, rtt time.Duration) path {
	p := delay(rtt)
	p.down.Rate = megabits(rate)
	p.down.Queue = max(int(float64(p.down.Rate)*queue.Seconds()), 3000)
	return p
}

// changed returns a path with a change.
func changed(p path, change func(p *path)) path {
	change(&p)
	return p
}

// full runs f in a flow over a path that has had some time.
func full(t *testing.T, p path, warm time.Duration, stream bool, f func(fl *flow)) {
	t.Helper()
	testenv.Simulated(t)
	over(t, p, nil, nil, func(w *world) {
		fl := w.download(stream)
		fl.during(warm)
		f(fl)
	})
}

// Paths deliver packets, or acknowledgements, in bunches, as Wi-Fi that saves power does.
// They are used all the same, and hardly anything is sent again.
func TestBunches(t *testing.T) {
	for _, every := range []time.Duration{5 * time.Millisecond, 50 * time.Millisecond, 102 * time.Millisecond, 205 * time.Millisecond} {
		for name, set := range map[string]func(*path){
			"packets": func(p *path) { p.down.Bunch = every }, "acknowledgements": func(p *path) { p.up.Bunch = every },
		} {
			t.Run(every.String()+" "+name, func(t *testing.T) {
				if !testenv.InFull() && every == 102*time.Millisecond {
					t.Skip("others show it")
				}
				t.Parallel()
				rate := fast(50, 10)
				if every > 200*time.Millisecond {
					rate = 50
				}
				p := changed(narrow(rate, 100*time.Millisecond, 20*time.Millisecond), set)
				full(t, p, 5*time.Second, false, func(f *flow) {
					s := f.during(lasting(20*time.Second, max(5*time.Second, 40*every)))
					t.Logf("%.3f of the link, %.4f again", s.rate/float64(p.down.Rate), s.resent)
					least, most := 0.92, 0.01
					if every > 200*time.Millisecond { // more than the queue has room for
						least, most = 0.85, 0.03
					}
					require.Greater(t, s.rate, least*float64(p.down.Rate))
					require.Less(t, s.resent, most)
				})
			})
		}
	}
}

// A link becomes narrow. What was in flight leaves again about once, at the new rate.
func TestNarrower(t *testing.T) {
	for name, tc := range map[string]struct {
		from, to path
		most     float64 // of what passes in ten seconds, sent
	}{
		"100 to 4": {narrow(100, 50*time.Millisecond, 40*time.Millisecond), narrow(4, 50*time.Millisecond, 40*time.Millisecond), 1.3},
		"20 to 1":  {narrow(20, 100*time.Millisecond, 40*time.Millisecond), narrow(1, 100*time.Millisecond, 40*time.Millisecond), 1.3},
		"no limit": {delay(40 * time.Millisecond), narrow(4, 50*time.Millisecond, 40*time.Millisecond), 2},
	} {
		t.Run(name, func(t *testing.T) {
			if !testenv.InFull() && name == "20 to 1" {
				t.Skip("others show it")
			}
			t.Parallel()
			full(t, tc.from, lasting(5*time.Second, time.Second), false, func(f *flow) {
				f.w.set(tc.to)
				link := float64(tc.to.down.Rate)
				first, second := f.during(time.Second), f.during(time.Second)
				rest := f.during(8 * time.Second)
				sent := (first.offered + second.offered + 8*rest.offered) / 10 / link
				require.Greater(t, second.rate, 0.8*link, "the oldest that was lost comes first")
				t.Logf("%.2f of what passes was sent; then %.3f of the link", sent, rest.rate/link)
				require.Less(t, sent, tc.most)
				require.Greater(t, rest.rate, 0.9*link)
				require.Less(t, f.during(10*time.Second).resent, 0.02)
			})
		})
	}
}

// A path becomes longer, shorter, wider, lossier, and is used.
func TestPathChanges(t *testing.T) {
	rate := fast(20, 5)
	from := narrow(rate, 100*time.Millisecond, 40*time.Millisecond)
	for name, tc := range map[string]struct {
		from, to path
		after    time.Duration
		least    float64 // of the link
	}{
		"10 to 200 ms":  {narrow(rate, 100*time.Millisecond, 10*time.Millisecond), narrow(rate, 100*time.Millisecond, 200*time.Millisecond), 3 * time.Second, 0.93},
		"40 to 600 ms":  {from, narrow(rate, 100*time.Millisecond, 600*time.Millisecond), 10 * time.Second, 0.8},
		"300 to 20 ms":  {narrow(rate, 100*time.Millisecond, 300*time.Millisecond), narrow(rate, 100*time.Millisecond, 20*time.Millisecond), 3 * time.Second, 0.93},
		"4 to 50":       {narrow(4, 100*time.Millisecond, 40*time.Millisecond), narrow(fast(50, 10), 100*time.Millisecond, 40*time.Millisecond), 8 * time.Second, 0.9},
		"loss of 5 %":   {from, changed(from, func(p *path) { p.down.Loss = 0.05 }), 3 * time.Second, 0.85},
		"less to 1252":  {from, changed(from, func(p *path) { p.down.MTU = 1252 }), 3 * time.Second, 0.9},
		"all at once":   {from, changed(narrow(4, 100*time.Millisecond, 200*time.Millisecond), func(p *path) { p.down.Loss, p.down.MTU = 0.01, 1252 }), 8 * time.Second, 0.8},
		"and back soon": {from, from, time.Second, 0.93},
	} {
		t.Run(name, func(t *testing.T) {
			if !testenv.InFull() && (name == "300 to 20 ms" || name == "and back soon") {
				t.Skip("others show it")
			}
			t.Parallel()
			full(t, tc.from, lasting(5*time.Second, 3*time.Second), false, func(f *flow) {
				f.w.set(tc.to)
				f.during(tc.after)
				s := f.during(lasting(10*time.Second, 5*time.Second))
				t.Logf("%.3f of the link", s.rate/float64(tc.to.down.Rate))
				require.Greater(t, s.rate, tc.least*float64(tc.to.down.Rate))
			})
		})
	}
}

// A slow link with a deep queue has little in it, for an hour.
func TestDeepQueue(t *testing.T) {
	spans, rates := 1, []float64{0.2, 1}
	if testenv.InFull() {
		spans, rates = 60, append(rates, 5)
	}
	for _, rate := range rates {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			p := narrow(rate, 20*time.Second, 40*time.Millisecond)
			full(t, p, 10*time.Second, false, func(f *flow) {
				product := float64(p.down.Rate) * 0.04 / 1400
				for range spans {
					s := f.during(time.Minute)
					flight := float64(f.w.server.Stats().InFlight)
					require.Greater(t, s.rate, 0.94*float64(p.down.Rate))
					require.Less(t, flight, 2.5*product+12, "%.1f Mbit/s", rate)
				}
			})
		})
	}
}

// varying is a radio link, of least to most Mbit/s, anew each time.
func varying(least, most float64, each time.Duration, seed uint64) *netsim.Recording {
	random := rand.New(rand.NewPCG(seed, seed))
	r := &netsim.Recording{Slot: 20 * time.Millisecond}
	for range 600 {
		n := uint16((least + random.Float64()*(most-least)) * 1e6 / 8 / 1500 * r.Slot.Seconds())
		for range each / r.Slot {
			r.Counts = append(r.Counts, n)
		}
	}
	return r
}

// A radio link has another rate five times a second. It is used, with a short queue.
func TestVaryingRate(t *testing.T) {
	p := delay(40 * time.Millisecond)
	p.down.Recording, p.down.Queue = varying(1, 20, 200*time.Millisecond, 1), 1<<20
	full(t, p, 5*time.Second, false, func(f *flow) {
		from, lasts := f.w.net.Elapsed(), lasting(time.Minute, 15*time.Second)
		s := f.during(lasts)
		share := s.rate * lasts.Seconds() / 1376 / p.down.Recording.Packets(from, from+lasts)
		queue := f.w.net.QueueDelays(serverHost, clientHost).Quantile(0.95)
		t.Logf("%.3f of the link, queue %v", share, queue)
		require.Greater(t, share, 0.75)
		require.Less(t, queue, 300*time.Millisecond)
	})
}

// The way back is a hundredth of the way there, or less: acknowledgements fit.
func TestNarrowWayBack(t *testing.T) {
	for _, back := range []float64{0.256, 0.064} {
		if !testenv.InFull() && back > 0.1 {
			continue
		}
		p := narrow(50, 100*time.Millisecond, 40*time.Millisecond)
		p.up.Rate, p.up.Queue, p.up.Overhead = megabits(back), 32<<10, netsim.OverheadIPv4
		full(t, p, lasting(5*time.Second, 3*time.Second), false, func(f *flow) {
			s := f.during(lasting(10*time.Second, 3*time.Second))
			t.Logf("%.3f of the link", s.rate/float64(p.down.Rate))
			require.Greater(t, s.rate, 0.9*float64(p.down.Rate))
		})
	}
}

// Windows grow by themselves, for 100 Mbit/s over long paths.
func TestLongFatPath(t *testing.T) {
	for _, rtt := range []time.Duration{300 * time.Millisecond, 600 * time.Millisecond} {
		for _, stream := range []bool{false, true} {
			for _, loss := range []float64{0, 0.01} {
				t.Run(rtt.String(), func(t *testing.T) {
					if rtt > 300*time.Millisecond && (!testenv.InFull() || loss > 0) || !testenv.InFull() && stream == (loss > 0) {
						t.Skip("takes a while")
					}
					t.Parallel()
					p := narrow(100, 200*time.Millisecond, rtt)
					p.down.Loss = loss
					full(t, p, 10*rtt, stream, func(f *flow) {
						s := f.during(lasting(10*time.Second, 3*time.Second))
						t.Logf("stream %v, loss %v: %.3f of the link", stream, loss, s.rate/float64(p.down.Rate))
						require.Greater(t, s.rate, (0.87-9*loss)*float64(p.down.Rate))
					})
				})
			}
		}
	}
}
