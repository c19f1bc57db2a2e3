package pacing

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Packets larger than usual are paid for too.
func TestPacingOfLargePackets(t *testing.T) {
	var p Pacer
	const rate, size, seconds = 4000, 9000, 100
	sent := 0
	for now := int64(0); now < seconds*1e6; now += 1000 {
		for p.Refill(now, rate, size); p.Ready(); sent += size {
			p.Spend(size)
		}
	}
	require.InDelta(t, rate*seconds, sent, 10*1400+size)
}

// After a pause ten packets of 1400 bytes leave at once. A late timer makes up for
// 10 ms if the budget was what held data back, and for 2 ms otherwise.
func TestLateTimer(t *testing.T) {
	const rate, size = 14_000_000, 1400 // ten packets a millisecond
	leave := func(p *Pacer, now int64) (n int) {
		for p.Refill(now, rate, size); p.Ready(); n++ {
			p.Spend(size)
		}
		return n
	}
	var p Pacer
	require.Equal(t, 20, leave(&p, 1000))
	require.EqualValues(t, 1, p.Wait(1000, rate))
	require.Equal(t, 100, leave(&p, 51_000))
	p.Refill(52_000, rate, size)
	p.Idle()
	require.Equal(t, 20, leave(&p, 102_000))
}

// Retransmissions use up 200 ms and a packet in advance, and no more.
func TestChargeIsBounded(t *testing.T) {
	const rate, size = 1_000_000, 1400
	var p Pacer
	p.Refill(0, rate, size)
	for range 1000 {
		p.Charge(size, rate)
	}
	require.False(t, p.Ready())
	require.InDelta(t, 201_400, p.Wait(0, rate), 2)
}

// While the budget lasts there is nothing to wait for.
func TestNothingToWaitFor(t *testing.T) {
	require.Zero(t, (&Pacer{filled: true, Budget: 1, last: 100}).Wait(100, 1_000_000))
	require.Zero(t, (&Pacer{Budget: -1000, last: 100}).Wait(100, 1_000_000), "it was never filled")
	require.EqualValues(t, 1002, (&Pacer{filled: true, Budget: -1000, last: 100}).Wait(100, 1_000_000))
}
