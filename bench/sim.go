package main

import (
	"container/heap"
	"fmt"
	"time"

	"github.com/arqnet/kcp/netsim"
)

// The simulator runs conversations over modelled links in virtual time: one
// goroutine, one queue of events, seeded links, so that the same set-up gives
// the same figures to the last digit on every machine. Its clock is a
// time.Duration; a state machine sees it through its driver (sim_ends.go),
// which does with it what the session above it does with the real one.

// packetOverhead is what IPv4 and UDP add to a packet. It counts in the bytes
// of an end and takes its share of a link's rate.
const packetOverhead = 28

// sim is a simulation. Its fields are set up by link, pair and at.
type sim struct {
	now    time.Duration
	events eventQueue
	pushed uint64 // events so far
	ends   []*simEnd
	err    error // the first of any end; ends the run
}

// simLink is one direction of a path. Several conversations may share it.
type simLink struct {
	*netsim.Link
	padded []byte
}

// simEnd is one end of a conversation.
type simEnd struct {
	driver
	sim  *sim
	peer *simEnd
	out  *simLink

	// readable, if not nil, is called after packets have come in.
	readable func()

	packets, bytes int64 // sent, with packetOverhead

	timer time.Duration // earliest pending timer event; 0: none
}

// newSimLink returns a direction of a path.
func newSimLink(cfg netsim.LinkConfig, seed uint64) *simLink {
	return &simLink{Link: netsim.NewLink(cfg, seed)}
}

// pair joins two ends of the named implementation, a sending over forward and
// b over back.
func (s *sim) pair(impl simImpl, forward, back *simLink) (a, b *simEnd, err error) {
	a, b = &simEnd{sim: s, out: forward}, &simEnd{sim: s, out: back}
	a.peer, b.peer = b, a
	for _, e := range []*simEnd{a, b} {
		if e.driver, err = impl(e.output); err != nil {
			return nil, nil, err
		}
		s.ends = append(s.ends, e)
		e.arm()
	}
	return a, b, nil
}

// at has call called at a time.
func (s *sim) at(at time.Duration, call func()) {
	s.push(event{at: max(at, s.now), call: call})
}

// every has call called at a time and then after each interval.
func (s *sim) every(first, interval time.Duration, call func()) {
	s.at(first, func() {
		s.every(first+interval, interval, call)
		call()
	})
}

// run lets time pass until done says so, which is asked after every event, or
// until nothing is left to happen or limit is reached, which are errors.
func (s *sim) run(limit time.Duration, done func() bool) error {
	for !done() {
		if len(s.events) == 0 {
			return fmt.Errorf("nothing left to happen at %v", s.now)
		}
		if s.events[0].at > limit {
			return fmt.Errorf("not done by %v", limit)
		}
		s.step()
		if s.err != nil {
			return fmt.Errorf("at %v: %w", s.now, s.err)
		}
	}
	return nil
}

// step lets the next event happen. Packets that reach an end at the same
// instant are one batch, as they are for a session.
func (s *sim) step() {
	ev := s.pop()
	s.now = ev.at
	switch {
	case ev.call != nil:
		ev.call()
	case ev.packet == nil:
		ev.end.wakeUp()
	default:
		ev.end.take(ev.packet)
		for len(s.events) > 0 {
			next := &s.events[0]
			if next.at != s.now || next.end != ev.end || next.packet == nil {
				break
			}
			ev.end.take(s.pop().packet)
		}
		ev.end.afterInput()
	}
}

func (s *sim) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// take gives one packet to the state machine.
func (e *simEnd) take(packet []byte) {
	if err := e.input(e.sim.now, packet); err != nil {
		e.sim.fail(err)
	}
}

// afterInput ends a batch.
func (e *simEnd) afterInput() {
	e.answer(e.sim.now)
	e.arm()
	if e.readable != nil {
		e.readable()
	}
}

// wakeUp does what is due.
func (e *simEnd) wakeUp() {
	if e.timer != e.sim.now {
		return // an earlier one has been at work
	}
	e.timer = 0
	if at, ok := e.next(e.sim.now); ok && at <= e.sim.now {
		e.wake(e.sim.now)
	}
	e.arm()
}

// arm sees to it that there is an event at the time of the driver's next
// wake-up or before.
func (e *simEnd) arm() {
	at, ok := e.next(e.sim.now)
	if !ok {
		return
	}
	// An end that wants to be woken now although it just was must not stop time.
	at = max(at, e.sim.now+time.Microsecond)
	if e.timer == 0 || at < e.timer {
		e.timer = at
		e.sim.push(event{at: at, end: e})
	}
}

// Write sends p as the session's Write does.
func (e *simEnd) Write(p []byte) {
	if err := e.write(e.sim.now, p); err != nil {
		e.sim.fail(err)
	}
	e.arm()
}

// Read reads what has arrived, at most len(p) bytes.
func (e *simEnd) Read(p []byte) int {
	n, err := e.read(e.sim.now, p)
	if err != nil {
		e.sim.fail(err)
	}
	e.arm()
	return n
}

// output puts a packet on the link.
func (e *simEnd) output(packet []byte) {
	l, now := e.out, e.sim.now
	l.padded = append(append(l.padded[:0], make([]byte, packetOverhead)...), packet...)
	e.packets++
	e.bytes += int64(len(l.padded))
	for _, d := range l.Send(now, l.padded) {
		e.sim.push(event{at: d.At, end: e.peer, packet: d.Data[packetOverhead:]})
	}
}

// event is something that happens at a time: a call, a packet that arrives at
// an end, or else a timer of that end.
type event struct {
	at     time.Duration
	order  uint64 // of events at the same time
	call   func()
	end    *simEnd
	packet []byte
}

// eventQueue has the next event first.
type eventQueue []event

func (q eventQueue) Len() int { return len(q) }

func (q eventQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}

func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

func (q *eventQueue) Push(ev any) { *q = append(*q, ev.(event)) }

func (q *eventQueue) Pop() any {
	last := (*q)[len(*q)-1]
	(*q)[len(*q)-1] = event{}
	*q = (*q)[:len(*q)-1]
	return last
}

// push adds an event.
func (s *sim) push(ev event) {
	s.pushed++
	ev.order = s.pushed
	heap.Push(&s.events, ev)
}

// pop takes the next one.
func (s *sim) pop() event { return heap.Pop(&s.events).(event) }
