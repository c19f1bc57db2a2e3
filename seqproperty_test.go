package kcp

import (
	"errors"
	"fmt"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/closing"
)

// Numbers from the network: every field of every command at every distance that
// comparisons on a circle may get wrong, in every state of the machine.

// books holds what a state machine keeps count of.
type books struct {
	Queued, Partial, Early, Held, Read       int
	InFlight, SndBytes, FlightBytes, Waiting int
}

func (k *KCP) books() books {
	return books{
		int(k.rcv.queue.n), int(k.rcv.partial), int(k.rcv.early), k.rcv.held, k.rcv.bytes,
		k.snd.inFlight, k.snd.bytes, int(k.snd.flightBytes), k.WaitSend(),
	}
}

// segments returns what waits to be sent, or is in flight.
func (k *KCP) segments() iter.Seq[*sendSegment] {
	return func(yield func(*sendSegment) bool) {
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
	wrong := func(sn seq, what string) { err = errors.Join(err, fmt.Errorf("segment %d: %s", sn, what)) }
	for i := range k.rcv.queue.places.Len() {
		s := k.rcv.queue.at(uint32(i))
		switch {
		case i >= b.Queued && (s.data != nil || s.held):
			wrong(seq(i), "data behind the queue")
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
		sn := k.rcv.nxt + seq(i)
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
			s := o.ring.at(o.arrived + seq(i))
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

// requireBooks compares what the state machine has counted with what it holds.
func requireBooks(t *testing.T, k *KCP) {
	t.Helper()
	b, err := k.recount()
	require.NoError(t, err)
	require.Equal(t, b, k.books())
}

// push returns a data segment that acknowledges what is acknowledged already.
func (h *harness) push(sn uint32, frg uint8, payload string) []byte {
	return segment(cmdPush, frg, 0, sn, uint32(h.k.snd.una), payload)
}

// extremes returns the numbers at the distances from base that matter.
func extremes(base seq, window uint32) []uint32 {
	var all []uint32
	for _, d := range []uint32{
		0, 1, 2, window - 1, window, window + 1, 1<<31 - 1, 1 << 31, 1<<31 + 1,
		1<<31 - window, 1<<31 + window, -window & (1<<32 - 1), 1<<32 - 2, 1<<32 - 1,
	} {
		all = append(all, uint32(base)+d)
	}
	return all
}

// The end that a peer announces lies at or after what has come, and less than
// half the circle away; anything else is never reached.
func TestFinalOfThePeer(t *testing.T) {
	for _, next := range []seq{0, 5, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
		for _, final := range extremes(next, 2048) {
			c := &Conn{session: session{kcp: New(7, func([]byte) {})}}
			c.kcp.rcv.nxt = next
			distance := final - uint32(next)
			require.Equal(t, distance < 1<<31, c.takeFin(signal{sigFin, final, 0}), "%d from %d", final, next)
			require.Equal(t, distance < 1<<31, c.closing.Read != closing.ReadOpen)
			require.Equal(t, distance < 1<<31, c.takeFin(signal{sigClose, final, 0}), "the same again")
			if c.closing.Read != closing.ReadOpen {
				require.False(t, c.takeFin(signal{sigClose, final + 1, 0}), "another end")
			}
		}
	}
}
