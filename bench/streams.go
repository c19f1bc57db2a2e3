package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/arqnet/kcp"
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
//
// Figures of this module repeat to the last digit, as kcp.Config.Repetition has it.
// Figures of the others differ by some percent from run to run, though losses fall on
// the same packets: goroutines of theirs run at the same instant, and quic-go draws
// from crypto/rand what changes the sizes of its packets.

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
		Loss: loss, Burst: burst,
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

// streamsImpl opens the flows of the mix between two hosts of a network. close ends
// all of it.
type streamsImpl func(n *netsim.Network, unread bool) (flows []flowEnds, close func(), err error)

var streamsImpls = map[string]streamsImpl{
	ours: kcpStreams, kcpApart: kcpApartSessions, kcpBulk: kcpBulkAlone, kcpGoSmux: smuxStreams, quicGo: quicStreams,
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
	c, ok := streamsCases[name]
	if !ok {
		return nil, fmt.Errorf("no case %q", name)
	}
	open := streamsImpls[impl]
	if open == nil {
		return nil, fmt.Errorf("no implementation %q", impl)
	}
	r := &streamsRun{until: streamsSettle + streamsTime, times: make([][]float64, bulkOfMix)}
	if d < quickRun {
		r.until = streamsSettle + time.Second
	}
	err := frozen(func() error { return r.run(netsim.NewNetwork(streamsSeed, c.link), open, c.unread) })
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
func (r *streamsRun) run(n *netsim.Network, open streamsImpl, unread bool) error {
	flows, stop, err := open(n, unread)
	if err != nil {
		return err
	}
	r.start = time.Now()
	var wg sync.WaitGroup
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
	stop()
	wg.Wait()
	time.Sleep(time.Minute) // goroutines of the implementations end
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

// kcpStreams has each flow on a stream of one session.
func kcpStreams(n *netsim.Network, unread bool) ([]flowEnds, func(), error) {
	kinds := streamFlows
	if unread {
		kinds = append(slices.Clip(kinds), kinds[bulkOfMix])
	}
	return kcpStreamsOf(n, kinds)
}

// kcpBulkAlone has the download only.
func kcpBulkAlone(n *netsim.Network, _ bool) ([]flowEnds, func(), error) {
	flows, stop, err := kcpStreamsOf(n, streamFlows[bulkOfMix:])
	return append(make([]flowEnds, bulkOfMix), flows...), stop, err
}

func kcpStreamsOf(n *netsim.Network, kinds []streamFlow) (flows []flowEnds, stop func(), err error) {
	near, far, stop, err := streamsPair(n, 4000, kcp.NewRepetition(streamsSeed))
	if err != nil {
		return nil, nil, err
	}
	for _, kind := range kinds {
		s, err := near.OpenStream(context.Background(), &kcp.StreamOptions{Priority: kind.priority})
		if err != nil {
			return nil, nil, err
		}
		r, err := far.AcceptStream(context.Background())
		if err != nil {
			return nil, nil, err
		}
		flows = append(flows, flowEnds{s, r})
	}
	return flows, stop, nil
}

// kcpApartSessions has a session for each flow.
func kcpApartSessions(n *netsim.Network, _ bool) (flows []flowEnds, _ func(), err error) {
	var stops []func()
	repetition := kcp.NewRepetition(streamsSeed)
	for i := range streamFlows {
		near, far, stop, err := streamsPair(n, 4000+uint16(i), repetition)
		if err != nil {
			return nil, nil, err
		}
		flows, stops = append(flows, flowEnds{near, far}), append(stops, stop)
	}
	return flows, func() {
		for _, stop := range stops {
			stop()
		}
	}, nil
}

// streamsPair opens a session of this module.
func streamsPair(n *netsim.Network, port uint16, repetition *kcp.Repetition) (near, far *kcp.Conn, stop func(), err error) {
	sockets, shut, err := streamsSockets(n, port)
	if err != nil {
		return nil, nil, nil, err
	}
	near, far, end, err := kcpPair(sockets, kcp.Config{Repetition: repetition})
	return near, far, func() { end(); shut() }, err
}

func quicStreams(n *netsim.Network, _ bool) (flows []flowEnds, stop func(), err error) {
	sockets, shut, err := streamsSockets(n, 4000)
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
func streamsSockets(n *netsim.Network, port uint16) (s [2]net.PacketConn, shut func(), err error) {
	for i, host := range []string{pathSender, pathReceiver} {
		if s[i], err = n.Listen(netip.AddrPortFrom(netip.MustParseAddr(host), port).String()); err != nil {
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

func smuxStreams(n *netsim.Network, _ bool) (flows []flowEnds, stop func(), err error) {
	sockets, shut, err := streamsSockets(n, 4000)
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
