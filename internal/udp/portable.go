package udp

import (
	"net"
	"net/netip"
	"syscall"

	"github.com/arqnet/kcp/internal/neterr"
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
type portable struct {
	buf      []byte
	refusals *refusals // nil: the system is not asked
}

func (*portable) BatchSize() int     { return 1 }
func (*portable) Features() Features { return Features{} }
func (*portable) Release() error     { return nil }
func (*portable) KeepsWhole() bool   { return false }

func (*portable) Merging() Merging { return Merging{Off: portableReason} }

func (p *portable) OnRefusal(notify func(error)) {
	if p.refusals != nil {
		p.refusals.tell(notify)
	}
}

// portableReason is why a Conn does not merge that moves one datagram per call.
const portableReason = "datagrams leave one by one: KCP_DISABLE_MMSG is set, or the socket does not support sendmmsg and sendmsg"

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

func (s *single) KeepsWhole() bool {
	c, ok := s.addrPortConn.(udpConn)
	return ok && c.whole.holds()
}

func (s *single) Release() error {
	if c, ok := s.addrPortConn.(udpConn); ok {
		return c.whole.release(c.UDPConn)
	}
	return nil
}

func (s *single) WriteBatch(batch []Datagram) (int, error) {
	for i := range batch {
		if err := s.write(&batch[i]); err != nil {
			return i, err
		}
	}
	return len(batch), nil
}

// write writes one datagram.
func (s *single) write(d *Datagram) (err error) {
	c, ok := s.addrPortConn.(udpConn)
	if !ok {
		_, err = s.WriteToAddrPort(d.Buf, d.Addr)
		return err
	}
	write := func() error {
		_, err := writeTo(c.UDPConn, c.connected, d.Buf, d.Addr)
		return err
	}
	if err = c.whole.writeOn(c.UDPConn, d.Cut, write); c.connected && neterr.Is(err, errTooLarge) {
		err = c.whole.writeOn(c.UDPConn, d.Cut, write) // see errTooLarge
	}
	return err
}

// errTooLarge is the error for a datagram that is larger than the interface takes.
// A connected socket returns it once more for each ICMP message of the path, from
// whatever call comes next. So it counts only if it comes twice.
const errTooLarge = syscall.EMSGSIZE

// udpConn is a socket of the system.
type udpConn struct {
	*net.UDPConn
	connected bool // to one peer: packets carry no address
	whole     *whole
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
