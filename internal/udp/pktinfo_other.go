//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package udp

// withInfo returns s: nothing tells on this system which address a datagram was sent to.
func withInfo(s *single, _ udpConn) Conn { return s }
