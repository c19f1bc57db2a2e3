package kcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/congestion"
)

// resender is a state machine as sessions have it, with much in flight.
type resender struct {
	k    *KCP
	now  uint64
	sent []seq // since the flight has left
}

// newResender returns one with n segments in flight, the last sent 100 ms ago.
func newResender(t *testing.T, control congestion.Control, n int) *resender {
	r := &resender{now: 1_000_000}
	r.k = New(7, func(p []byte) {
		for len(p) > 0 {
			h := decodeHeader(p)
			if h.cmd == cmdPush {
				r.sent = append(r.sent, h.sn)
			}
			p = p[headerSize+int(h.len):]
		}
	})
	k := r.k
	c := (*Config)(nil).withDefaults()
	c.apply(k)
	require.NoError(t, k.SetWindow(n, n))
	k.peer.wnd, k.peer.wndMax = uint32(n), uint32(n)
	k.SetCongestionControl(control)
	k.SetClockMicros(r.now)
	for range n {
		_, err := k.Send(make([]byte, 1376))
		require.NoError(t, err)
	}
	for k.snd.inFlight < n {
		k.snd.pace.Budget = 1e9
		k.Flush()
		r.later(10)
	}
	r.later(100_000)
	k.snd.pace.Budget = 0
	r.sent = nil
	return r
}

func (r *resender) later(micros uint64) {
	r.now += micros
	r.k.SetClockMicros(r.now)
}

var resendControls = map[string]func() congestion.Control{
	"unpaced":       congestion.NewNone,
	"paced":         func() congestion.Control { return pacedControl{congestion.NewNone(), 1_000_000} },
	"narrow":        func() congestion.Control { return narrowControl{congestion.NewNone(), 2048} },
	"slow":          func() congestion.Control { return pacedControl{congestion.NewNone(), 10_000} },
	"narrow, paced": func() congestion.Control { return pacedControl{narrowControl{congestion.NewNone(), 2048}, 1_000_000} },
}

// A few acknowledgements, each of the newest segment in flight, cause
// retransmissions of twice what they acknowledge, and a little beside: not of the
// window.
func TestFewAcksResendLittle(t *testing.T) {
	for name, control := range resendControls {
		r := newResender(t, control(), 2048)
		k := r.k
		for i := range 6 {
			require.NoError(t, k.Input(ack(uint32(2047-i), uint32(k.snd.ring.at(seq(2047-i)).ts), 0)))
			k.Flush()
			r.later(1000)
		}
		k.Flush()
		require.NotEmpty(t, r.sent, name)
		require.LessOrEqual(t, len(r.sent), resendFirst+6*resendGrowth+10+6, name)
	}
}

// What has to wait before it is retransmitted is due all the time: a driver that
// comes when NextFlush says sends all of it, oldest first, and is
// never asked to come at once again.
func TestResendingGoesOn(t *testing.T) {
	for name, control := range resendControls {
		r := newResender(t, control(), 512)
		k := r.k
		for i := range 4 {
			require.NoError(t, k.Input(ack(uint32(511-i), uint32(k.snd.ring.at(seq(511-i)).ts), 0)))
		}
		for steps := 0; len(r.sent) < 508; steps++ {
			require.Less(t, steps, 3000, "%s: %d sent", name, len(r.sent))
			k.Flush()
			at, ok := k.NextFlush()
			require.True(t, ok, name)
			require.True(t, seq(at).after(k.clock.now), "%s: NextFlush stands still, %d sent", name, len(r.sent))
			r.later(uint64(uint32(seq(at)-k.clock.now)) * 1000)
			due, _ := k.NextFlush()
			require.False(t, seq(due).after(k.clock.now), "%s: NextFlush puts it off, %d sent", name, len(r.sent))
		}
		for i, sn := range r.sent[:508] {
			require.EqualValues(t, i, sn, "%s: not the oldest", name)
		}
		requireBooks(t, k)
		require.Less(t, r.now, uint64(15_000_000), name)
	}
}

// Acknowledgements that come in keep repairs going at twice their pace.
func TestResendingFollowsAcks(t *testing.T) {
	r := newResender(t, congestion.NewNone(), 1024)
	k := r.k
	for i := range 512 { // every second one is lost
		sn := uint32(2*i + 1)
		require.NoError(t, k.Input(ack(sn, uint32(k.snd.ring.at(seq(sn)).ts), 0)))
		if i%8 == 7 {
			k.Flush()
		}
	}
	r.later(30_000)
	k.Flush()
	require.Greater(t, len(r.sent), 500)
}

// What was declared lost and is acknowledged before it is retransmitted was not
// lost: that counts as reordering, and is not sent.
func TestAcknowledgedBeforeResending(t *testing.T) {
	r := newResender(t, congestion.NewNone(), 512)
	k := r.k
	ackOf := func(sn uint32) []byte { return ack(sn, uint32(k.snd.ring.at(seq(sn)).ts), 0) }
	require.NoError(t, k.Input(concat([][]byte{ackOf(510), ackOf(511)})))
	k.Flush()
	waiting := k.snd.loss.due.n
	require.Greater(t, waiting, 400)
	require.NoError(t, k.Input(ackOf(500)))
	require.Equal(t, waiting-1, k.snd.loss.due.n)
	require.Equal(t, 1, k.snd.recovery.spurious)
	require.Zero(t, k.counters.SpuriousRetransmits)
	require.NoError(t, k.Input(segment(cmdWins, 0, 0, 0, 512, "")))
	require.Zero(t, k.snd.loss.due.n)
	require.Zero(t, k.WaitSend())
	_, ok := k.NextFlush()
	require.False(t, ok)
}
