package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
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
// priority. kcp-one has all of them on the session itself, with a head in front of
// each message. kcp-apart has a session for each flow, at the same time. kcp-bulk
// has nothing but the download. kcp-go-smux is smux over kcp-go as it is mostly
// run, quic-go has a stream for each flow.
//
// Figures of this module repeat to the last digit; see streams_steps.go. Figures of
// the others differ by some percent from run to run, though losses fall on the same
// packets. smux passes what is written through goroutines and selects of its own,
// of which the runtime chooses the order. quic-go has a goroutine for each
// connection, for sending, and for the socket, which run at the same instant as
// the application's; and packet numbers that it leaves out, connection ids and
// signatures come from crypto/rand, and change the sizes of its packets.

const (
	kcpOne    = "kcp-one"
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
		Delay: streamsRTT/2 + hopTime, Rate: streamsRate, Queue: streamsRate / 10, Overhead: netsim.OverheadIPv4,
		Loss: loss, Burst: burst,
	}
}

func init() {
	s := &suite{
		name:    "streams",
		about:   "a state feed, calls, a chat and a download beside each other at 20 Mbit/s, RTT 80 ms, in virtual time",
		cases:   []string{"loss0", "loss2", "loss5", "bursts", "unread"},
		impls:   []string{ours, kcpOne, kcpApart, kcpBulk, kcpGoSmux, quicGo},
		measure: measureStreams,
		virtual: true,
		lacks: func(c, impl string) bool {
			return c == "unread" && impl != ours || c == burstsSeeds && impl != ours && impl != quicGo
		},
		optional: []string{burstsSeeds},
		omits: func(_, impl, metric string) bool {
			return impl == kcpBulk && metric != metricGoodput
		},
	}
	for _, f := range streamFlows[:bulkOfMix] {
		for _, q := range []string{metricP50, metricP99, metricP999} {
			s.metrics = append(s.metrics, metric{f.name + "-" + q, "ms"})
		}
		for _, c := range s.cases {
			p99 := f.name + "-" + metricP99
			s.thresholds = append(s.thresholds,
				threshold{c: c, impl: ours, metric: p99, max: 1.15, of: kcpApart},
				threshold{c: c, impl: ours, metric: p99, max: 0.5, of: kcpGoSmux},
				threshold{c: c, impl: ours, metric: p99, max: 1, of: quicGo})
		}
	}
	for _, c := range s.cases {
		s.thresholds = append(s.thresholds, threshold{c: c, impl: ours, metric: metricGoodput, min: 0.9, of: kcpBulk})
	}
	s.thresholds = append(s.thresholds, threshold{c: "unread", impl: ours, metric: metricGoodput, min: 0.95, ofCase: "loss2"})
	s.metrics = append(s.metrics, metric{metricGoodput, "Mbit/s"})
	register(s)
}

// flowEnds are the two ends of a flow: what is written to the first is read from
// the second, and answers come back.
type flowEnds struct{ near, far io.ReadWriter }

// streamsImpl opens the flows of the mix between two hosts of a network. close ends
// all of it.
type streamsImpl func(n *netsim.Network) (flows []flowEnds, close func(), err error)

var streamsImpls = map[string]streamsImpl{kcpGoSmux: smuxStreams, quicGo: quicStreams}

// streamsRun collects what arrives.
type streamsRun struct {
	mu    sync.Mutex
	start time.Time
	until time.Duration
	times [][]float64 // ms, by flow
	bulk  int64       // bytes that arrived between streamsSettle and until
}

// burstsSeeds is the case bursts with several seeds: its figures are their means.
const burstsSeeds = "bursts-12-seeds"

func measureStreams(name, impl string, d time.Duration) (figures, error) {
	if name != burstsSeeds {
		return measureStreamsSeed(name, impl, streamsSeed, d)
	}
	const seeds = 12
	mean := figures{}
	for seed := range uint64(seeds) {
		f, err := measureStreamsSeed("bursts", impl, seed+1, d)
		if err != nil {
			return nil, fmt.Errorf("seed %d: %w", seed+1, err)
		}
		for name, v := range f {
			mean[name] += v / seeds
		}
	}
	return mean, nil
}

// measureStreamsSeed measures a case with the losses of one seed.
func measureStreamsSeed(name, impl string, seed uint64, d time.Duration) (figures, error) {
	c, ok := streamsCases[name]
	if !ok {
		return nil, fmt.Errorf("no case %q", name)
	}
	if streamsImpls[impl] == nil && steppedImpls[impl] == nil {
		return nil, fmt.Errorf("no implementation %q", impl)
	}
	r := &streamsRun{until: streamsSettle + streamsTime, times: make([][]float64, bulkOfMix)}
	if d < quickRun {
		r.until = streamsSettle + 2*time.Second
	}
	err := frozen(func() error {
		if n := netsim.NewNetwork(seed, c.link); steppedImpls[impl] == nil {
			return r.run(n, impl)
		} else {
			return r.runSteps(n, impl, c.unread)
		}
	})
	if err != nil {
		return nil, err
	}
	f := figures{metricGoodput: float64(r.bulk) * 8 / 1e6 / (r.until - streamsSettle).Seconds()}
	for i, times := range r.times {
		if impl == kcpBulk {
			break
		}
		if slices.Sort(times); len(times) == 0 {
			return nil, fmt.Errorf("nothing of %s has arrived", streamFlows[i].name)
		}
		for metric, q := range map[string]float64{metricP50: 0.5, metricP99: 0.99, metricP999: 0.999} {
			f[streamFlows[i].name+"-"+metric] = quantile(times, q)
		}
	}
	return f, nil
}

// run lets all flows go until the end.
func (r *streamsRun) run(n *netsim.Network, impl string) error {
	flows, stop, err := streamsImpls[impl](n)
	if err != nil {
		return err
	}
	r.start = time.Now()
	var wg sync.WaitGroup
	for i := range streamFlows {
		f, ends := &streamFlows[i], flows[i]
		wg.Go(func() { r.send(f, ends.near) })
		wg.Go(func() { r.receive(i, ends.far, f.answered) })
		if f.answered {
			wg.Go(func() { r.receive(i, ends.near, false) })
		}
	}
	time.Sleep(r.until)
	stop()
	wg.Wait()
	time.Sleep(time.Minute) // goroutines of the implementations end
	return nil
}

// message returns a message that begins with the time.
func (r *streamsRun) message(f *streamFlow) []byte {
	b := make([]byte, f.size)
	binary.LittleEndian.PutUint64(b, uint64(time.Since(r.start)))
	return b
}

// send writes messages.
func (r *streamsRun) send(f *streamFlow, w io.Writer) {
	for n := 0; ; n++ {
		if f.every > 0 {
			time.Sleep(time.Until(r.start.Add(time.Duration(n) * f.every)))
		}
		if _, err := w.Write(r.message(f)); err != nil {
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
		r.note(i, time.Duration(binary.LittleEndian.Uint64(b)))
	}
}

func (r *streamsRun) note(i int, sent time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Since(r.start)
	switch {
	case now > r.until || now < streamsSettle || i > bulkOfMix:
	case i == bulkOfMix:
		r.bulk += int64(streamFlows[i].size)
	default:
		r.times[i] = append(r.times[i], float64(now-sent)/float64(time.Millisecond))
	}
}

func quicStreams(n *netsim.Network) (flows []flowEnds, stop func(), err error) {
	sockets, shut, err := streamsSockets(n)
	if err != nil {
		return nil, nil, err
	}
	near, far, end, err := quicPair(sockets, quicConfig)
	if err != nil {
		return nil, nil, err
	}
	for range streamFlows {
		to, from, err := quicStreamPair(near, far)
		if err != nil {
			return nil, nil, err
		}
		flows = append(flows, flowEnds{to, from})
	}
	return flows, func() { end(); shut() }, nil
}

// streamsSockets opens the sockets of both hosts, the one that dials first.
func streamsSockets(n *netsim.Network) (s [2]net.PacketConn, shut func(), err error) {
	for i, addr := range []string{"10.0.0.2:4000", "10.0.0.1:4000"} {
		if s[i], err = n.Listen(addr); err != nil {
			return s, nil, err
		}
	}
	return s, func() { _, _ = s[0].Close(), s[1].Close() }, nil
}

// driven is a net.Conn over a driver, as kcp-go's UDPSession is over its state
// machine; in virtual time, where kcp-go's own timers do not run.
type driven struct {
	mu     sync.Mutex
	change sync.Cond
	d      driver
	socket net.PacketConn
	peer   net.Addr
	start  time.Time
	window int // segments that may wait
	closed bool
	buf    []byte
}

func newDriven(impl simImpl, socket net.PacketConn, peer net.Addr, window int) (*driven, error) {
	c := &driven{socket: socket, peer: peer, start: time.Now(), window: window}
	c.change.L = &c.mu
	var err error
	c.d, err = impl(func(packet []byte) { _, _ = c.socket.WriteTo(packet, c.peer) })
	if err == nil {
		go c.readPackets()
		go c.tick()
	}
	return c, err
}

func (c *driven) now() time.Duration { return time.Since(c.start) }

// readPackets feeds the driver until the socket is closed.
func (c *driven) readPackets() {
	b := make([]byte, 2048)
	for {
		n, _, err := c.socket.ReadFrom(b)
		if err != nil {
			return
		}
		c.mu.Lock()
		if c.d.input(c.now(), b[:n]) == nil {
			c.d.answer(c.now())
		}
		c.change.Broadcast()
		c.mu.Unlock()
	}
}

// tick wakes the driver until the connection is closed.
func (c *driven) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed {
		at, ok := c.d.next(c.now())
		if ok && at <= c.now() {
			c.d.wake(c.now())
			c.change.Broadcast()
			continue
		}
		c.mu.Unlock()
		time.Sleep(max(at-c.now(), time.Millisecond))
		c.mu.Lock()
	}
}

func (c *driven) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if c.closed {
			return 0, net.ErrClosed
		}
		if len(c.buf) > 0 {
			n := copy(p, c.buf)
			c.buf = c.buf[n:]
			return n, nil
		}
		b := make([]byte, 1<<16)
		n, err := c.d.read(c.now(), b)
		if err != nil {
			return 0, err
		}
		if c.buf = b[:n]; n == 0 {
			c.change.Wait()
		}
	}
}

func (c *driven) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.d.backlog() >= c.window && !c.closed {
		c.change.Wait()
	}
	if c.closed {
		return 0, net.ErrClosed
	}
	return len(p), c.d.write(c.now(), p)
}

func (c *driven) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.change.Broadcast()
	return nil
}

// smuxWindow is kcp-go's window, in segments: enough for the path and its queue.
const smuxWindow = 512

func smuxStreams(n *netsim.Network) (flows []flowEnds, stop func(), err error) {
	sockets, shut, err := streamsSockets(n)
	if err != nil {
		return nil, nil, err
	}
	var ends [2]*driven
	for i := range ends {
		if ends[i], err = newDriven(newKCPGoImpl(1, 10, 2, 1, smuxWindow, 0), sockets[i], sockets[1-i].LocalAddr(), smuxWindow); err != nil {
			return nil, nil, err
		}
	}
	client, server, err := smuxOver(ends)
	if err != nil {
		return nil, nil, err
	}
	for range streamFlows {
		s, err := client.OpenStream()
		if err != nil {
			return nil, nil, err
		}
		r, err := server.AcceptStream()
		if err != nil {
			return nil, nil, err
		}
		flows = append(flows, flowEnds{s, r})
	}
	return flows, func() {
		_, _ = client.Close(), server.Close()
		_, _ = ends[0].Close(), ends[1].Close()
		shut()
	}, nil
}
