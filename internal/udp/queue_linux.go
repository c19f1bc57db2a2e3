package udp

import (
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Places of the values that SO_MEMINFO returns (linux/sock_diag.h).
const (
	memReceived      = 0 // SK_MEMINFO_RMEM_ALLOC
	memReceiveBuffer = 1 // SK_MEMINFO_RCVBUF
	memDrops         = 8 // SK_MEMINFO_DROPS
	memValues        = 9
)

// meter reads the state of a socket's receive buffer (SO_MEMINFO), by one
// system call that needs no lock of the socket. The zero value is ready to use.
type meter struct {
	mu     sync.Mutex
	raw    syscall.RawConn // nil before the first read
	read32 func(fd uintptr)
	values [memValues]uint32
	ok     bool // the last call has set values
}

// read sets q, and reports whether it has.
func (m *meter) read(c syscall.Conn, q *Queue) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.raw == nil {
		raw, err := c.SyscallConn()
		if err != nil {
			return false
		}
		m.raw, m.read32 = raw, m.get
	}
	m.ok = false
	if m.raw.Control(m.read32) != nil || !m.ok {
		return false
	}
	*q = Queue{Used: int(m.values[memReceived]), Limit: int(m.values[memReceiveBuffer]), Drops: m.values[memDrops]}
	return true
}

// get makes the system call, a short one (see shortCall). Package unix has no
// function for this option.
func (m *meter) get(fd uintptr) {
	size := uint32(unsafe.Sizeof(m.values))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&m.values)), uintptr(unsafe.Pointer(&size)), 0)
	m.ok = errno == 0 && size == uint32(unsafe.Sizeof(m.values))
}
