package kcp

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// Who reads a socket. An endpoint has a goroutine for it, but where one session
// has the socket to itself, a call of that session that would wait reads it
// instead (the leader of the leader/followers pattern): what arrives then is
// not handed from goroutine to goroutine, and from processor to processor. The
// session answers it once the application has had its say, or wants to wait
// again: then mostly there is nothing left to answer, and to set timers for.
//
//	            a call is woken            nobody leads for leadGrace
//	the loop --------------------> nobody ---------------------------> the loop
//	                                | ^
//	                 a call waits   v |   it has what it waits for
//	                               the call

// leadGrace is how long a socket may go without anybody who reads it, while the
// application is between two calls; after many calls up to twice that. It delays
// what arrives then, and the answer to what came before.
const leadGrace = time.Millisecond

// maxReluctance bounds how many wake-ups the loop keeps the socket for, after
// the application has not come back in time.
const maxReluctance = 1024

// worthwhile is how many times in a row calls have to lead for it to have been
// worth the while.
const worthwhile = 8

// leaderKind is who leads.
type leaderKind uint8

const (
	loopLeads leaderKind = iota
	nobodyLeads
	callLeads
)

// leadership is whose turn it is to read a socket.
type leadership struct {
	possible bool          // calls may lead
	back     chan struct{} // the loop waits here while it does not lead

	mu         sync.Mutex
	who        leaderKind
	owing      *Conn // a call of it has led last, and may have left the answer to later
	timer      *time.Timer
	armed      bool
	armedAt    int // claims
	stopped    bool
	reluctance int // wake-ups to let pass before calls may lead
	penalty    int // the next reluctance
	claims     int // since the loop yielded
}

func (l *leadership) init() {
	l.possible = true
	l.back = make(chan struct{}, 1)
	l.penalty = 1
}

// yield has the loop give the lead to a call that it has just woken. The loop
// then waits for back.
func (l *leadership) yield() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return false
	}
	if l.reluctance > 0 {
		l.reluctance--
		return false
	}
	l.claims, l.armedAt = 0, -1 // whatever the timer is set for, this has just begun
	l.vacate()
	return true
}

// claim gives the lead to a call, if nobody has it.
func (l *leadership) claim() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.who != nobodyLeads || l.stopped {
		return false
	}
	l.who, l.owing = callLeads, nil
	l.claims++
	return true
}

// release takes the lead from a call of c. It goes back to the loop at once
// where no call is to follow.
func (l *leadership) release(c *Conn, follow bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owing = c
	if !follow || l.stopped {
		l.recall()
		return
	}
	l.vacate()
}

// vacate leaves the lead to the next call, for some time. mu is held.
func (l *leadership) vacate() {
	l.who = nobodyLeads
	if !l.armed {
		l.arm()
	}
}

// arm sets the timer, which is left to fire when a call comes: that is rarer
// than calls are. mu is held.
func (l *leadership) arm() {
	l.armed, l.armedAt = true, l.claims
	if l.timer == nil {
		l.timer = time.AfterFunc(leadGrace, l.expire)
	} else {
		l.timer.Reset(leadGrace)
	}
}

// expire gives the lead back to the loop where no call has come.
func (l *leadership) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = false
	if l.who != nobodyLeads {
		return
	}
	if l.claims != l.armedAt { // a call came, and has gone again
		l.arm()
		return
	}
	if l.claims >= worthwhile {
		l.penalty = 1
	}
	l.reluctance = l.penalty
	l.penalty = min(2*l.penalty, maxReluctance)
	l.recall()
}

// recall gives the lead back to the loop. mu is held.
func (l *leadership) recall() {
	l.who = loopLeads
	l.back <- struct{}{}
}

// stop lets no call lead any more. The one that does is not waited for.
func (l *leadership) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return
	}
	l.stopped = true
	if l.who == nobodyLeads {
		l.recall()
	}
}

// await is how the loop waits for the lead, after yield. It returns the session
// that may have left its answer to later.
func (l *leadership) await() *Conn {
	<-l.back
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.owing
	l.owing = nil
	return c
}

// interrupted reports whether err only means that somebody wants whoever reads
// the socket to look up, and undoes the deadline that has made it so.
func (e *Endpoint) interrupted(s *shard, err error) bool {
	if !s.lead.possible || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	select {
	case <-e.done: // this deadline is for good
		return false
	default:
	}
	_ = s.pc.SetReadDeadline(time.Time{})
	select {
	case <-e.done: // and may have come just before it was undone
		_ = s.pc.SetReadDeadline(time.Unix(1, 0))
		return false
	default:
	}
	return true
}

// single reports whether there is but one session that an application can have
// business with. Strangers who open others do not take the lead from its calls.
func (e *Endpoint) single() bool { return e.population.Load()-e.halfOpen.Load() == 1 }

// canLead reports whether calls may read pc. They have to be interrupted by a
// read deadline, which not every net.PacketConn out there knows.
func canLead(pc net.PacketConn) bool {
	switch pc.(type) {
	case *net.UDPConn, interface{ interruptible() }:
		return true
	}
	return false
}
