package main

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
)

// With this module the mix repeats to the last digit. All that the application of
// an end does when packets arrive, it does on the goroutine that reads the socket,
// between two packets. What else happens, writes of the application, timers of an
// endpoint and arrivals, happens at different nanoseconds: see instant. So no two
// goroutines of one end are ever due at once.

// instant is what keeps events at an end apart. Packets take byteTime for each
// byte, so those that a timer causes arrive a multiple of it later, and hopTime,
// which is added to the delay of the path. Timers of an endpoint are due at whole
// milliseconds since it was made; endpoints are made at odds of endpointOdds. The
// application writes at odds of writeOdds.
const (
	byteTime     = time.Second / streamsRate // 400 ns
	hopTime      = time.Nanosecond
	endpointOdds = 47 * time.Nanosecond
	writeOdds    = 211 * time.Nanosecond
)

// readSpace holds the largest chunk of a stream, and what a group passes at once.
const readSpace = 64 << 10

// endSocket is a socket that calls after when a packet that it has returned is
// dealt with.
type endSocket struct {
	*netsim.PacketConn
	pending bool // a packet was returned; only its one reader uses it

	mu    sync.Mutex
	after func()
}

// ReadFromAddrPort is called for each packet, by one goroutine.
func (s *endSocket) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	s.mu.Lock()
	after := s.after
	s.mu.Unlock()
	if s.pending && after != nil {
		after()
	}
	n, from, err := s.PacketConn.ReadFromAddrPort(b)
	s.pending = err == nil
	return n, from, err
}

// setAfter sets the function.
func (s *endSocket) setAfter(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after = f
}

// flowEnd is an end of a flow. Its methods do not wait.
type flowEnd interface {
	// next returns bytes that have arrived; nil if there are none. They are
	// valid until the next call.
	next() []byte
	// write queues a message, or returns false if there is no room for all of it.
	write(message []byte) bool
}

// streamFlowEnd is an end of a flow that has a stream for itself.
type streamFlowEnd struct {
	*kcp.Stream
	room  int    // of its write buffer, in bytes; segments take some of it, too
	taken uint64 // messages that were read
	buf   []byte
}

func newStreamFlowEnd(s *kcp.Stream) *streamFlowEnd {
	return &streamFlowEnd{Stream: s, room: 224 << 10, buf: make([]byte, readSpace)}
}

func (e *streamFlowEnd) next() []byte {
	if e.Stats().MessagesReceived == e.taken {
		return nil
	}
	n, err := e.ReadMessage(e.buf)
	if err != nil {
		return nil
	}
	e.taken++
	return e.buf[:n]
}

func (e *streamFlowEnd) write(message []byte) bool {
	if e.Stats().WriteQueued+len(message) > e.room {
		return false
	}
	_, err := e.Write(message)
	return err == nil
}

// sessionFlowEnd is an end of a flow that has a session for itself.
type sessionFlowEnd struct {
	*kcp.Conn
	arrived, taken []byte
}

func (e *sessionFlowEnd) next() []byte {
	e.taken, e.arrived = e.arrived, e.taken[:0]
	return e.taken
}

func (e *sessionFlowEnd) write(message []byte) bool {
	if e.WriteAvailable() < len(message) {
		return false
	}
	n, err := e.TryWrite(message)
	return err == nil && n == len(message)
}

// takeInto lets what arrives on e be returned by next.
func (e *sessionFlowEnd) takeInto(g *kcp.Group) error {
	err := g.Handle(func(events []kcp.Event) {
		for _, ev := range events {
			if ev.Kind == kcp.EventData {
				e.arrived = append(e.arrived, ev.Data...)
			}
		}
	})
	if err != nil {
		return err
	}
	return g.Add(e.Conn)
}

// sharedEnd is the end of a session that all flows share. Each message has a head,
// of the flow and its size. What is written waits for what was written before.
type sharedEnd struct {
	*sessionFlowEnd
	in, out []byte
	flows   []*sharedFlow
}

// sharedFlow is the end of one of them.
type sharedFlow struct {
	shared   *sharedEnd
	flow     uint32
	messages []byte
}

// dispatch passes what has arrived to its flows.
func (e *sharedEnd) dispatch() {
	for b := e.sessionFlowEnd.next(); len(b) > 0; b = e.sessionFlowEnd.next() {
		e.in = append(e.in, b...)
	}
	in := e.in
	for len(in) >= 8 {
		size := int(binary.LittleEndian.Uint32(in[4:]))
		if len(in) < 8+size {
			break
		}
		f := e.flows[binary.LittleEndian.Uint32(in)]
		f.messages = append(f.messages, in[8:8+size]...)
		in = in[8+size:]
	}
	e.in = append(e.in[:0], in...)
	if n, err := e.TryWrite(e.out); err == nil || n > 0 {
		e.out = append(e.out[:0], e.out[n:]...)
	}
}

func (f *sharedFlow) next() []byte {
	f.shared.dispatch()
	b := f.messages
	f.messages = nil
	return b
}

// write lets messages of the download wait outside until all others have gone.
func (f *sharedFlow) write(message []byte) bool {
	e := f.shared
	e.dispatch()
	if f.flow == bulkOfMix && len(e.out) > 0 {
		return false
	}
	e.out = binary.LittleEndian.AppendUint32(e.out, f.flow)
	e.out = binary.LittleEndian.AppendUint32(e.out, uint32(len(message)))
	e.out = append(e.out, message...)
	e.dispatch()
	return true
}

// endApp is the application of an end.
type endApp struct {
	run     *streamsRun
	mu      sync.Mutex // guards the fields below; no two calls are ever due at once
	stopped bool
	flows   []appFlow
}

// appFlow is what an application knows of one flow.
type appFlow struct {
	flowEnd
	kind    *streamFlow
	writes  bool     // the application begins messages
	answers bool     // it sends what arrives back
	unread  bool     // it reads nothing
	in      []byte   // the beginning of a message
	out     [][]byte // messages for which there is no room yet
}

// newEndApp returns the application of one end; near is the one that begins.
func (r *streamsRun) newEndApp(ends []flowEnd, near bool) *endApp {
	a := &endApp{run: r}
	for i, e := range ends {
		if e == nil {
			a.flows = append(a.flows, appFlow{})
			continue
		}
		kind := &streamFlows[min(i, bulkOfMix)]
		a.flows = append(a.flows, appFlow{
			flowEnd: e, kind: kind, writes: near, answers: !near && kind.answered, unread: i > bulkOfMix,
		})
	}
	return a
}

// step does what can be done after something has arrived.
func (a *endApp) step() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.flows {
		if f := &a.flows[i]; !a.stopped && f.flowEnd != nil {
			if !f.unread {
				a.read(i, f)
			}
			f.send(a.run)
		}
	}
}

// read takes what has arrived on flow i.
func (a *endApp) read(i int, f *appFlow) {
	for b := f.next(); len(b) > 0; b = f.next() {
		for f.in = append(f.in, b...); len(f.in) >= f.kind.size; f.in = f.in[f.kind.size:] {
			message := f.in[:f.kind.size:f.kind.size]
			if f.answers {
				f.out = append(f.out, message)
			} else {
				a.run.note(i, time.Duration(binary.LittleEndian.Uint64(message)))
			}
		}
		f.in = append([]byte(nil), f.in...)
	}
}

// send writes what waits, and as much of a download as there is room for.
func (f *appFlow) send(r *streamsRun) {
	for len(f.out) > 0 && f.write(f.out[0]) {
		f.out = f.out[1:]
	}
	if f.writes && f.kind.every == 0 {
		for f.write(r.message(f.kind)) {
		}
	}
}

// begin writes the messages of flow i, each at its time.
func (a *endApp) begin(i int) {
	r, f := a.run, &a.flows[i]
	odds := time.Duration(i+1) * writeOdds
	for n := 0; ; n++ {
		time.Sleep(time.Until(r.start.Add((time.Duration(n) * f.kind.every).Truncate(byteTime) + odds)))
		a.mu.Lock()
		if !a.stopped {
			f.out = append(f.out, r.message(f.kind))
			f.send(r)
		}
		stopped := a.stopped
		a.mu.Unlock()
		if stopped {
			return
		}
	}
}

func (a *endApp) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
}

// stepPath is what joins the ends of the mix.
type stepPath struct {
	network   *netsim.Network
	endpoints int // made so far
	sockets   [2][]*endSocket
	ends      [2][]flowEnd
	closes    []func()
}

// steppedImpl opens the flows of the mix; bulk only the download, unread one more
// that is not read.
type steppedImpl func(p *stepPath, bulkOnly, unread bool) error

var steppedImpls = map[string]steppedImpl{
	ours: kcpStreams, kcpBulk: kcpStreams, kcpOne: kcpOneSession, kcpApart: kcpApartSessions,
}

// runSteps lets all flows go until the end.
func (r *streamsRun) runSteps(n *netsim.Network, impl string, unread bool) error {
	p := &stepPath{network: n}
	if err := steppedImpls[impl](p, impl == kcpBulk, unread); err != nil {
		return err
	}
	r.start = time.Now()
	var apps [2]*endApp
	for i := range apps {
		apps[i] = r.newEndApp(p.ends[i], i == 0)
		for _, s := range p.sockets[i] {
			s.setAfter(apps[i].step)
		}
	}
	var wg sync.WaitGroup
	for i := range apps[0].flows {
		f := &apps[0].flows[i]
		switch {
		case f.flowEnd == nil:
		case f.kind.every > 0:
			wg.Go(func() { apps[0].begin(i) })
		}
	}
	apps[0].step()
	time.Sleep(r.until)
	for _, a := range apps {
		a.stop()
	}
	for _, f := range p.closes {
		f()
	}
	wg.Wait()
	time.Sleep(time.Minute) // what goes on in the background ends
	return nil
}

// endpoint makes an endpoint on a socket of end i.
func (p *stepPath) endpoint(i int, addr string, config *kcp.Config) (*kcp.Endpoint, error) {
	p.endpoints++
	time.Sleep(time.Until(time.Now().Truncate(time.Millisecond).Add(time.Millisecond + time.Duration(p.endpoints)*endpointOdds)))
	pc, err := p.network.Listen(addr)
	if err != nil {
		return nil, err
	}
	s := &endSocket{PacketConn: pc}
	e, err := kcp.NewEndpoint(s, config)
	if err != nil {
		return nil, err
	}
	p.sockets[i] = append(p.sockets[i], s)
	p.closes = append(p.closes, func() { _, _ = e.Close(), pc.Close() })
	return e, nil
}

// session opens a session between the two ends.
func (p *stepPath) session(port int, config *kcp.Config) (near, far *kcp.Conn, err error) {
	server := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(port))
	se, err := p.endpoint(1, server.String(), config)
	if err != nil {
		return nil, nil, err
	}
	l, err := se.Listen()
	if err != nil {
		return nil, nil, err
	}
	ce, err := p.endpoint(0, "10.0.0.2:0", config)
	if err != nil {
		return nil, nil, err
	}
	if near, err = ce.Dial(context.Background(), net.UDPAddrFromAddrPort(server)); err != nil {
		return nil, nil, err
	}
	if far, err = l.AcceptKCP(context.Background()); err != nil {
		return nil, nil, err
	}
	p.closes = append(p.closes, func() { _, _ = near.Abort(), far.Abort() })
	return near, far, nil
}

func (p *stepPath) add(near, far flowEnd) {
	p.ends[0], p.ends[1] = append(p.ends[0], near), append(p.ends[1], far)
}

// kcpStreams has each flow on a stream of one session.
func kcpStreams(p *stepPath, bulkOnly, unread bool) error {
	near, far, err := p.session(4000, nil)
	if err != nil {
		return err
	}
	kinds := streamFlows
	if unread {
		kinds = append(kinds[:len(kinds):len(kinds)], kinds[bulkOfMix])
	}
	for i := range kinds {
		if bulkOnly && i != bulkOfMix {
			p.add(nil, nil)
			continue
		}
		s, err := near.OpenStream(context.Background(), &kcp.StreamOptions{Priority: kinds[i].priority})
		if err != nil {
			return err
		}
		r, err := far.AcceptStream(context.Background())
		if err != nil {
			return err
		}
		p.add(newStreamFlowEnd(s), newStreamFlowEnd(r))
	}
	return nil
}

// kcpApartSessions has a session for each flow.
func kcpApartSessions(p *stepPath, _, _ bool) error {
	for i := range streamFlows {
		near, far, err := p.session(4000+i, nil)
		if err != nil {
			return err
		}
		a, b, err := sessionFlowEnds(near, far)
		if err != nil {
			return err
		}
		p.add(a, b)
	}
	return nil
}

// sessionFlowEnds returns the two ends of a session.
func sessionFlowEnds(near, far *kcp.Conn) (a, b *sessionFlowEnd, err error) {
	a, b = &sessionFlowEnd{Conn: near}, &sessionFlowEnd{Conn: far}
	for _, e := range []*sessionFlowEnd{a, b} {
		if err := e.takeInto(kcp.NewGroup()); err != nil {
			return nil, nil, err
		}
	}
	return a, b, nil
}

// kcpOneSession has all flows on one session.
func kcpOneSession(p *stepPath, _, _ bool) error {
	near, far, err := p.session(4000, &kcp.Config{WriteBuffer: 256 << 10}) // what waits there waits for all
	if err != nil {
		return err
	}
	a, b, err := sessionFlowEnds(near, far)
	if err != nil {
		return err
	}
	shared := [2]*sharedEnd{{sessionFlowEnd: a}, {sessionFlowEnd: b}}
	for i := range streamFlows {
		for _, e := range shared {
			e.flows = append(e.flows, &sharedFlow{shared: e, flow: uint32(i)})
		}
		p.add(shared[0].flows[i], shared[1].flows[i])
	}
	return nil
}
