package main

import (
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
	"github.com/quic-go/quic-go"
	"github.com/xtaci/smux"
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
// run, quic-go has a stream for each flow. Losses repeat from run to run; which of
// several goroutines that are due at one instant comes first does not.

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

var streamsCases = map[string]netsim.LinkConfig{
	"loss0":  streamsLink(0, netsim.GilbertElliott{}),
	"loss2":  streamsLink(0.02, netsim.GilbertElliott{}),
	"loss5":  streamsLink(0.05, netsim.GilbertElliott{}),
	"bursts": streamsLink(0, netsim.BurstLoss(0.02, 5)),
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
		cases:   []string{"loss0", "loss2", "loss5", "bursts"},
		impls:   []string{ours, kcpOne, kcpApart, kcpBulk, kcpGoSmux, quicGo},
		measure: measureStreams,
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
	s.metrics = append(s.metrics, metric{metricGoodput, "Mbit/s"})
	register(s)
}

// flowEnds are the two ends of a flow: what is written to the first is read from
// the second, and answers come back.
type flowEnds struct{ near, far io.ReadWriter }

// streamsImpl opens the flows of the mix between two hosts of a network; bulk only
// the download. close ends all of it.
type streamsImpl func(n *netsim.Network, bulkOnly bool) (flows []flowEnds, close func(), err error)

var streamsImpls = map[string]streamsImpl{
	ours: kcpStreams, kcpBulk: kcpStreams, kcpOne: kcpOneStream, kcpApart: kcpApartSessions,
	kcpGoSmux: smuxStreams, quicGo: quicStreams,
}

// streamsRun collects what arrives.
type streamsRun struct {
	mu    sync.Mutex
	start time.Time
	until time.Duration
	times [][]float64 // ms, by flow
	bulk  int64       // bytes that arrived between streamsSettle and until
}

func measureStreams(name, impl string, d time.Duration) (figures, error) {
	link, ok := streamsCases[name]
	if !ok {
		return nil, fmt.Errorf("no case %q", name)
	}
	if streamsImpls[impl] == nil {
		return nil, fmt.Errorf("no implementation %q", impl)
	}
	r := &streamsRun{until: streamsSettle + streamsTime, times: make([][]float64, bulkOfMix)}
	if d < quickRun {
		r.until = streamsSettle + 2*time.Second
	}
	err := frozen(func() error { return r.run(netsim.NewNetwork(1, link), impl) })
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
	flows, stop, err := streamsImpls[impl](n, impl == kcpBulk)
	if err != nil {
		return err
	}
	r.start = time.Now()
	var wg sync.WaitGroup
	for i := range streamFlows {
		if i != bulkOfMix && impl == kcpBulk {
			continue
		}
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

// send writes messages that begin with the time.
func (r *streamsRun) send(f *streamFlow, w io.Writer) {
	for n := 0; ; n++ {
		if f.every > 0 {
			time.Sleep(time.Until(r.start.Add(time.Duration(n) * f.every)))
		}
		b := make([]byte, f.size)
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
		r.note(i, time.Duration(binary.LittleEndian.Uint64(b)))
	}
}

func (r *streamsRun) note(i int, sent time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Since(r.start)
	switch {
	case now > r.until || now < streamsSettle:
	case i == bulkOfMix:
		r.bulk += int64(streamFlows[i].size)
	default:
		r.times[i] = append(r.times[i], float64(now-sent)/float64(time.Millisecond))
	}
}

// kcpSession opens a session of this module between two hosts.
func kcpSession(n *netsim.Network, port int, config *kcp.Config) (near, far *kcp.Conn, stop func(), err error) {
	server := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(port))
	pc, err := n.Listen(server.String())
	if err != nil {
		return nil, nil, nil, err
	}
	se, err := kcp.NewEndpoint(pc, config)
	if err != nil {
		return nil, nil, nil, err
	}
	l, err := se.Listen()
	if err != nil {
		return nil, nil, nil, err
	}
	cc, err := n.Listen("10.0.0.2:0")
	if err != nil {
		return nil, nil, nil, err
	}
	ce, err := kcp.NewEndpoint(cc, config)
	if err != nil {
		return nil, nil, nil, err
	}
	if near, err = ce.Dial(context.Background(), net.UDPAddrFromAddrPort(server)); err != nil {
		return nil, nil, nil, err
	}
	if far, err = l.AcceptKCP(context.Background()); err != nil {
		return nil, nil, nil, err
	}
	return near, far, func() {
		_, _ = near.Abort(), far.Abort()
		_, _ = ce.Close(), se.Close()
		_, _ = cc.Close(), pc.Close()
	}, nil
}

func kcpStreams(n *netsim.Network, bulkOnly bool) (flows []flowEnds, stop func(), err error) {
	near, far, stop, err := kcpSession(n, 4000, nil)
	if err != nil {
		return nil, nil, err
	}
	for i := range streamFlows {
		if bulkOnly && i != bulkOfMix {
			flows = append(flows, flowEnds{})
			continue
		}
		s, err := near.OpenStream(context.Background(), &kcp.StreamOptions{Priority: streamFlows[i].priority})
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

func kcpApartSessions(n *netsim.Network, _ bool) (flows []flowEnds, stop func(), err error) {
	var all []func()
	for i := range streamFlows {
		near, far, stop, err := kcpSession(n, 4000+i, nil)
		if err != nil {
			return nil, nil, err
		}
		flows, all = append(flows, flowEnds{near, far}), append(all, stop)
	}
	return flows, func() {
		for _, stop := range all {
			stop()
		}
	}, nil
}

// oneFlow is one of several flows on a stream of bytes, each message of which has
// a head: the flow, and its size.
type oneFlow struct {
	shared *oneStream
	flow   uint32
	*io.PipeReader
}

// oneStream is the stream.
type oneStream struct {
	turn chan struct{} // holds one value while nobody writes; waiting for a mutex would stop virtual time
	conn io.ReadWriter
	in   []*io.PipeWriter
}

func (f oneFlow) Write(b []byte) (int, error) {
	<-f.shared.turn
	defer func() { f.shared.turn <- struct{}{} }()
	p := binary.LittleEndian.AppendUint32(make([]byte, 0, 8+len(b)), f.flow)
	p = binary.LittleEndian.AppendUint32(p, uint32(len(b)))
	_, err := f.shared.conn.Write(append(p, b...))
	return len(b), err
}

// dispatch reads heads and messages until there are no more.
func (o *oneStream) dispatch() {
	var head [8]byte
	for {
		_, err := io.ReadFull(o.conn, head[:])
		b := make([]byte, binary.LittleEndian.Uint32(head[4:]))
		if err == nil {
			_, err = io.ReadFull(o.conn, b)
		}
		if err != nil {
			for _, w := range o.in {
				_ = w.CloseWithError(err)
			}
			return
		}
		_, _ = o.in[binary.LittleEndian.Uint32(head[:])].Write(b)
	}
}

func kcpOneStream(n *netsim.Network, _ bool) (flows []flowEnds, stop func(), err error) {
	near, far, stop, err := kcpSession(n, 4000, &kcp.Config{WriteBuffer: 256 << 10}) // what waits there waits for all
	if err != nil {
		return nil, nil, err
	}
	ends := [2]*oneStream{{conn: near}, {conn: far}}
	for _, o := range ends {
		o.turn = make(chan struct{}, 1)
		o.turn <- struct{}{}
	}
	for i := range streamFlows {
		var f [2]oneFlow
		for j, o := range ends {
			r, w := io.Pipe()
			o.in = append(o.in, w)
			f[j] = oneFlow{o, uint32(i), r}
		}
		flows = append(flows, flowEnds{f[0], f[1]})
	}
	go ends[0].dispatch()
	go ends[1].dispatch()
	return flows, stop, nil
}

func quicStreams(n *netsim.Network, _ bool) (flows []flowEnds, stop func(), err error) {
	server, client, err := selfSigned()
	if err != nil {
		return nil, nil, err
	}
	var conns []net.PacketConn
	var transports []*quic.Transport
	for _, addr := range []string{"10.0.0.1:4000", "10.0.0.2:4000"} {
		pc, err := n.Listen(addr)
		if err != nil {
			return nil, nil, err
		}
		conns, transports = append(conns, pc), append(transports, &quic.Transport{Conn: pc})
	}
	l, err := transports[0].Listen(server, quicConfig)
	if err != nil {
		return nil, nil, err
	}
	near, err := transports[1].Dial(context.Background(), conns[0].LocalAddr(), client, quicConfig)
	if err != nil {
		return nil, nil, err
	}
	far, err := l.Accept(context.Background())
	if err != nil {
		return nil, nil, err
	}
	for range streamFlows {
		s, err := near.OpenStreamSync(context.Background())
		if err != nil {
			return nil, nil, err
		}
		if _, err := s.Write([]byte{1}); err != nil {
			return nil, nil, err
		}
		r, err := far.AcceptStream(context.Background())
		if err != nil {
			return nil, nil, err
		}
		if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
			return nil, nil, err
		}
		flows = append(flows, flowEnds{s, r})
	}
	return flows, func() {
		_ = errors.Join(near.CloseWithError(0, ""), far.CloseWithError(0, ""), l.Close())
		for i := range conns {
			_, _ = transports[i].Close(), conns[i].Close()
		}
	}, nil
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

// smuxWindow is that of kcp-go, in segments: enough for the path and its queue.
const smuxWindow = 512

func smuxStreams(n *netsim.Network, _ bool) (flows []flowEnds, stop func(), err error) {
	impl := newKCPGoImpl(1, 10, 2, 1, smuxWindow, 0)
	var ends []*driven
	var sockets []net.PacketConn
	for _, addr := range []string{"10.0.0.1:4000", "10.0.0.2:4000"} {
		pc, err := n.Listen(addr)
		if err != nil {
			return nil, nil, err
		}
		sockets = append(sockets, pc)
	}
	for i := range sockets {
		c, err := newDriven(impl, sockets[i], sockets[1-i].LocalAddr(), smuxWindow)
		if err != nil {
			return nil, nil, err
		}
		ends = append(ends, c)
	}
	config := smux.DefaultConfig()
	config.Version, config.KeepAliveDisabled = 2, true
	config.MaxReceiveBuffer, config.MaxStreamBuffer = 16<<20, 4<<20
	server, err := smux.Server(ends[0], config)
	if err != nil {
		return nil, nil, err
	}
	client, err := smux.Client(ends[1], config)
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
		for i := range ends {
			_, _ = ends[i].Close(), sockets[i].Close()
		}
	}, nil
}
