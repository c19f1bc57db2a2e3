package tunnel

import (
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAwayPause(t *testing.T) {
	wrong := fmt.Errorf("server: %w", &HelloError{Code: string(helloWrong)})
	for n, want := range map[int]time.Duration{1: time.Minute, 2: 2 * time.Minute, 3: 4 * time.Minute, 4: maxAwayRetry, 1 << 30: maxAwayRetry} {
		for range 100 {
			pause := awayPause(wrong, n)
			require.GreaterOrEqual(t, pause, want/2)
			require.Less(t, pause, want*3/2)
		}
	}
	require.Zero(t, awayPause(errors.New("no answer"), 1))
	require.Zero(t, awayPause(&HelloError{Code: string(helloAttempts)}, 1))
}

// A server that asks each session to leave cannot have the client keep more and more of
// them.
func TestServerThatAlwaysAsksToLeave(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	close(s.left) // as if another one had taken over meanwhile
	config := clientConfig(t, s, "0:host:80")
	config.maxLeaving = 3
	c := startClient(t, config)
	waitFor(t, func() bool {
		require.LessOrEqual(t, c.Status().Sessions, config.maxLeaving+2)
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.begun >= 10
	})
	require.Contains(t, c.log.String(), "too many sessions")
}

// Nor can it have the client hurry.
func TestLeavePause(t *testing.T) {
	const retry = 200 * time.Millisecond
	require.Equal(t, time.Second, leavePause(0, retry))
	require.Equal(t, 300*time.Millisecond, leavePause(700*time.Millisecond, retry))
	require.Zero(t, leavePause(time.Second, retry))
	require.Zero(t, leavePause(time.Hour, retry))
}

// A client with another password than the user's does not try again and again, whether it
// was let in before or not.
func TestStaleClientIsSlow(t *testing.T) {
	t.Parallel()
	s, c := connected(t, "0:host:80")
	waitFor(t, func() bool { return c.Status().Sessions == 1 })
	s.SetUsers(parsed(t, `{"me:new": [""]}`))
	fresh := startClient(t, clientConfig(t, s, "0:host:80"))
	away := regexp.MustCompile(`wrong user or password.* retry=(\S+)`)
	for _, stale := range []*testClient{c, fresh} {
		var found []string
		waitFor(t, func() bool {
			found = away.FindStringSubmatch(stale.log.String())
			return found != nil
		})
		pause, err := time.ParseDuration(found[1])
		require.NoError(t, err)
		require.GreaterOrEqual(t, pause, awayRetry/2)
	}
	other := clientConfig(t, s, "0:host:80")
	other.Password = "new"
	right := startClient(t, other)
	waitFor(t, func() bool { return right.Status().Sessions == 1 })
}
