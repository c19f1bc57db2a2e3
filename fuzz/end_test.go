package fuzz_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	kcp "github.com/arqnet/kcp/internal/machine"
)

// conversation is the id that both ends of a link use.
const conversation = 0x5eed0001

// drive is how an application keeps a state machine going.
type drive byte

const (
	byCheck  drive = iota // Update at the times that Check names
	byTick                // Update every so often
	byFlush               // SetClock and Flush after whatever happens, and at NextFlush
	bySource              // SetClock after whatever happens, Flush where NextFlush is due
	drives
)

// end is one of the two ends of a link: a state machine, the application that
// drives it, and the model of what it has to deliver.
type end struct {
	book
	t       testing.TB
	k       *kcp.KCP
	peer    *end
	mtu     int
	rcvWnd  int    // the largest it has had
	window  int    // it has now
	rcvNxt  uint32 // as it was last put out
	limited bool   // Extensions.LimitToPeerWindow

	drive    drive
	start    uint32 // the clock at time 0, before anything happens
	tick     uint64 // for byTick
	interval uint32 // the longest it has had
	wake     uint64 // when to drive it next
	awake    bool   // wake is valid
	started  bool
	spinning uint64 // since when Check has named the present; 0: it does not
	pacing   int64  // bytes a second; 0: none
	maxMTU   int    // the largest it has had
	ready    uint64 // since when a segment might leave that does not; 0: none does
	left     uint64 // pushes when ready was set

	out     [][]byte // put out since the link last looked
	reading bool     // the application reads whatever arrives

	traffic      // towards the peer
	readSegments int
	readBytes    uint64
	corrupt      bool // the link changes bits: contents cannot be relied on
}

// traffic is the model of one direction: every byte once, in order, and in
// message mode every boundary.
type traffic struct {
	stream   bool
	key      uint64
	queued   uint64 // bytes that Send has taken
	arrived  uint64 // bytes that the peer has read
	segments int    // that Send has made of them
	messages []message
}

// message is one that has not been read.
type message struct{ size, fragments int }

func newEnd(t testing.TB, name string, start uint32, key uint64) *end {
	e := &end{t: t, start: start - 1, mtu: 1400, maxMTU: 1400, rcvWnd: 128, window: 128, interval: 100, tick: 10, awake: true}
	e.traffic.key = key
	e.book = book{t: t, name: name, sndWnd: 32, deadLink: 20}
	e.k = kcp.New(conversation, func(packet []byte) {
		checkPacket(t, packet, conversation, e.mtu)
		e.out = append(e.out, bytes.Clone(packet))
		e.rcvNxt = parse(packet).una
	})
	e.attach(e.k)
	return e
}

// clock is e's clock at a time.
func (e *end) clock(now uint64) uint32 { return e.start + uint32(now) }

// send queues one message, or in stream mode so many bytes.
func (e *end) send(size int) {
	p := make([]byte, size)
	fill(p, e.key, e.queued)
	before := e.k.WaitSend()
	n, err := e.k.Send(p)
	added := e.k.WaitSend() - before
	mss := e.mtu - headerSize
	rest := max(1, (size-n+mss-1)/mss)
	limit := 127
	if e.limited && !e.stream && e.rmtWndMax > 0 {
		limit = min(limit, int(e.rmtWndMax))
	}
	switch {
	case err != nil && (n != 0 || added != 0 || !errors.Is(err, kcp.ErrMessageTooLarge)):
		e.fatalf("Send of %d bytes: %d, %v, %d segments", size, n, err, added)
	case n < size && rest <= limit:
		e.fatalf("Send took %d of %d bytes: %v", n, size, err)
	case n < size && err == nil && !e.stream:
		e.fatalf("Send took part of a message: %d of %d bytes", n, size)
	case err == nil && !e.stream && (added != max(1, (size+mss-1)/mss) || added > limit):
		e.fatalf("Send made %d fragments of %d bytes", added, size)
	case e.stream && added > (n+mss-1)/mss:
		e.fatalf("Send made %d segments of %d bytes", added, n)
	}
	if err == nil && !e.stream {
		e.messages = append(e.messages, message{size, added})
	}
	e.queued += uint64(n)
	e.segments += added
}

// recv reads one message and holds it against what the peer has sent. It is
// false where there is none.
func (e *end) recv() bool {
	size := e.k.PeekSize()
	if size < 0 {
		n, err := e.k.Recv(make([]byte, 10))
		if n != 0 || err != kcp.ErrNoData && err != kcp.ErrPartialMessage {
			e.fatalf("Recv of nothing: %d, %v", n, err)
		}
		return false
	}
	if size > 256*65535 {
		e.fatalf("PeekSize %d", size)
	}
	p := make([]byte, size)
	if n, err := e.k.Recv(p); n != size || err != nil {
		e.fatalf("Recv of %d bytes: %d, %v", size, n, err)
	}
	e.readBytes += uint64(size)
	if e.corrupt {
		return true
	}
	m := &e.peer.traffic
	if m.stream {
		e.readSegments++
	} else {
		if len(m.messages) == 0 || m.messages[0].size != size {
			e.fatalf("read a message of %d bytes; on the way are %+v", size, m.messages)
		}
		e.readSegments += m.messages[0].fragments
		m.messages = m.messages[1:]
	}
	if at := differs(p, m.key, m.arrived); at >= 0 {
		e.fatalf("byte %d is wrong, %d of a message of %d", m.arrived+uint64(at), at, size)
	}
	m.arrived += uint64(size)
	if m.arrived > m.queued {
		e.fatalf("read %d bytes of %d", m.arrived, m.queued)
	}
	return true
}

// recvShort tries to read into too small a buffer, which must change nothing.
func (e *end) recvShort() {
	size := e.k.PeekSize()
	if size < 1 {
		return
	}
	n, err := e.k.Recv(make([]byte, size-1))
	if n != 0 || err != io.ErrShortBuffer || e.k.PeekSize() != size {
		e.fatalf("Recv of %d bytes into %d: %d, %v", size, size-1, n, err)
	}
}

// input gives e one packet and checks the answer.
func (e *end) input(packet []byte, recovered bool) {
	v := judge(packet, conversation, e.next, !e.corrupt, nil)
	waiting, refused := e.k.WaitSend(), e.k.Counters().OutOfWindow
	keep := bytes.Clone(packet)
	var err error
	if recovered {
		err = e.k.InputRecovered(packet)
	} else {
		err = e.k.Input(packet)
	}
	if err != v.err {
		e.fatalf("Input of %x: %v, want %v", packet, err, v.err)
	}
	if !bytes.Equal(keep, packet) || len(e.out) > 0 || e.k.WaitSend() > waiting {
		e.fatalf("Input of %x changed it, put something out, or queued something", keep)
	}
	e.heard(v.taken, recovered)
	beyond := uint64(0)
	for _, s := range v.taken {
		if s.cmd == cmdPush && int32(s.sn-e.rcvNxt) >= int32(e.window) || s.cmd == cmdPiece {
			beyond++ // what comes in pieces may have to wait for others
		}
	}
	if refused = e.k.Counters().OutOfWindow - refused; refused > beyond && !e.corrupt {
		e.fatalf("refused %d segments within its window", refused)
	}
}

// poll does what is due at now. touched says that there was input, data or a
// read since the last time.
func (e *end) poll(now uint64, touched bool) {
	if !touched && (!e.awake || now < e.wake) {
		return
	}
	if !e.started {
		e.started, touched = true, true
		if e.drive == byFlush || e.drive == bySource {
			e.setClock(now)
		}
	}
	switch e.drive {
	case byCheck:
		e.pollCheck(now)
	case byTick:
		if !touched || e.wake <= now {
			e.update(now)
			e.wake = now + e.tick
		}
	case byFlush:
		e.setClock(now)
		e.k.Flush()
		e.settle(now)
	case bySource:
		if touched {
			e.setClock(now)
		}
		// Without input the clock stands where it was at the last event.
		if at, ok := e.k.NextFlush(); ok && int32(at-e.clock(now)) <= 0 {
			e.setClock(now)
			e.k.Flush()
		}
		e.settle(now)
	}
	if len(e.flights) <= 64 || now%16 == 0 {
		e.checkOverdue(e.slack())
	}
	e.checkWaiting(now)
	e.checkCounters(e.k)
}

// checkWaiting fails where a segment has been kept for too long although the
// windows let it leave.
func (e *end) checkWaiting(now uint64) {
	window := min(e.sndWnd, e.rmtWnd, uint32(e.control.Window()))
	if e.k.WaitSend() == len(e.flights) || int32(e.next-e.una) >= int32(window) {
		e.ready = 0
		return
	}
	if e.ready == 0 || e.left != e.pushes {
		e.ready, e.left = now, e.pushes
	}
	if kept := now - e.ready; kept > e.paceLimit()+uint64(e.slack()) {
		e.fatalf("a segment that might have left has been kept for %d ms", kept)
	}
}

// paceLimit returns for how long pacing may keep a segment back after a
// transmission: until what may be owed for repetitions, and the largest segment
// before it, are paid for.
func (e *end) paceLimit() uint64 {
	if e.pacing == 0 {
		return 0
	}
	const debt, packet = 200, 1400 // milliseconds and bytes
	return 1000*(uint64(e.maxMTU)+packet)/uint64(e.pacing) + debt + 20
}

// slack is how late a repetition may be: by up to two intervals where Update
// decides, and not at all where NextFlush does.
func (e *end) slack() uint32 {
	if e.drive == byCheck || e.drive == byTick {
		return 2*e.interval + uint32(e.tick)
	}
	return 0
}

func (e *end) setClock(now uint64) {
	e.now = e.clock(now)
	e.k.SetClock(e.now)
}

func (e *end) update(now uint64) {
	e.now = e.clock(now)
	e.k.Update(e.now)
}

// pollCheck calls Update where Check says so, and asks for the next time.
// Check may name the present again only while a segment has timed out that
// Update sends with its next interval, as the reference does.
func (e *end) pollCheck(now uint64) {
	clock := e.clock(now)
	at := e.k.Check(clock)
	if at == clock {
		e.update(now)
		at = e.k.Check(clock)
	}
	wait := int32(at - clock)
	if wait < 0 || wait > int32(e.interval) {
		e.fatalf("Check(%d) = %d, interval %d", clock, at, e.interval)
	}
	if wait > 0 {
		e.spinning = 0
		e.wake = now + uint64(wait)
		return
	}
	if next, ok := e.k.NextFlush(); !ok || int32(next-clock) > 0 || len(e.flights) == 0 {
		e.fatalf("after Update(%d), Check is due again, for nothing", clock)
	}
	if e.spinning == 0 {
		e.spinning = now
	}
	if now-e.spinning > uint64(e.interval) {
		e.fatalf("Check has named the present for %d ms", now-e.spinning)
	}
	e.wake = now + 1
}

// maxFlushes is how often Flush may ask to be called again at the same time:
// what one flush learns may open the window for the next.
const maxFlushes = 4

// settle flushes until nothing is due at now, and asks for the next time.
func (e *end) settle(now uint64) {
	clock := e.clock(now)
	for i := 0; ; i++ {
		at, ok := e.k.NextFlush()
		waiting := e.k.WaitSend() > 0
		if ok && !waiting && int32(at-clock) > 0 {
			e.fatalf("idle, and yet wants a flush in %d ms", at-clock)
		}
		if !ok && waiting {
			e.fatalf("%d segments wait, and NextFlush knows nothing to do", e.k.WaitSend())
		}
		e.awake = ok
		if !ok {
			return
		}
		if wait := int32(at - clock); wait > 0 {
			e.wake = now + uint64(wait)
			return
		}
		if i == maxFlushes {
			e.fatalf("wants a flush after %d flushes at once", i)
		}
		e.setClock(now)
		e.k.Flush()
	}
}

// setDrive changes how e is driven.
func (e *end) setDrive(d drive, now uint64) {
	e.drive, e.spinning, e.ready = d, 0, 0
	e.wake, e.awake = now, true
}

// checkModel holds the accounts of e against those of its peer: nothing counts
// as acknowledged that has not arrived, and what is held for the application
// is bounded by the windows.
func (e *end) checkModel() {
	if e.corrupt {
		return
	}
	c, p := e.k.Counters(), e.peer.k.Counters()
	accepted := int(c.SegmentsReceived - c.Duplicates - c.OutOfWindow)
	acked := e.peer.segments - e.peer.k.WaitSend()
	held := accepted - e.readSegments
	switch {
	case acked > accepted:
		e.peer.fatalf("%d segments acknowledged, %d have arrived", acked, accepted)
	case accepted > int(p.SegmentsSent):
		e.fatalf("%d segments accepted, %d sent", accepted, p.SegmentsSent)
	case held < 0 || held > 2*e.rcvWnd:
		e.fatalf("%d segments held, window %d", held, e.rcvWnd)
	case c.BytesReceived < e.readBytes:
		e.fatalf("%d bytes arrived, %d read", c.BytesReceived, e.readBytes)
	case c.BytesReceived > p.BytesSent:
		e.fatalf("%d bytes arrived, %d sent", c.BytesReceived, p.BytesSent)
	case c.BrokenMessages > 0:
		e.fatalf("%d whole messages dropped as broken", c.BrokenMessages)
	}
}

// delivered reports whether everything e has sent was read and acknowledged.
func (e *end) delivered() bool {
	return e.k.WaitSend() == 0 && e.arrived == e.queued && len(e.messages) == 0
}
