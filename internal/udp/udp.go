// Package udp moves batches of datagrams between sockets and memory.
//
// Its contract is a batch even where the system takes one datagram a call, so
// that callers are written for systems that take many.
package udp

import (
	"net"
	"net/netip"
)

// Datagram is one packet of a batch.
type Datagram struct {
	// Buf is the packet to write, or the space to read into.
	Buf []byte
	// N is the number of bytes read.
	N int
	// Addr is where the packet goes or came from, never an IPv4-mapped IPv6
	// address. It is not valid where Peer is set.
	Addr netip.AddrPort
	// Peer takes the place of Addr on a net.PacketConn that does not speak
	// UDP addresses. It is nil otherwise.
	Peer net.Addr
}

// Conn is a socket that moves datagrams in batches. ReadBatch may be called by
// one goroutine at a time, WriteBatch by many.
type Conn interface {
	// ReadBatch waits for at least one datagram and fills in the first n.
	ReadBatch(batch []Datagram) (n int, err error)
	// WriteBatch writes batch in order. The first n were written; err, if not
	// nil, concerns batch[n], and the caller may go on behind it.
	WriteBatch(batch []Datagram) (n int, err error)
	// BatchSize is the largest batch that ReadBatch makes use of.
	BatchSize() int
}

// addrPortConn is a net.PacketConn with allocation-free addresses besides.
// Packages that simulate networks offer it.
type addrPortConn interface {
	ReadFromAddrPort(b []byte) (int, netip.AddrPort, error)
	WriteToAddrPort(b []byte, addr netip.AddrPort) (int, error)
}

// New returns the fastest Conn that there is for pc.
func New(pc net.PacketConn) Conn {
	switch c := pc.(type) {
	case *net.UDPConn:
		return single{udpConn{c, c.RemoteAddr() != nil}}
	case addrPortConn:
		return single{c}
	}
	return foreign{pc}
}

// single makes batches of one from an addrPortConn.
type single struct{ addrPortConn }

func (s single) BatchSize() int { return 1 }

func (s single) ReadBatch(batch []Datagram) (int, error) {
	d := &batch[0]
	n, addr, err := s.ReadFromAddrPort(d.Buf)
	if err != nil {
		return 0, err
	}
	d.N, d.Addr, d.Peer = n, Unmap(addr), nil
	return 1, nil
}

func (s single) WriteBatch(batch []Datagram) (int, error) {
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
}

func (c udpConn) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	return c.ReadFromUDPAddrPort(b)
}

func (c udpConn) WriteToAddrPort(b []byte, addr netip.AddrPort) (int, error) {
	if c.connected {
		return c.Write(b)
	}
	return c.WriteToUDPAddrPort(b, addr)
}

// foreign makes batches of one from any net.PacketConn.
type foreign struct{ pc net.PacketConn }

func (f foreign) BatchSize() int { return 1 }

func (f foreign) ReadBatch(batch []Datagram) (int, error) {
	d := &batch[0]
	n, addr, err := f.pc.ReadFrom(d.Buf)
	if err != nil {
		return 0, err
	}
	d.N = n
	d.Addr, d.Peer = Split(addr)
	return 1, nil
}

func (f foreign) WriteBatch(batch []Datagram) (int, error) {
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

// Split returns addr as an AddrPort where it is a UDP address, and as it is
// otherwise.
func Split(addr net.Addr) (netip.AddrPort, net.Addr) {
	if u, ok := addr.(*net.UDPAddr); ok {
		if ap := u.AddrPort(); ap.IsValid() {
			return Unmap(ap), nil
		}
	}
	return netip.AddrPort{}, addr
}

// Unmap returns addr with an IPv4-mapped IPv6 address as plain IPv4, so that
// one peer has one address on a dual-stack socket.
func Unmap(addr netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}
