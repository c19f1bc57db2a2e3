package kcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/udp"
)

// sessionLink is two sessions and a link between them, which a script drives.
type sessionLink struct {
	*machineWorld
	in    linkScript
	luck  *rand.Rand
	wire  [2][]crossing // to ends[i]
	past  [2][]crossing // that have arrived, or were lost
	flows map[flowKey]*flow
	kinds map[uint32]bool // streams: whether they carry messages

	reads [2]bool
	late  [2]time.Duration // of wake-ups
	slow  [2]bool          // TLS has no time
	seen  [2]closing.Phase
	ended [2]error // as the session has said

	delay, jitter time.Duration
	loss          float64
	path          int // largest packet that passes; 0: any

	made     int  // messages, streams and datagrams
	strained bool // a session may be lost, or ended for want of memory
	aborted  bool
	moved    bool // the first end has, to another address
}

// crossing is a packet on its way.
type crossing struct {
	data []byte
	from netip.AddrPort
	to   netip.AddrPort
	at   time.Duration
}

// Bounds of a script.
const (
	maxSessionScript = 400
	maxSessionMade   = 600
	maxFlowBytes     = 1 << 16
)

// sessionConfig returns the Config of both ends.
func sessionConfig(mode, shape byte) *Config {
	c := &Config{
		MessageMode: mode&4 > 0, PeerTimeout: 10 * time.Minute,
		SendWindow: []int{0, 8, 32, 1024}[shape&3], ReceiveWindow: []int{0, 128, 256, 1024}[shape>>2&3],
		NoDelay: NoDelay(shape>>4&3) % (NoDelayTurbo + 1), MTU: []int{0, 600, 0, 1300}[shape>>6],
		WriteBuffer: []int{0, 0, 8192, 65536}[mode>>3&3], MaxBuffered: 1 << 20,
	}
	if mode&32 > 0 {
		c.AddressValidation = ValidateAlways
	}
	if mode&64 > 0 {
		c.MaxRate = 50_000
	}
	if mode&128 > 0 {
		c.Redundancy = 0.5
		c.StreamReceiveBuffer = 64 << 10
	}
	var err error
	switch mode & 3 {
	case 1:
		c.FEC = FEC{Data: 3, Parity: 1 + int(shape&1)}
	case 2:
		c.Cipher, err = crypt.ChaCha20Poly1305(bytes.Repeat([]byte{7}, 32))
	case 3:
		if c.TLS = testenv.TLS(); c.MTU == 600 {
			c.MTU = 1250
		}
	}
	if err != nil {
		panic(err)
	}
	return c
}

func newSessionLink(t testing.TB, script []byte) *sessionLink {
	l := &sessionLink{
		in: script[:min(len(script), maxSessionScript)], delay: 10 * time.Millisecond,
		flows: make(map[flowKey]*flow), kinds: make(map[uint32]bool), reads: [2]bool{true, true},
	}
	mode, shape := l.in.next(), l.in.next()
	config := sessionConfig(mode, shape)
	require.NoError(t, config.Validate())
	l.luck = rand.New(rand.NewPCG(uint64(mode), uint64(shape)))
	l.machineWorld = newMachineWorld(t, uint64(shape), config, config)
	l.send = l.put
	for side := range l.ends {
		l.add(flowKey{side, 0}, config.MessageMode, true)
		l.add(flowKey{side, datagramFlow}, true, false)
	}
	l.dial(7, false)
	return l
}

// add adds a flow.
func (l *sessionLink) add(key flowKey, messages, ordered bool) {
	if l.flows[key] == nil {
		l.flows[key] = &flow{key: key, messages: messages, ordered: ordered}
	}
}

// put lets a packet begin its way.
func (l *sessionLink) put(from *machineEnd, d *udp.Datagram) {
	to := 1 - from.side
	p := crossing{bytes.Clone(d.Buf), from.addr, d.Addr, l.now + l.delay}
	if l.jitter > 0 {
		p.at += time.Duration(l.luck.Int64N(int64(l.jitter)))
	}
	if lost := l.luck.Float64() < l.loss; lost || l.path > 0 && len(p.data) > l.path && !d.Cut {
		l.remember(to, p)
	} else if len(l.wire[to]) < 4096 {
		l.wire[to] = append(l.wire[to], p)
	}
}

// remember keeps a packet that may come again.
func (l *sessionLink) remember(to int, p crossing) {
	if len(l.past[to]) >= 64 {
		l.past[to] = l.past[to][1:]
	}
	l.past[to] = append(l.past[to], p)
}

// run lets time pass.
func (l *sessionLink) run(d time.Duration) {
	for until := l.now + d; ; {
		at := l.next()
		if at == 0 || at > until {
			l.now = until
			return
		}
		l.now = max(l.now, at)
		l.step()
	}
}

// next returns when something happens next; 0: never.
func (l *sessionLink) next() (next time.Duration) {
	sooner := func(at time.Duration) {
		if next == 0 || at < next {
			next = at
		}
	}
	for i, e := range l.ends {
		if e.wakeAt > 0 {
			sooner(e.wakeAt + l.late[i])
		}
		for _, p := range l.wire[i] {
			sooner(p.at)
		}
	}
	return next
}

// step lets happen what is due.
func (l *sessionLink) step() {
	for i, e := range l.ends {
		var due []crossing
		l.wire[i] = slices.DeleteFunc(l.wire[i], func(p crossing) bool {
			if p.at <= l.now {
				due = append(due, p)
			}
			return p.at <= l.now
		})
		for _, p := range due {
			if l.remember(i, p); p.to == e.addr {
				e.receive(p.data, p.from)
			}
		}
		e.respond()
		if !l.slow[i] {
			e.works()
		}
		for n := 0; e.wakeAt > 0 && e.wakeAt+l.late[i] <= l.now; n++ {
			if e.wakes(); n > 20 {
				l.t.Fatalf("end %d asks to be woken at once after 20 wake-ups", i)
			}
		}
		l.receive(i)
		l.check(e)
	}
}

// receive reads what end i has, if its application reads.
func (l *sessionLink) receive(i int) {
	e := l.ends[i]
	if e.conn == nil {
		return
	}
	for b := e.receiveDatagram(); b != nil; b = e.receiveDatagram() {
		f := l.flows[flowKey{1 - i, datagramFlow}]
		if n := int(binary.LittleEndian.Uint32(b)); n < f.sent && f.parts[n].got {
			f.parts[n].got = e.shared.config.Cipher != nil || e.shared.config.TLS != nil // a copy
		}
		f.take(l.t, b)
	}
	for s := e.acceptStream(); s != nil; s = e.acceptStream() {
		l.stream(s)
	}
	if !l.reads[i] {
		return
	}
	l.exhaust(l.flows[flowKey{1 - i, 0}], e.read)
	for id, s := range e.streams {
		f := l.flows[flowKey{1 - i, id}]
		l.exhaust(f, func() ([]byte, error) { return e.readStream(s, f.messages) })
	}
}

// exhaust reads all that a flow has.
func (l *sessionLink) exhaust(f *flow, read func() ([]byte, error)) {
	for {
		b, err := read()
		if err == io.EOF {
			if !f.whole() && !f.cut {
				l.t.Fatalf("%+v ends after %d of %d", f.key, f.read, f.sent)
			}
			f.eof = true
		}
		var reset *StreamError
		f.cut = f.cut || errors.As(err, &reset)
		if err != nil || b == nil {
			return
		}
		if f.eof {
			l.t.Fatalf("%+v goes on after its end", f.key)
		}
		f.take(l.t, b)
	}
}

// stream adds the flows of a stream.
func (l *sessionLink) stream(s *machineStream) {
	id, p := s.state.ID(), s.state.Params()
	for side := range l.ends {
		l.add(flowKey{side, id}, l.kinds[id], !p.Unordered)
	}
}

// perform carries out one step of the script.
func (l *sessionLink) perform() {
	b := l.in.next()
	x := b >> 4
	i := int(x & 1)
	e := l.ends[i]
	if op := b & 15; op >= 4 && op <= 7 {
		l.pass(op, x)
	} else if e.conn != nil && e.conn.hs.Role != opening.Accepted { // else the application has not got it
		l.act(e, op, x>>1)
	}
	for _, e := range l.ends {
		l.check(e)
	}
}

// pass lets time pass, or changes the link.
func (l *sessionLink) pass(op, x byte) {
	switch op {
	case 4, 5, 6:
		l.run([16]time.Duration{0, 1, 2, 5, 10, 20, 21, 40, 60, 100, 150, 200, 400, 1000, 3000, 15000}[x] * time.Millisecond)
	case 7:
		y := l.in.next()
		switch y & 3 {
		case 0:
			l.loss = float64(x) / 18
		case 1:
			l.delay = time.Duration(x) * 7 * time.Millisecond
		case 2:
			l.jitter = time.Duration(x) * time.Duration(y>>2) * time.Millisecond
		case 3:
			l.path = []int{0, 1200, 1250, 1400}[x&3]
		}
	}
}

// act has an end do something.
func (l *sessionLink) act(e *machineEnd, op, x byte) {
	switch op {
	case 0, 1:
		l.write(e, int(l.in.next())*(1+int(x)), l.in.next())
	case 2, 3:
		l.useStream(e, x)
	case 8:
		l.reads[e.side] = x&3 > 0
		l.receive(e.side)
	case 9, 10:
		l.disturb(e.side, x)
	case 11:
		f := l.flows[flowKey{e.side, datagramFlow}]
		size := 4 + int(l.in.next())*int(x)/2
		if l.grows() && e.sendDatagram(f.key.message(f.sent, size)) {
			f.parts, f.sent = append(f.parts, flowMessage{size, true, false}), f.sent+1
		}
	case 12:
		l.set(e, x)
	case 13:
		l.end(e, x, l.in.next())
	case 14:
		l.strain(e, x)
	case 15:
		l.move(e, x)
	}
}

// grows reports whether there may be one more of what a script makes.
func (l *sessionLink) grows() bool {
	l.made++
	return l.made <= maxSessionMade
}

// write writes to the session itself.
func (l *sessionLink) write(e *machineEnd, n int, how byte) {
	f := l.flows[flowKey{e.side, 0}]
	if !f.messages {
		f.sent += e.tryWrite(f.key.bytes(f.sent, min(n, maxFlowBytes-min(f.sent, maxFlowBytes))))
		return
	}
	options, may := &MessageOptions{}, how&3 > 0
	switch how & 3 {
	case 1:
		options.MaxRetransmits = -1
	case 2:
		options.Lifetime = time.Duration(1+how>>2) * 3 * time.Millisecond
	case 3:
		options.Lifetime, options.MaxRetransmits = 80*time.Millisecond, 2
	}
	options.Done = func(error) { f.awaited-- }
	if n = max(n, 4); !l.grows() {
		return
	}
	if e.sendMessage(f.key.message(f.sent, n), options) {
		f.awaited++
		f.parts, f.sent = append(f.parts, flowMessage{n, may, false}), f.sent+1
	}
}

// useStream opens a stream, or uses one.
func (l *sessionLink) useStream(e *machineEnd, x byte) {
	y := l.in.next()
	if x == 0 && l.grows() {
		p := streams.Params{Unordered: y&1 > 0, Priority: int8(y>>1&7) - 3, Retransmits: uint16(y >> 4 & 1), Lifetime: uint32(y>>5&1) * 60}
		if s := e.openStream(p); s != nil {
			l.kinds[s.state.ID()] = p.Partial() || y&64 > 0
			l.stream(s)
		}
		return
	}
	ids := make([]uint32, 0, len(e.streams))
	for id := range e.streams {
		ids = append(ids, id)
	}
	if slices.Sort(ids); len(ids) == 0 {
		return
	}
	id := ids[int(y)%len(ids)]
	s, f := e.streams[id], l.flows[flowKey{e.side, id}]
	switch n := int(l.in.next()) * int(x); {
	case x == 7:
		how := streamEnding(n / 7 % 5)
		if f.cut = f.cut || how > endsWriting; how != endsCancelWrite && how > endsWriting {
			l.flows[flowKey{1 - e.side, id}].cut = true
		}
		e.endStream(s, how)
	case !f.messages:
		f.sent += e.writeStream(s, f.key.bytes(f.sent, min(n, maxFlowBytes-min(f.sent, maxFlowBytes))))
	case l.grows() && e.sendStream(s, f.key.message(f.sent, max(n, 4))):
		p := s.state.Params()
		may := p.Retransmits > 0 || p.Lifetime > 0
		f.parts, f.sent = append(f.parts, flowMessage{max(n, 4), may, false}), f.sent+1
	}
}

// disturb repeats, delays, loses or damages a packet on its way to end i, or one that
// has come before.
func (l *sessionLink) disturb(i int, x byte) {
	y := l.in.next()
	if x == 0 && len(l.past[i]) > 0 {
		p := l.past[i][int(y)%len(l.past[i])]
		p.at = l.now
		l.wire[i] = append(l.wire[i], p)
		return
	}
	if len(l.wire[i]) == 0 {
		return
	}
	k := int(y) % len(l.wire[i])
	p := l.wire[i][k]
	switch x {
	case 1, 2:
		p.at += time.Duration(x) * 40 * time.Millisecond
		l.wire[i] = append(l.wire[i], p)
	case 3, 4:
		l.wire[i] = slices.Delete(l.wire[i], k, k+1)
	case 5:
		if c := &l.ends[0].shared.config; c.Cipher != nil || c.TLS != nil { // else it counts
			p.data = bytes.Clone(p.data)
			p.data[int(y)*7%len(p.data)] ^= 1 << (y & 7)
			l.wire[i][k] = p
		}
	default:
		l.wire[i][k].at += time.Duration(x) * 20 * time.Millisecond
	}
}

// set changes settings of a session.
func (l *sessionLink) set(e *machineEnd, x byte) {
	y := int(l.in.next())
	switch x {
	case 0, 1:
		e.setMaxRate([]int{0, 20_000, 300_000, 5_000_000}[y&3])
	case 2, 3:
		e.setMTU([]int{0, 500, 900, 1400}[y&3])
	default:
		e.setWindow(y, y*4)
	}
}

// end ends a session, or one direction of it.
func (l *sessionLink) end(e *machineEnd, x, y byte) {
	switch {
	case x < 4:
		e.closeWrite()
	case y < 100:
		e.close(x&1 > 0)
	case y < 130:
		l.aborted = true
		e.abort()
	}
}

// strain makes memory short, or has the interface refuse packets.
func (l *sessionLink) strain(e *machineEnd, x byte) {
	load := &e.shared.load
	switch x {
	case 0, 1:
		load.buffered.Add(-e.others)
		e.others = int64(x) * int64(e.shared.config.MaxBuffered) * 9 / 8
		load.buffered.Add(e.others)
		load.share.Store(int64(x) * leastShare)
	case 2:
		l.strained = e.conn.shedMemory() || l.strained
		e.carryOut()
	case 3, 4:
		e.limit = []int{0, 1250, 1300, 1400}[l.in.next()&3]
	case 5:
		e.delayed = !e.delayed
	case 6:
		e.backlog = !e.backlog
	}
}

// move moves the first end to another address, or has wake-ups come late.
func (l *sessionLink) move(e *machineEnd, x byte) {
	switch x {
	case 0, 1:
		if l.ends[0].shared.migrates {
			a := l.ends[0].addr
			l.moved = true
			l.ends[0].addr = netip.AddrPortFrom(a.Addr(), a.Port()+1)
		}
	case 2, 3:
		e.conn.rerouted(x == 3)
		e.carryOut()
	case 4, 5:
		l.late[e.side] = time.Duration(l.in.next()) * time.Duration(x&1) * time.Millisecond
	case 6, 7:
		l.slow[e.side] = x == 6
	}
}

// playSessions plays a script.
func playSessions(t testing.TB, script []byte) {
	l := newSessionLink(t, script)
	for len(l.in) > 0 {
		l.perform()
	}
	l.finish()
}

// Two sessions on one bad link, with their streams, messages and datagrams, settings,
// ends, short memory and late wake-ups. What is read is what was written. What a session
// counts is what it has. It is woken when something is due, sends nothing after its end,
// and holds nothing then. On a good link all arrives, unless an error says why not.
func FuzzSessions(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(sessionScript(seed))
	}
	f.Fuzz(func(t *testing.T, script []byte) { playSessions(t, script) })
}

// sessionScript returns a random script.
func sessionScript(seed uint64) []byte {
	random := rand.New(rand.NewPCG(seed, 6))
	script := make([]byte, 20+random.IntN(300))
	for i := range script {
		script[i] = byte(random.Uint32())
	}
	script[0] = script[0]&^3 | byte(seed)&3
	return script
}

// Random scripts; see FuzzSessions.
func TestSessionMachines(t *testing.T) {
	t.Parallel()
	sequential(t)
	for seed := range fewer(2000) {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { playSessions(t, sessionScript(seed)) }) {
			t.Fatal("the number of the subtest is the seed")
		}
	}
}
