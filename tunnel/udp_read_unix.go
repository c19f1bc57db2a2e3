//go:build unix

package tunnel

import (
	"bytes"
	"net"
	"syscall"
)

// packetReader reads the packets of a connected socket. While it waits it has no buffer.
type packetReader struct {
	raw    syscall.RawConn
	read   func(fd uintptr) bool // readOnce, made once
	packet []byte
	err    error
}

func newPacketReader(conn *net.UDPConn) (*packetReader, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &packetReader{raw: raw}
	r.read = r.readOnce
	return r, nil
}

// next waits for a packet, and returns it.
func (r *packetReader) next() ([]byte, error) {
	if err := r.raw.Read(r.read); err != nil {
		return nil, err
	}
	packet := r.packet
	r.packet = nil
	return packet, r.err
}

// readOnce reads a packet. It reports false if there is none.
func (r *packetReader) readOnce(fd uintptr) bool {
	buf := messages.Get().(*[maxPacket + 1]byte)
	defer messages.Put(buf)
	var n int
	for {
		if n, r.err = syscall.Read(int(fd), buf[:]); r.err != syscall.EINTR {
			break
		}
	}
	switch r.err {
	case nil:
		r.packet = bytes.Clone(buf[:n])
	case syscall.EAGAIN:
		return false
	}
	return true
}

// awaitPacket waits until a socket has a packet.
func awaitPacket(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		var first [1]byte
		for {
			_, _, err := syscall.Recvfrom(int(fd), first[:], syscall.MSG_PEEK)
			if err != syscall.EINTR {
				return err != syscall.EAGAIN
			}
		}
	})
}
