package udp

import (
	"net"
	"net/netip"
)

// readBufferSize holds the largest datagram there is, and the largest packet
// that the kernel joins of many.
const readBufferSize = 65536

// addrPortConn is a net.PacketConn with allocation-free addresses besides.
// Packages that simulate networks offer it.
type addrPortConn interface {
	ReadFromAddrPort(b []byte) (int, netip.AddrPort, error)
	WriteToAddrPort(b []byte, addr netip.AddrPort) (int, error)
}

// portable is what all Conns have in common that move one datagram a call.
type portable struct{ buf []byte }

func (portable) BatchSize() int     { return 1 }
func (portable) Features() Features { return Features{} }
func (portable) Release() error     { return nil }

// space returns the read buffer. It is made by the first read, so that a Conn
// that only writes does without.
func (p *portable) space() []byte {
	if p.buf == nil {
		p.buf = make([]byte, readBufferSize)
	}
	return p.buf
}

// single makes batches of one from an addrPortConn.
type single struct {
	addrPortConn
	portable
}

func (s *single) ReadBatch(batch []Datagram) (int, error) {
	buf := s.space()
	n, addr, err := s.ReadFromAddrPort(buf)
	if err != nil {
		return 0, err
	}
	batch[0] = Datagram{Buf: buf[:n:n], Addr: Unmap(addr)}
	return 1, nil
}

// WriteProbe is that of a socket of the system, if this is one.
func (s *single) WriteProbe(d *Datagram) error {
	if c, ok := s.addrPortConn.(udpConn); ok {
		return c.probing.write(c.UDPConn, c.connected, d)
	}
	_, err := s.WriteToAddrPort(d.Buf, d.Addr)
	return err
}

func (s *single) CanProbe() bool {
	_, ok := s.addrPortConn.(udpConn)
	return ok && canProbe
}

func (s *single) WriteBatch(batch []Datagram) (int, error) {
	for i := range batch {
		if _, err := s.WriteToAddrPort(batch[i].Buf, batch[i].Addr); err != nil {
			return i, err
		}
	}
	return len(batch), nil
}

// udpConn is a socket of the system, connected to one peer or not.
type udpConn struct {
	*net.UDPConn
	connected bool
	probing   *probing
}

func (c udpConn) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	return c.ReadFromUDPAddrPort(b)
}

func (c udpConn) WriteToAddrPort(b []byte, addr netip.AddrPort) (int, error) {
	return writeTo(c.UDPConn, c.connected, b, addr)
}

// writeTo writes one datagram to the one peer of a socket, or to addr.
func writeTo(c *net.UDPConn, connected bool, b []byte, addr netip.AddrPort) (int, error) {
	if connected {
		return c.Write(b)
	}
	return c.WriteToUDPAddrPort(b, addr)
}

// foreign makes batches of one from any net.PacketConn.
type foreign struct {
	pc net.PacketConn
	portable
}

func (f *foreign) ReadBatch(batch []Datagram) (int, error) {
	buf := f.space()
	n, from, err := f.pc.ReadFrom(buf)
	if err != nil {
		return 0, err
	}
	addr, peer := Split(from)
	batch[0] = Datagram{Buf: buf[:n:n], Addr: addr, Peer: peer}
	return 1, nil
}

func (f *foreign) WriteProbe(d *Datagram) error {
	_, err := f.WriteBatch([]Datagram{*d})
	return err
}

func (f *foreign) CanProbe() bool { return false }

func (f *foreign) WriteBatch(batch []Datagram) (int, error) {
	for i := range batch {
		d := &batch[i]
		addr := d.Peer
		if addr == nil {
			addr = net.UDPAddrFromAddrPort(d.Addr)
		}
		if _, err := f.pc.WriteTo(d.Buf, addr); err != nil {
			return i, err
		}
	}
	return len(batch), nil
}
