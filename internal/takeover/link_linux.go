package takeover

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxPayload is the size of the largest message of a Link.
const maxPayload = 64 << 10

// Link is an end of the exchange. One goroutine uses it at a time.
type Link struct {
	conn     *net.UnixConn
	peer     string // the process at the other end, for errors
	ctx      context.Context
	within   time.Duration // how long this end waits, for errors
	deadline time.Time
	files    []int         // received, and not taken
	stop     func() bool   // lets the end of the context end nothing any more
	stopped  chan struct{} // closed when that has ended the exchange
}

// NewLink begins an exchange over conn, which may take Timeout, and not longer than ctx.
// peer is what errors call the process at the other end. NewLink fails if conn is not a
// stream, or if that process is of another user than this one or root.
func NewLink(ctx context.Context, conn *net.UnixConn, peer string) (*Link, error) {
	if conn == nil {
		return nil, fmt.Errorf("the Unix socket is nil: %w", unix.EINVAL)
	}
	if err := checkPeer(conn, peer); err != nil {
		return nil, err
	}
	within := scaled(ctx, Timeout)
	deadline := time.Now().Add(within)
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	l := &Link{conn: conn, peer: peer, ctx: ctx, within: within, deadline: deadline, stopped: make(chan struct{})}
	l.stop = context.AfterFunc(ctx, func() {
		defer close(l.stopped)
		_ = conn.SetDeadline(time.Unix(1, 0))
	})
	return l, nil
}

// checkPeer checks what conn is, and whose process is at its other end.
func checkPeer(conn *net.UnixConn, peer string) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var typ int
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		if typ, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TYPE); failed == nil {
			cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		}
	}); err != nil {
		return err
	}
	switch {
	case failed != nil:
		return os.NewSyscallError("getsockopt", failed)
	case typ != unix.SOCK_STREAM:
		return errors.New("the Unix socket is not a stream socket")
	case cred.Uid != 0 && int(cred.Uid) != os.Geteuid():
		return fmt.Errorf("%s is of user %d", peer, cred.Uid)
	}
	return nil
}

// Close ends the exchange. It closes the descriptors that were not taken, and leaves conn
// open.
func (l *Link) Close() {
	l.ignoreContext()
	_ = l.conn.SetDeadline(time.Time{})
	CloseFiles(l.files)
	l.files = nil
}

// ignoreContext makes the context have no effect from now on. It is to be called once,
// or twice.
func (l *Link) ignoreContext() {
	if l.stop != nil && !l.stop() {
		<-l.stopped
	}
	l.stop = nil
}

// Limit bounds what is left of the exchange, if it was to take longer.
func (l *Link) Limit(d time.Duration) {
	d = scaled(l.ctx, d)
	if at := time.Now().Add(d); at.Before(l.deadline) {
		l.within, l.deadline = d, at
		_ = l.conn.SetDeadline(at)
		if l.ctx.Err() != nil {
			_ = l.conn.SetDeadline(time.Unix(1, 0))
		}
	}
}

// Wait gives the exchange Timeout from now on, whatever the context does. What follows
// must not fail for this end's sake.
func (l *Link) Wait() {
	l.ignoreContext()
	l.within = scaled(l.ctx, Timeout)
	_ = l.conn.SetDeadline(time.Now().Add(l.within))
}

// Send sends a message, with descriptors that stay open here.
func (l *Link) Send(kind Kind, payload []byte, files ...int) error {
	b := binary.LittleEndian.AppendUint32([]byte{byte(kind)}, uint32(len(payload)))
	b = append(b, payload...)
	var rights []byte
	if len(files) > 0 {
		rights = unix.UnixRights(files...)
	}
	n, _, err := l.conn.WriteMsgUnix(b, rights, nil)
	if err == nil && n < len(b) {
		_, err = l.conn.Write(b[n:])
	}
	return l.explained(err)
}

// Refuse tells the other end why the exchange ends here, as far as it listens. differs is
// the setting that is the reason, or nil.
func (l *Link) Refuse(why error, differs *Difference) {
	_ = l.conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_ = l.Send(RefuseKind, refusal(why, differs))
}

// Receive waits for the next message. It is an error if it is of none of the given kinds;
// a *RefusedError if it is RefuseKind.
func (l *Link) Receive(kinds ...Kind) (kind Kind, payload []byte, err error) {
	var head [5]byte
	if err := l.fill(head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(head[1:])
	kind = Kind(head[0])
	if n > maxPayload || !kind.known() {
		return 0, nil, fmt.Errorf("%s does not speak the exchange of a takeover: it begins a message with %q", l.peer, head[:])
	}
	payload = make([]byte, n)
	if err := l.fill(payload); err != nil {
		return 0, nil, err
	}
	if kind == RefuseKind {
		return 0, nil, parseRefusal(l.peer, payload)
	}
	if slices.Contains(kinds, kind) {
		return kind, payload, nil
	}
	return 0, nil, fmt.Errorf("a message %q that does not belong here", kind)
}

// IsGone reports whether err, of Send or Receive, says that the other end has closed.
func IsGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// explained returns an error of conn as one that says what the other process did.
func (l *Link) explained(err error) error {
	switch {
	case IsGone(err):
		return &peerError{l.peer + " has ended, or closed the socket", err}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &peerError{fmt.Sprintf("%s does not answer within %v", l.peer, l.within.Round(10*time.Millisecond)), err}
	}
	return err
}

// peerError is what the other process did, in place of the text of what it caused.
type peerError struct {
	text string
	err  error // of conn
}

func (e *peerError) Error() string { return e.text }
func (e *peerError) Unwrap() error { return e.err }

// Timeout reports whether the other process did not answer, as net.Error has it.
func (e *peerError) Timeout() bool { return errors.Is(e.err, os.ErrDeadlineExceeded) }

// fill reads len(b) bytes, and the descriptors that come with them.
func (l *Link) fill(b []byte) error {
	rights := make([]byte, unix.CmsgSpace(4*MaxFiles))
	for len(b) > 0 {
		n, space, flags, _, err := l.conn.ReadMsgUnix(b, rights)
		if space > 0 {
			if err := l.keep(rights[:space]); err != nil {
				return err
			}
		}
		switch {
		case err != nil:
			return l.explained(err)
		case flags&unix.MSG_CTRUNC != 0:
			return errors.New("too many descriptors")
		}
		b = b[n:]
	}
	return nil
}

// keep records descriptors that have arrived.
func (l *Link) keep(rights []byte) error {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return err
	}
	for i := range messages {
		files, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // it has none
		}
		l.files = append(l.files, files...)
	}
	if len(l.files) > MaxFiles {
		return errors.New("too many descriptors")
	}
	return nil
}

// TakeFiles returns the descriptors that have arrived, which now belong to the caller. It
// fails unless there are n.
func (l *Link) TakeFiles(n int) ([]int, error) {
	if len(l.files) != n {
		return nil, fmt.Errorf("%d descriptors in place of %d", len(l.files), n)
	}
	files := l.files
	l.files = nil
	return files, nil
}

// OpenSocket returns the UDP socket of a descriptor, which it closes.
func OpenSocket(fd int) (*net.UDPConn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	if f == nil {
		return nil, os.NewSyscallError("socket", unix.EBADF)
	}
	defer f.Close()
	pc, err := net.FilePacketConn(f)
	if err != nil {
		return nil, fmt.Errorf("a descriptor is not a UDP socket: %w", err)
	}
	u, ok := pc.(*net.UDPConn)
	if !ok {
		_ = pc.Close()
		return nil, errors.New("a descriptor is not a UDP socket")
	}
	return u, nil
}

// Reopen returns another descriptor of a UDP socket as one of package net.
func Reopen(c syscall.Conn) (*net.UDPConn, error) {
	fd, err := Duplicate(c)
	if err != nil {
		return nil, err
	}
	return OpenSocket(fd)
}

// CloseFiles closes descriptors that were to be passed on.
func CloseFiles(files []int) {
	for _, fd := range files {
		_ = unix.Close(fd)
	}
}

// Duplicate returns another descriptor of a socket of the system. (File of package net
// would do, but its Fd makes the socket block, for the other process too.)
func Duplicate(c syscall.Conn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var failed error
	if err := raw.Control(func(s uintptr) { fd, failed = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return -1, err
	}
	return fd, failed
}
