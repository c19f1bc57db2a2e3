package opening

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/wire"
)

const ms = time.Millisecond

var signal = wire.Signal{Code: wire.Fin, SN: 7, TS: 9}

// transmissions returns after what times since its start a request is sent until then.
func transmissions(until time.Duration, sent func(l *State, now time.Duration), start func(l *State, now time.Duration)) (at []time.Duration) {
	var l State
	const begin = time.Hour
	start(&l, begin)
	for next := l.Next(); next-begin <= until; next = l.Next() {
		at = append(at, next-begin)
		sent(&l, next)
	}
	return at
}

// When requests are sent that nothing answers. WIRE.md §5 says the same.
func TestRequestsAreRepeated(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../WIRE.md")
	require.NoError(t, err)
	text = bytes.Join(bytes.Fields(text), []byte(" "))
	require.Contains(t, string(text), "first after a retransmission time-out (HELLO: 200 ms), then at doubled distances "+
		"up to 2 s (HELLO, for the first twenty while nothing has arrived: 0.5 s)")
	hello := func(l *State, now time.Duration) { l.Start(Hello, signal, now, FirstHello) }
	send := func(l *State, now time.Duration) { l.Sent(Hello, now, MaxWait) }
	require.Equal(t, []time.Duration{0, 200 * ms, 600 * ms, 1100 * ms, 1600 * ms, 2100 * ms}, transmissions(2500*ms, send, hello))
	all := transmissions(20*time.Second, send, hello)
	require.Equal(t, 500*ms, all[20]-all[19], "the last that is eager")
	require.Equal(t, 2*time.Second, all[21]-all[20])
	require.Equal(t, []time.Duration{0, 200 * ms, 600 * ms, 1400 * ms, 3000 * ms, 5000 * ms, 7000 * ms},
		transmissions(8*time.Second, send, func(l *State, now time.Duration) { hello(l, now); l.Reached = true }), "something has arrived")
	waits := func(l *State, now time.Duration) {
		l.Role = Dialling
		l.Start(Confirm, signal, now, 300*ms)
	}
	require.Equal(t, []time.Duration{0, 300 * ms, 800 * ms, 1300 * ms, 1800 * ms},
		transmissions(2*time.Second, func(l *State, now time.Duration) { l.Sent(Confirm, now, MaxWait) }, waits), "a Dial waits")
	for _, k := range Kinds[1:] {
		start := func(l *State, now time.Duration) { l.Start(k, signal, now, 300*ms) }
		require.Equal(t, []time.Duration{0, 300 * ms, 900 * ms, 2100 * ms, 4100 * ms},
			transmissions(6*time.Second, func(l *State, now time.Duration) { l.Sent(k, now, MaxWait) }, start), k)
		require.Equal(t, []time.Duration{0, 300 * ms, 800 * ms, 1300 * ms},
			transmissions(1500*ms, func(l *State, now time.Duration) { l.Sent(k, now, 500*ms) }, start), k)
		long := func(l *State, now time.Duration) { l.Start(k, signal, now, 10*time.Second) }
		require.Equal(t, []time.Duration{0, 10 * time.Second, 20 * time.Second},
			transmissions(25*time.Second, func(l *State, now time.Duration) { l.Sent(k, now, time.Minute) }, long), "a wait that is longer stays")
	}
}

// Each request with each event: whether it waits, was asked, and when it is due.
func TestRequests(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		happens       func(l *State, k Kind)
		active, asked bool
		tries         uint8
		next          time.Duration
	}{
		"nothing":         {happens: func(*State, Kind) {}},
		"started":         {func(l *State, k Kind) { l.Start(k, signal, 5*ms, 50*ms) }, true, false, 0, 5 * ms},
		"started at once": {func(l *State, k Kind) { l.Start(k, signal, 0, 50*ms) }, true, false, 0, 1},
		"sent":            {func(l *State, k Kind) { l.Start(k, signal, 5*ms, 50*ms); l.Sent(k, 6*ms, MaxWait) }, true, true, 1, 56 * ms},
		"answered":        {func(l *State, k Kind) { l.Start(k, signal, 5*ms, 50*ms); l.Sent(k, 6*ms, MaxWait); l.Unanswered &^= k }, false, false, 1, 0},
		"stopped":         {func(l *State, k Kind) { l.Unanswered &^= k }, false, false, 0, 0},
		"started again": {func(l *State, k Kind) {
			l.Start(k, wire.Signal{}, 0, ms)
			l.Sent(k, 0, MaxWait)
			l.Start(k, signal, 9*ms, ms)
		}, true, false, 0, 9 * ms},
		"again": {func(l *State, k Kind) { l.Start(k, signal, 0, ms); l.Again(k, 30*ms, 70*ms) }, true, false, 0, 100 * ms},
		"again, then sent": {func(l *State, k Kind) {
			l.Start(k, signal, 0, ms)
			l.Again(k, 30*ms, 70*ms)
			l.Sent(k, 100*ms, MaxWait)
		}, true, true, 1, 170 * ms},
		"in a hurry": {func(l *State, k Kind) { l.Start(k, signal, 0, 50*ms); l.Sent(k, 0, MaxWait); l.Hurry(k, 3*ms) }, true, true, 1, 3 * ms},
		"very often": {func(l *State, k Kind) {
			l.Start(k, signal, 0, ms)
			for range 1000 {
				l.Sent(k, 0, ms)
			}
		}, true, true, 255, ms},
	} {
		for i, k := range Kinds {
			l := State{Reached: true}
			tc.happens(&l, k)
			require.Equal(t, tc.active, l.Unanswered == k, name)
			require.Equal(t, tc.active, l.Unanswered != 0, name)
			require.Equal(t, tc.asked, l.Asked(k), name)
			require.Equal(t, tc.tries, l.Of(k).Tries, name)
			require.Equal(t, tc.next, l.Next(), name)
			require.Equal(t, tc.active && tc.next <= 20*ms, l.Due(k, 20*ms), name)
			require.Equal(t, tc.active, l.Due(k, tc.next), name)
			require.False(t, l.Due(k, tc.next-2), name)
			if tc.active {
				require.Equal(t, signal, l.Of(k).Signal, name)
			}
			for j, other := range Kinds {
				require.Equal(t, i == j, l.Of(k) == l.Of(other))
				require.False(t, i != j && (l.Asked(other) || l.Due(other, time.Hour)), name)
			}
		}
	}
}

// The first of several requests counts.
func TestNext(t *testing.T) {
	t.Parallel()
	var l State
	require.Zero(t, l.Next())
	for i, at := range []time.Duration{30 * ms, 20 * ms, 40 * ms, 10 * ms} {
		l.Start(Kinds[i], wire.Signal{SN: uint32(i)}, at, MinWait)
	}
	for _, want := range []struct {
		at time.Duration
		k  Kind
	}{{10 * ms, Ping}, {20 * ms, Confirm}, {30 * ms, Hello}, {40 * ms, Finish}} {
		require.Equal(t, want.at, l.Next())
		require.False(t, l.Due(want.k, want.at-1))
		require.True(t, l.Due(want.k, want.at))
		l.Unanswered &^= want.k
	}
	require.Zero(t, l.Next())
}

// Four cookies are answered at once, others 50 ms after the last HELLO, or later if that
// is large.
func TestCookies(t *testing.T) {
	t.Parallel()
	for _, large := range []bool{false, true} {
		var l State
		l.Start(Hello, signal, time.Second, FirstHello)
		now := time.Second
		for i := range 8 {
			l.Sent(Hello, now, MaxWait)
			l.Cookie(now+ms, large)
			gap := ms
			switch {
			case i >= MaxCookies && large:
				gap = EagerWait
			case i >= MaxCookies:
				gap = HelloGap
			}
			require.Equal(t, now+gap, l.Next(), i)
			now = l.Next()
		}
		l.Sent(Hello, now, MaxWait)
		l.Cookie(now+time.Second, large)
		require.Equal(t, now+time.Second, l.Next(), "it comes late")
	}
}

// A peer that was taken for one without signals sends one: HELLO is sent once more.
func TestRestart(t *testing.T) {
	t.Parallel()
	for late, want := range map[time.Duration]time.Duration{ms: HelloGap, time.Second: time.Second} {
		var l State
		l.Start(Hello, signal, time.Second, FirstHello)
		l.Sent(Hello, time.Second, MaxWait)
		l.Sent(Hello, 2*time.Second, MaxWait)
		l.Unanswered &^= Hello
		l.Restart(2*time.Second + late)
		require.Equal(t, 2*time.Second+want, l.Next())
		require.Equal(t, Request{next: 2*time.Second + want, Signal: signal, wait: uint16(FirstHello / ms)}, *l.Of(Hello))
	}
}
