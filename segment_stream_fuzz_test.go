package kcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/stats"
)

// streamPart is one segment of a message.
type streamPart struct {
	n    uint64
	part uint32
}

// testHost is a host that sends numbered messages, and keeps account of what
// arrives and of what becomes of its own.
type testHost struct {
	t         testing.TB
	k         *KCP
	queue     []streamPart // to be sent
	yields    bool         // to every other segment of Send
	yielded   bool
	keeps     bool // what waits may not be taken out of the queue
	tags      map[uint64]*streams.Tag
	numbers   map[*streams.Tag]uint64
	queued    map[uint64]int // segments of a message that the machine has had
	acked     map[uint64]int
	abandoned map[uint64]bool
	got       map[streamPart]bool
	skipped   map[uint64]int // segments that arrived without their content
}

func newTestHost(t testing.TB, k *KCP) *testHost {
	h := &testHost{
		t: t, k: k, tags: make(map[uint64]*streams.Tag), numbers: make(map[*streams.Tag]uint64),
		queued: make(map[uint64]int), acked: make(map[uint64]int),
		abandoned: make(map[uint64]bool), got: make(map[streamPart]bool), skipped: make(map[uint64]int),
	}
	k.hooks.host = h
	k.enable(featureStreams)
	return h
}

// add queues a message of so many segments.
func (h *testHost) add(parts int, tag *streams.Tag) {
	n := uint64(len(h.tags))
	h.tags[n], h.numbers[tag] = tag, n
	for i := range parts {
		h.queue = append(h.queue, streamPart{n, uint32(i)})
	}
}

// drop gives up all messages that are not delivered.
func (h *testHost) drop() {
	h.queue = nil
	for n, tag := range h.tags {
		tag.Abandoned, h.abandoned[n] = true, true
	}
}

// payload returns what a segment carries.
func (p streamPart) payload() []byte {
	b := binary.LittleEndian.AppendUint64(nil, p.n)
	b = binary.LittleEndian.AppendUint32(b, p.part)
	return append(b, bytes.Repeat([]byte{byte(p.n) ^ byte(p.part)}, int((p.n*131+uint64(p.part)*17)%160))...)
}

func (*testHost) onSignal(signal, []byte) bool    { return false }
func (*testHost) signalPayload(signalCode) []byte { return nil }
func (*testHost) takesStreams() bool              { return true }
func (*testHost) limitedBy(stats.Limit)           {}
func (h *testHost) streamsWait() streams.Waiting  { return streams.Waiting{Some: len(h.queue) > 0} }

func (h *testHost) onStream(payload []byte) {
	s, data, ok := streams.Decode(payload)
	if !ok || len(data) < 12 && s.Kind == streams.Data {
		h.t.Fatalf("bad stream segment %x", payload)
	}
	if s.Kind == streams.Abandon {
		h.skipped[uint64(s.MID)]++
		return
	}
	p := streamPart{binary.LittleEndian.Uint64(data), binary.LittleEndian.Uint32(data[8:])}
	if h.got[p] || !bytes.Equal(p.payload(), data) {
		h.t.Fatalf("%+v arrived as %x, before: %v", p, data, h.got[p])
	}
	h.got[p] = true
}

func (h *testHost) pull(plain bool) (*streams.Tag, []byte, bool) {
	if h.yielded = plain && h.yields && !h.yielded; h.yielded || len(h.queue) == 0 {
		return nil, nil, false
	}
	p := h.queue[0]
	h.queue = h.queue[1:]
	header := streams.Header{ID: 1, Kind: streams.Data, End: true, MID: seq(p.n)}
	b := append(header.Append(nil), p.payload()...)
	h.queued[p.n]++
	buf := h.k.newBuffer(len(b))
	copy(buf[len(buf)-len(b):], b)
	return h.tags[p.n], buf, true
}

func (h *testHost) segmentAcked(t *streams.Tag) {
	if !t.OfSession {
		h.acked[h.numbers[t]]++
	}
}

func (h *testHost) givingUp() (drop, abandon bool) { return !h.keeps, true }

// abandonedUpTo knows nothing.
func (*testHost) abandonedUpTo(*streams.Tag) (seq, bool) { return 0, false }

// abandonedMessage gives up the rest of a message.
func (h *testHost) abandonedMessage(t *streams.Tag) {
	if t.OfSession {
		return
	}
	n := h.numbers[t]
	h.abandoned[n] = true
	h.queue = slices.DeleteFunc(h.queue, func(p streamPart) bool { return p.n == n })
}

// check holds what the host knows of its messages against the machine.
func (h *testHost) check() {
	flight, size := 0, 0
	for n, tag := range h.tags {
		if h.acked[n]+int(tag.InFlight) != h.queued[n] {
			h.t.Fatalf("message %d: %d segments, %d acknowledged, %d in flight", n, h.queued[n], h.acked[n], tag.InFlight)
		}
		flight += int(tag.InFlight)
	}
	k := h.k
	held := k.out.held
	for s := range k.segments() {
		if s.ofStream() {
			size += len(s.data)
			flight--
		}
		held -= s.grains()
	}
	if held != 0 {
		h.t.Fatalf("%d bytes of memory of segments too many", int32(held)*memoryGrain)
	}
	if l := k.load(); flight != 0 || size != l.streamBytes || l.streamSegments > l.segments {
		h.t.Fatalf("%d segments too many, %d bytes; counted are %+v", flight, size, l)
	}
}

// checkArrival holds what has arrived against what peer has sent, all of which is
// acknowledged.
func (h *testHost) checkArrival(peer *testHost) {
	arrived := make(map[uint64]int)
	for p := range h.got {
		arrived[p.n]++
	}
	for n := range peer.tags {
		if skipped := h.skipped[n]; arrived[n]+skipped != peer.queued[n] || skipped > 0 && !peer.abandoned[n] {
			h.t.Fatalf("message %d: %d segments sent, %d arrived, %d skipped, abandoned: %v", n, peer.queued[n], arrived[n], skipped, peer.abandoned[n])
		}
	}
	for n := range h.skipped {
		if peer.tags[n] == nil {
			h.t.Fatalf("message %d was skipped and never sent", n)
		}
	}
}

// flying is a packet on its way.
type flying struct {
	data []byte
	at   uint32
}

// plainMessage is a message of Send; tag is nil if it may not be given up.
type plainMessage struct {
	data []byte
	tag  *streams.Tag
}

// linkScript is the bytes that say what a test does.
type linkScript []byte

func (in *linkScript) next() byte {
	if len(*in) == 0 {
		return 0
	}
	b := (*in)[0]
	*in = (*in)[1:]
	return b
}

// streamLink is two machines with hosts, and a link between them, which a script
// drives.
type streamLink struct {
	t     testing.TB
	in    linkScript
	ends  [2]*KCP
	hosts [2]*testHost
	wire  [2][]flying       // to ends[i]
	plain [2][]byte         // what ends[i] has sent by Send in stream mode
	whole [2][]plainMessage // in message mode, from the first that was not read
	read  [2][]byte         // what ends[i] has read
	reads [2]bool
	now   uint32
	delay uint32
	loss  float64
	luck  *rand.Rand
	made  int // messages
}

// Bounds of a script.
const (
	maxLinkScript   = 512
	maxLinkMessages = 400
	maxLinkPlain    = 1 << 16
)

func newStreamLink(t testing.TB, script []byte) *streamLink {
	l := &streamLink{t: t, in: linkScript(script[:min(len(script), maxLinkScript)]), now: 1, delay: 20}
	flags, shape := l.in.next(), l.in.next()
	l.luck = rand.New(rand.NewPCG(uint64(flags), uint64(shape)))
	for i := range l.ends {
		k := New(7, func(p []byte) { l.put(1-i, p) })
		require.NoError(t, k.SetWindow([4]int{64, 1, 3, 256}[shape&3], 256))
		require.NoError(t, k.SetMTU([4]int{1400, 260, 300, 600}[shape>>2&3]))
		k.SetNoDelay(NoDelay(shape >> 4 & 3))
		k.SetFastResend(uint32(shape >> 6))
		k.SetStream(flags&1 > 0)
		if flags&2 > 0 {
			k.SetCongestionControl(congestion.NewNone())
		}
		k.SetExtensions(Extensions{
			PipeWindow: flags&4 > 0, SendOrder: true, ThinAcks: flags&8 > 0, TakePieces: true, SendPieces: true,
			EarlyRetransmit: flags&16 > 0, Redundancy: uint32(flags >> 5 & 1),
		})
		l.ends[i], l.hosts[i], l.reads[i] = k, newTestHost(t, k), true
		l.hosts[i].yields = flags&64 > 0
		k.SetClock(l.now)
	}
	return l
}

// put sends a packet to end i.
func (l *streamLink) put(i int, p []byte) {
	if l.luck.Float64() >= l.loss && len(l.wire[i]) < 4096 {
		l.wire[i] = append(l.wire[i], flying{bytes.Clone(p), l.now + l.delay})
	}
}

// run lets so many milliseconds pass.
func (l *streamLink) run(ms uint32) {
	for until := l.now + ms; ; {
		at, ok := l.next()
		if !ok || at > until {
			l.now = until
			return
		}
		l.now = max(l.now, at)
		l.step()
	}
}

// next returns when something happens next.
func (l *streamLink) next() (at uint32, ok bool) {
	for i, k := range l.ends {
		if t, due := k.NextFlush(); due && (!ok || t < at) {
			at, ok = t, true
		}
		for _, p := range l.wire[i] {
			if !ok || p.at < at {
				at, ok = p.at, true
			}
		}
	}
	return at, ok
}

// step lets happen what is due.
func (l *streamLink) step() {
	for i, k := range l.ends {
		k.SetClock(l.now)
		var due [][]byte
		l.wire[i] = slices.DeleteFunc(l.wire[i], func(p flying) bool {
			if p.at <= l.now {
				due = append(due, p.data)
			}
			return p.at <= l.now
		})
		for _, p := range due {
			require.NoError(l.t, k.Input(p))
		}
		l.receive(i)
		for range 5 { // what one flush learns may let the next one send
			if at, ok := k.NextFlush(); !ok || at > l.now {
				break
			}
			k.Flush()
		}
		if at, ok := k.NextFlush(); ok && at <= l.now && len(due) == 0 {
			l.t.Fatalf("end %d wants a flush after five", i)
		}
		require.LessOrEqual(l.t, k.rcv.ring.Len(), 2048)
	}
}

// receive reads what end i has, if its application reads.
func (l *streamLink) receive(i int) {
	for l.reads[i] && l.ends[i].PeekSize() >= 0 {
		p := make([]byte, l.ends[i].PeekSize())
		n, err := l.ends[i].Recv(p)
		require.NoError(l.t, err)
		if !l.ends[i].cfg.stream {
			l.match(i, p)
			continue
		}
		sent := l.plain[1-i][len(l.read[i]):]
		if l.read[i] = append(l.read[i], p[:n]...); !bytes.HasPrefix(sent, p[:n]) {
			l.t.Fatalf("end %d reads what was not sent", i)
		}
	}
}

// match demands that end i, which has read the message p, was sent it, and that all
// before it were read or given up.
func (l *streamLink) match(i int, p []byte) {
	sent := &l.whole[1-i]
	for ; len(*sent) > 0; *sent = (*sent)[1:] {
		m := (*sent)[0]
		if bytes.Equal(m.data, p) {
			*sent = (*sent)[1:]
			return
		}
		if m.tag == nil || !m.tag.Abandoned {
			l.t.Fatalf("end %d reads %d bytes before a message of %d", i, len(p), len(m.data))
		}
	}
	l.t.Fatalf("end %d reads a message that was not sent", i)
}

// send sends p from end i, in message mode with a lifetime or a limit of
// retransmissions if how says so.
func (l *streamLink) send(i int, p []byte, how byte) {
	k := l.ends[i]
	if k.cfg.stream {
		n, err := k.Send(p)
		require.True(l.t, err == nil || err == ErrMessageTooLarge)
		l.plain[i] = append(l.plain[i], p[:n]...)
		return
	}
	var err error
	l.made++ // no two messages are equal
	m := plainMessage{data: binary.LittleEndian.AppendUint32(p, uint32(l.made))}
	if tag := l.limits(how); tag.Partial() {
		m.tag = tag
		err = k.sendMessage(m.data, tag)
	} else {
		_, err = k.Send(m.data)
	}
	require.NoError(l.t, err)
	l.whole[i] = append(l.whole[i], m)
}

// limits returns a tag with the lifetime or retransmissions that how says.
func (l *streamLink) limits(how byte) *streams.Tag {
	tag := &streams.Tag{}
	switch how & 7 {
	case 1, 2, 3:
		tag.Limit = uint32(how & 7)
	case 4, 5:
		tag.Deadline = int64(l.now+uint32(how>>4)*15+1) * 1000
	case 6:
		tag.Limit, tag.Deadline = 2, int64(l.now+100)*1000
	}
	return tag
}

// perform carries out one step of the script.
func (l *streamLink) perform() {
	b := l.in.next()
	x := b >> 4
	i := int(x & 1)
	k, h := l.ends[i], l.hosts[i]
	k.SetClock(l.now)
	switch b & 15 {
	case 0, 1:
		p := content(uint64(len(l.in)), 1+int(l.in.next())*int(x>>1))
		if len(l.plain[i])+len(p) < maxLinkPlain && k.WaitSend() < 600 {
			l.send(i, p, l.in.next())
		}
	case 2, 3, 4, 5:
		l.message(h, x>>1)
	case 6, 7, 8:
		l.run([16]uint32{0, 1, 2, 5, 10, 20, 21, 40, 60, 100, 150, 200, 400, 1000, 3000, 10000}[x])
	case 9:
		l.reads[i] = x&2 > 0
		l.receive(i)
	case 10:
		l.loss = float64(x) / 20
	case 11:
		if h.keeps = x&8 > 0; x&4 > 0 {
			h.drop()
		}
		if x&2 > 0 {
			k.enable(featureStreams | featureOrder)
		}
	case 12:
		l.wire[i] = nil
	case 13, 14:
		l.disturb(i, b&15 == 13, x>>1)
	case 15:
		if mtu := 120 + 10*int(x); mtu < k.cfg.mtu && !k.cfg.stream {
			require.NoError(l.t, k.shrinkMTU(mtu)) // what is queued leaves in pieces
		}
		l.delay = uint32(x) * 4
	}
	l.step()
	for _, h := range l.hosts {
		h.check()
		b, err := h.k.recount()
		require.NoError(l.t, err)
		require.Equal(l.t, h.k.books(), b)
	}
}

// message queues messages of h, with the lifetime or retransmissions that how
// says.
func (l *streamLink) message(h *testHost, how byte) {
	y := l.in.next()
	for range 1 + y>>4 {
		if l.made++; l.made > maxLinkMessages {
			return
		}
		h.add(1+int(y&3)*int(y>>2&3), l.limits(how|y<<4))
	}
}

// disturb repeats or delays a packet on its way to end i.
func (l *streamLink) disturb(i int, repeats bool, x byte) {
	if len(l.wire[i]) == 0 {
		return
	}
	k := int(l.in.next()) % len(l.wire[i])
	p := l.wire[i][k]
	p.at += uint32(x) * 30
	if repeats {
		l.wire[i] = append(l.wire[i], p)
	} else {
		l.wire[i][k].at = p.at
	}
}

// done reports whether all is delivered and acknowledged.
func (l *streamLink) done() bool {
	for i, k := range l.ends {
		lacks := func(m plainMessage) bool { return m.tag == nil || !m.tag.Abandoned }
		if k.WaitSend() > 0 || len(l.hosts[i].queue) > 0 || len(l.read[i]) < len(l.plain[1-i]) || slices.ContainsFunc(l.whole[i], lacks) {
			return false
		}
	}
	return true
}

// finish makes the link good, and demands that all arrives.
func (l *streamLink) finish() {
	l.loss, l.reads = 0, [2]bool{true, true}
	for limit := l.now + 20*60*1000; !l.done(); {
		l.step()
		at, ok := l.next()
		if l.done() {
			break
		}
		if !ok || at > limit {
			l.t.Fatalf("stuck at %d: %v, %d", l.now, ok, at)
		}
		l.now = max(l.now, at)
	}
	l.run(1000)
	for i := range l.ends {
		l.receive(i) // what has arrived though it was given up
	}
	for i, h := range l.hosts {
		peer := l.hosts[1-i]
		for _, m := range l.whole[i] {
			require.Zero(l.t, m.tag.InFlight)
		}
		h.check()
		h.checkArrival(peer)
		left := h.k.load()
		if left.streamSegments+left.streamBytes+left.bytes != 0 || h.k.snd.nxt != peer.k.rcv.nxt || len(l.read[i]) != len(l.plain[1-i]) {
			l.t.Fatalf("end %d: left are %+v", i, left)
		}
	}
}

// playStreams plays a script.
func playStreams(t testing.TB, script []byte) {
	l := newStreamLink(t, script)
	for len(l.in) > 0 {
		l.perform()
	}
	l.finish()
}

// Stream segments and plain ones on one bad link, in both directions, with
// lifetimes, limits of retransmissions, and messages that are dropped altogether:
// each segment of a stream arrives exactly once or is abandoned, plain ones keep
// their order, what is acknowledged and not abandoned has arrived, rcv_nxt passes
// all, and a reader that stops does not make the queue grow.
func FuzzStreamLink(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(streamScript(seed))
	}
	f.Fuzz(func(t *testing.T, script []byte) { playStreams(t, script) })
}

// streamScript returns a random script, most of which is traffic.
func streamScript(seed uint64) []byte {
	random := rand.New(rand.NewPCG(seed, 5))
	script := make([]byte, 20+random.IntN(200))
	for i := range script {
		script[i] = byte(random.Uint32())
	}
	return script
}

// Random scripts; see FuzzStreamLink.
func TestStreamSegments(t *testing.T) {
	t.Parallel()
	sequential(t)
	for seed := range fewer(400) {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { playStreams(t, streamScript(seed)) }) {
			t.Fatal("the number of the subtest is the seed")
		}
	}
}
