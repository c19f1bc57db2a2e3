package incast

import (
	"slices"
	"sync"
	"time"
)

// Turns of senders under incast. Equal shares of the budget are a few segments
// when very many peers send. Then each few segments cost an ACK and a wake-up of
// the sender. So sessions take turns instead, round-robin (compare deficit
// round robin, RFC 8290 §4.2, and the grants of Homa and ExpressPass). The
// session whose turn it is advertises a window of a quantum, the right edge of
// which does not move. When that much has arrived, the turn is over: the window
// is zero until the next turn, and the session goes to the end of the queue. As
// many turns run at once as the budget has room for.
//
// A peer that sends little keeps a small window and takes no turns.

const (
	// turnCycle is about the time in which each sender has a turn, in parts of
	// Epoch.
	turnCycle = 5
	// A quantum is what turnLeast to turnMost full segments take of the buffer.
	turnLeast = 4
	turnMost  = 64
	// turnLimit is after what time a turn gives way to others, used or not, at
	// least. It is longer if the buffer takes long to be read: turnDrains is how
	// often that could be done meanwhile.
	turnLimit  = 25 * time.Millisecond
	turnDrains = 3
	// maxTurns is the most turns at once.
	maxTurns = turnWaits - 1
)

// Values of Sender.turn. Others are the place of a turn in turns.running, from 1.
const (
	turnNone  = 0
	turnWaits = 255
)

// Turns is who sends when to one socket under incast. The lock is taken after
// a session's lock. It guards Sender.turn of the sessions, too.
type Turns[S any] struct {
	sender func(*S) *Sender
	take   func(*S, Grant, time.Duration) bool
	wake   func()

	mu       sync.Mutex
	on       bool
	quantum  int           // of a turn, in bytes as the system counts them
	most     int           // turns at once
	equal    int           // the share of a session without turns, in bytes as the system counts them; 0: no limit
	queue    []waiter[S]   // sessions that wait, from next on
	next     int           // the first of them
	running  []turn[S]     // at most most, except for a time after that has shrunk
	limit    time.Duration // how long a turn may last
	checkAt  time.Duration // when to look for turns that have lasted long enough
	timer    *time.Timer   // nil before its first use
	timerSet bool
	news     []news[S] // memory of Advance; nil while it is in use
}

// waiter is a session that waits for its turn.
type waiter[S any] struct {
	of     *S
	packet int // size of the peer's packets in bytes
}

// turn is the turn of a session.
type turn[S any] struct {
	waiter[S]
	window int           // segments that may arrive
	left   int           // of them, those that are still to arrive
	end    time.Duration // when it ends at the latest
	until  time.Duration // when it ends if nothing arrives before; at most end
}

// news is a window change that a session has to advertise.
type news[S any] struct {
	of *S
	Grant
}

// Grant is a window. In a turn it ends when that many segments have arrived.
type Grant struct {
	Window uint32 // segments; 0 with Shut not set: no limit
	Shut   bool   // the window is zero
}

// Init prepares turns. sender returns the Sender of a session. take tells a session
// its window, and reports false if it has ended and has given up its turn. wake is
// called on a goroutine of its own when it is time to call Advance, though perhaps
// nothing arrives.
func (t *Turns[S]) Init(sender func(*S) *Sender, take func(*S, Grant, time.Duration) bool, wake func()) {
	t.sender, t.take, t.wake = sender, take, wake
}

// Set turns taking turns on or off, and makes turns follow the budget, the share
// of a sender without them, and how many bytes arrive in an Epoch. buffer is
// the size of the socket's buffer.
func (t *Turns[S]) Set(budget, equal, rate, buffer int, possible bool) {
	senders := max(budget/max(equal, 1), 1)
	quantum := rate / turnCycle / senders * 2 // datagrams take about twice their size
	quantum = min(max(quantum, turnLeast*BufferBytes(packetSize)), turnMost*BufferBytes(packetSize))
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !possible || equal == 0 || equal >= quantum:
		t.on = false
	case equal < quantum/2:
		t.on = true
	}
	drain := time.Duration(int64(Epoch) * int64(buffer) / max(2*int64(rate), 1))
	t.limit = min(max(turnDrains*drain, turnLimit), Epoch)
	t.quantum, t.equal, t.most = quantum, equal, min(max(budget/quantum, 2), maxTurns)
}

// Arrived records that n segments have arrived from the session's peer. It
// returns the window to advertise. ok is not set if no turns are taken. The
// lock of the session is held.
func (t *Turns[S]) Arrived(c *S, n int, now time.Duration) (g Grant, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.on {
		return g, false
	}
	s := t.sender(c)
	switch s.turn {
	case turnNone:
		if s.Light < Least {
			return Grant{Window: Least}, true
		}
		t.enqueueLocked(waiter[S]{c, s.PacketSize()})
		return Grant{Shut: true}, true
	case turnWaits:
		return Grant{Shut: true}, true
	}
	r := &t.running[s.turn-1]
	r.until = min(now+t.quiet(), r.end)
	if r.left -= n; r.left > 0 {
		return Grant{Window: uint32(r.left)}, true
	}
	t.endLocked(int(s.turn) - 1)
	t.enqueueLocked(waiter[S]{c, s.PacketSize()})
	return Grant{Shut: true}, true
}

// enqueueLocked puts a session at the end of the queue.
func (t *Turns[S]) enqueueLocked(w waiter[S]) {
	if t.next > len(t.queue)/2 {
		n := copy(t.queue, t.queue[t.next:])
		clear(t.queue[n:])
		t.queue, t.next = t.queue[:n], 0
	}
	t.queue = append(t.queue, w)
	t.sender(w.of).turn = turnWaits
}

// dequeueLocked takes the session out of the queue whose turn is next.
func (t *Turns[S]) dequeueLocked() (w waiter[S], ok bool) {
	if t.next == len(t.queue) {
		return w, false
	}
	w = t.queue[t.next]
	t.queue[t.next] = waiter[S]{}
	t.next++
	t.sender(w.of).turn = turnNone
	return w, true
}

// endLocked ends the i-th turn.
func (t *Turns[S]) endLocked(i int) {
	t.sender(t.running[i].of).turn = turnNone
	last := len(t.running) - 1
	if i != last {
		t.running[i] = t.running[last]
		t.sender(t.running[i].of).turn = uint8(i + 1)
	}
	t.running[last] = turn[S]{}
	t.running = t.running[:last]
}

// quiet returns after what time without data a turn ends.
func (t *Turns[S]) quiet() time.Duration { return t.limit / 3 * 2 }

// Leave ends the turn of a session, if it has one.
func (t *Turns[S]) Leave(c *S) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if place := t.sender(c).turn; place != turnNone && place != turnWaits {
		t.endLocked(int(place) - 1)
	}
}

// Forget takes a session out, whose packets now arrive at another socket. It
// reports whether the session has waited for a turn, or has used one.
func (t *Turns[S]) Forget(c *S) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch place := t.sender(c).turn; place {
	case turnNone:
		return false
	case turnWaits:
		i := slices.IndexFunc(t.queue, func(w waiter[S]) bool { return w.of == c })
		t.queue = slices.Delete(t.queue, i, i+1)
		t.sender(c).turn = turnNone
	default:
		t.endLocked(int(place) - 1)
	}
	return true
}

// Advance begins the turns there is room for, and ends those that have lasted
// long enough. It tells the sessions. The reader of the socket calls it after
// each batch, and the timer if nothing arrives. No lock is held.
func (t *Turns[S]) Advance(now time.Duration) {
	for again := true; again; { // as the turn of a session that has ended is free at once
		t.mu.Lock()
		all := t.stepLocked(now)
		t.armLocked()
		t.mu.Unlock()
		if len(all) == 0 {
			return
		}
		again = false
		for i := range all {
			again = !t.take(all[i].of, all[i].Grant, now) || again
		}
		clear(all)
		t.mu.Lock()
		t.news = all[:0]
		t.mu.Unlock()
	}
}

// stepLocked is advance, except for telling the sessions.
func (t *Turns[S]) stepLocked(now time.Duration) (all []news[S]) {
	if len(t.running) == 0 && t.next == len(t.queue) {
		return nil
	}
	all, t.news = t.news, nil
	if now >= t.checkAt || !t.on {
		t.checkAt = now + turnLimit/4
		all = t.expireLocked(all, now)
	}
	for len(t.running) < t.most || !t.on {
		w, ok := t.dequeueLocked()
		if !ok {
			break
		}
		all = append(all, news[S]{w.of, t.beginLocked(w, now)})
	}
	if len(all) == 0 {
		t.news = all
	}
	return all
}

// beginLocked begins the turn of a session, if turns are taken.
func (t *Turns[S]) beginLocked(w waiter[S], now time.Duration) Grant {
	if !t.on {
		return t.equalGrant(w)
	}
	window := max(turnLeast, t.quantum/BufferBytes(w.packet))
	t.running = append(t.running, turn[S]{waiter: w, window: window, left: window,
		end: now + t.limit, until: now + t.quiet()})
	t.sender(w.of).turn = uint8(len(t.running))
	return Grant{Window: uint32(window)}
}

// equalGrant returns the window of a session if no turns are taken.
func (t *Turns[S]) equalGrant(w waiter[S]) Grant {
	if t.equal == 0 {
		return Grant{}
	}
	return Grant{Window: uint32(max(1, t.equal/BufferBytes(w.packet)))}
}

// expireLocked ends the turns that have lasted long enough, or all if no turns
// are taken any more. A session that has used less than half of its turn takes no
// further turns unless it sends much again. Its peer is told that it may send, as
// the last news may be lost.
func (t *Turns[S]) expireLocked(all []news[S], now time.Duration) []news[S] {
	for i := len(t.running) - 1; i >= 0; i-- {
		r := t.running[i]
		if t.on && now < r.until {
			continue
		}
		t.endLocked(i)
		switch {
		case !t.on:
			all = append(all, news[S]{r.of, t.equalGrant(r.waiter)})
		case r.left <= r.window/2:
			t.enqueueLocked(r.waiter)
		default:
			all = append(all, news[S]{r.of, Grant{Window: Least}})
		}
	}
	return all
}

// armLocked sets the timer while there are turns: perhaps nothing arrives any
// more upon which the reader would call Advance.
func (t *Turns[S]) armLocked() {
	if t.timerSet || len(t.running) == 0 && t.next == len(t.queue) {
		return
	}
	t.timerSet = true
	if t.timer != nil {
		t.timer.Reset(turnLimit)
		return
	}
	t.timer = time.AfterFunc(turnLimit, t.wake)
}

// Woken records that wake was called.
func (t *Turns[S]) Woken() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timerSet = false
}

// On reports whether turns are taken.
func (t *Turns[S]) On() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.on
}
