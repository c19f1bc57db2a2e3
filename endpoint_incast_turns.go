package kcp

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
	// incastEpoch.
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

// Values of sending.turn. Others are the place of a turn in turns.running, from 1.
const (
	turnNone  = 0
	turnWaits = 255
)

// turns is who sends when to one socket under incast. The lock is taken after
// Conn.mu. It guards sending.turn of the sessions, too.
type turns struct {
	mu       sync.Mutex
	on       bool
	quantum  int           // of a turn, in bytes as the system counts them
	most     int           // turns at once
	equal    int           // the share of a session without turns, in bytes as the system counts them; 0: no limit
	queue    []turnWaiter  // sessions that wait, from next on
	next     int           // the first of them
	running  []turn        // at most most, but for a time after that has shrunk
	limit    time.Duration // how long a turn may last
	checkAt  time.Duration // when to look for turns that have lasted long enough
	timer    *time.Timer   // nil before its first use
	timerSet bool
	news     []turnNews // memory of advance; nil while it is in use
}

// turnWaiter is a session that waits for its turn.
type turnWaiter struct {
	conn   *Conn
	packet int // size of the peer's packets in bytes
}

// turn is the turn of a session.
type turn struct {
	turnWaiter
	window int           // segments that may arrive
	left   int           // of them, those that are still to arrive
	end    time.Duration // when it ends at the latest
	until  time.Duration // when it ends if nothing arrives before; at most end
}

// turnNews is what a session is to tell its peer.
type turnNews struct {
	conn *Conn
	grant
}

// grant is a window. Of a turn it ends when that many segments have arrived.
type grant struct {
	window uint32 // segments; 0 with shut not set: no limit
	shut   bool   // the window is zero
}

// set turns taking turns on or off, and makes turns follow the budget, the share
// of a sender without them, and how many bytes arrive in an incastEpoch. buffer is
// the size of the socket's buffer.
func (t *turns) set(budget, equal, rate, buffer int, possible bool) {
	senders := max(budget/max(equal, 1), 1)
	quantum := rate / turnCycle / senders * 2 // datagrams take about twice their size
	quantum = min(max(quantum, turnLeast*bufferBytes(defaultConfigMTU)), turnMost*bufferBytes(defaultConfigMTU))
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !possible || equal == 0 || equal >= quantum:
		t.on = false
	case equal < quantum/2:
		t.on = true
	}
	drain := time.Duration(int64(incastEpoch) * int64(buffer) / max(2*int64(rate), 1))
	t.limit = min(max(turnDrains*drain, turnLimit), incastEpoch)
	t.quantum, t.equal, t.most = quantum, equal, min(max(budget/quantum, 2), maxTurns)
}

// arrived takes note that n segments have arrived from the session's peer. It
// returns the window to advertise. ok is not set if no turns are taken. c.mu is
// held.
func (t *turns) arrived(c *Conn, n int, now time.Duration) (g grant, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.on {
		return g, false
	}
	s := &c.path.sending
	switch s.turn {
	case turnNone:
		if s.light < incastLeast {
			return grant{window: incastLeast}, true
		}
		t.enqueueLocked(turnWaiter{c, s.packetSize()})
		return grant{shut: true}, true
	case turnWaits:
		return grant{shut: true}, true
	}
	r := &t.running[s.turn-1]
	r.until = min(now+t.quiet(), r.end)
	if r.left -= n; r.left > 0 {
		return grant{window: uint32(r.left)}, true
	}
	t.endLocked(int(s.turn) - 1)
	t.enqueueLocked(turnWaiter{c, s.packetSize()})
	return grant{shut: true}, true
}

// enqueueLocked puts a session at the end of the queue.
func (t *turns) enqueueLocked(w turnWaiter) {
	if t.next > len(t.queue)/2 {
		n := copy(t.queue, t.queue[t.next:])
		clear(t.queue[n:])
		t.queue, t.next = t.queue[:n], 0
	}
	t.queue = append(t.queue, w)
	w.conn.path.sending.turn = turnWaits
}

// dequeueLocked takes the session out of the queue whose turn is next.
func (t *turns) dequeueLocked() (w turnWaiter, ok bool) {
	if t.next == len(t.queue) {
		return w, false
	}
	w = t.queue[t.next]
	t.queue[t.next] = turnWaiter{}
	t.next++
	w.conn.path.sending.turn = turnNone
	return w, true
}

// endLocked ends the i-th turn.
func (t *turns) endLocked(i int) {
	t.running[i].conn.path.sending.turn = turnNone
	last := len(t.running) - 1
	if i != last {
		t.running[i] = t.running[last]
		t.running[i].conn.path.sending.turn = uint8(i + 1)
	}
	t.running[last] = turn{}
	t.running = t.running[:last]
}

// quiet returns after what time without data a turn ends.
func (t *turns) quiet() time.Duration { return t.limit / 3 * 2 }

// leave ends the turn of a session, if it has one.
func (t *turns) leave(c *Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if place := c.path.sending.turn; place != turnNone && place != turnWaits {
		t.endLocked(int(place) - 1)
	}
}

// forget takes a session out, whose packets now arrive at another socket. It
// reports whether the session has waited for a turn, or has had one.
func (t *turns) forget(c *Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch place := c.path.sending.turn; place {
	case turnNone:
		return false
	case turnWaits:
		i := slices.IndexFunc(t.queue, func(w turnWaiter) bool { return w.conn == c })
		t.queue = slices.Delete(t.queue, i, i+1)
		c.path.sending.turn = turnNone
	default:
		t.endLocked(int(place) - 1)
	}
	return true
}

// advance begins the turns there is room for, and ends those that have lasted
// long enough. It tells the sessions. The reader of the socket calls it after
// each batch, and the timer if nothing arrives. No lock is held.
func (t *turns) advance(e *Endpoint, now time.Duration) {
	for again := true; again; { // as the turn of a session that has ended is free at once
		t.mu.Lock()
		news := t.stepLocked(now)
		t.armLocked(e)
		t.mu.Unlock()
		if len(news) == 0 {
			return
		}
		again = false
		for i := range news {
			again = !news[i].conn.takeGrant(news[i].grant, now) || again
		}
		clear(news)
		t.mu.Lock()
		t.news = news[:0]
		t.mu.Unlock()
	}
}

// stepLocked is advance, but for telling the sessions.
func (t *turns) stepLocked(now time.Duration) (news []turnNews) {
	if len(t.running) == 0 && t.next == len(t.queue) {
		return nil
	}
	news, t.news = t.news, nil
	if now >= t.checkAt || !t.on {
		t.checkAt = now + turnLimit/4
		news = t.expireLocked(news, now)
	}
	for len(t.running) < t.most || !t.on {
		w, ok := t.dequeueLocked()
		if !ok {
			break
		}
		news = append(news, turnNews{w.conn, t.beginLocked(w, now)})
	}
	if len(news) == 0 {
		t.news = news
	}
	return news
}

// beginLocked begins the turn of a session, if turns are taken.
func (t *turns) beginLocked(w turnWaiter, now time.Duration) grant {
	if !t.on {
		return t.equalGrant(w)
	}
	window := max(turnLeast, t.quantum/bufferBytes(w.packet))
	t.running = append(t.running, turn{turnWaiter: w, window: window, left: window,
		end: now + t.limit, until: now + t.quiet()})
	w.conn.path.sending.turn = uint8(len(t.running))
	return grant{window: uint32(window)}
}

// equalGrant returns the window of a session if no turns are taken.
func (t *turns) equalGrant(w turnWaiter) grant {
	if t.equal == 0 {
		return grant{}
	}
	return grant{window: uint32(max(1, t.equal/bufferBytes(w.packet)))}
}

// expireLocked ends the turns that have lasted long enough, or all if no turns
// are taken any more. A session that has used less than half of its turn takes no
// further turns unless it sends much again. Its peer is told that it may send, as
// the last news may be lost.
func (t *turns) expireLocked(news []turnNews, now time.Duration) []turnNews {
	for i := len(t.running) - 1; i >= 0; i-- {
		r := t.running[i]
		if t.on && now < r.until {
			continue
		}
		t.endLocked(i)
		switch {
		case !t.on:
			news = append(news, turnNews{r.conn, t.equalGrant(r.turnWaiter)})
		case r.left <= r.window/2:
			t.enqueueLocked(r.turnWaiter)
		default:
			news = append(news, turnNews{r.conn, grant{window: incastLeast}})
		}
	}
	return news
}

// armLocked sets the timer while there are turns: perhaps nothing arrives any
// more upon which the reader would call advance.
func (t *turns) armLocked(e *Endpoint) {
	if t.timerSet || len(t.running) == 0 && t.next == len(t.queue) {
		return
	}
	t.timerSet = true
	if t.timer != nil {
		t.timer.Reset(turnLimit)
		return
	}
	t.timer = time.AfterFunc(turnLimit, func() {
		e.repeat.wait(0, rankIncast)
		t.mu.Lock()
		t.timerSet = false
		t.mu.Unlock()
		if !e.stopped() {
			t.advance(e, e.now())
		}
	})
}
