package stats

import "time"

// Limit is what keeps a session from sending more.
type Limit uint8

const (
	LimitApplication Limit = iota // nothing waits to be sent
	LimitHandshake                // keys are not agreed on, or the peer has not answered
	LimitReader                   // the same, and this end is behind with reading
	LimitWriteBuffer              // all that Config.WriteBuffer takes is in flight
	LimitPeerWindow               // the peer's receive window, or a stream's
	LimitSendWindow               // Config.SendWindow
	LimitCongestion               // the congestion window
	LimitPacing                   // the pacing rate of congestion control
	LimitRate                     // Config.MaxRate
	LimitOutage                   // nothing has come from the peer for longer than an answer takes
)

// LimitTimes is for how long each Limit, its index, has limited a session.
type LimitTimes [LimitOutage + 1]time.Duration

// String returns the name of the limit, such as "congestion window".
func (l Limit) String() string {
	return [...]string{
		"application", "handshake", "reader", "write buffer", "peer's window", "send window", "congestion window", "pacing", "rate cap", "outage", "unknown",
	}[min(l, LimitOutage+1)]
}
