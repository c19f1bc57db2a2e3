package machine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/congestion"
)

// pacedControl leaves the window alone and limits the rate.
type pacedControl struct {
	congestion.Control
	rate int64
}

func (p pacedControl) PacingRate() int64 { return p.rate }

// pacedHarness returns a state machine with much to send at rate, and what it
// puts out by time.
func pacedHarness(t *testing.T, rate int64, segments int) (k *KCP, sent *int) {
	sent = new(int)
	k = New(1, func(p []byte) { *sent += len(p) })
	k.SetCongestionControl(pacedControl{congestion.NewNone(), rate})
	require.NoError(t, k.SetWindow(segments, segments))
	k.peer.wnd = uint32(segments)
	k.SetClockMicros(0)
	for range segments {
		_, err := k.Send(make([]byte, 1376))
		require.NoError(t, err)
	}
	return k, sent
}

// A driver that comes when NextFlush says gets the rate, to within a packet,
// at any rate, and no burst larger than the initial one and two ticks.
func TestPacingRate(t *testing.T) {
	t.Parallel()
	long(t)
	for _, rate := range []int64{300, 20_000, 1_250_000, 60_000_000} {
		k, sent := pacedHarness(t, rate, 40_000)
		now, largest, last := uint32(0), 0, 0
		steps := 0
		for now < 500 {
			k.SetClock(now)
			k.Flush()
			if now > 0 {
				largest = max(largest, *sent-last)
			}
			last = *sent
			at, ok := k.NextFlush()
			require.True(t, ok)
			if at == now { // a time-out would be next
				break
			}
			require.Greater(t, at, now, "rate %d: NextFlush stands still", rate)
			now = at
			steps++
			if k.WaitSend() == k.snd.inFlight {
				break
			}
			k.snd.timeouts = timeouts{} // nothing is ever lost here
		}
		want := float64(rate)*float64(k.clock.micros)/1e6 + max(10*1400, float64(rate)*2000/1e6)
		require.InDelta(t, want, float64(*sent), 2*1400+float64(rate)/1000, "rate %d after %d us", rate, k.clock.micros)
		require.LessOrEqual(t, largest, int(max(2*1400, rate/1000+1400)), "rate %d: burst", rate)
		if rate == 300 {
			require.Less(t, steps, 10, "woken for nothing")
		}
	}
}

// Retransmissions leave at once, and what they use is taken from new data.
func TestPacingChargesRetransmissions(t *testing.T) {
	const rate = 1_000_000
	k, sent := pacedHarness(t, rate, 200)
	k.Flush()
	require.InDelta(t, 14_000, *sent, 1400)
	before := *sent
	k.SetClock(300) // all of them time out
	k.Flush()
	require.EqualValues(t, 10, k.counters.TimeoutRetransmits)
	require.Equal(t, 10*1400, *sent-before, "new data left too")
	k.snd.timeouts = timeouts{}
	k.SetClock(301)
	k.Flush()
	require.Equal(t, 11*1400, *sent-before)
}

// narrowControl has a window that does not move.
type narrowControl struct {
	congestion.Control
	window int
}

func (n narrowControl) Window() int { return n.window }

// A hole at snd_una uses up one place in the congestion window, not all of it;
// the windows of the two ends count from snd_una all the same.
func TestPipeWindow(t *testing.T) {
	for _, on := range []bool{false, true} {
		h := newHarness(t, func(k *KCP) {
			k.SetExtensions(Extensions{PipeWindow: on})
			k.SetCongestionControl(narrowControl{congestion.NewNone(), 3})
			require.NoError(t, k.SetWindow(5, 128))
		})
		for _, s := range []string{"a", "b", "c", "d", "e", "f"} {
			h.send(s)
		}
		h.advance(0)
		h.want(`push 0 frg=0 "a"`, `push 1 frg=0 "b"`, `push 2 frg=0 "c"`)
		h.input(ack(1, 1000, 0))
		h.advance(0)
		if !on {
			h.want()
			continue
		}
		h.want(`push 3 frg=0 "d"`)
		h.input(ack(2, 1000, 0), ack(3, 1000, 0))
		h.advance(0)
		h.want(`push 4 frg=0 "e"`) // and f is beyond the send window
		_, ok := h.k.NextFlush()
		require.True(t, ok)
	}
}
