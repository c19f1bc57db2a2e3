package kcp

import (
	"errors"
	"fmt"
	"iter"
	"testing"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// harness drives one state machine segment by segment. Whatever it puts out
// must be claimed by want before the next step, so that nothing unexpected
// goes by unseen.
type harness struct {
	t   *testing.T
	k   *KCP
	now uint32
	out []string
}

// newHarness returns a harness at time 1000 that has flushed once.
func newHarness(t *testing.T, setup func(k *KCP)) *harness {
	simulated(t)
	h := &harness{t: t, now: 1000}
	h.k = New(7, func(packet []byte) { h.out = append(h.out, describe(t, packet)...) })
	h.k.SetNoDelay(NoDelayOn)
	h.k.SetCongestionControl(congestion.NewNone())
	require.NoError(t, h.k.SetInterval(10))
	if setup != nil {
		setup(h.k)
	}
	h.k.Update(h.now)
	t.Cleanup(func() { h.want() })
	return h
}

// describe returns the segments of a packet as text: command, sn, and what the
// command makes use of.
func describe(t *testing.T, packet []byte) []string {
	var out []string
	for len(packet) > 0 {
		require.GreaterOrEqual(t, len(packet), wire.HeaderSize)
		h := wire.DecodeHeader(packet)
		payload, ok := h.Payload(packet[wire.HeaderSize:])
		require.True(t, ok)
		switch h.Cmd {
		case wire.CmdPush:
			out = append(out, fmt.Sprintf("push %d frg=%d %q", h.SN, h.Frg, payload))
		case wire.CmdAck:
			s := fmt.Sprintf("ack %d ts=%d una=%d wnd=%d", h.SN, h.TS, h.Una, h.Wnd)
			if h.Frg != 0 {
				s += fmt.Sprintf(" frg=%#x", h.Frg)
			}
			out = append(out, s)
		case wire.CmdWask:
			out = append(out, "wask")
		case wire.CmdWins:
			out = append(out, fmt.Sprintf("wins una=%d wnd=%d", h.Una, h.Wnd))
		}
		packet = packet[wire.HeaderSize+len(payload):]
	}
	return out
}

// want claims the output since the last call.
func (h *harness) want(segments ...string) {
	h.t.Helper()
	require.Equal(h.t, segments, h.out)
	h.out = nil
}

// advance lets ms pass and flushes.
func (h *harness) advance(ms uint32) {
	h.t.Helper()
	h.now += ms
	h.k.SetClock(h.now)
	h.k.Flush()
}

func (h *harness) send(data string) {
	h.t.Helper()
	n, err := h.k.Send([]byte(data))
	require.NoError(h.t, err)
	require.Equal(h.t, len(data), n)
}

// input gives the state machine one packet of the segments.
func (h *harness) input(segments ...[]byte) {
	h.t.Helper()
	require.NoError(h.t, h.k.Input(concat(segments)))
}

// recv reads one message.
func (h *harness) recv(want string) {
	h.t.Helper()
	buf := make([]byte, 1<<16)
	n, err := h.k.Recv(buf)
	require.NoError(h.t, err)
	require.Equal(h.t, want, string(buf[:n]))
}

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
