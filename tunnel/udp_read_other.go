//go:build !unix

package tunnel

import (
	"bytes"
	"net"
	"sync"
	"syscall"
)

// packetReader reads the packets of a connected socket. While it waits it has no buffer.
type packetReader struct {
	conn *net.UDPConn
	raw  syscall.RawConn
}

var readBuffers = sync.Pool{New: func() any { return new([maxPacket]byte) }}

func newPacketReader(conn *net.UDPConn, _ *account) (*packetReader, error) {
	raw, err := conn.SyscallConn()
	return &packetReader{conn, raw}, err
}

// next waits for a packet, and returns it.
func (r *packetReader) next() ([]byte, error) {
	asked := false
	err := r.raw.Read(func(uintptr) bool { // on Windows the second call is when there is one
		was := asked
		asked = true
		return was
	})
	if err != nil {
		return nil, err
	}
	buf := readBuffers.Get().(*[maxPacket]byte)
	defer readBuffers.Put(buf)
	n, err := r.conn.Read(buf[:])
	return bytes.Clone(buf[:n]), err
}
