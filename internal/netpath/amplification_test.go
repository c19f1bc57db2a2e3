package netpath

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
)

// The constants of the package are the figures that RULES.md says.
func TestAmplificationFigures(t *testing.T) {
	const delayed = "| An unvalidated legacy peer"
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{delayed, "200 bytes", ackAfter},
		{delayed, "250 ms", ackHold * time.Millisecond},
		{"| An address is validated", "64 transmissions", echoMemory},
		{"| Until then", "3 x", factor},
		{"| Until then", "1 MiB", maxCredit},
		{"| Requests: while 16", "100 ms", answerPeriod * time.Millisecond},
	})
}

// A peer is sent three times what has come from it, 1 MiB at a time.
func TestSendCredit(t *testing.T) {
	l := NewAmplificationLimit(0, false, 0)
	require.False(t, l.Take(1))
	require.True(t, l.Received(1000))
	require.True(t, l.Take(3000))
	require.False(t, l.Take(1))
	require.False(t, l.Allows(1, false))
	l.Charge(1, false)
	require.True(t, l.Overdrawn())
	for range 1000 {
		l.Received(1000)
	}
	require.True(t, l.Take(1<<20))
	require.False(t, l.Take(1))
	require.False(t, l.Overdrawn())
	require.Equal(t, 1001*1000, l.Total())
	l.Received(1 << 30)
	require.Equal(t, 1<<20, l.Total())
}

// Nil is no limit.
func TestNoLimit(t *testing.T) {
	var l *AmplificationLimit
	require.False(t, l.Received(1))
	require.True(t, l.Take(1<<30))
	require.False(t, l.Overdrawn())
	require.False(t, l.Echoed())
	require.False(t, l.Withholds(true, 0))
	l.AcknowledgeAtOnce()
}

// Half of the credit is left for retransmissions, unless nothing is in flight.
func TestMayBegin(t *testing.T) {
	l := NewAmplificationLimit(50, false, 0)
	l.Received(100)
	require.Equal(t, 50, l.Overhead())
	require.True(t, l.Allows(300, false))
	require.True(t, l.Allows(250, true))
	require.False(t, l.Allows(251, true))
	l.Charge(10, true)
	require.True(t, l.Allows(190, true))
	require.False(t, l.Allows(191, true))
	l.Received(20)
	require.True(t, l.MayBegin(250, false))
	require.False(t, l.MayBegin(251, false))
	require.True(t, l.MayBegin(100, true))
	require.False(t, l.MayBegin(101, true))
}

// The first segment can be sent six times, or twice if the peer goes on to retransmit.
func TestFirstSize(t *testing.T) {
	l := NewAmplificationLimit(26, true, 0)
	l.Received(100)
	require.Equal(t, 1, l.FirstSize(1000, false))
	l.Received(100)
	require.Equal(t, 50, l.FirstSize(1000, false))
	require.Equal(t, 40, l.FirstSize(40, false))
	require.Equal(t, 250, l.FirstSize(250, true))
	require.Equal(t, 50, l.FirstSize(251, true))
}

// A legacy peer gets no ACK for 250 ms before it has sent 200 bytes, and none while data
// is in flight. An extended one gets them at once.
func TestWithholds(t *testing.T) {
	const begun = container.Serial(1<<32 - 100)
	for sent := 199; sent <= 200; sent++ {
		l := NewAmplificationLimit(0, true, begun)
		l.Received(sent)
		for ms := container.Serial(248); ms <= 252; ms++ {
			require.Equal(t, sent < 200 && ms < 250, l.Withholds(false, begun+ms), "%d bytes, %d ms", sent, ms)
			require.Equal(t, sent < 200, l.Withholds(true, begun+ms))
		}
		l.AcknowledgeAtOnce()
		require.False(t, l.Withholds(true, begun))
	}
	require.False(t, NewAmplificationLimit(0, false, begun).Withholds(true, begun))
}

// An ACK of any of the last 64 transmissions validates an address, and of no other.
func TestEchoMemory(t *testing.T) {
	for back := range 70 {
		l := NewAmplificationLimit(0, false, 0)
		for i := range container.Serial(100) {
			l.Transmitted(i, 1000+i)
		}
		latest := 99 - container.Serial(back)
		require.False(t, l.Acknowledged(latest, 1000+latest+1), "another ts")
		require.False(t, l.Echoed())
		require.Equal(t, back < 64, l.Acknowledged(latest, 1000+latest), "%d before the last", back)
		require.Equal(t, back < 64, l.Echoed())
	}
	require.False(t, NewAmplificationLimit(0, false, 0).Acknowledged(0, 0), "nothing was sent")
}

// A number of requests are answered in 100 ms, from the first of them on.
func TestMayAnswer(t *testing.T) {
	l, now := NewAmplificationLimit(0, false, 0), container.Serial(1<<32-50)
	for range 3 {
		for range 4 {
			require.True(t, l.MayAnswer(now, 4))
		}
		require.False(t, l.MayAnswer(now+99, 4))
		now += 100
	}
}
