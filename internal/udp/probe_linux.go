package udp

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const canProbe = true

// probing writes probes of a path's MTU (DPLPMTUD, RFC 8899) on a socket. Other
// datagrams leave as the kernel sends them by default: routers must not
// fragment them, but the kernel does once it has learned that the path takes
// less. A probe must not be fragmented at all, and must not be limited by what
// the kernel remembers of the path (IP_PMTUDISC_PROBE).
//
// For IPv4 that is an option of the whole socket only. So the option is changed
// for the time of one write. What another goroutine writes meanwhile may be
// dropped as too large, as may happen on the path.
//
// The zero value is ready to use.
type probing struct{ mu sync.Mutex } // mu is held while the option is changed

// discover is the option in the form of one address family, and its value for
// probes.
type discover struct{ level, option, probe int }

// write calls write, which writes one datagram, so that it leaves as a probe.
func (p *probing) write(c syscall.Conn, write func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	// An IPv6 socket may carry IPv4 too. An IPv4 socket refuses the option of
	// IPv6.
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
	err = write()
	if errors.Is(err, syscall.EMSGSIZE) {
		// The error may concern an earlier probe. The kernel reports it only
		// once.
		err = write()
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
