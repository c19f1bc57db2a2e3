package main

import (
	"slices"
	"testing"
	"time"

	"github.com/arqnet/kcp"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/netsim"
)

// TestSimRepeats wants the same figures from the same seeds, and others from
// others.
func TestSimRepeats(t *testing.T) {
	for _, impl := range []string{ours, kcpGo, referenceFast} {
		var runs [3]latencyResult
		for i := range runs {
			var err error
			if runs[i], err = runLatency("burst-60hz", impl, 2+i/2); err != nil {
				t.Fatal(impl, err)
			}
		}
		if !slices.Equal(runs[0].echoes, runs[1].echoes) || !slices.Equal(runs[0].bytes, runs[1].bytes) {
			t.Errorf("%s: two runs with the same seed differ", impl)
		}
		if slices.Equal(runs[0].bytes, runs[2].bytes[1:]) {
			t.Errorf("%s: two runs with different seeds are the same", impl)
		}
	}
}

// TestMixedEnds has one end of ours talk to one of kcp-go or of the reference:
// echoes come sooner than between two of those.
func TestMixedEnds(t *testing.T) {
	mean := func(client, server string) (m float64) {
		err := frozen(func() error {
			n := 0
			for run := range uint64(10) {
				names := []string{client, server}
				ends := func(output func([]byte)) (driver, error) {
					impl, err := latencyImpl(names[0], false)
					if err != nil {
						return nil, err
					}
					if names[0] == ours {
						config := kcp.LowLatency()
						config.MessageMode, config.SendWindow, config.ReceiveWindow = true, latencyWindow, latencyWindow
						impl = newSessionTo(config, false)
					}
					names = names[1:]
					return impl(output)
				}
				e, err := newEcho(latencyCases["kcp-test"], ends, run)
				if err != nil {
					return err
				}
				if err := e.sim.run(latencyLimit, func() bool { return len(e.times) == latencyEchoes }); err != nil {
					return err
				}
				for _, v := range e.times {
					m += v
					n++
				}
			}
			m /= float64(n)
			return nil
		})
		if err != nil {
			t.Fatal(client, server, err)
		}
		return m
	}
	for _, legacy := range []string{kcpGo, referenceFast} {
		alone := mean(legacy, legacy)
		for _, m := range []float64{mean(ours, legacy), mean(legacy, ours)} {
			if m > alone {
				t.Errorf("%s and ours take %v ms, two of it %v", legacy, m, alone)
			}
		}
	}
}

// TestSimFloor compares the simulator with arithmetic: on a path without loss
// or jitter an echo takes a round trip, and costs two data packets and their
// acknowledgements, which share packets where nobody has to wait for it.
func TestSimFloor(t *testing.T) {
	c := latencyCase{size: 8, every: 20 * time.Millisecond, link: netsim.LinkConfig{Delay: 40 * time.Millisecond}}
	impl := newTickImpl(10*time.Millisecond, func(k *kcp.KCP) error {
		k.SetCongestionControl(congestion.NewNone())
		return nil
	})
	e, err := newEcho(c, impl, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.sim.run(time.Minute, func() bool { return len(e.times) == 100 }); err != nil {
		t.Fatal(err)
	}
	// Packets arrive at the time of a tick, which may have been at work already.
	if got := slices.Max(e.times); got < 80 || got > 90 {
		t.Errorf("an echo takes %v ms", got)
	}
	if e.client.packets < 100 || e.client.bytes < 100*(28+24+8+24) {
		t.Errorf("the client sent %d packets, %d bytes", e.client.packets, e.client.bytes)
	}
}

// TestSimSharedLink has two conversations on one slow link: both get through,
// the link is never busier than its rate, and observe sees every packet.
func TestSimSharedLink(t *testing.T) {
	const rate = 100_000
	s := new(sim)
	forward := newSimLink(netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: rate}, 1)
	back := newSimLink(netsim.LinkConfig{Delay: 20 * time.Millisecond}, 2)
	observed, last := 0, time.Duration(0)
	forward.observe = func(sent, arrives time.Duration, size int) {
		if arrives < sent+20*time.Millisecond+time.Duration(size)*time.Second/rate {
			t.Errorf("a packet of %d bytes takes %v", size, arrives-sent)
		}
		observed += size
		last = arrives
	}
	const total = 50_000
	received := [2]int{}
	var sent int64
	var senders []*simEnd
	for i := range received {
		a, b, err := s.pair(newSessionImpl(kcp.Config{}), forward, back)
		if err != nil {
			t.Fatal(err)
		}
		senders = append(senders, a)
		buf := make([]byte, 1<<16)
		b.readable = func() { received[i] += b.Read(buf) }
		s.at(time.Millisecond, func() { a.Write(make([]byte, total)) })
	}
	err := s.run(time.Minute, func() bool { return received[0] >= total && received[1] >= total })
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range senders {
		sent += a.bytes
	}
	if int64(observed) != sent {
		t.Errorf("%d bytes sent, %d observed", sent, observed)
	}
	if took := last.Seconds(); float64(observed) > rate*took {
		t.Errorf("%d bytes in %v", observed, last)
	}
}
