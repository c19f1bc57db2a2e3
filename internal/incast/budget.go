package incast

import (
	"math/bits"
	"time"
)

// Many senders at once overrun the socket's receive buffer, although
// each of them keeps to its window. So each session advertises at most a share
// of what the buffer takes while it fills up. What peers may have on the
// way to one socket, the budget, follows how full the buffer gets (compare ICTCP,
// and HPCC for the use of queue lengths): it is cut when the buffer is nearly full
// or the system has dropped datagrams, and grows while there is room. Shares are
// max-min fair by what each peer has sent. There is no budget for a
// sender that is alone, or sends most of all; see standing for that.

const (
	// Epoch is how long a session counts as sending after data has
	// arrived, up to twice that. It is longer than the round trip even when
	// very many senders share a processor.
	Epoch = 500 * time.Millisecond
	// sampleTime is the least time between two looks at the buffer. In between
	// sampleBytes bytes arrive, or a part of what the buffer takes if that is
	// less, or else idleTime passes: a look is a system call.
	sampleTime  = 250 * time.Microsecond
	idleTime    = 10 * time.Millisecond
	sampleBytes = 32 << 10
	// stepTime is the time between two changes of the budget: peers have to
	// learn of the last one, and what was under way has to arrive.
	stepTime = 20 * time.Millisecond
	// The budget is cut when more than high16/16 of the buffer is used, and
	// grows while it is less than low16/16. Linux counts up to a quarter
	// that has been read already.
	high16 = 10
	low16  = 7
	// Least is how many segments a peer has to send in an epoch to take
	// turns, and the least share, in segments, before the buffer was nearly full.
	Least = 16
	// packetSize is the size in bytes of a usual packet.
	packetSize = 1400
)

// Budget is what peers may have on the way to one socket. Only the present reader of
// the socket uses it.
type Budget struct {
	epoch   uint32      // number of the present epoch; 2^32 of them are 68 years
	demands [2]*demands // of validated peers, and of others; nil until data has arrived
	bytes   int         // of datagrams that arrived in the epoch
	ended   int         // of the last epoch, if Due has just ended it; else -1

	budget    int    // bytes that all peers may have on the way, as the system counts them; 0: no limit
	level     int    // bytes that each of them may have; 0: no limit
	strangers int    // the same of a peer that is not validated
	ceiling   int    // the budget when datagrams were last dropped; 0: unknown
	pressed   bool   // the buffer was nearly full
	rate      int    // bytes that arrived in the last epoch
	peak      int    // most bytes used since the last change of the budget
	dropped   bool   // datagrams were dropped since then
	drops     uint32 // as of the last look at the buffer
	known     bool   // drops is valid
	standing  standing
	batch     int // bytes of the last batch
	buffer    int // the size of the socket's buffer, in bytes, as of the last look

	sampleAt time.Duration // when to look at the buffer, at the earliest
	arrived  int           // bytes since the last look
	stepAt   time.Duration // when the budget may change
}

// demands is what peers have sent.
type demands struct {
	now    Demand // in the present epoch
	before Demand // in earlier ones, half of which is forgotten with each
}

// level returns the max-min fair share of a budget; 0: no limit. What has arrived
// in the present epoch counts before it is over, as senders may be new. Several that
// have not sent enough yet to be limited, but begin to, have equal shares.
func (d *demands) level(budget int) int {
	level, before := d.now.Level(budget), d.before.Level(budget)
	if level == 0 || before > 0 && before < level {
		level = before
	}
	if level == 0 {
		much := uint32(Least / 4 * BufferBytes(packetSize))
		if n := max(d.now.Above(much), d.before.Above(much)); n > 1 {
			return budget / n
		}
	}
	return level
}

// alone reports whether one peer sends most of what arrives, or none does.
func (d *demands) alone() bool {
	switch {
	case d == nil:
		return true
	case d.now.Sum() > d.before.Sum():
		return d.now.Dominated()
	}
	return d.before.Dominated()
}

// advance begins a new epoch; passed is how many have.
func (d *demands) advance(passed uint32) {
	switch {
	case passed > 1:
		*d = demands{}
	case d.now.Senders() >= d.before.Senders()/2:
		d.now, d.before = Demand{}, d.now
	default:
		d.now.Reset()
		d.before.Halve()
	}
}

// Due records that a batch of n bytes has arrived. It reports whether it is time
// to look at the socket's receive buffer, and to call Look.
func (i *Budget) Due(n int, now time.Duration) bool {
	i.batch = n
	i.bytes += n
	i.arrived += n
	if now < i.sampleAt || i.arrived < min(sampleBytes, i.buffer/32) && now < i.sampleAt+idleTime-sampleTime {
		return false
	}
	i.sampleAt, i.arrived = now+sampleTime, 0
	i.ended = i.advance(now)
	return true
}

// Buffer is the state of a socket's receive buffer.
type Buffer struct {
	Limit int    // bytes that it takes; 0: nothing is known
	Used  int    // bytes in it; negative: unknown
	Drops uint32 // datagrams that the system has dropped, modulo 2^32
}

// Look makes the budget follow the receive buffer. If Single returns true, b is not
// looked at.
func (i *Budget) Look(b Buffer, now time.Duration) {
	if b.Limit > 0 {
		i.buffer = b.Limit
	}
	switch {
	case i.Alone():
		i.budget, i.ceiling, i.pressed, i.known = 0, 0, false, false
		if i.Single() || b.Limit == 0 || b.Used < 0 {
			i.standing = standing{}
		} else {
			i.standing.look(b, i.batch, i.rate, now)
		}
	case b.Limit == 0:
	case b.Used < 0:
		i.estimate(b.Limit, i.ended)
	default:
		dropped := i.known && b.Drops != i.drops
		i.drops, i.known = b.Drops, true
		i.adapt(b.Used, b.Limit, dropped, now)
	}
	i.setLevels()
}

// setLevels sets the max-min fair shares of the budget. Peers that are not validated
// have what the others leave, an eighth at least.
func (i *Budget) setLevels() {
	i.level, i.strangers = 0, 0
	if i.Alone() {
		i.level = i.standing.most
	}
	if i.budget == 0 {
		return
	}
	peers, strangers := i.demands[0], i.demands[1]
	if !peers.alone() {
		i.level = peers.level(i.budget)
	}
	left := i.budget
	switch {
	case i.level > 0:
		left = i.budget / 8
	case peers != nil:
		left = max(i.budget/8, left-int(min(peers.now.Sum(), int64(left))))
	}
	if !strangers.alone() {
		i.strangers = strangers.level(left)
	}
}

// advance begins a new epoch if its time has come, and returns the bytes that
// arrived in the one that has ended; -1 if none has.
func (i *Budget) advance(now time.Duration) (bytes int) {
	epoch := uint32(now/Epoch) + 1
	if epoch <= i.epoch {
		return -1
	}
	passed := epoch - i.epoch
	if bytes = i.bytes; passed > 1 {
		bytes = 0
	}
	i.epoch, i.bytes, i.rate = epoch, 0, bytes
	for _, d := range i.demands {
		if d != nil {
			d.advance(passed)
		}
	}
	return bytes
}

// Offered counts n bytes that a peer has sent, after what it had sent in the epoch
// before, for which Begin was called. What a peer sent before its address was
// validated is left where it counts.
func (i *Budget) Offered(s *Sender, n int, validated bool) {
	d := &i.demands[0]
	if !validated {
		d = &i.demands[1]
	}
	if *d == nil {
		*d = new(demands)
	}
	if s.validated != validated {
		s.offered, s.validated = 0, validated
	}
	s.offered = (*d).now.Add(s.offered, uint32(n))
}

// sending returns how many peers are sending.
func (i *Budget) sending() (n int) {
	for _, d := range i.demands {
		if d != nil {
			n += max(d.now.Senders(), d.before.Senders())
		}
	}
	return n
}

// Bytes returns how many bytes all peers may have on the way, as the system counts
// them; 0: no limit.
func (i *Budget) Bytes() int { return i.budget }

// Alone reports whether one peer sends most of what arrives, or none does.
func (i *Budget) Alone() bool { return i.demands[0].alone() && i.demands[1].alone() }

// Single reports whether no more than one peer sends.
func (i *Budget) Single() bool { return i.Alone() && i.sending() < 2 }

// adapt changes the budget, if it is time to, by how full the buffer is.
func (i *Budget) adapt(used, limit int, dropped bool, now time.Duration) {
	if now < i.stepAt-stepTime/2 {
		return // what arrives was sent before the last change
	}
	i.peak, i.dropped = max(i.peak, used), i.dropped || dropped
	high := i.peak > limit/16*high16
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
	case i.peak < limit/16*low16 && i.budget < max(2*limit, 2*i.rate, i.sending()*Least*BufferBytes(packetSize)):
		i.budget += i.step(limit)
	}
	// Less than this cannot overrun the buffer, and makes windows so small that
	// packets carry little. What drops then is retransmissions.
	i.budget = max(i.budget, limit)
	i.peak, i.dropped = 0, false
	i.stepAt = now + stepTime
}

// step returns by how much the budget grows: it doubles before the buffer was
// full for the first time, and grows slowly near where it last was, and beyond
// what the buffer can take at once.
func (i *Budget) step(limit int) int {
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
func (i *Budget) estimate(limit, busy int) {
	switch {
	case busy > limit:
		i.budget, i.pressed = limit, true
	case busy >= 0:
		i.budget, i.pressed = 0, false
	}
}

// Window returns the share of a session in segments, if its peer's packets are
// of n bytes; 0: no limit. A peer that has sent little, beside others, may send
// Least segments first (compare the initial window of RFC 6928): many that
// begin at once would fill the buffer before what they send can count.
func (i *Budget) Window(n int, light, validated bool) uint32 {
	window, least := 0, Least
	if i.pressed {
		least = 1
	}
	level := i.level
	if !validated {
		level = i.strangers
	}
	if level > 0 {
		window = max(least, level/BufferBytes(n))
	}
	if light && i.sending() > 1 && (window == 0 || window > Least) {
		window = Least
	}
	return uint32(window)
}

// BufferBytes returns how much of a socket's receive buffer a datagram of n bytes
// may take: Linux allocates powers of two, for the headers and 320 bytes of its
// own too, and 256 bytes beside.
func BufferBytes(n int) int {
	const headers, shared, descriptor = 108, 320, 256
	return 1<<bits.Len(uint(n+headers+shared-1)) + descriptor
}
