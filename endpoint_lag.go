package kcp

import (
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

// When a process lacks processor time, its wake-ups are late. The endpoint measures by
// how much. Sockets then make other system calls (see udp.Delayed), time-outs wait until
// the socket was read (see Conn.holdTimeouts), and EndpointStats tells.

// leastLag is the lag from which on it is noted for time-outs: less says nothing.
const leastLag = time.Millisecond

// wokenLate takes note that a wake-up of sessions is late by d. Calls may overlap, and
// a figure be lost.
func (e *Endpoint) wokenLate(d time.Duration) {
	udp.Delayed(d)
	l := &e.load
	if d < leastLag && l.lag.Load() == 0 {
		return
	}
	second := int64(e.now() / time.Second)
	passed := second - l.lagAt.Swap(second)
	l.lag.Store(max(int64(d), l.lag.Load()>>min(max(passed, 0), 63)))
}
