package main

import (
	"cmp"
	"encoding/binary"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/netsim"
)

const pathMessage = 100 // bytes

// pathRun is one implementation on one row.
type pathRun struct {
	*world
	row      *pathRow
	links    pathLinks
	quick    bool
	transfer *pathTransfer
	other    *pathTransfer // the one beside; nil: none
}

// pathTransfer is a transfer that lasts for ever.
type pathTransfer struct {
	*pair
	received atomic.Int64
	failed   atomic.Pointer[error] // other bytes than were sent
}

// measurePath returns the figures of one row.
func measurePath(name, impl string, d time.Duration) (f figures, err error) {
	row := pathRows[name]
	err = frozen(func() error {
		r := &pathRun{world: newWorld(1, netsim.LinkConfig{}), row: row, quick: d < quickRun}
		defer r.close()
		r.change(row.links)
		if err := r.start(impl); err != nil {
			return err
		}
		r.during(row.warm)
		f = row.measure(r)
		if e := r.transfer.failed.Load(); e != nil {
			return *e
		}
		return nil
	})
	return f, err
}

// start begins the transfers.
func (r *pathRun) start(impl string) (err error) {
	begin := func(impl string) (t *pathTransfer, err error) {
		t = new(pathTransfer)
		if t.pair, err = r.open(impl, cmp.Or(r.row.window, pathWindow)); err != nil {
			return nil, err
		}
		if t.near == nil || r.row.stream && t.stream != nil {
			if t.near, t.far, err = t.stream(0); err != nil {
				return nil, err
			}
		}
		rope := newRope()
		go t.read(rope)
		time.Sleep(time.Microsecond) // no two of them run at the same instant
		go t.write(rope)
		time.Sleep(time.Microsecond)
		return t, nil
	}
	beside := r.row.beside
	if beside == same {
		beside = impl
	}
	if beside != "" && r.row.second {
		if r.other, err = begin(beside); err != nil {
			return err
		}
		r.sleep(3 * time.Second)
	}
	if r.transfer, err = begin(impl); err != nil {
		return err
	}
	if beside != "" && !r.row.second {
		r.sleep(3 * time.Second)
		r.other, err = begin(beside)
	}
	return err
}

// write sends as much as it can.
func (t *pathTransfer) write(rope *rope) {
	for at := uint64(0); ; {
		n, err := t.near.Write(rope.at(at, writeSize))
		if at += uint64(n); err != nil {
			return
		}
	}
}

// read counts what arrives.
func (t *pathTransfer) read(rope *rope) {
	for b := make([]byte, readSize); ; {
		n, err := t.far.Read(b)
		if e := rope.check(uint64(t.received.Load()), b[:n]); e != nil {
			t.failed.Store(&e)
			return
		}
		if t.received.Add(int64(n)); err != nil {
			return
		}
	}
}

// change changes the path.
func (r *pathRun) change(links pathLinks) {
	r.links = links
	r.network.SetLink(senderHost, receiverHost, links.there)
	r.network.SetLink(receiverHost, senderHost, links.back)
}

// sleep lets a time pass, or an instant in a trial.
func (r *pathRun) sleep(d time.Duration) time.Duration {
	if r.quick {
		d = min(d, 100*ms)
	}
	time.Sleep(d)
	return d
}

// pathSpan is what has happened in a time.
type pathSpan struct {
	received float64       // bytes that were read
	share    float64       // the same, of what passes
	offered  float64       // bytes given to the link, of what passes
	resent   float64       // share of the segments that were sent again
	wait     time.Duration // mean time in the queue
}

// during returns what happens in a time.
func (r *pathRun) during(d time.Duration) pathSpan {
	type state struct {
		received, offered, segments, again float64
		waits                              netsim.Delays
		at                                 time.Duration
	}
	look := func() (s state) {
		s.received = float64(r.transfer.received.Load())
		s.offered = float64(r.network.LinkStats(senderHost, receiverHost).Sent.Bytes)
		s.segments, s.again = r.transfer.counts()
		s.waits, s.at = r.network.QueueDelays(senderHost, receiverHost), r.network.Elapsed()
		return s
	}
	a := look()
	d = r.sleep(d)
	b := look()
	passes := float64(r.links.there.Rate) * d.Seconds()
	if rec := r.links.there.Recording; rec != nil {
		passes = rec.Packets(a.at, b.at) * wireMTU
	}
	passes = max(passes, 1)
	waited := float64(b.waits.Mean())*float64(b.waits.Count()) - float64(a.waits.Mean())*float64(a.waits.Count())
	return pathSpan{
		received: b.received - a.received,
		share:    (b.received - a.received) / passes,
		offered:  (b.offered - a.offered) / passes,
		resent:   math.Max(b.again-a.again, 0) / math.Max(b.segments-a.segments, 1),
		wait:     time.Duration(waited / float64(max(b.waits.Count()-a.waits.Count(), 1))),
	}
}

// pathMessages are small messages beside a transfer.
type pathMessages struct {
	mu    sync.Mutex
	sent  []time.Time
	times []float64 // of those that have arrived, in ms
}

// message begins to send 20 messages a second, until the end. It returns nil if the
// implementation has no streams.
func (r *pathRun) message() *pathMessages {
	if r.transfer.stream == nil {
		return nil
	}
	to, from, err := r.transfer.stream(1)
	if err != nil {
		return nil // the transfer has failed
	}
	m := new(pathMessages)
	go m.read(from)
	go m.write(to)
	return m
}

func (m *pathMessages) write(w io.Writer) {
	b := make([]byte, pathMessage)
	for n := uint64(0); ; n++ {
		time.Sleep(50*ms + time.Microsecond)
		m.mu.Lock()
		m.sent = append(m.sent, time.Now())
		m.mu.Unlock()
		binary.LittleEndian.PutUint64(b, n)
		if _, err := w.Write(b); err != nil {
			return
		}
	}
}

func (m *pathMessages) read(r io.Reader) {
	b := make([]byte, pathMessage)
	for {
		if _, err := io.ReadFull(r, b); err != nil {
			return
		}
		m.mu.Lock()
		sent := m.sent[binary.LittleEndian.Uint64(b)]
		m.times = append(m.times, float64(time.Since(sent))/float64(ms))
		m.mu.Unlock()
	}
}

// quantile returns how long a share of the messages have taken at most. Those that
// have not arrived have taken until now.
func (m *pathMessages) quantile(q float64) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	times := slices.Clone(m.times)
	for _, at := range m.sent[len(times):] {
		times = append(times, float64(time.Since(at))/float64(ms))
	}
	slices.Sort(times)
	return quantile(times, q)
}
