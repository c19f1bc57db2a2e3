package machine

import (
	"errors"
	"fmt"
	"iter"

	"github.com/arqnet/kcp/congestion"
)

// books holds what a state machine keeps count of.
type books struct {
	Queued, Partial, Early, Held, Read       int
	InFlight, SndBytes, FlightBytes, Waiting int
}

// books returns what k has counted.
func (k *KCP) books() books {
	return books{
		int(k.rcv.queue.n), int(k.rcv.partial), int(k.rcv.early), k.rcv.held, k.rcv.bytes,
		k.snd.inFlight, k.snd.bytes, int(k.snd.flightBytes), k.WaitSend(),
	}
}

// segments returns what waits to be sent, or is in flight.
func (k *KCP) segments() iter.Seq[*Segment] {
	return func(yield func(*Segment) bool) {
		for sn := k.snd.una; sn != k.snd.nxt; sn++ {
			if s := k.snd.ring.at(sn); s != nil && !yield(s) {
				return
			}
		}
		for s := k.snd.queue.head; s != nil; s = s.order.next {
			if !yield(s) {
				return
			}
		}
	}
}

// recount returns the same as the containers have it. Queued is taken from k, and
// what must never be is an error.
func (k *KCP) recount() (b books, err error) {
	b.Queued = int(k.rcv.queue.n)
	wrong := func(sn Seq, what string) { err = errors.Join(err, fmt.Errorf("segment %d: %s", sn, what)) }
	for i := range k.rcv.queue.places.Len() {
		s := k.rcv.queue.at(uint32(i))
		switch {
		case i >= b.Queued && (s.data != nil || s.held):
			wrong(Seq(i), "data behind the queue")
		case i >= b.Queued:
		case s.frg == 0:
			b.Partial = 0
		default:
			b.Partial++
		}
		b.Held += cap(s.data)
		b.Read += len(s.data) - s.read
	}
	for i := range k.rcv.ring.Len() {
		sn := k.rcv.nxt + Seq(i)
		s := k.rcv.ring.at(sn)
		switch {
		case !s.held && (s.data != nil || s.abandoned || s.stream):
			wrong(sn, "data in a free place")
		case s.held && i == 0 && !k.receiveFull():
			wrong(sn, "in order, and not in the queue")
		case s.held:
			b.Early++
			b.Held += cap(s.data)
			b.Read += len(s.data) - s.read
		}
	}
	if k.rare != nil {
		o := &k.rare.own
		early := uint32(0)
		for i := range o.ring.Len() {
			s := o.ring.at(o.arrived + Seq(i))
			if s.held {
				early++
				b.Held += cap(s.data)
				b.Read += len(s.data) - s.read
			}
			if s.held && i == 0 && !k.receiveFull() || !s.held && s.data != nil {
				wrong(o.arrived, "next by its SSN, and not in the queue")
			}
		}
		if early != o.early {
			wrong(o.arrived, fmt.Sprintf("%d early by their SSN, counted are %d", early, o.early))
		}
	}
	if k.snd.nxt.Before(k.snd.una) || int(k.snd.nxt-k.snd.una) > k.snd.ring.Len() {
		return b, errors.Join(err, fmt.Errorf("una %d, nxt %d in %d places", k.snd.una, k.snd.nxt, k.snd.ring.Len()))
	}
	if k.snd.una != k.snd.nxt && k.snd.ring.at(k.snd.una) == nil {
		wrong(k.snd.una, "missing among those to be sent")
	}
	for s := range k.segments() {
		b.SndBytes += len(s.data)
		b.Waiting++
		if s.list != &k.snd.queue {
			b.InFlight++
			b.FlightBytes += s.size()
		}
	}
	return b, err
}

// Audit returns in what the counts of k differ from what its containers have; nil: in
// nothing. Tests of the layers above call it too.
func (k *KCP) Audit() error {
	b, err := k.recount()
	if err == nil && b != k.books() {
		err = fmt.Errorf("counted are %+v, there are %+v", k.books(), b)
	}
	return err
}

// Inspection is what a machine has of its settings, and of memory, now.
type Inspection struct {
	Settings
	Unused     int  // the receive window that is told, in segments
	Send, Recv int  // places of the rings
	Queued     int  // segments that have arrived in order, and wait to be read
	Samples    bool // there is state of samples of the delivery rate
	Control    congestion.Control
	AppLimited bool // the last sample of the rate shows the application (RFC 9438 §5.8)
}

// Inspect returns what tests of the layers above look at.
func (k *KCP) Inspect() Inspection {
	mode := MessageData
	if k.cfg.stream {
		mode = StreamData
	}
	s := Inspection{
		Settings: Settings{
			MTU: k.cfg.mtu, SendWindow: int(k.cfg.sndWnd), ReceiveWindow: int(k.cfg.rcvWnd), NoDelay: k.cfg.nodelay,
			MinRTO: int(k.snd.rtt.minRTO), Interval: int(k.cfg.interval), FastResend: int(k.cfg.fastResend),
			FastResendLimit: int(k.cfg.fastLimit), DeadLink: int(k.cfg.deadLink), Data: mode, Extensions: k.cfg.ext,
		},
		Unused: int(k.wndUnused()), Send: k.snd.ring.Len(), Recv: k.rcv.ring.Len(), Queued: int(k.rcv.queue.n),
		Control: k.snd.cc, Samples: k.snd.ccState != nil || k.snd.rate.RateSample != nil,
	}
	s.AppLimited = k.snd.rate.RateSample != nil && k.snd.rate.AppLimited()
	return s
}
