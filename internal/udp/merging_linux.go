package udp

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// refusalTime is for how long datagrams to an address leave one by one after
	// a merged packet was refused: its route may become another.
	refusalTime = 10 * time.Minute
	// maxRefusals is how many such addresses a socket remembers. One more pushes
	// out the oldest.
	maxRefusals = 64
	// provingRefusals is how many of them show that the socket cannot merge, if
	// no merged packet was ever taken.
	provingRefusals = 16
)

// merging is whether the datagrams of a socket are merged (UDP_SEGMENT), and to
// whom not. What a route, an interface or a size is the reason of stays with the
// address. Writers use it concurrently.
type merging struct {
	notify func(error) // nil: none; immutable once datagrams are written
	broken bool        // the socket should merge, and cannot; immutable
	active atomic.Bool
	taken  atomic.Bool  // a merged packet has left
	count  atomic.Int32 // length of refusals

	mu       sync.Mutex               // guards the fields below
	off      string                   // why active is false
	refusals map[netip.Addr]time.Time // when each was refused
	order    []netip.Addr             // its keys, oldest first
}

// begin finds out whether the socket fd can merge, if that is wanted.
func (m *merging) begin(fd int, wanted bool) {
	_, segment := unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT)
	switch {
	case !wanted:
		m.off = "KCP_DISABLE_GSO"
	case segment != nil:
		m.off = "UDP_SEGMENT: " + segment.Error()
	case hasNoChecksum(fd):
		m.off = "the socket has SO_NO_CHECK"
	default:
		m.off = segmentation()
		m.broken = m.off != ""
	}
	m.active.Store(m.off == "")
}

func hasNoChecksum(fd int) bool {
	on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_NO_CHECK)
	return err == nil && on != 0
}

// tell sets notify, and calls it if the socket should merge and cannot.
func (m *merging) tell(notify func(error)) {
	m.notify = notify
	if m.broken {
		notify(RefusalError{Err: errors.New(m.off)})
	}
}

func (m *merging) on() bool { return m.active.Load() }

// worked records that a merged packet has left.
func (m *merging) worked() {
	if !m.taken.Load() {
		m.taken.Store(true)
	}
}

// refusesAny reports whether refuses may report true.
func (m *merging) refusesAny() bool { return m.count.Load() > 0 }

// refuses reports whether merged packets to an address were refused lately.
func (m *merging) refuses(to netip.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(time.Now())
	_, ok := m.refusals[to]
	return ok
}

// forget drops refusals that are too old. m.mu is held.
func (m *merging) forget(now time.Time) {
	for len(m.order) > 0 && now.Sub(m.refusals[m.order[0]]) >= refusalTime {
		m.drop()
	}
}

// drop drops the oldest refusal. m.mu is held.
func (m *merging) drop() {
	delete(m.refusals, m.order[0])
	m.order = m.order[1:]
	m.count.Store(int32(len(m.order)))
}

// refuse records that a merged packet to an address was refused with err, and
// its first datagram was not.
func (m *merging) refuse(to netip.Addr, err error) {
	if e, changed := m.remember(to, err); changed && m.notify != nil {
		m.notify(e)
	}
}

// remember is refuse without the call of notify. It reports whether that is due.
func (m *merging) remember(to netip.Addr, err error) (RefusalError, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.forget(now)
	if _, ok := m.refusals[to]; ok || m.off != "" {
		return RefusalError{}, false
	}
	if m.refusals == nil {
		m.refusals = make(map[netip.Addr]time.Time)
	}
	if len(m.order) >= maxRefusals {
		m.drop()
	}
	m.refusals[to] = now
	m.order = append(m.order, to)
	m.count.Store(int32(len(m.order)))
	if !m.taken.Load() && len(m.order) >= provingRefusals {
		m.off = "merged datagrams are refused for all addresses: " + err.Error()
		m.active.Store(false)
		return RefusalError{Err: errors.New(m.off)}, true
	}
	return RefusalError{To: to, Err: err}, true
}

// state returns what is off, and why.
func (m *merging) state() Merging {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(time.Now())
	return Merging{Off: m.off, Refused: len(m.order)}
}

// adopt takes over what o knows of the same socket.
func (m *merging) adopt(o *merging) {
	m.off = o.state().Off
	m.active.Store(m.off == "")
}

// segmentation returns why the system does not merge datagrams although it has
// UDP_SEGMENT; empty: it does. It tries that once, on the loopback interface: an
// emulated system may take the option and ignore it.
func segmentation() string {
	trial.Do(func() { trialResult = trySegmentation(newPermitted(new(refusals)).sendmmsg) })
	return trialResult
}

var (
	trial       sync.Once
	trialResult string // of segmentation
)

// notSegmented is what segmentation returns for a system that takes the option and
// ignores it. It will not tell the sizes of merged packets (UDP_GRO) either.
const notSegmented = "the system takes UDP_SEGMENT and does not segment"

// trialSize is the size of the datagrams of the trial, and trialWait how long one
// may take.
const (
	trialSize = 32
	trialWait = 50 * time.Millisecond
)

// trySegmentation is segmentation with the system call in place of sendmmsg. If the
// trial cannot be made, it counts as passed.
func trySegmentation(sendmmsg func(uintptr, []header) (int, syscall.Errno)) string {
	r, err := trialSocket()
	if err != nil {
		return ""
	}
	defer unix.Close(r)
	w, err := trialSocket()
	if err != nil {
		return ""
	}
	defer unix.Close(w)
	here, err := unix.Getsockname(r)
	if err != nil || unix.Connect(w, here) != nil {
		return ""
	}
	there, err := unix.Getsockname(w)
	if err != nil || unix.Connect(r, there) != nil { // so that nobody else's datagrams arrive
		return ""
	}
	var control segmentControl
	control.put(trialSize)
	var data [2 * trialSize]byte
	vector := unix.Iovec{Base: &data[0]}
	vector.SetLen(len(data))
	headers := make([]header, 1)
	headers[0].Iov = &vector
	headers[0].SetIovlen(1)
	headers[0].Control = &control.b[0]
	headers[0].SetControllen(segmentControlSize())
	switch _, errno := sendmmsg(uintptr(w), headers); errno {
	case 0:
	case unix.EIO, unix.EINVAL:
		return "merged datagrams are refused on the loopback interface: " + errno.Error()
	default:
		return ""
	}
	if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(r), Events: unix.POLLIN}}, int(trialWait/time.Millisecond)); n != 1 {
		return ""
	}
	if n, err := unix.Read(r, data[:]); err == nil && n == len(data) {
		return notSegmented
	}
	return ""
}

// trialSocket opens a socket on the loopback interface.
func trialSocket() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
