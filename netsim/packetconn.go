package netsim

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// defaultReadBuffer bounds a receive queue, in bytes.
	defaultReadBuffer = 4 << 20

	// minCharge is the least that a packet counts for in a receive queue, so
	// that empty packets cannot fill the memory.
	minCharge = 64

	// maxPayload is the largest datagram: 65535 less the IPv4 and UDP headers.
	maxPayload = 65507
)

// PacketConn is a socket of a Network. It implements net.PacketConn as a
// *net.UDPConn does: addresses are *net.UDPAddr, a read into a buffer that is
// too short discards the rest of the packet, errors are *net.OpError wrapping
// net.ErrClosed or os.ErrDeadlineExceeded. Writes never block. It is safe for
// concurrent use.
type PacketConn struct {
	network *Network
	local   netip.AddrPort
	addr    *net.UDPAddr

	mu            sync.Mutex
	changed       sync.Cond      // a blocked read has reason to look again
	public        netip.AddrPort // where others see it; also guarded by network.mu
	closed        bool
	queue         fifo[*parcel[flow]]
	charged       int // for the packets in queue, in bytes
	limit         int // for charged
	dropped       Tally
	readFailure   failure
	writeFailure  failure
	readDeadline  time.Time // zero means none
	writeDeadline time.Time
	readTimer     *time.Timer // wakes blocked reads at readDeadline
}

var _ net.PacketConn = (*PacketConn)(nil)

// failure is an error that the next calls return.
type failure struct {
	err   error
	times int
}

func (f *failure) take() error {
	if f.times <= 0 {
		return nil
	}
	f.times--
	return f.err
}

func newPacketConn(n *Network, at netip.AddrPort) *PacketConn {
	c := &PacketConn{network: n, local: at, public: at, addr: net.UDPAddrFromAddrPort(at), limit: defaultReadBuffer}
	c.changed.L = &c.mu
	return c
}

// ReadFrom implements net.PacketConn. The address is a *net.UDPAddr of its own.
func (c *PacketConn) ReadFrom(b []byte) (int, net.Addr, error) {
	size, from, err := c.ReadFromAddrPort(b)
	if err != nil {
		return 0, nil, err
	}
	return size, net.UDPAddrFromAddrPort(from), nil
}

// ReadFromAddrPort is ReadFrom without the allocation of an address.
func (c *PacketConn) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	p, err := c.next()
	if err != nil {
		return 0, netip.AddrPort{}, err
	}
	size, from := copy(b, p.data), p.dest.from
	c.network.parcels.release(p)
	return size, from, nil
}

// next waits for a packet and takes it off the queue.
func (c *PacketConn) next() (*parcel[flow], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if c.closed {
			return nil, c.opError("read", nil, net.ErrClosed)
		}
		if err := c.readFailure.take(); err != nil {
			return nil, err
		}
		// A passed deadline comes before waiting packets, as in package net.
		if passed(c.readDeadline) {
			return nil, c.opError("read", nil, os.ErrDeadlineExceeded)
		}
		if c.queue.len() > 0 {
			p := c.queue.pop()
			c.charged -= charge(p)
			return p, nil
		}
		c.changed.Wait()
	}
}

// enqueue hands a packet to the socket. If there is no room, it returns false
// and the packet remains the caller's.
func (c *PacketConn) enqueue(p *parcel[flow]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.charged+charge(p) > c.limit {
		c.dropped.add(len(p.data))
		return false
	}
	c.charged += charge(p)
	c.queue.push(p)
	c.changed.Broadcast()
	return true
}

func charge(p *parcel[flow]) int { return max(len(p.data), minCharge) }

// WriteTo implements net.PacketConn. The address must be a *net.UDPAddr.
func (c *PacketConn) WriteTo(b []byte, addr net.Addr) (int, error) {
	to, ok := addr.(*net.UDPAddr)
	if !ok || to == nil {
		return 0, c.opError("write", addr, syscall.EINVAL)
	}
	return c.WriteToAddrPort(b, to.AddrPort())
}

// WriteToAddrPort is WriteTo without the need for a net.Addr. It does not
// allocate in the steady state.
func (c *PacketConn) WriteToAddrPort(b []byte, to netip.AddrPort) (int, error) {
	if err := c.mayWrite(len(b), to); err != nil {
		return 0, err
	}
	c.network.send(c, unmapped(to), b)
	return len(b), nil
}

func (c *PacketConn) mayWrite(size int, to netip.AddrPort) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	fail := func(err error) error { return c.opError("write", net.UDPAddrFromAddrPort(to), err) }
	if c.closed {
		return fail(net.ErrClosed)
	}
	if err := c.writeFailure.take(); err != nil {
		return err
	}
	if passed(c.writeDeadline) {
		return fail(os.ErrDeadlineExceeded)
	}
	if !to.IsValid() {
		return fail(syscall.EINVAL)
	}
	if size > maxPayload {
		return fail(os.NewSyscallError("sendto", syscall.EMSGSIZE))
	}
	return nil
}

// Close closes the socket. Blocked reads return with net.ErrClosed, packets not
// yet read are gone, and the address is free.
func (c *PacketConn) Close() error {
	// First, so that whatever arrives from now on finds no socket.
	if !c.network.remove(c) {
		return c.opError("close", nil, net.ErrClosed)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.queue, c.charged = fifo[*parcel[flow]]{}, 0
	c.stopTimer()
	c.changed.Broadcast()
	return nil
}

// LocalAddr returns the socket's *net.UDPAddr. It must not be changed.
func (c *PacketConn) LocalAddr() net.Addr { return c.addr }

// AddrPort returns the socket's address as a value.
func (c *PacketConn) AddrPort() netip.AddrPort { return c.local }

// PublicAddrPort returns the address at which others see the socket: the same as
// AddrPort, unless Rebind has changed it.
func (c *PacketConn) PublicAddrPort() netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.public
}

// Rebind gives the socket another public address, as happens to a host behind a
// NAT whose binding has expired, or that moves from one network to another.
// What the socket sends from now on comes from there, on the links of that
// address, and what is sent there reaches it; what arrives at the former address
// finds nobody, even if it is underway already. The socket itself learns nothing
// of it: LocalAddr stays.
//
// The address is as for Network.Listen, with the same errors. The former one is
// free for others.
func (c *PacketConn) Rebind(addr string) error { return c.network.rebind(c, addr) }

// SetDeadline sets the deadline of reads and writes.
func (c *PacketConn) SetDeadline(t time.Time) error { return c.setDeadlines(t, true, true) }

// SetReadDeadline sets the time from which reads, those already blocked
// included, fail with os.ErrDeadlineExceeded. The zero value means never.
func (c *PacketConn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, true, false) }

// SetWriteDeadline sets the time from which writes fail with
// os.ErrDeadlineExceeded. The zero value means never.
func (c *PacketConn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, false, true) }

func (c *PacketConn) setDeadlines(t time.Time, read, write bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", nil, net.ErrClosed)
	}
	if write {
		c.writeDeadline = t
	}
	if read {
		c.readDeadline = t
		c.stopTimer()
		c.wakeAtDeadline()
		c.changed.Broadcast()
	}
	return nil
}

// wakeAtDeadline has blocked reads look again when the deadline has passed. A
// deadline without a monotonic reading may be put off by a change of the wall
// clock, so the timer checks whether it came too early.
func (c *PacketConn) wakeAtDeadline() {
	if c.closed || c.readDeadline.IsZero() || passed(c.readDeadline) {
		return
	}
	set := c.readDeadline
	c.readTimer = time.AfterFunc(time.Until(set), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.readDeadline != set {
			return // this timer was stopped too late
		}
		c.wakeAtDeadline()
		c.changed.Broadcast()
	})
}

func (c *PacketConn) stopTimer() {
	if c.readTimer != nil {
		c.readTimer.Stop()
		c.readTimer = nil
	}
}

// passed reports whether a deadline has been reached.
func passed(deadline time.Time) bool {
	return !deadline.IsZero() && !time.Now().Before(deadline)
}

// SetReadBuffer bounds the receive queue, in bytes; the default is 4 MiB. A
// packet that does not fit is dropped and counted; each counts for at least 64
// bytes. Packets already queued stay. The error is always nil; it is there so
// that the method belongs to a *net.UDPConn.
func (c *PacketConn) SetReadBuffer(bytes int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = bytes
	return nil
}

// Dropped counts the packets that found the receive queue full.
func (c *PacketConn) Dropped() Tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped
}

// Unread returns how much of the receive queue the waiting packets take, in the
// bytes of SetReadBuffer.
func (c *PacketConn) Unread() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.charged
}

// FailReads makes the next reads, as many as times says, return err as it is,
// without taking a packet; blocked reads count. It replaces what an earlier
// call has left over; times 0 cancels that.
func (c *PacketConn) FailReads(err error, times int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readFailure = failure{err, times}
	c.changed.Broadcast()
}

// FailWrites makes the next writes, as many as times says, return err as it is
// and send nothing. It replaces what an earlier call has left over; times 0
// cancels that.
func (c *PacketConn) FailWrites(err error, times int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeFailure = failure{err, times}
}

func (c *PacketConn) opError(op string, addr net.Addr, err error) error {
	return &net.OpError{Op: op, Net: "udp", Source: c.addr, Addr: addr, Err: err}
}
