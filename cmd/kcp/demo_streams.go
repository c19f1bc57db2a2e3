package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
)

// kcp demo -streams shows what streams are for: a game's traffic, on a stream for
// each flow, beside the same traffic on one session as a whole. Each has a relay of
// its own, with the same losses.

// flowKind is one flow of the mix.
type flowKind struct {
	name     string
	size     int           // bytes of a message, at least 8
	every    time.Duration // between two messages; 0: as many as there is room for
	answered bool          // what arrives is sent back
	options  kcp.StreamOptions
}

var flowKinds = []flowKind{
	{"state feed", 100, time.Second / 60, false, kcp.StreamOptions{Priority: 2, Unordered: true}},
	{"chat", 200, time.Second / 2, false, kcp.StreamOptions{Priority: 1}},
	{"calls", 2048, time.Second / 10, true, kcp.StreamOptions{Priority: 1}},
	{"download", 16 << 10, 0, false, kcp.StreamOptions{}},
}

const (
	defaultFlowsTime = 10 * time.Second
	flowsRate        = 20_000_000 / 8 // of the links, in bytes a second
	flowsQueue       = flowsRate / 10 // bytes, 100 ms
	flowsBuffer      = 256 << 10      // write buffer of the one session, as a stream has
	flowHead         = 8              // bytes in front of a message in the one session: flow and size
)

// flowRun is a session with all flows.
type flowRun struct {
	name  string
	start time.Time
	ends  [2]*kcp.Conn
	pipes []*io.PipeReader // of the one session
	work  sync.WaitGroup

	mu    sync.Mutex
	times [][]time.Duration // how old messages were when they arrived, by flow
	bytes int64             // of the download that have arrived
}

// demoFlows is -streams of kcp demo.
func (d *demo) demoFlows(ctx context.Context, cfg *kcp.Config) error {
	d.link.Rate, d.link.Queue, d.link.Overhead = flowsRate, flowsQueue, netsim.OverheadIPv4
	d.announce(fmt.Sprintf("A state feed at 60 Hz, a chat, calls and a download for %v, "+
		"over KCP on this machine: on a stream each, and beside it all on one session.", d.duration), d.network()+", 20 Mbit/s")

	ctx, cancel := context.WithTimeoutCause(ctx, d.timeout, errTimeout)
	defer cancel()
	runs := []*flowRun{{name: "streams"}, {name: "one session"}}
	for i, open := range []func(context.Context, *flowRun, *kcp.Config) ([][2]io.ReadWriter, error){openStreams, openShared} {
		r := runs[i]
		r.times = make([][]time.Duration, len(flowKinds))
		stop, err := d.openFlows(ctx, r, cfg)
		if err != nil {
			return explain(err)
		}
		defer stop()
		flows, err := open(ctx, r, cfg)
		if err != nil {
			return explain(err)
		}
		d.debug.show(r.name, r.ends[0].Endpoint())
		r.begin(flows)
	}
	err := d.showFlows(ctx, runs)
	for _, r := range runs {
		for _, c := range r.ends {
			_ = c.Abort() // its download never ends
		}
		for _, p := range r.pipes {
			_ = p.Close()
		}
		r.work.Wait()
	}
	if err != nil {
		return err
	}
	if d.lines.on {
		return d.printFlows("result", runs)
	}
	fmt.Fprintf(d.std.out, "%s\n%s", flowTable(runs), folded("", flowsText))
	return nil
}

// flowsText says what the table shows.
const flowsText = "For messages: their age on arrival. For calls: the time until the answer. " +
	"On one session each waits behind the download and for the others' lost packets. " +
	"What remains is the link's own queue; for a steadier p99 raise -time."

// openFlows opens the session of r through a relay of its own.
func (d *demo) openFlows(ctx context.Context, r *flowRun, cfg *kcp.Config) (stop func(), err error) {
	one := *cfg
	if one.WriteBuffer == 0 {
		one.WriteBuffer = flowsBuffer // what waits there waits for all
	}
	l, err := kcp.Listen("udp", "127.0.0.1:0", &one)
	if err != nil {
		return nil, err
	}
	relay, err := netsim.NewRelay(l.Addr().String(), d.link, d.link, d.seed)
	if err == nil {
		r.ends[0], r.ends[1], err = connect(ctx, l, relay.Addr().String(), &one)
		if err == nil {
			return func() { _, _ = l.Close(), relay.Close() }, nil
		}
		_ = relay.Close()
	}
	return nil, errors.Join(err, l.Close())
}

// openStreams has a stream for each flow.
func openStreams(ctx context.Context, r *flowRun, _ *kcp.Config) (flows [][2]io.ReadWriter, err error) {
	for i := range flowKinds {
		s, err := r.ends[0].OpenStream(ctx, &flowKinds[i].options)
		if err != nil {
			return nil, err
		}
		t, err := r.ends[1].AcceptStream(ctx)
		if err != nil {
			return nil, err
		}
		flows = append(flows, [2]io.ReadWriter{s, t})
	}
	return flows, nil
}

// sharedFlow is the end of a flow of a session that others share.
type sharedFlow struct {
	*io.PipeReader
	session *sharedSession
	flow    uint32
}

// sharedSession is an end of it.
type sharedSession struct {
	conn *kcp.Conn
	mu   sync.Mutex // held for a whole message, also while it waits for room
	in   []*io.PipeWriter
}

func (f *sharedFlow) Write(b []byte) (int, error) {
	s := f.session
	s.mu.Lock()
	defer s.mu.Unlock()
	p := binary.LittleEndian.AppendUint32(make([]byte, 0, flowHead+len(b)), f.flow)
	p = binary.LittleEndian.AppendUint32(p, uint32(len(b)))
	if _, err := s.conn.Write(append(p, b...)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// dispatch passes messages to their flows until the session ends.
func (s *sharedSession) dispatch() {
	var head [flowHead]byte
	b := make([]byte, 16<<10)
	for {
		_, err := io.ReadFull(s.conn, head[:])
		flow, size := binary.LittleEndian.Uint32(head[:]), binary.LittleEndian.Uint32(head[4:])
		if err == nil && (flow >= uint32(len(s.in)) || size > uint32(len(b))) {
			err = errors.New("message out of place")
		}
		if err == nil {
			_, err = io.ReadFull(s.conn, b[:size])
		}
		if err != nil {
			for _, w := range s.in {
				_ = w.CloseWithError(err)
			}
			return
		}
		_, _ = s.in[flow].Write(b[:size])
	}
}

// openShared has all flows on the session itself.
func openShared(_ context.Context, r *flowRun, _ *kcp.Config) (flows [][2]io.ReadWriter, err error) {
	flows = make([][2]io.ReadWriter, len(flowKinds))
	for end, conn := range r.ends {
		s := &sharedSession{conn: conn}
		for i := range flowKinds {
			in, out := io.Pipe()
			s.in, r.pipes = append(s.in, out), append(r.pipes, in)
			flows[i][end] = &sharedFlow{in, s, uint32(i)}
		}
		r.work.Go(s.dispatch)
	}
	return flows, nil
}

// begin lets all flows go until the session ends.
func (r *flowRun) begin(flows [][2]io.ReadWriter) {
	r.start = time.Now()
	for i := range flowKinds {
		near, far := flows[i][0], flows[i][1]
		r.work.Go(func() { r.send(&flowKinds[i], near) })
		if !flowKinds[i].answered {
			r.work.Go(func() { r.receive(i, far) })
			continue
		}
		r.work.Go(func() { r.receive(i, near) })
		r.work.Go(func() { _, _ = io.Copy(struct{ io.Writer }{far}, struct{ io.Reader }{far}) })
	}
}

// send writes messages that begin with the time.
func (r *flowRun) send(k *flowKind, w io.Writer) {
	for n := 0; ; n++ {
		if k.every > 0 {
			time.Sleep(time.Until(r.start.Add(time.Duration(n) * k.every)))
		}
		b := make([]byte, k.size)
		binary.LittleEndian.PutUint64(b, uint64(time.Since(r.start)))
		if _, err := w.Write(b); err != nil {
			return
		}
	}
}

// receive notes how old what arrives is.
func (r *flowRun) receive(i int, from io.Reader) {
	b := make([]byte, flowKinds[i].size)
	for {
		if _, err := io.ReadFull(from, b); err != nil {
			return
		}
		age := time.Since(r.start) - time.Duration(binary.LittleEndian.Uint64(b))
		r.mu.Lock()
		if flowKinds[i].every == 0 {
			r.bytes += int64(len(b))
		} else {
			r.times[i] = append(r.times[i], age)
		}
		r.mu.Unlock()
	}
}

// showFlows waits for the end. A terminal sees the table meanwhile.
func (d *demo) showFlows(ctx context.Context, runs []*flowRun) error {
	end := time.NewTimer(d.duration)
	defer end.Stop()
	every := time.Duration(0)
	if d.lines.on || canRedraw(d.std.out) {
		every = printEvery
	}
	tick, stop := ticks(every)
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return d.explain(context.Cause(ctx))
		case <-end.C:
			return nil
		case <-tick:
			if d.lines.on {
				if err := d.printFlows("status", runs); err != nil {
					return err
				}
				continue
			}
			table := flowTable(runs)
			// Draw over it next time.
			fmt.Fprintf(d.std.out, "%s\x1b[%dA", table, strings.Count(table, "\n"))
		}
	}
}

// flowTable returns a row for each flow: the median and the 99th percentile of the
// times that its messages took, with streams and without.
func flowTable(runs []*flowRun) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%13s", "")
	for _, r := range runs {
		fmt.Fprintf(&b, "%22s", r.name)
	}
	fmt.Fprintf(&b, "\n%13s", "")
	for range runs {
		fmt.Fprintf(&b, "%11s%11s", "p50", "p99")
	}
	for i := range flowKinds {
		fmt.Fprintf(&b, "\n  %-11s", flowKinds[i].name)
		for _, r := range runs {
			b.WriteString(r.figures(i))
		}
	}
	b.WriteString("\n")
	return b.String()
}

// figures returns what the table shows of flow i.
func (r *flowRun) figures(i int) string {
	times, rate := r.measured(i)
	if flowKinds[i].every == 0 {
		return fmt.Sprintf("%15.1f Mbit/s", rate*8/1e6)
	}
	if len(times) == 0 {
		return fmt.Sprintf("%11s%11s", "-", "-")
	}
	return fmt.Sprintf("%8.0f ms%8.0f ms", 1e3*quantile(times, 0.5).Seconds(), 1e3*quantile(times, 0.99).Seconds())
}

// measured returns how old the messages of flow i were when they arrived, sorted, and
// the rate of the download in bytes per second.
func (r *flowRun) measured(i int) (times []time.Duration, rate float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(slices.Values(r.times[i])), float64(r.bytes) / time.Since(r.start).Seconds()
}

// quantile returns the time that a share of times, which are sorted, do not exceed.
func quantile(times []time.Duration, share float64) time.Duration {
	return times[int(share*float64(len(times)-1))]
}
