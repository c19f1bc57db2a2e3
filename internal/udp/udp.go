// Package udp moves batches of datagrams between sockets and memory.
//
// Its contract is a batch even if the system moves one datagram per call, so
// that callers are written for systems that move many. On Linux a socket moves
// many datagrams with one system call. It also moves many datagrams of one
// size, to or from one peer, as a single large packet, which the kernel or the
// network card cuts and merges (UDP segmentation offload). Everywhere else, and
// on any net.PacketConn that is not a socket of the system, a batch is a loop.
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
	// Buf is the packet. After ReadBatch it lies in memory of the Conn, which
	// the next ReadBatch overwrites. Until then the caller may change it; its
	// capacity is its length.
	Buf []byte
	// Addr is the packet's destination or source, never an IPv4-mapped IPv6
	// address. It is not valid if Peer is set.
	Addr netip.AddrPort
	// Peer takes the place of Addr on a net.PacketConn whose addresses are not
	// UDP addresses. It is nil otherwise.
	Peer net.Addr
	// Local is the address of this host that the packet was sent to, and the one
	// that it leaves from. Only a socket of the system that is bound to no address has
	// it, others ignore it. A packet leaves without it if the host has not that address
	// any more.
	Local Local
	// Cut allows that the datagram is fragmented on its way: the last resort for
	// one that is too large for the path and cannot be smaller.
	Cut bool
	// TooLarge is for the caller of WriteBatch, which leaves it as it is.
	TooLarge bool
	// Alone keeps the datagram from being merged with others.
	Alone bool
}

// Conn is a socket that moves datagrams in batches. ReadBatch may be called by
// one goroutine at a time, WriteBatch by many.
type Conn interface {
	// ReadBatch waits for at least one datagram and sets the first n elements
	// of batch, whose old values do not matter. They are valid until the next
	// ReadBatch.
	ReadBatch(batch []Datagram) (n int, err error)
	// WriteBatch writes batch in order. The first n were written. err, if not
	// nil, concerns batch[n], and the caller may continue with batch[n+1:]. It is
	// EMSGSIZE if the datagram is larger than the interface takes.
	WriteBatch(batch []Datagram) (n int, err error)
	// KeepsWhole reports whether datagrams without Cut are fragmented nowhere,
	// whatever the system remembers of the path.
	KeepsWhole() bool
	// BatchSize returns the length of the largest batch that ReadBatch fills.
	BatchSize() int
	// ReadQueue sets q to the state of the socket's receive buffer, and reports
	// whether it has: only sockets of the system tell. It may be called at any
	// time.
	ReadQueue(q *Queue) bool
	// Features returns the features in use at present.
	Features() Features
	// Merging returns whether datagrams leave merged, and if not, why.
	Merging() Merging
	// OnRefusal sets what is called when Merging changes (RefusalError), and when the
	// system refuses calls (CallError): at once for what New has found, and then on the
	// goroutines that read or write. It is for the time before the first batch.
	OnRefusal(func(error))
	// Release restores the options of the socket that New found. It is for
	// sockets that outlive the Conn, and must be its last call.
	Release() error
}

// Features are the means by which a Conn is faster than one call per datagram.
type Features struct {
	GSO  bool // datagrams to one peer leave as one large packet (UDP_SEGMENT)
	GRO  bool // datagrams of one peer arrive as one large packet (UDP_GRO)
	Mmsg bool // one system call moves many packets (sendmmsg, recvmmsg)
}

// Merging is the state of segmentation offload (GSO).
type Merging struct {
	Off     string // why no datagrams are merged; empty: some are
	Refused int    // addresses to which the system has refused merged datagrams lately
}

// RefusalError says that datagrams are not merged any more.
type RefusalError struct {
	To  netip.Addr // to that address; not valid: to any
	Err error      // why
}

func (e RefusalError) Error() string {
	if !e.To.IsValid() {
		return "no datagrams are merged (UDP_SEGMENT): " + e.Err.Error()
	}
	return "datagrams to " + e.To.String() + " are not merged (UDP_SEGMENT): " + e.Err.Error()
}

// Unwrap returns e.Err.
func (e RefusalError) Unwrap() error { return e.Err }

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

// wantedFeatures returns the features that the environment allows. The
// variables KCP_DISABLE_GSO, KCP_DISABLE_GRO and KCP_DISABLE_MMSG switch off
// one each, the last one all of them. They are read for each socket, so that a
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

// New returns the fastest Conn available for pc. It may change options of a
// socket of the system, which Release restores.
func New(pc net.PacketConn) Conn {
	return newConn(pc, wantedFeatures())
}

// newConn is New with the wanted features, as far as the system supports them.
func newConn(pc net.PacketConn, wanted Features) Conn {
	switch c := pc.(type) {
	case *net.UDPConn:
		r := new(refusals)
		if fast := newFast(c, wanted, r); fast != nil {
			return fast
		}
		w := new(whole)
		w.beginOn(c, r)
		socket := udpConn{c, c.RemoteAddr() != nil, w, new(meter)}
		return withInfo(&single{addrPortConn: socket, portable: portable{refusals: r}}, socket)
	case addrPortConn:
		return &single{addrPortConn: c}
	}
	return &foreign{pc: pc}
}

// HasReceived reports whether the next ReadBatch of c returns what an earlier one had no
// space for. Only the reader of c may call it.
func HasReceived(c Conn) bool {
	r, ok := c.(interface{ hasReceived() bool })
	return ok && r.hasReceived()
}

// Split returns addr as an AddrPort if it is a UDP address. Otherwise it
// returns addr itself, and an AddrPort that is not valid.
func Split(addr net.Addr) (netip.AddrPort, net.Addr) {
	if u, ok := addr.(*net.UDPAddr); ok {
		if ap := u.AddrPort(); ap.IsValid() {
			return Unmap(ap), nil
		}
	}
	return netip.AddrPort{}, addr
}

// Unmap returns addr with an IPv4-mapped IPv6 address as IPv4, so that a peer
// has a single address on a dual-stack socket.
func Unmap(addr netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}
