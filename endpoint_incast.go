package kcp

import (
	"math/bits"
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

// Incast. Many senders at once overrun the socket's receive buffer, although
// each of them keeps to its window. So each session advertises at most a share
// of what the buffer takes while it fills up. What peers may have on the way to
// one socket, the budget, follows how full the buffer gets (compare ICTCP, and
// HPCC for the use of queue lengths): it is cut when the buffer is nearly full or
// the system has dropped datagrams, and grows while there is room. Shares are
// equal. There is no budget while the buffer does not fill up, nor for one
// sender alone.

const (
	// incastEpoch is how long a session counts as sending after data has
	// arrived, up to twice that. It is longer than the round trip even when
	// very many senders share a processor.
	incastEpoch = 500 * time.Millisecond
	// incastSample is the least time between two looks at the buffer. In between
	// incastBytes bytes arrive, or a part of what the buffer takes if that is
	// less, or else incastIdle passes: a look is a system call.
	incastSample = 250 * time.Microsecond
	incastIdle   = 10 * time.Millisecond
	incastBytes  = 32 << 10
	// incastStep is the time between two changes of the budget: peers have to
	// learn of the last one, and what was under way has to arrive.
	incastStep = 20 * time.Millisecond
	// The budget is cut when more than incastHigh/16 of the buffer is used, and
	// grows while it is less than incastLow/16. Linux counts up to a quarter
	// that has been read already.
	incastHigh = 10
	incastLow  = 7
	// incastLeast is the least share, in segments, before the buffer was nearly
	// full.
	incastLeast = 16
)

// incast is what one socket does against incast. Only the present reader of the
// socket uses it.
type incast struct {
	epoch   uint32 // number of the present epoch
	senders int    // sessions whose peers have sent data in it
	before  int    // those of earlier epochs, half of which are forgotten with each
	bytes   int    // of datagrams that arrived in the epoch

	budget  int       // bytes that all peers may have on the way, as the system counts them; 0: no limit
	ceiling int       // the budget when datagrams were last dropped; 0: unknown
	pressed bool      // the buffer was nearly full
	rate    int       // bytes that arrived in the last epoch
	peak    int       // most bytes used since the last change of the budget
	dropped bool      // datagrams were dropped since then
	drops   uint32    // as of the last look at the buffer
	known   bool      // drops is valid
	queue   udp.Queue // as of the last look

	turns turns

	sampleAt time.Duration // when to look at the buffer, at the earliest
	arrived  int           // bytes since the last look
	stepAt   time.Duration // when the budget may change
}

// observe looks at the socket's receive buffer now and then, and adapts the
// budget. A reader calls it after each batch, of n bytes.
func (s *shard) observe(n int, now time.Duration) {
	i := &s.incast
	i.bytes += n
	i.arrived += n
	if now < i.sampleAt || i.arrived < min(incastBytes, i.queue.Limit/32) && now < i.sampleAt+incastIdle-incastSample {
		return
	}
	i.sampleAt, i.arrived = now+incastSample, 0
	busy := i.advance(now)
	s.follow(busy, now)
	i.turns.set(i.budget, i.sending(), i.rate, i.queue.Limit, i.known)
}

// follow makes the budget follow the buffer. busy is the bytes of the last epoch
// if one has just ended, else -1.
func (s *shard) follow(busy int, now time.Duration) {
	i := &s.incast
	if i.sending() < 2 {
		i.budget, i.ceiling, i.pressed, i.known = 0, 0, false, false
		return
	}
	q := &i.queue // a variable would be allocated
	if !s.readQueue(q) {
		return
	}
	if q.Used < 0 {
		i.estimate(q.Limit, busy)
		return
	}
	dropped := i.known && q.Drops != i.drops
	i.drops, i.known = q.Drops, true
	i.adapt(q.Used, q.Limit, dropped, now)
}

// advance begins a new epoch if its time has come, and returns the bytes that
// arrived in the one that has ended; -1 if none has.
func (i *incast) advance(now time.Duration) (bytes int) {
	epoch := uint32(now/incastEpoch) + 1
	passed := epoch - i.epoch
	if passed == 0 {
		return -1
	}
	i.before = max(i.senders, i.before/2) >> min(passed-1, 31)
	bytes = i.bytes
	if passed > 1 {
		bytes = 0
	}
	i.epoch, i.senders, i.bytes, i.rate = epoch, 0, 0, bytes
	return bytes
}

// sending returns how many sessions' peers are sending.
func (i *incast) sending() int { return max(i.senders, i.before) }

// adapt changes the budget, if it is time to, by how full the buffer is.
func (i *incast) adapt(used, limit int, dropped bool, now time.Duration) {
	if now < i.stepAt-incastStep/2 {
		return // what arrives was sent before the last change
	}
	i.peak, i.dropped = max(i.peak, used), i.dropped || dropped
	high := i.peak > limit/16*incastHigh
	switch {
	case i.budget == 0:
		i.budget = limit
	case now < i.stepAt:
		return
	case i.dropped, high:
		if i.budget > limit {
			i.ceiling = i.budget
		}
		i.pressed = true
		if i.dropped {
			i.budget /= 2
		} else {
			i.budget = int(int64(i.budget) * int64(limit/2) / int64(i.peak))
		}
	case i.peak < limit/16*incastLow && i.budget < max(2*limit, 2*i.rate, i.sending()*incastLeast*bufferBytes(defaultConfigMTU)):
		i.budget += i.step(limit)
	}
	// Less than this cannot overrun the buffer, and makes windows so small that
	// packets carry little. What drops then is retransmissions.
	i.budget = max(i.budget, limit)
	i.peak, i.dropped = 0, false
	i.stepAt = now + incastStep
}

// step returns by how much the budget grows: it doubles before the buffer was
// full for the first time, and grows slowly near where it last was, and beyond
// what the buffer can take at once.
func (i *incast) step(limit int) int {
	switch {
	case i.budget >= 2*limit:
		return i.budget / 128
	case !i.pressed:
		return i.budget
	case i.budget > i.ceiling/4*3 && i.budget < i.ceiling/4*5:
		return i.budget / 64
	}
	return i.budget / 8
}

// estimate sets the budget if only the size of the buffer is known. It is that
// size, while more arrives in an epoch. busy is the bytes of the last one.
func (i *incast) estimate(limit, busy int) {
	switch {
	case busy > limit:
		i.budget = limit
	case busy >= 0:
		i.budget = 0
	}
}

// window returns the share of a session in segments, if its peer's packets are
// of n bytes; 0: no limit.
func (i *incast) window(n int) uint32 {
	if i.budget == 0 {
		return 0
	}
	least := 1
	if !i.pressed {
		least = incastLeast
	}
	return uint32(max(least, i.budget/max(i.sending(), 1)/bufferBytes(n)))
}

// bufferBytes returns how much of a socket's receive buffer a datagram of n bytes
// may take: Linux allocates powers of two, for the headers and 320 bytes of its
// own too, and 256 bytes beside.
func bufferBytes(n int) int {
	const headers, shared, descriptor = 108, 320, 256
	return 1<<bits.Len(uint(n+headers+shared-1)) + descriptor
}
