package netpath

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/rulebook"
)

func TestValidationFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Path validation", "50 ms", challengeEvery},
	})
}

// An address is challenged every 50 ms, and another one at once.
func TestChallenges(t *testing.T) {
	var v Validation[string]
	require.True(t, v.Due(7, 0))
	require.True(t, v.Due(7, 1), "it was not sent")
	v.Sent(7, 1)
	require.False(t, v.Due(7, challengeEvery))
	require.True(t, v.Due(8, 2))
	require.True(t, v.Due(7, challengeEvery+1))
	require.Equal(t, time.Second, v.Since(time.Second+1))
}

// A packet with a number that is above all before is a sign of life, once.
func TestSignsOfLife(t *testing.T) {
	var v Validation[string]
	require.False(t, v.Alive(0))
	for _, number := range []uint64{1, 5} {
		require.True(t, v.Alive(number))
		require.False(t, v.Alive(number), "a copy")
		require.False(t, v.Alive(number-1), "an older one")
		require.False(t, v.Alive(number), "a copy, after an older one")
	}
}

// The largest packet of an address waits, and is the first once the session has
// migrated. That is forgotten if no packet waits.
func TestPacketWaits(t *testing.T) {
	var v *Validation[string]
	require.Zero(t, v.Moves())
	v = new(Validation[string])
	packet := func(text string, challenge uint32) {
		if v.Defers(challenge, len(text)) {
			v.Defer(&text, challenge, len(text))
		}
	}
	first := func() string {
		p := v.First()
		require.NotNil(t, p)
		require.Nil(t, v.First(), "once")
		require.Nil(t, v.Deferred())
		return *p
	}
	packet("first", 1)
	packet("tiny", 1)
	require.Equal(t, "first", *v.Deferred())
	require.Nil(t, v.First(), "it waits for the answer")
	packet("other", 1)
	v.Moved()
	require.Equal(t, "other", first(), "the last of the largest")
	packet("first", 1)
	packet("a", 2)
	v.Moved()
	require.Equal(t, "a", first(), "the last address")
	packet("dropped", 2)
	v.Drop()
	v.Moved()
	require.Nil(t, v.First())
	packet("later", 2)
	require.Nil(t, v.First(), "it has migrated before")
	require.EqualValues(t, 3, v.Moves())
}
