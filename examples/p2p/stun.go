package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pion/stun/v4"
)

// stunConn is a socket that KCP and STUN (RFC 8489) share, so that a STUN server sees
// the same mapping of the NAT as the peer will. What has the magic cookie at offset 4 is
// STUN. A packet of a session with TLS has its type there, which differs (WIRE.md §4.4).
// With a Cipher one packet in 2^32 would be taken for STUN, and sent again.
type stunConn struct {
	net.PacketConn
	serves bool // answer requests

	mu    sync.Mutex
	asked map[transaction]chan<- netip.AddrPort // at most maxAsked
}

// transaction is a request that waits for its answer: what another host sends does not
// count.
type transaction struct {
	server netip.AddrPort
	id     [stun.TransactionIDSize]byte
}

// maxAsked is the most requests at a time.
const maxAsked = 32

func newSTUNConn(pc net.PacketConn, serves bool) *stunConn {
	return &stunConn{PacketConn: pc, serves: serves, asked: make(map[transaction]chan<- netip.AddrPort)}
}

// ReadFrom returns the next packet that is not STUN.
func (c *stunConn) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, from, err := c.PacketConn.ReadFrom(b)
		if err != nil || !isSTUN(b[:n]) {
			return n, from, err
		}
		c.input(b[:n], from)
	}
}

// isSTUN reports whether b is a STUN message (RFC 8489 §5, RFC 7983 §7).
func isSTUN(b []byte) bool { return stun.IsMessage(b) && b[0]&0xc0 == 0 }

// input handles a STUN message. One that is neither a request for a binding, nor the
// answer to one, is dropped.
func (c *stunConn) input(b []byte, from net.Addr) {
	at := addrPort(from)
	m := new(stun.Message)
	if stun.Decode(b, m) != nil || !at.IsValid() {
		return
	}
	switch m.Type {
	case stun.BindingRequest:
		if c.serves {
			c.answer(m, at, from)
		}
	case stun.BindingSuccess:
		var mapped stun.XORMappedAddress
		ip, ok := netip.Addr{}, false
		if mapped.GetFrom(m) == nil {
			ip, ok = netip.AddrFromSlice(mapped.IP)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		key := transaction{at, m.TransactionID}
		if answered := c.asked[key]; answered != nil && ok {
			delete(c.asked, key)
			answered <- netip.AddrPortFrom(ip.Unmap(), uint16(mapped.Port)) // it has room for one
		}
	}
}

// answer tells a client where its request came from. It sends one packet for one.
func (c *stunConn) answer(m *stun.Message, at netip.AddrPort, to net.Addr) {
	reply, err := stun.Build(m, stun.BindingSuccess,
		&stun.XORMappedAddress{IP: at.Addr().AsSlice(), Port: int(at.Port())}, stun.Fingerprint)
	if err == nil {
		_, _ = c.WriteTo(reply.Raw, to) // a client that gets no answer asks again
	}
}

var errBusy = errors.New("too many STUN requests at a time")

// mapped asks a STUN server where it sees this socket. It sends the request again after
// 500 ms, and each time after twice as long (RFC 8489 §6.2.1). Somebody has to be in
// ReadFrom meanwhile.
func (c *stunConn) mapped(ctx context.Context, server netip.AddrPort) (netip.AddrPort, error) {
	m, err := stun.Build(stun.TransactionID, stun.BindingRequest, stun.Fingerprint)
	if err != nil {
		return netip.AddrPort{}, err
	}
	key, answered := transaction{server, m.TransactionID}, make(chan netip.AddrPort, 1)
	c.mu.Lock()
	if len(c.asked) >= maxAsked {
		c.mu.Unlock()
		return netip.AddrPort{}, errBusy
	}
	c.asked[key] = answered
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.asked, key)
	}()
	for rto := 500 * time.Millisecond; ; rto *= 2 {
		if _, err := c.WriteTo(m.Raw, net.UDPAddrFromAddrPort(server)); err != nil {
			return netip.AddrPort{}, err
		}
		select {
		case at := <-answered:
			return at, nil
		case <-time.After(rto):
		case <-ctx.Done():
			return netip.AddrPort{}, fmt.Errorf("no answer of the STUN server %s: %w", server, ctx.Err())
		}
	}
}

// addrPort returns the address of a packet, an IPv4 address as such. It is not valid if a
// is not a UDP address.
func addrPort(a net.Addr) netip.AddrPort {
	u, ok := a.(*net.UDPAddr)
	if !ok || u == nil {
		return netip.AddrPort{}
	}
	ap := u.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// serveSTUN answers STUN requests at pc, and drops all else, until pc is closed.
func serveSTUN(pc net.PacketConn) {
	c, b := newSTUNConn(pc, true), make([]byte, 1500)
	for {
		if _, _, err := c.ReadFrom(b); errors.Is(err, net.ErrClosed) {
			return
		}
	}
}
