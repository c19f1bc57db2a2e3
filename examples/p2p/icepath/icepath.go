// Package icepath makes a connection of ICE (RFC 8445, github.com/pion/ice) the path of
// KCP sessions. ICE tries all pairs of addresses of the two ends, relays of TURN servers
// (RFC 8656) among them, so it gets through symmetric NATs too.
package icepath

import "net"

// Conn is a connection of packets as a net.PacketConn with one peer, for
// kcp.NewEndpoint. Its methods are safe for concurrent use if the connection is, as an
// *ice.Conn is.
//
// The address of the peer is a name: ICE may change the pair of addresses at any time,
// and the session does not have to know. One end dials Peer, and the other listens.
type Conn struct{ net.Conn }

// Peer is the address of the only peer of a Conn.
type Peer struct{}

func (Peer) Network() string { return "ice" }
func (Peer) String() string  { return "peer" }

// ReadFrom returns the next packet.
func (c Conn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, err := c.Read(b)
	return n, Peer{}, err
}

// WriteTo sends a packet to the peer. It ignores addr.
func (c Conn) WriteTo(b []byte, addr net.Addr) (int, error) { return c.Write(b) }
