package kcp

import (
	"math/rand/v2"
	"testing"

	"github.com/arqnet/kcp/congestion"
)

// pipe joins two state machines in memory.
type pipe struct {
	a, b   *KCP
	toA    []pipePacket
	toB    []pipePacket
	free   [][]byte
	now    uint32
	random *rand.Rand
	batch  int    // segments sent in a millisecond
	delay  uint32 // of ACKs, in milliseconds
}

type pipePacket struct {
	data []byte
	sent uint32
}

func newPipe(tb testing.TB, window int, loss float64) *pipe {
	p := &pipe{random: rand.New(rand.NewPCG(1, 2)), batch: 64, delay: uint32(window / 64)}
	link := func(queue *[]pipePacket) func([]byte) {
		return func(packet []byte) {
			if loss > 0 && p.random.Float64() < loss {
				return
			}
			var c []byte
			if n := len(p.free); n > 0 {
				c, p.free = p.free[n-1], p.free[:n-1]
			}
			*queue = append(*queue, pipePacket{append(c[:0], packet...), p.now})
		}
	}
	p.a = New(1, link(&p.toB))
	p.b = New(1, link(&p.toA))
	for _, k := range []*KCP{p.a, p.b} {
		if err := k.SetWindow(window, window); err != nil {
			tb.Fatal(err)
		}
		k.SetNoDelay(NoDelayOn)
		k.SetFastResend(2)
		k.SetCongestionControl(congestion.NewNone())
		if err := k.SetInterval(10); err != nil {
			tb.Fatal(err)
		}
	}
	return p
}

// run moves n payloads from a to b, a batch in a millisecond. By default, ACKs
// take as many milliseconds to come back as it takes to fill the window.
func (p *pipe) run(n int, payload, buf []byte) {
	window := int(p.a.cfg.sndWnd)
	for sent, received := 0, 0; received < n; {
		for i := 0; i < p.batch && sent < n && p.a.span() < window; i++ {
			if _, err := p.a.Send(payload); err != nil {
				panic(err)
			}
			sent++
		}
		p.now++
		p.a.SetClock(p.now)
		p.a.Flush()
		p.deliver(&p.toB, p.b, 0)
		for p.b.PeekSize() >= 0 {
			if _, err := p.b.Recv(buf); err != nil {
				panic(err)
			}
			received++
		}
		p.b.SetClock(p.now)
		p.b.Flush()
		p.deliver(&p.toA, p.a, p.delay)
	}
}

// turn flushes both ends and delivers everything, at one time.
func (p *pipe) turn() {
	p.a.SetClock(p.now)
	p.b.SetClock(p.now)
	p.a.Flush()
	p.deliver(&p.toB, p.b, 0)
	p.b.Flush()
	p.deliver(&p.toA, p.a, 0)
}

// deliver hands to k the packets of queue that are at least delay old.
func (p *pipe) deliver(queue *[]pipePacket, k *KCP, delay uint32) {
	n := 0
	for _, packet := range *queue {
		if p.now-packet.sent < delay {
			break
		}
		if err := k.Input(packet.data); err != nil {
			panic(err)
		}
		p.free = append(p.free, packet.data)
		n++
	}
	*queue = append((*queue)[:0], (*queue)[n:]...)
}

// span returns how much of the window is taken, holes included.
func (k *KCP) span() int { return int(k.snd.nxt-k.snd.una) + k.snd.queue.n }
