package kcp

import (
	"net"
	"runtime"
)

// When a process lacks processor time, its wake-ups are late. The endpoint measures by
// how much. Sockets then make other system calls (see udp.Delayed), time-outs wait until
// the socket was read (see Conn.holdTimeouts), and EndpointStats tells.

// mostWakeQueues is the most wake queues of an endpoint.
const mostWakeQueues = 16

// wakeQueues returns how many wake queues the endpoint has. With every packet a session
// uses one. With one for all, eight goroutines waited for its lock nearly half of the
// time; each further one has a timer that wakes the process. So there is one for each two
// goroutines that run at a time. A socket that is connected to one peer has one.
func (e *Endpoint) wakeQueues() int {
	c, ok := e.socket.shards[0].conn().(net.Conn)
	if e.repeat != nil || ok && c.RemoteAddr() != nil {
		return 1
	}
	return min((runtime.GOMAXPROCS(0)+1)/2, mostWakeQueues)
}
