package recovery

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
)

const (
	usual = 5
	srtt  = 20
)

// exchange is data that arrives at now and is answered took milliseconds later. It
// returns for how long its ACK might have waited.
func exchange(r *Replies, now, took uint32) uint32 {
	r.Arrived(now)
	delay := r.Delay(now, usual, srtt)
	r.Replied(now + took)
	return delay
}

// regular returns a rhythm of replies that take 20 ms, and the time after it. The
// first of them comes at a time that is about to wrap around.
func regular(t *testing.T) (*Replies, uint32) {
	t.Helper()
	r, now := new(Replies), uint32(1<<32-800)
	for range 16 {
		require.EqualValues(t, usual, exchange(r, now, 20))
		require.Zero(t, r.Announcement())
		now += 100
	}
	require.EqualValues(t, usual, exchange(r, now, 20), "the peer does not know yet")
	require.EqualValues(t, 32, r.Announcement(), "by half longer than replies take, and a tick")
	now += 100
	require.EqualValues(t, 32, exchange(r, now, 20))
	require.EqualValues(t, 0x80|32, r.Announcement())
	return r, now + 100
}

// One ACK of 32 does not wait, as a sample of the round trip.
func TestSamples(t *testing.T) {
	r, now := regular(t)
	waited := 0
	for range 64 {
		if exchange(r, now, 20) == 32 {
			waited++
		}
		now += 100
	}
	require.Equal(t, 62, waited)
}

// How many replies it takes until ACKs wait again.
func TestPauses(t *testing.T) {
	for name, test := range map[string]struct {
		pause func(r *Replies, now uint32)
		again int
	}{
		"a loss":             {func(r *Replies, _ uint32) { r.Disturbed() }, 250},
		"a reply of 101 ms":  {func(r *Replies, now uint32) { exchange(r, now, 101) }, 16},
		"a reply of 100 ms":  {func(r *Replies, now uint32) { exchange(r, now, 100) }, 0},
		"an ACK alone":       {func(r *Replies, now uint32) { r.Arrived(now); r.Delay(now, usual, srtt); r.Alone(now + 32) }, 17}, // the reply to it is late
		"an ACK before that": {func(r *Replies, now uint32) { r.Arrived(now); r.Delay(now, usual, srtt); r.Alone(now + 31) }, 0},
		"quick replies": {func(r *Replies, now uint32) {
			for range 200 {
				exchange(r, now, 0)
				now += 100
			}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r, now := regular(t)
			test.pause(r, now)
			now += 100_000
			n := 0
			for r.Hold == 0 && n < 1000 || n == 0 && test.again > 0 {
				r.Arrived(now)
				r.Delay(now, usual, srtt)
				if r.Hold > 0 {
					break
				}
				r.Replied(now + 20)
				now += 200
				n++
			}
			require.Equal(t, test.again, n)
		})
	}
}

// Data that the application writes when nothing has arrived is no reply.
func TestDataThatIsNoReply(t *testing.T) {
	r, now := regular(t)
	r.Replied(now + 5000)
	require.EqualValues(t, 32, exchange(r, now+6000, 20))
}

// The constants of the package are the figures that RULES.md says.
func TestReplyFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| An ACK waits", "100 ms", MaxHold * time.Millisecond},
		{"| An ACK waits", "16 replies", FirstReplies},
		{"| An ACK waits", "250 after", Streak},
		{"| An ACK waits", "of 32", UndelayedShare},
	})
}
