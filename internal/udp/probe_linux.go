package udp

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const canProbe = true

// probing writes probes of a path's MTU on a socket. Other datagrams leave as
// the kernel does by default: not to be fragmented on the way, but by itself
// once it has learned that the path takes less. A probe must not be fragmented
// at all, and must not be held to what the kernel remembers of the path either.
//
// IPv4 has that as an option of the whole socket only. So the option is changed
// for the time of one write. What somebody else writes meanwhile may be dropped
// as too large, as it might be on the way.
type probing struct{ mu sync.Mutex }

// discover is the option in the form that a family of addresses has.
type discover struct{ level, option, probe int }

// write writes one datagram.
func (p *probing) write(c *net.UDPConn, connected bool, d *Datagram) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	// A socket of IPv6 may be one of IPv4 besides, and the other way round the
	// option is refused.
	options := [...]discover{
		{unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE},
		{unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE},
	}
	var before [len(options)]int
	var errs [len(options)]error
	if err := raw.Control(func(fd uintptr) {
		for i, o := range options {
			if before[i], errs[i] = unix.GetsockoptInt(int(fd), o.level, o.option); errs[i] == nil {
				errs[i] = unix.SetsockoptInt(int(fd), o.level, o.option, o.probe)
			}
		}
	}); err != nil {
		return err
	}
	if errs[0] != nil && errs[1] != nil {
		return os.NewSyscallError("setsockopt", errs[0])
	}
	_, err = writeTo(c, connected, d.Buf, d.Addr)
	if errors.Is(err, syscall.EMSGSIZE) {
		// It may be news of a probe before, which is told once.
		_, err = writeTo(c, connected, d.Buf, d.Addr)
	}
	restored := raw.Control(func(fd uintptr) {
		for i, o := range options {
			if errs[i] == nil {
				errs[i] = unix.SetsockoptInt(int(fd), o.level, o.option, before[i])
			}
		}
	})
	return errors.Join(err, restored)
}
