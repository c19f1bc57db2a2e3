package kcp

import (
	"crypto/rand"
	"encoding/binary"
	"net"
)

// Dial opens a session with the peer at raddr, a UDP address, without encryption
// and error correction. See DialWithOptions.
func Dial(raddr string) (net.Conn, error) {
	s, err := DialWithOptions(raddr, nil, 0, 0)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// DialWithOptions opens a session with the peer at raddr, a UDP address, on a
// socket of its own. block encrypts the packets; nil means not at all.
// parityShards packets of parity follow every dataShards packets, both at least
// 1 and at most 256 together; other values mean none. The peer must have the
// same block, and understand parity if there is any.
//
// Nothing is sent before the first Write, so it is not an error if there is no peer.
// The peer accepts the session with the first data.
func DialWithOptions(raddr string, block BlockCrypt, dataShards, parityShards int) (*UDPSession, error) {
	addr, err := net.ResolveUDPAddr("udp", raddr)
	if err != nil {
		return nil, err
	}
	network := "udp4"
	if addr.IP.To4() == nil {
		network = "udp"
	}
	pc, err := openSocket(network, nil)
	if err != nil {
		return nil, err
	}
	s, err := NewConn4(randomConv(), addr, block, dataShards, parityShards, true, pc)
	if err != nil {
		_ = pc.Close() // err is what the caller needs
		return nil, err
	}
	return s, nil
}

// NewConn is DialWithOptions on a socket of the program, for which see NewConn4.
// Close does not close it.
func NewConn(raddr string, block BlockCrypt, dataShards, parityShards int, conn net.PacketConn) (*UDPSession, error) {
	addr, err := net.ResolveUDPAddr("udp", raddr)
	if err != nil {
		return nil, err
	}
	return NewConn2(addr, block, dataShards, parityShards, conn)
}

// NewConn2 is NewConn with an address of any kind that conn knows.
func NewConn2(raddr net.Addr, block BlockCrypt, dataShards, parityShards int, conn net.PacketConn) (*UDPSession, error) {
	return NewConn3(randomConv(), raddr, block, dataShards, parityShards, conn)
}

// NewConn3 is NewConn2 with a chosen conversation id. Two ends that both call it
// with the same id have one session.
func NewConn3(convid uint32, raddr net.Addr, block BlockCrypt, dataShards, parityShards int, conn net.PacketConn) (*UDPSession, error) {
	return NewConn4(convid, raddr, block, dataShards, parityShards, false, conn)
}

// NewConn4 is NewConn3 with a choice whether the session owns conn. If it does,
// Close closes conn once what was written is delivered. If it does not, the
// session leaves conn alone from Close on. Until then nothing else may read from
// conn. A read error that does not pass ends the session.
func NewConn4(convid uint32, raddr net.Addr, block BlockCrypt, dataShards, parityShards int, ownConn bool, conn net.PacketConn) (*UDPSession, error) {
	port, err := openPort(block, dataShards, parityShards, ownConn, conn, nil)
	if err != nil {
		return nil, err
	}
	c, err := port.dial(raddr, convid)
	if err != nil {
		port.own = false // the caller still has conn
		_ = port.shut()
		return nil, err
	}
	s := newSession(c, port, raddr, nil)
	if port.fec {
		s.handleOOB(nil)
	}
	DefaultSnmp.opened(&DefaultSnmp.ActiveOpens)
	return s, nil
}

// randomConv returns a conversation id that nobody can guess.
func randomConv() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // cannot fail
	return binary.LittleEndian.Uint32(b[:])
}
