package liveness

import "time"

// When a session has the route to its peer looked at (internal/udp's RouteWatch).

const (
	// leastPatience is the least time without an answer after which a session looks, if its
	// RTO is not longer, and longPatience the most.
	leastPatience = 300 * time.Millisecond
	longPatience  = time.Second
	// lookEvery is the time between two looks in the first lookWhile of a silence, and
	// lookLater after that.
	lookEvery = 250 * time.Millisecond
	lookLater = 500 * time.Millisecond
	lookWhile = 5 * time.Second
	// listening is how long after its last question a session gets data at least that
	// counts as one that only listens.
	listening = 500 * time.Millisecond
)

// patience returns after which time without an answer a session looks. rto is its
// retransmission time-out.
func patience(rto time.Duration) time.Duration { return max(leastPatience, min(rto, longPatience)) }

// nextLook returns when to look in a silence: nothing was heard since quiet, though an
// answer is due. looked is when the last look was.
func nextLook(quiet, patience, looked time.Duration) time.Duration {
	if looked-quiet < lookWhile {
		return max(quiet+patience, looked+lookEvery)
	}
	return max(quiet+patience, looked+lookLater)
}

// lookAfter returns when to look once, after data that was the last at a time, though
// nothing is to be answered: the session only listens, as data still came some time after
// it has asked for something. Other sessions hear what they have asked for, and then
// nothing. data is 0 if there was none. The result is 0 if nothing has to be looked for.
func lookAfter(data, asked, looked time.Duration) time.Duration {
	if at := data + longPatience; data > 0 && data-asked >= listening && looked < at {
		return at
	}
	return 0
}
