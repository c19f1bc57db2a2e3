package incast

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Peers that send much have shares, which are not small before the buffer was nearly
// full. Those that send little, beside others, have a small window.
func TestIncastShares(t *testing.T) {
	i := &Budget{budget: 1 << 20}
	for range 10 {
		i.Offered(new(Sender), 1<<20, true)
	}
	i.setLevels()
	require.Equal(t, 1<<20/10, i.level)
	require.EqualValues(t, (1<<20)/10/2304, i.Window(1472, false, true))
	require.EqualValues(t, Least, i.Window(1472, true, true))
	require.EqualValues(t, Least, i.Window(8972, false, true))
	i.pressed = true
	require.EqualValues(t, (1<<20)/10/2304, i.Window(1472, false, true))
	require.EqualValues(t, (1<<20)/10/16640, i.Window(8972, false, true))
	require.EqualValues(t, (1<<20)/10/1280, i.Window(150, false, true))
	for range 5000 {
		i.Offered(new(Sender), 1<<20, true)
	}
	i.setLevels()
	require.EqualValues(t, 1, i.Window(1472, true, true), "a window of 0 would stop the peer")
	i.budget = 0
	i.setLevels()
	require.Zero(t, i.Window(1472, false, true))
}

// Peers that have sent little may send an equal part of an eighth of the buffer
// first, and Least segments if that is more, if the buffer was nearly full, or before
// their address is validated.
func TestFirstShare(t *testing.T) {
	i := &Budget{buffer: 4 << 20}
	first := func() uint32 { return i.Window(1472, true, true) }
	i.Offered(new(Sender), 100, true)
	require.Zero(t, first(), "it is alone")
	i.Offered(new(Sender), 100, true)
	require.EqualValues(t, firstMost, first())
	i.buffer = 2 << 20
	require.EqualValues(t, 2<<20/8/2/2304, first())
	require.EqualValues(t, Least, i.Window(1472, true, false))
	i.pressed = true
	require.EqualValues(t, Least, first())
	i.pressed = false
	for range 1000 {
		i.Offered(new(Sender), 100, true)
	}
	require.EqualValues(t, Least, first())
	require.EqualValues(t, Least, (&Budget{demands: i.demands}).Window(1472, true, true), "the size is unknown")
}

// The budget is cut when the buffer is nearly full or datagrams were dropped, and
// grows again.
func TestIncastBudget(t *testing.T) {
	const limit = 1 << 20
	now := time.Duration(0)
	i := new(Budget)
	for range 100 {
		i.Offered(new(Sender), 1<<20, true)
	}
	step := func(used int, dropped bool) int {
		now += 20 * time.Millisecond
		i.adapt(used, limit, dropped, now)
		return i.budget
	}
	require.Equal(t, limit, step(0, false))
	require.Equal(t, 2*limit, step(0, false))
	require.Greater(t, step(limit/16*7-1, false), 2*limit, "slowly, beyond what the buffer can take")
	require.Less(t, i.budget, 3*limit)
	was := i.budget
	for _, later := range []time.Duration{0, 9, 11, 19} {
		i.adapt(limit/2, limit, later < 10, now+later*time.Millisecond)
		require.Equal(t, was, i.budget, "once in 20 ms")
	}
	require.Equal(t, was, step(limit/2, false), "what arrived first was sent before the last change")
	require.Equal(t, was, step(limit/2, false))
	require.Equal(t, int(int64(was)*(limit/2)/(limit/4*3)), step(limit/4*3, false))
	was = i.budget
	require.Equal(t, max(was/2, limit), step(limit, true))
	for range 10 {
		step(limit, true)
	}
	require.Equal(t, limit, i.budget, "no less")
	for range 200 {
		step(0, false)
	}
	require.Greater(t, i.budget, limit)
}

// Where the system tells only the size of the buffer, that is the budget while
// more than that arrives.
func TestIncastEstimate(t *testing.T) {
	i := new(Budget)
	i.estimate(1<<20, 1<<19)
	require.Zero(t, i.budget)
	i.estimate(1<<20, 1<<21)
	require.Equal(t, 1<<20, i.budget)
	i.estimate(1<<20, -1)
	require.Equal(t, 1<<20, i.budget, "not the end of an epoch")
	i.estimate(1<<20, 0)
	require.Zero(t, i.budget)
}

// senderModel is what a session is known to have sent in the present epoch.
type senderModel struct {
	Sender
	sent      uint32
	validated bool
}

// However long senders pause, what counts is what they have sent in the epoch: 256 and
// 65536 epochs, multiples of them, and any other number.
func TestPausesOfAnyLength(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 45))
		var i Budget
		senders := make([]senderModel, 6)
		epoch := time.Duration(0)
		for range 40 {
			step := time.Duration([]int{0, 1, 2, 255, 256, 512, 1024, 65536, 1 << 24, r.IntN(1000)}[r.IntN(10)])
			if epoch += step; step > 0 {
				i.advance(epoch * Epoch)
				for j := range senders {
					senders[j].sent = 0
				}
			}
			for range 8 {
				s, n := &senders[r.IntN(len(senders))], 1+r.Uint32N(1<<(1+r.IntN(24)))
				s.Begin(&i)
				if !s.validated && r.IntN(8) == 0 {
					s.validated, s.sent = true, 0 // what it had sent as a stranger stays there
				}
				i.Offered(&s.Sender, int(n), s.validated)
				s.sent += n
				require.Equal(t, s.sent, s.offered, "seed %d", seed)
			}
			var want Demand
			for _, s := range senders {
				if s.sent > 0 && s.validated {
					want.Add(0, s.sent)
				}
			}
			if d := i.demands[0]; d != nil {
				require.Equal(t, want, d.now, "seed %d, epoch %d", seed, epoch)
			}
			i.budget = 1000
			i.setLevels()
		}
	}
}

// The clock of a look may be behind the one before it.
func TestEpochsDoNotGoBack(t *testing.T) {
	var i Budget
	var s Sender
	i.advance(10 * Epoch)
	s.Begin(&i)
	i.Offered(&s, 1<<20, true)
	require.Equal(t, -1, i.advance(9*Epoch))
	require.Equal(t, -1, i.advance(10*Epoch))
	s.Begin(&i)
	i.Offered(&s, 1<<20, true)
	require.EqualValues(t, 2<<20, i.demands[0].now.Sum())
	require.Equal(t, 1, i.demands[0].now.Senders())
}

// A session whose packets arrive at another socket has sent nothing there.
func TestSocketsCountForThemselves(t *testing.T) {
	var sockets [2]Socket[turnTaker]
	for i := range sockets {
		sockets[i].Init(func(c *turnTaker) *Sender { return &c.sending }, nil, func() {})
		sockets[i].advance(Epoch)
	}
	c := new(turnTaker)
	for n := range 10 {
		at := &sockets[n%2]
		c.sending.Begin(&at.Budget)
		at.Offered(&c.sending, 1000, true)
		require.EqualValues(t, 1000, c.sending.offered)
		require.False(t, at.Forget(c))
	}
	require.Equal(t, 5, sockets[1].demands[0].now.Senders())
}
