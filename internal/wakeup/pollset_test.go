package wakeup

import (
	"context"
	"net"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

type member struct{ at PollPlace[member] }

func (m *member) place() *PollPlace[member] { return &m.at }

func newSet() *PollSet[member] {
	s := new(PollSet[member])
	s.Init((*member).place)
	return s
}

// Members take turns in the order of Push, and each has one turn at a time.
func TestTurns(t *testing.T) {
	s := newSet()
	all := make([]member, 4)
	all[3].at.Uncounted = true
	require.False(t, s.Push(&all[0], false), "it is not a member")
	require.Nil(t, s.First())
	for i := range all {
		require.True(t, s.Add(&all[i]))
	}
	require.Equal(t, 3, s.Len())
	for _, i := range []int{2, 0, 2, 1} {
		require.False(t, s.Push(&all[i], false), "nobody waits")
	}
	s.Push(&all[3], true)
	s.Remove(&all[0])
	s.Remove(&all[0])
	require.Equal(t, 2, s.Len())
	require.Same(t, &all[3], s.First())
	for _, i := range []int{3, 2, 1} {
		require.Same(t, &all[i], s.Next())
	}
	require.Nil(t, s.Next())
}

// Events are taken in one way at a time.
func TestModes(t *testing.T) {
	s := newSet()
	require.NoError(t, s.Enter(Waits))
	for _, mode := range []PollMode{Waits, Handles} {
		require.Equal(t, ErrInUse, s.Enter(mode))
	}
	s.Leave()
	require.NoError(t, s.Enter(Handles))
	require.Equal(t, ErrInUse, s.Enter(Handles))
	_, err := s.Close()
	require.NoError(t, err)
	require.Equal(t, net.ErrClosed, s.Enter(Waits))
	_, err = s.Close()
	require.Equal(t, net.ErrClosed, err)
	require.False(t, s.Add(new(member)))
}

// A turn wakes the call that sleeps; its context, or the end of the set, does too.
func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet()
		all := make([]member, 2)
		for i := range all {
			s.Add(&all[i])
		}
		ended := make(chan error, 1)
		sleep := func(ctx context.Context) {
			go func() { ended <- s.Sleep(ctx, nil) }()
			synctest.Wait()
			require.Empty(t, ended)
		}
		ctx, cancel := context.WithCancel(t.Context())
		sleep(ctx)
		cancel()
		require.Equal(t, context.Canceled, <-ended)
		sleep(t.Context())
		require.True(t, s.Push(&all[0], false))
		require.False(t, s.Attend())
		require.NoError(t, <-ended)
		require.NoError(t, s.Sleep(t.Context(), nil), "the turn was not taken")

		s.Next()
		sleep(t.Context())
		out, err := s.Close()
		require.NoError(t, err)
		require.Len(t, out, 2)
		require.NoError(t, <-ended)
		require.Equal(t, net.ErrClosed, s.Sleep(t.Context(), nil))
	})
}

// One goroutine at a time calls the handler, until there are no more turns.
func TestHandling(t *testing.T) {
	s := newSet()
	var m member
	s.Add(&m)
	require.False(t, s.Handling(false), "there is no handler")
	require.NoError(t, s.Enter(Handles))
	require.False(t, s.Handling(false), "there is no turn")
	require.True(t, s.Push(&m, false))
	require.True(t, s.Attend())
	require.True(t, s.Handling(false))
	require.False(t, s.Handling(false), "another goroutine does")
	require.False(t, s.Push(&m, false))
	require.True(t, s.Handling(true))
	s.Next()
	require.False(t, s.Handling(true))
	require.True(t, s.Push(&m, false))
	require.True(t, s.Handling(false))
	_, _ = s.Close()
	require.False(t, s.Handling(true))
}
