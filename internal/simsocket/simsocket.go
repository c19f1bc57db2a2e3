// Package simsocket is a simulated socket whose receive buffer can fill up, for
// tests of incast.
package simsocket

import (
	"net/netip"
	"time"

	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/netsim"
)

// Socket is a socket of a simulated network whose reader takes a time for each
// datagram. It tells the state of its receive buffer, as Linux does.
type Socket struct {
	*netsim.PacketConn
	pace  time.Duration
	limit int // bytes
}

// Listen opens a socket in n with a receive buffer of limit bytes. Its reader
// takes pace for each datagram.
func Listen(n *netsim.Network, addr string, limit int, pace time.Duration) (*Socket, error) {
	pc, err := n.Listen(addr)
	if err != nil {
		return nil, err
	}
	if err := pc.SetReadBuffer(limit); err != nil {
		return nil, err
	}
	return &Socket{pc, pace, limit}, nil
}

// ReadFromAddrPort is netsim.PacketConn's, and takes its time.
func (s *Socket) ReadFromAddrPort(b []byte) (n int, from netip.AddrPort, err error) {
	n, from, err = s.PacketConn.ReadFromAddrPort(b)
	time.Sleep(s.pace)
	return n, from, err
}

// ReadQueue sets q to the state of the receive buffer, and returns true.
func (s *Socket) ReadQueue(q *udp.Queue) bool {
	*q = udp.Queue{Used: s.Unread(), Limit: s.limit, Drops: uint32(s.Dropped().Packets)}
	return true
}
