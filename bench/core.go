package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"
)

// The core suite measures the state machines alone: two ends joined in memory
// in one goroutine, full segments one way and acknowledgements the other. What is
// measured is processor time, the garbage collector's included.
//
// Both implementations are driven by the same code through the same calls, on
// a clock that the driver moves on by one flush interval at a time. kcp-go
// reads a clock of its own, so its epoch is moved to make that clock show the
// driver's time. So no cycle is spent on waiting.
//
// In every interval the sender is given up to coreBatch segments and flushes;
// the receiver takes each packet, hands up what has arrived, and flushes its
// acknowledgements. These come back as many intervals later as it takes to fill the
// window. kcp-go flushes in Input too when una has moved, and walks its window each
// time; the walks are fewer per segment, to its advantage, where batches are larger.
//
// Loss strikes whole packets both ways, from the same seed in each run.

// coreBatch is the most segments given to the sender in one interval.
const coreBatch = 64

// corePayload is what a full segment carries.
const corePayload = coreMTU - 24

// Windows full of segments that are moved before a measurement, and at least
// in one: recovery from loss comes in bursts of about a window.
const (
	coreWarmUp = 6
	coreLeast  = 3
)

// coreStall is how many intervals without progress mean that there will be
// none.
const coreStall = 100_000

// coreCase is what a case's name stands for.
type coreCase struct {
	window int
	loss   float64
}

var coreCases = map[string]coreCase{
	"w128":        {128, 0},
	"w128-loss5":  {128, 0.05},
	"w1024":       {1024, 0},
	"w1024-loss5": {1024, 0.05},
	"w8192":       {8192, 0},
	"w8192-loss5": {8192, 0.05},
}

const (
	metricTime   = "ns a segment"
	metricAllocs = "allocs"
)

func init() {
	register(&suite{
		name:    "core",
		about:   "the state machine alone, two ends joined in memory, 1400-byte MTU, full segments",
		cases:   []string{"w128", "w128-loss5", "w1024", "w1024-loss5", "w8192", "w8192-loss5"},
		impls:   []string{ours, kcpGo},
		metrics: []metric{{metricTime, "ns"}, {metricAllocs, "count"}},
		measure: measureCore,
	})
}

// measureCore moves segments for d and returns the cost of one.
func measureCore(c, impl string, d time.Duration) (figures, error) {
	what := coreCases[c]
	p, err := newCorePipe(impl, what)
	if err != nil {
		return nil, err
	}
	// The round-trip estimate settles and the buffers reach their final size.
	warm := coreWarmUp * uint64(what.window)
	if err := p.run(func() bool { return p.received >= warm }); err != nil {
		return nil, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	first, cpu, end := p.received, cpuTime(), time.Now().Add(d)
	enough := first + coreLeast*uint64(what.window)
	err = p.run(func() bool { return p.received >= enough && time.Now().After(end) })
	cpu = cpuTime() - cpu
	runtime.ReadMemStats(&after)
	if err != nil {
		return nil, err
	}
	n := float64(p.received - first)
	return figures{
		metricTime:   float64(cpu) / n,
		metricAllocs: float64(after.Mallocs-before.Mallocs) / n,
	}, nil
}

// corePipe joins a sender and a receiver.
type corePipe struct {
	sender, receiver coreEnd
	window           uint64
	loss             float64
	lossData         *rand.Rand // two sources, so that the number of
	lossAcks         *rand.Rand // ACK packets does not move the losses of data
	now              uint32
	delay            uint32 // of acknowledgements, in milliseconds
	acks             []coreAck
	free             [][]byte
	sent             uint64
	received         uint64
	acknowledged     uint64 // received, as far as the sender can know
	payload, message []byte
	err              error // of the receiver's Input
}

// coreAck is a packet on its way back.
type coreAck struct {
	packet   []byte
	due      uint32
	received uint64 // when it was sent
}

func newCorePipe(impl string, c coreCase) (*corePipe, error) {
	p := &corePipe{
		window:   uint64(c.window),
		loss:     c.loss,
		lossData: rand.New(rand.NewPCG(1, 2)),
		lossAcks: rand.New(rand.NewPCG(3, 4)),
		delay:    uint32(c.window / coreBatch * coreInterval),
		payload:  make([]byte, corePayload),
		message:  make([]byte, corePayload),
	}
	for i := range p.payload {
		p.payload[i] = byte(i)
	}
	var err error
	if p.sender, err = newCoreEnd(impl, c.window, p.data); err != nil {
		return nil, err
	}
	p.receiver, err = newCoreEnd(impl, c.window, p.ack)
	return p, err
}

// data takes a packet from the sender.
func (p *corePipe) data(packet []byte) {
	if p.loss > 0 && p.lossData.Float64() < p.loss {
		return
	}
	if err := p.receiver.Input(packet); err != nil {
		p.err = err
	}
}

// ack takes a packet from the receiver.
func (p *corePipe) ack(packet []byte) {
	if p.loss > 0 && p.lossAcks.Float64() < p.loss {
		return
	}
	var b []byte
	if n := len(p.free); n > 0 {
		b, p.free = p.free[n-1], p.free[:n-1]
	} else {
		b = make([]byte, 0, coreMTU)
	}
	p.acks = append(p.acks, coreAck{append(b[:0], packet...), p.now + p.delay, p.received})
}

// run lets intervals pass until done says so.
func (p *corePipe) run(done func() bool) error {
	idle, last := 0, p.received
	for !done() {
		if err := p.step(); err != nil {
			return err
		}
		idle++
		if p.received != last {
			idle, last = 0, p.received
		} else if idle > coreStall {
			return errors.New("stalled")
		}
	}
	return nil
}

// step is one interval.
func (p *corePipe) step() error {
	p.now += coreInterval
	for i := 0; i < coreBatch && p.sent-p.acknowledged < p.window; i++ {
		p.stamp(p.payload)
		if err := p.sender.Send(p.payload); err != nil {
			return err
		}
		p.sent++
	}
	p.sender.Tick(p.now)
	if p.err != nil {
		return p.err
	}
	if err := p.receive(); err != nil {
		return err
	}
	p.receiver.Tick(p.now)
	return p.deliverAcks()
}

// stamp numbers the message in its first and in its last bytes.
func (p *corePipe) stamp(b []byte) {
	binary.LittleEndian.PutUint64(b, p.sent)
	binary.LittleEndian.PutUint64(b[len(b)-8:], ^p.sent)
}

// receive takes all messages that have arrived and checks their order, size
// and stamps.
func (p *corePipe) receive() error {
	for p.receiver.PeekSize() >= 0 {
		n, err := p.receiver.Recv(p.message)
		if err != nil {
			return err
		}
		head := binary.LittleEndian.Uint64(p.message)
		tail := binary.LittleEndian.Uint64(p.message[corePayload-8:])
		if n != corePayload || head != p.received || tail != ^p.received {
			return fmt.Errorf("message %d has %d bytes and is stamped %d, %d", p.received, n, head, ^tail)
		}
		p.received++
	}
	return nil
}

// deliverAcks gives the sender what is due. Input may make kcp-go send, but
// not acknowledge, so that acks does not grow meanwhile.
func (p *corePipe) deliverAcks() error {
	n := 0
	for _, a := range p.acks {
		if int32(p.now-a.due) < 0 {
			break
		}
		if err := p.sender.Input(a.packet); err != nil {
			return err
		}
		p.acknowledged = max(p.acknowledged, a.received)
		p.free = append(p.free, a.packet)
		n++
	}
	p.acks = append(p.acks[:0], p.acks[n:]...)
	return nil
}
