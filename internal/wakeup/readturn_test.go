package wakeup

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
)

type session struct{}

// The loop that hands over gets the turn back 1 ms after the last call, with the
// session that has read last. It then lets more and more wake-ups pass, unless calls
// have read eight times in a row.
func TestTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn ReadTurn[session]
		require.False(t, turn.Possible())
		turn.Init()
		require.True(t, turn.Possible())
		require.False(t, turn.Acquire(), "the loop has the turn")
		handOver := func(calls int) (passed int) {
			for !turn.HandOver() {
				passed++
			}
			c, start := new(session), time.Now()
			for range calls {
				time.Sleep(500 * time.Microsecond)
				require.True(t, turn.Acquire())
				require.False(t, turn.Acquire(), "another call has it")
				require.Equal(t, Call, turn.Who())
				turn.Release(c, 1, true)
				require.Equal(t, Nobody, turn.Who())
				start = time.Now()
			}
			last := turn.Await()
			require.Equal(t, Loop, turn.Who())
			require.Equal(t, calls > 0, last == c)
			require.GreaterOrEqual(t, time.Since(start), 500*time.Microsecond)
			require.LessOrEqual(t, time.Since(start), 2*time.Millisecond)
			return passed
		}
		require.Equal(t, 0, handOver(1))
		require.Equal(t, 1, handOver(0))
		require.Equal(t, 2, handOver(0))
		require.Equal(t, 4, handOver(8))
		require.Equal(t, 1, handOver(0))
		for range 20 {
			handOver(0)
		}
		require.Equal(t, 1024, handOver(0))
	})
}

// Calls that follow each other soon leave the timer set. If few do, they stop it, and
// now and then find out anew.
func TestTimerOfFewCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn ReadTurn[session]
		turn.Init()
		armed := func() bool {
			turn.mu.Lock()
			defer turn.mu.Unlock()
			return turn.armed
		}
		require.True(t, turn.HandOver())
		call := func(between time.Duration) {
			require.True(t, turn.Acquire())
			time.Sleep(between)
			synctest.Wait()
			turn.Release(nil, 1, true)
		}
		for range 10 {
			call(Grace / 4)
			require.True(t, armed())
		}
		call(2 * Grace) // the timer fires meanwhile, with many calls
		require.Zero(t, turn.stops)
		call(2 * Grace)
		require.Equal(t, maxStops, turn.stops, "with one")
		for i := range maxStops {
			require.True(t, turn.Acquire())
			require.False(t, armed())
			require.Equal(t, maxStops-1-i, turn.stops)
			time.Sleep(2 * Grace)
			turn.Release(nil, 1, true)
		}
		require.True(t, turn.Acquire())
		require.True(t, armed(), "no longer")
		turn.Release(nil, 1, false)
		turn.Await()
		time.Sleep(Grace)
	})
}

// While 16 calls come in each millisecond the timer is set for longer, twice as long each
// time up to 8 ms, and for 1 ms again once fewer or a burst of packets have come.
func TestTimerOfManyCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn ReadTurn[session]
		turn.Init()
		require.True(t, turn.HandOver())
		packets := 1
		fires := func(every time.Duration) time.Duration {
			start := time.Now()
			for was := turn.armedAt; ; {
				require.True(t, turn.Acquire())
				turn.Release(nil, packets, true)
				time.Sleep(every)
				synctest.Wait()
				turn.mu.Lock()
				now := turn.armedAt
				turn.mu.Unlock()
				if now != was {
					return time.Since(start)
				}
			}
		}
		for _, ms := range []time.Duration{1, 2, 4, 8, 8} {
			require.Equal(t, ms*time.Millisecond, fires(time.Millisecond/20).Round(time.Millisecond))
		}
		require.Equal(t, 8*time.Millisecond, fires(time.Millisecond/10).Round(time.Millisecond))
		require.Equal(t, time.Millisecond, fires(time.Millisecond/20).Round(time.Millisecond), "10 a millisecond came before")
		require.Equal(t, 2*time.Millisecond, fires(time.Millisecond/20).Round(time.Millisecond))
		packets = burstPackets - 1
		require.Equal(t, 4*time.Millisecond, fires(time.Millisecond/20).Round(time.Millisecond))
		packets = burstPackets
		require.Equal(t, 8*time.Millisecond, fires(time.Millisecond/20).Round(time.Millisecond))
		require.Equal(t, time.Millisecond, fires(time.Millisecond/20).Round(time.Millisecond), "bursts came before")
		packets = 1
		require.Equal(t, time.Millisecond, fires(time.Millisecond/20).Round(time.Millisecond))
		require.Equal(t, 2*time.Millisecond, fires(time.Millisecond/20).Round(time.Millisecond))
		start := time.Now()
		turn.Await()
		require.Less(t, time.Since(start), 8*time.Millisecond)
	})
}

// A call that expects no other gives the turn back at once. After Stop there is no
// turn for calls.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn ReadTurn[session]
		turn.Init()
		require.True(t, turn.HandOver())
		require.True(t, turn.Acquire())
		turn.Release(nil, 1, false)
		require.Nil(t, turn.Await())
		require.Equal(t, Loop, turn.Who())
		turn.HandOver()
		turn.Stop()
		turn.Stop()
		turn.Await()
		require.False(t, turn.HandOver())
		require.False(t, turn.Acquire())
		time.Sleep(time.Second)
	})
}

// An interrupt is repeated after 1, 2, 4 ... 100 ms until the call has left its turn,
// and not in the turn of another.
func TestInsist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn ReadTurn[session]
		turn.Init()
		var interrupts atomic.Int32 // counted on the timer's goroutine
		insist := func() { turn.Insist(func() { interrupts.Add(1) }) }
		insist()
		time.Sleep(time.Second)
		require.Zero(t, interrupts.Load(), "no call reads")
		turn.HandOver()
		turn.Acquire()
		insist()
		time.Sleep(7500 * time.Microsecond)
		require.EqualValues(t, 3, interrupts.Load())
		time.Sleep(1200 * time.Millisecond)
		require.EqualValues(t, 3+4+10, interrupts.Load())
		turn.Release(nil, 1, true)
		turn.Acquire()
		time.Sleep(time.Second)
		require.EqualValues(t, 17, interrupts.Load())
		turn.Release(nil, 1, false)
		turn.Await()
	})
}

// The constants of the package are the figures that RULES.md says.
func TestReadTurnFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| A blocked call", "1 ms", Grace},
		{"| A blocked call", "2 come", fewCalls},
		{"| A blocked call", "64 stop", maxStops},
		{"| A blocked call", "8 ms", MaxGrace},
		{"| A blocked call", "16 calls", manyCalls},
		{"| A blocked call", "4 packets", burstPackets},
		{"| Sockets of NewEndpoint", "1 to 100 ms", Soon},
		{"| Sockets of NewEndpoint", "100 ms", Late},
	})
}
