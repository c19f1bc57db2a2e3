package testenv

import (
	"net/netip"
	"time"

	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/netsim"
)

// SimulatedSocket is a socket of a simulated network, for tests of incast, whose reader
// takes a time for each datagram. It tells the state of its receive buffer, as Linux
// does.
type SimulatedSocket struct {
	*netsim.PacketConn
	pace  time.Duration
	limit int // bytes
}

// ListenSimulated opens a socket in n with a receive buffer of limit bytes. Its reader
// takes pace for each datagram.
func ListenSimulated(n *netsim.Network, addr string, limit int, pace time.Duration) (*SimulatedSocket, error) {
	pc, err := n.Listen(addr)
	if err != nil {
		return nil, err
	}
	if err := pc.SetReadBuffer(limit); err != nil {
		return nil, err
	}
	return &SimulatedSocket{pc, pace, limit}, nil
}

// ReadFromAddrPort is netsim.PacketConn's, and takes its time.
func (s *SimulatedSocket) ReadFromAddrPort(b []byte) (n int, from netip.AddrPort, err error) {
	n, from, err = s.PacketConn.ReadFromAddrPort(b)
	time.Sleep(s.pace)
	return n, from, err
}

// ReadQueue sets q to the state of the receive buffer, and returns true.
func (s *SimulatedSocket) ReadQueue(q *udp.Queue) bool {
	*q = udp.Queue{Used: s.Unread(), Limit: s.limit, Drops: uint32(s.Dropped().Packets)}
	return true
}
