//go:build !unix

package tunnel

import (
	"bytes"
	"net"
)

// packetReader reads the packets of a connected socket. While it waits it has no buffer.
type packetReader struct{ conn *net.UDPConn }

func newPacketReader(conn *net.UDPConn) (*packetReader, error) {
	return &packetReader{conn}, nil
}

// next waits for a packet, and returns it.
func (r *packetReader) next() ([]byte, error) {
	if err := awaitPacket(r.conn); err != nil {
		return nil, err
	}
	buf := messages.Get().(*[maxPacket + 1]byte)
	defer messages.Put(buf)
	n, err := r.conn.Read(buf[:])
	return bytes.Clone(buf[:n]), err
}

// awaitPacket waits until a socket has a packet.
func awaitPacket(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	asked := false
	return raw.Read(func(uintptr) bool { // on Windows the second call is when there is one
		was := asked
		asked = true
		return was
	})
}
