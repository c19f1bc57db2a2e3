//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package udp

import (
	"errors"
	"net/netip"
	"sync"
	"syscall"
)

// wildcard is the single of a socket that is bound to no address: its datagrams have
// local addresses.
type wildcard struct {
	*single
	c    udpConn
	info packetInfo
	in   infoControl
}

// infoControl is space for control messages, in the system's alignment. It also has
// space for those that the program may have enabled on its socket.
type infoControl struct {
	_ [0]uint64
	b [256]byte
}

// infoControls holds the working memory of writes.
var infoControls = sync.Pool{New: func() any { return new(infoControl) }}

// withInfo returns s, or what takes its place on a socket that may get datagrams for
// several addresses.
func withInfo(s *single, c udpConn) Conn {
	if !wantsInfo(c.UDPConn) {
		return s
	}
	w := &wildcard{single: s, c: c}
	w.info.zones = new(zones)
	raw, err := c.SyscallConn()
	if refused := messagesRefused(); refused != nil {
		s.refusals.add(refused)
		return s
	}
	if err == nil {
		err = raw.Control(func(fd uintptr) { w.info.open(int(fd), s.refusals) })
	}
	if err != nil || !w.info.on {
		return s
	}
	return w
}

func (w *wildcard) ReadBatch(batch []Datagram) (int, error) {
	buf := w.space()
	n, control, _, addr, err := w.c.ReadMsgUDPAddrPort(buf, w.in.b[:])
	if err != nil {
		return 0, err
	}
	batch[0] = Datagram{Buf: buf[:n:n], Addr: Unmap(addr), Local: w.info.read(w.in.b[:control])}
	return 1, nil
}

func (w *wildcard) WriteBatch(batch []Datagram) (int, error) {
	for i := range batch {
		if err := w.write(&batch[i]); err != nil {
			return i, err
		}
	}
	return len(batch), nil
}

// write writes one datagram from its local address, or without if the system refuses
// that.
func (w *wildcard) write(d *Datagram) error {
	if d.Local != (Local{}) {
		err := w.c.whole.writeOn(w.c.UDPConn, d.Cut, func() error { return w.writeFrom(d.Buf, d.Addr, d.Local) })
		if err == nil || !isRefused(err) {
			return err
		}
	}
	return w.single.write(d)
}

// isRefused reports whether err is one of refusesSource.
func isRefused(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && refusesSource(errno)
}

// writeFrom writes one datagram from a local address.
func (w *wildcard) writeFrom(b []byte, to netip.AddrPort, l Local) error {
	control := infoControls.Get().(*infoControl)
	defer infoControls.Put(control)
	_, _, err := w.c.WriteMsgUDPAddrPort(b, control.b[:w.info.put(control.b[:], l)], to)
	return err
}

// Release restores the options of control messages.
func (w *wildcard) Release() error {
	raw, err := w.c.SyscallConn()
	if err != nil {
		return err
	}
	var restored error
	err = raw.Control(func(fd uintptr) { restored = w.info.restore(int(fd)) })
	return errors.Join(err, restored, w.single.Release())
}
