// Package udp moves batches of datagrams between sockets and memory.
//
// Its contract is a batch even where the system takes one datagram a call, so
// that callers are written for systems that take many. On Linux a socket moves
// many datagrams with one system call, and many of one size to or from one
// peer as a single large packet (UDP segmentation offload), which the kernel or
// the network card cuts and joins. Everywhere else, and on any net.PacketConn
// that is not a socket of the system, a batch is a loop.
package udp

import (
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// Datagram is one packet of a batch.
type Datagram struct {
	// Buf is the packet. One that was read lies in memory of the Conn, which
	// the next ReadBatch writes to again; until then the caller may change it,
	// but its capacity ends where it does.
	Buf []byte
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
	// ReadBatch waits for at least one datagram and sets the first n of batch,
	// whatever they were before. They are valid until the next ReadBatch.
	ReadBatch(batch []Datagram) (n int, err error)
	// WriteBatch writes batch in order. The first n were written; err, if not
	// nil, concerns batch[n], and the caller may go on behind it.
	WriteBatch(batch []Datagram) (n int, err error)
	// WriteProbe writes one datagram that is never fragmented here, whatever the
	// system believes of the path: where it is larger than the interface takes,
	// the error is EMSGSIZE. Where CanProbe is false, it is written like others.
	WriteProbe(d *Datagram) error
	// CanProbe reports whether the system can keep datagrams whole.
	CanProbe() bool
	// BatchSize is the largest batch that ReadBatch makes use of.
	BatchSize() int
	// Features reports what the Conn makes use of at this time.
	Features() Features
	// Release gives the socket back with the options that New found. It is for
	// sockets that outlive the Conn, and comes after the last call of it.
	Release() error
}

// Features are the means by which a Conn is faster than one call a datagram.
type Features struct {
	GSO  bool // datagrams to one peer leave as one large packet
	GRO  bool // datagrams of one peer arrive as one large packet
	Mmsg bool // one system call moves many packets
}

// String returns the names of the features in use, or "portable" for none.
func (f Features) String() string {
	var names []string
	if f.Mmsg {
		names = append(names, "mmsg")
	}
	if f.GSO {
		names = append(names, "gso")
	}
	if f.GRO {
		names = append(names, "gro")
	}
	if names == nil {
		return "portable"
	}
	return strings.Join(names, "+")
}

// wantedFeatures returns what the environment leaves on: the variables
// KCP_DISABLE_GSO, KCP_DISABLE_GRO and KCP_DISABLE_MMSG switch one off each,
// the last one all of them. They are looked at for each socket, so that a
// program can set them before it opens one.
func wantedFeatures() Features {
	enabled := func(name string) bool {
		off, _ := strconv.ParseBool(os.Getenv(name))
		return !off
	}
	mmsg := enabled("KCP_DISABLE_MMSG")
	return Features{
		GSO:  mmsg && enabled("KCP_DISABLE_GSO"),
		GRO:  mmsg && enabled("KCP_DISABLE_GRO"),
		Mmsg: mmsg,
	}
}

// New returns the fastest Conn that there is for pc. It may change options of a
// socket of the system, which Release undoes.
func New(pc net.PacketConn) Conn {
	return newConn(pc, wantedFeatures())
}

// newConn is New with all features that are both wanted and to be had.
func newConn(pc net.PacketConn, wanted Features) Conn {
	switch c := pc.(type) {
	case *net.UDPConn:
		if fast := newFast(c, wanted); fast != nil {
			return fast
		}
		return &single{addrPortConn: udpConn{c, c.RemoteAddr() != nil, new(probing)}}
	case addrPortConn:
		return &single{addrPortConn: c}
	}
	return &foreign{pc: pc}
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
