package recovery

import (
	"math"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
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

// While the budget lasts there is nothing to wait for.
func TestNothingToWaitFor(t *testing.T) {
	require.Zero(t, (&Pacer{filled: true, Budget: 1, last: 100}).Wait(100, 1_000_000))
	require.Zero(t, (&Pacer{Budget: -1000, last: 100}).Wait(100, 1_000_000), "it was never filled")
	require.EqualValues(t, 1002, (&Pacer{filled: true, Budget: -1000, last: 100}).Wait(100, 1_000_000))
}

// In any time no more leaves than the rate of a Cap allows and one packet, and on
// average as much, if the timer comes when Wait says.
func TestCap(t *testing.T) {
	for _, size := range []int{100, 1400, 9000} {
		const rate, micros = 125_000, 10_000_000
		var c RateCap
		c.SetRate(rate, 0)
		sent, wakes := 0, 0
		for now := int64(0); now < micros; wakes++ {
			for c.Ready(now, 0) {
				c.Spend(size)
				sent += size
			}
			require.True(t, c.Blocked())
			require.LessOrEqual(t, int64(sent), rate*now/1e6+int64(size), "%d bytes after %d us", size, now)
			now += c.Wait(now)
		}
		require.InDelta(t, float64(rate)*micros/1e6, sent, float64(size))
		require.InDelta(t, sent/size, wakes, 2, "woken for nothing")
	}
}

// What is borrowed is at most what the rate allows in 200 ms, and 1400 bytes. Until it
// is paid back the rest has half of the rate. A lower rate forgets what is beyond.
func TestCapBorrow(t *testing.T) {
	const rate, size = 100_000, 1400
	var c RateCap
	c.SetRate(rate, 0)
	c.Borrow(size)
	require.False(t, c.Indebted())
	for range 100 {
		c.Borrow(size)
	}
	require.True(t, c.Indebted())
	require.True(t, c.Ready(0, 0), "the rest does not wait")
	c.Spend(10_000)
	require.InDelta(t, 200_000, c.Wait(0), 2)
	require.False(t, c.Ready(199_999, 0))
	require.True(t, c.Ready(200_002, 0))
	c.Spend(15_000) // 11400 are left to be paid back
	require.InDelta(t, 200_000+264_000, c.Wait(200_002)+200_002, 4)
	for range 100 {
		c.Borrow(size)
	}
	c.SetRate(1000, 200_002)
	require.InDelta(t, 3_200_000, c.Wait(200_002), 2)
	require.True(t, c.Ready(3_400_004, 0))
	c.Spend(1000)
	require.InDelta(t, 1_000_000, c.Wait(3_400_004), 2, "all is paid back")

	require.True(t, c.Ready(4_400_006, 0))
	c.Borrow(1000)
	require.True(t, c.Ready(5_900_006, 0))
	c.Spend(1000)
	require.InDelta(t, 1_000_000, c.Wait(5_900_006), 2, "what nobody used pays for it too")
}

// Another rate counts from the moment that it is set.
func TestCapChanges(t *testing.T) {
	var c RateCap
	c.SetRate(1000, 0)
	require.True(t, c.Ready(0, 0))
	c.Spend(1000)
	c.SetRate(2000, 500_000)
	require.InDelta(t, 250_000, c.Wait(500_000), 2)
	c.SetRate(500, 600_000)
	require.InDelta(t, 600_000, c.Wait(600_000), 2)

	c.SetRate(1_000_000, 2_000_000)
	c.Spend(1)
	require.False(t, c.Ready(2_000_000, 0))
	c.SetRate(1000, 2_010_000) // earned 10 ms of the old rate
	require.True(t, c.Ready(2_010_000, 0))
	c.Spend(1)
	require.False(t, c.Ready(2_010_000, 0), "nothing of the old rate is left")
}

// The largest and the smallest rate do not overflow.
func TestCapExtremes(t *testing.T) {
	for _, rate := range []int64{1, math.MaxInt64} {
		var c RateCap
		c.SetRate(rate, 0)
		c.Spend(1000)
		c.Borrow(1000)
		require.Positive(t, c.Wait(0))
		require.LessOrEqual(t, c.Wait(0), int64(3600e6+1))
		require.False(t, c.Ready(0, 0))
		require.True(t, c.Ready(math.MaxInt64, 0))
		require.Zero(t, c.Wait(math.MaxInt64))
	}
}

// Where bursts are lost retransmissions wait, a debt is forgotten, and little is made up
// for after a pause.
func TestStrictPacer(t *testing.T) {
	const rate = 2_500_000
	p := Pacer{Burst: -1}
	p.Refill(0, rate, packetSize)
	if p.StrictWait(0, rate) > 0 || p.Budget > rate*strictTime/1e6 {
		t.Fatal("the first burst", p.Budget)
	}
	p.Charge(100_000, rate)
	p.Refill(1, rate, packetSize)
	if wait := p.Wait(1, rate); p.StrictWait(1, rate) != wait || wait > 1000 {
		t.Fatal("a debt", wait)
	}
	p.Refill(1_000_000, rate, packetSize)
	if p.Budget > rate*strictTime/1e6 {
		t.Fatal("after a pause", p.Budget)
	}
	if p.StrictWait(1, 0) > 0 {
		t.Fatal("unpaced")
	}
	p.Charge(10_000, rate)
	if p.Burst = 0; p.Wait(1_000_000, rate) == 0 || p.StrictWait(1_000_000, rate) > 0 {
		t.Fatal("bursts are not lost")
	}
}

// The constants of the package are the figures that RULES.md says.
func TestPacingFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Pacing", "2 ms", burstTime * time.Microsecond},
		{"| Pacing", "10 packets", idleBurst},
		{"| Pacing", "1400 bytes", packetSize},
		{"| Pacing", "10 ms", catchUp * time.Microsecond},
		{"| Pacing", "200 ms", debtTime * time.Microsecond},
		{"| Pacing where", "1.2 ms", strictTime * time.Microsecond},
		{"| Cap of the rate", "10 ms", catchUp * time.Microsecond},
		{"| Cap of the rate", "200 ms", debtTime * time.Microsecond},
		{"| Cap of the rate", "1400 bytes", packetSize},
		{"| Cap of the rate", "1 ms apart", leastCapWait},
		{"| Cap of the rate", "above 1000000", fineCap},
		{"| At the cap 256", "100 ms", heldTime},
		{"| At the cap 256", "256 datagrams", MaxHeld},
		{"| At the cap 256", "256 packets", MaxHeld},
		{"| At the cap the write", "1 s", cappedTime},
		{"| At the cap the write", "64 KiB", LeastWriteBuffer},
	})
}
