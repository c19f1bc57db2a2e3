package closing

import "time"

// For how long a socket stays open after the end of a session, to answer the peer.
const (
	// DialledHold is for a socket whose port the system has chosen, so that the
	// application does not need it again. A peer with default settings repeats
	// its request for Linger, at most 2 s apart. Sockets of all kinds are given up
	// sooner if many are held.
	DialledHold = 7 * time.Second

	minHold   = 200 * time.Millisecond
	lossyHold = 1500 * time.Millisecond // in place of minHold after losses
	MaxHold   = 3 * time.Second
	holdRTOs  = 4 // retransmission time-outs, within these bounds
)

// AnswerFor returns for how long a socket that others need too answers the peer of a
// session that has ended. On a path that has lost packets, the peer may have to repeat
// its request several times.
func AnswerFor(rto time.Duration, lossy bool) time.Duration {
	least := minHold
	if lossy {
		least = lossyHold
	}
	return max(least, min(holdRTOs*rto, MaxHold))
}
