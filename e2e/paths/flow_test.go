package paths

import (
	"io"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
)

// flow is a transfer from the server to the client, which lasts for ever.
type flow struct {
	w        *world
	received int64 // bytes that the client has read
	from     mark
}

// mark is what was so at a time.
type mark struct {
	at        time.Duration
	received  int64
	offered   int64 // bytes given to the link
	segments  uint64
	resent    uint64
	delivered int64 // bytes that came out of the link
}

// download starts a flow.
func (w *world) download() *flow {
	f := &flow{w: w}
	go func() {
		chunk := make([]byte, 64<<10)
		for {
			if _, err := w.server.Write(chunk); err != nil {
				return
			}
		}
	}()
	go func() {
		chunk := make([]byte, 64<<10)
		for {
			n, err := w.client.Read(chunk)
			f.received += int64(n)
			if err == io.EOF || err != nil {
				return
			}
		}
	}()
	return f
}

func (f *flow) mark() mark {
	s, l := f.w.server.Stats(), f.w.net.LinkStats(serverHost, clientHost)
	return mark{
		f.w.net.Elapsed(), f.received, l.Sent.Bytes, s.SegmentsSent + s.Retransmits(), s.Retransmits(), l.Delivered.Bytes,
	}
}

// span is what has happened in a time.
type span struct {
	took    time.Duration
	rate    float64 // bytes a second that the application has received
	offered float64 // bytes a second given to the link
	resent  float64 // share of the segments that were sent again
}

// during returns what happens in a time.
func (f *flow) during(d time.Duration) span {
	before := f.mark()
	time.Sleep(d)
	after := f.mark()
	took := after.at - before.at
	return span{
		took, float64(after.received-before.received) / took.Seconds(), float64(after.offered-before.offered) / took.Seconds(),
		float64(after.resent-before.resent) / math.Max(float64(after.segments-before.segments), 1),
	}
}

// megabits is a rate in bytes a second.
func megabits(n float64) int64 { return int64(n * 1e6 / 8) }

// narrow returns a path of a rate down, with a queue that holds that time's packets, and of
// a round-trip time.
func narrow(rate int64, queue, rtt time.Duration) path {
	p := delay(rtt)
	p.down.Rate = rate
	p.down.Queue = max(int(float64(rate)*queue.Seconds()), 3000)
	return p
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

// TestRows prints what the paths give.
func TestRows(t *testing.T) {
	if os.Getenv("ROWS") == "" {
		t.Skip()
	}
	cc := &kcp.Config{}
	seconds := func(t *testing.T, f *flow, n int, link int64) {
		for i := range n {
			s := f.during(time.Second)
			st := f.w.server.Stats()
			t.Logf("%2d: %.3f of the link, offered %.2f, resent %.3f, in flight %d, rtt %v", i+1, s.rate/float64(link), s.offered/float64(link), s.resent, st.InFlight, st.RTT)
		}
	}
	row := func(name string, p path, f func(t *testing.T, fl *flow)) {
		t.Run(name, func(t *testing.T) {
			over(t, p, cc, cc, func(w *world) { fl := w.download(); f(t, fl) })
		})
	}
	for _, b := range []int{50, 102, 205} {
		for _, way := range []string{"down", "up"} {
			p := narrow(megabits(50), 100*time.Millisecond, 20*time.Millisecond)
			if way == "down" {
				p.down.Bunch = time.Duration(b) * time.Millisecond
			} else {
				p.up.Bunch = time.Duration(b) * time.Millisecond
			}
			row("P3 "+way+" "+p.down.Bunch.String()+p.up.Bunch.String(), p, func(t *testing.T, f *flow) {
				f.during(5 * time.Second)
				s := f.during(20 * time.Second)
				st := f.w.server.Stats()
				t.Logf("%.3f of the link, resent %.4f, dropped %v of %v, spurious %d timeouts %d", s.rate/float64(megabits(50)), s.resent, f.w.net.LinkStats(serverHost, clientHost).Overflow.Packets, f.w.net.LinkStats(serverHost, clientHost).Sent.Packets, st.SpuriousRetransmits, st.TimeoutRetransmits)
			})
		}
	}
	for _, c := range []struct {
		name string
		from path
		to   path
	}{
		{"100 to 4", narrow(megabits(100), 50*time.Millisecond, 40*time.Millisecond), narrow(megabits(4), 50*time.Millisecond, 40*time.Millisecond)},
		{"20 to 1", narrow(megabits(20), 100*time.Millisecond, 40*time.Millisecond), narrow(megabits(1), 100*time.Millisecond, 40*time.Millisecond)},
		{"no limit to 4", delay(40 * time.Millisecond), narrow(megabits(4), 50*time.Millisecond, 40*time.Millisecond)},
	} {
		row("P4 "+c.name, c.from, func(t *testing.T, f *flow) {
			f.during(5 * time.Second)
			f.w.set(c.to)
			seconds(t, f, 10, c.to.down.Rate)
		})
	}
	row("P5", narrow(megabits(20), 100*time.Millisecond, 10*time.Millisecond), func(t *testing.T, f *flow) {
		f.during(5 * time.Second)
		f.w.set(narrow(megabits(20), 100*time.Millisecond, 200*time.Millisecond))
		f.during(2 * time.Second)
		seconds(t, f, 8, megabits(20))
	})
	for _, rate := range []float64{0.2, 1, 5} {
		row("P6", narrow(megabits(rate), 20*time.Second, 40*time.Millisecond), func(t *testing.T, f *flow) {
			for range 6 {
				s := f.during(10 * time.Second)
				st := f.w.server.Stats()
				t.Logf("%.1f Mbit/s: %.3f of the link, in flight %d (bdp %.1f), rtt %v resent %.3f", rate, s.rate/float64(megabits(rate)), st.InFlight, rate*1e6/8*0.04/1400, st.RTT, s.resent)
			}
		})
	}
	{
		p := delay(40 * time.Millisecond)
		p.down.Recording, p.down.Queue = varying(1, 20, 200*time.Millisecond, 1), 100<<10
		row("P7", p, func(t *testing.T, f *flow) {
			f.during(5 * time.Second)
			from := f.w.net.Elapsed()
			s := f.during(60 * time.Second)
			t.Logf("%.3f of the link, resent %.3f", s.rate*s.took.Seconds()/1376/p.down.Recording.Packets(from, from+s.took), s.resent)
		})
	}
	for _, name := range []string{"lte-a", "umts-t", "evdo-v"} {
		r, err := os.Open("/work/shared/traces/" + name + ".down")
		if err != nil {
			continue
		}
		rec, err := netsim.ReadRecording(r, 20*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		p := delay(40 * time.Millisecond)
		p.down.Recording, p.down.Queue = rec, 2<<20
		row("P8 "+name, p, func(t *testing.T, f *flow) {
			f.during(5 * time.Second)
			from := f.w.net.Elapsed()
			s := f.during(120 * time.Second)
			d := f.w.net.QueueDelays(serverHost, clientHost)
			t.Logf("%.3f of the link, resent %.3f, queue p50 %v p95 %v", s.rate*s.took.Seconds()/1376/rec.Packets(from, from+s.took), s.resent, d.Quantile(.5), d.Quantile(.95))
		})
	}
	for _, name := range []string{"lte-a", "umts-t", "evdo-v"} {
		r, _ := os.Open("/work/shared/traces/" + name + ".down")
		rec, err := netsim.ReadRecording(r, 20*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		p := delay(40 * time.Millisecond)
		p.down.Recording, p.down.Queue = rec, 2<<20
		t.Run("P8m "+name, func(t *testing.T) {
			over(t, p, cc, cc, func(w *world) {
				f := w.downloadStream()
				f.during(5 * time.Second)
				from := f.mark()
				took := w.messages(120 * time.Second)
				to := f.mark()
				d := f.w.net.QueueDelays(serverHost, clientHost)
				t.Logf("%.3f of the link, messages p50 %v p95 %v p99 %v max %v of %d, queue p95 %v", float64(to.received-from.received)/1376/rec.Packets(from.at, to.at), took[len(took)/2], took[len(took)*95/100], took[len(took)*99/100], took[len(took)-1], len(took), d.Quantile(.95))
			})
		})
	}
	for _, up := range []float64{0.256, 0.064} {
		p := narrow(megabits(50), 100*time.Millisecond, 40*time.Millisecond)
		p.up.Rate, p.up.Queue, p.up.Overhead = megabits(up), 32<<10, netsim.OverheadIPv4
		row("P9", p, func(t *testing.T, f *flow) {
			f.during(5 * time.Second)
			s := f.during(20 * time.Second)
			t.Logf("back %.3f: %.3f of the link, resent %.3f", up, s.rate/float64(megabits(50)), s.resent)
		})
	}
	for _, rtt := range []int{300, 600} {
		row("P10", narrow(megabits(100), 200*time.Millisecond, time.Duration(rtt)*time.Millisecond), func(t *testing.T, f *flow) {
			f.during(time.Duration(10*rtt) * time.Millisecond)
			s := f.during(20 * time.Second)
			t.Logf("%d ms: %.3f of the link, resent %.3f", rtt, s.rate/float64(megabits(100)), s.resent)
		})
	}
	for _, rtt := range []int{220, 300, 600} {
		t.Run("P10s", func(t *testing.T) {
			over(t, narrow(megabits(100), 200*time.Millisecond, time.Duration(rtt)*time.Millisecond), cc, cc, func(w *world) {
				f := w.downloadStream()
				f.during(time.Duration(10*rtt) * time.Millisecond)
				s := f.during(20 * time.Second)
				t.Logf("stream %d ms: %.3f of the link, resent %.3f", rtt, s.rate/float64(megabits(100)), s.resent)
			})
		})
	}
	{
		p := narrow(megabits(100), 200*time.Millisecond, 200*time.Millisecond)
		p.down.Loss = 0.01
		row("P10 loss", p, func(t *testing.T, f *flow) {
			f.during(5 * time.Second)
			s := f.during(20 * time.Second)
			t.Logf("%.3f of the link, resent %.3f", s.rate/float64(megabits(100)), s.resent)
		})
	}
}
