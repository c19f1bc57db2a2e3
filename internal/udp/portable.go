package udp

import (
	"net"
	"net/netip"
)

// readBufferSize is the size, in bytes, of a buffer that holds the largest
// datagram, and the largest packet that the kernel merges from several.
const readBufferSize = 65536

// addrPortConn is a net.PacketConn that also has methods whose addresses need
// no allocation. Packages that simulate networks implement it.
type addrPortConn interface {
	ReadFromAddrPort(b []byte) (int, netip.AddrPort, error)
	WriteToAddrPort(b []byte, addr netip.AddrPort) (int, error)
}

// portable is what all Conns that move one datagram per call have in common.
type portable struct{ buf []byte }

func (portable) BatchSize() int     { return 1 }
func (portable) Features() Features { return Features{} }
func (portable) Release() error     { return nil }

// space returns the read buffer. The first read allocates it, so a Conn that
// only writes has none.
func (p *portable) space() []byte {
	if p.buf == nil {
		p.buf = make([]byte, readBufferSize)
	}
	return p.buf
}

// single makes an addrPortConn a Conn, with batches of one.
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

// WriteProbe writes a probe if s is a socket of the system, else an ordinary
// datagram.
func (s *single) WriteProbe(d *Datagram) error {
	if c, ok := s.addrPortConn.(udpConn); ok {
		return c.probing.write(c.UDPConn, func() error {
			_, err := writeTo(c.UDPConn, c.connected, d.Buf, d.Addr)
			return err
		})
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

// udpConn is a socket of the system.
type udpConn struct {
	*net.UDPConn
	connected bool // to one peer: packets carry no address
	probing   *probing
	meter     *meter
}

func (c udpConn) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	return c.ReadFromUDPAddrPort(b)
}

func (c udpConn) WriteToAddrPort(b []byte, addr netip.AddrPort) (int, error) {
	return writeTo(c.UDPConn, c.connected, b, addr)
}

// writeTo writes one datagram to addr, or to the peer if the socket is
// connected.
func writeTo(c *net.UDPConn, connected bool, b []byte, addr netip.AddrPort) (int, error) {
	if connected {
		return c.Write(b)
	}
	return c.WriteToUDPAddrPort(b, addr)
}

// foreign makes any net.PacketConn a Conn, with batches of one.
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
