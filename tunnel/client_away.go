package tunnel

import (
	"errors"
	"math/rand/v2"
	"time"
)

const (
	// awayRetry is how long a client waits, at first, that a server has turned away: its
	// password is another, or a rule is missing. It doubles up to maxAwayRetry. Trying more
	// often would only have the server count attempts, also other clients' of that name
	// behind the same NAT.
	awayRetry    = time.Minute
	maxAwayRetry = 5 * time.Minute
)

const (
	// leaveTries is how many times RetryAfter a session lives at the least before the
	// next one begins, though the server asks it to leave.
	leaveTries = 5
	// maxLeaving is how many sessions of a way may wait for their last connections, as
	// the server has asked for another one. More end the oldest.
	maxLeaving = 64
)

// leavePause returns how long to wait before the next session begins, when the server has
// asked one to leave that has lived for a time.
func leavePause(lived, retryAfter time.Duration) time.Duration {
	return max(leaveTries*retryAfter-lived, 0)
}

// awayPause returns how long to wait at the least after err, the n-th in a row, with
// which there was no session, or it has ended. It is up to a half less or more at random.
func awayPause(err error, n int) time.Duration {
	var away *HelloError
	if !errors.As(err, &away) || helloCode(away.Code) == helloAttempts { // those do not count
		return 0
	}
	pause := maxAwayRetry
	if n < 4 {
		pause = min(awayRetry<<max(n-1, 0), maxAwayRetry)
	}
	return pause/2 + rand.N(pause)
}
