package tunnel

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// writeAnswer answers a request, with a copy of a socket if there is one.
func writeAnswer(conn *net.UnixConn, socket *os.File) error {
	if socket == nil {
		_, err := conn.Write([]byte{0})
		return err
	}
	raw, err := socket.SyscallConn() // Fd would make the socket block
	if err != nil {
		return err
	}
	controlled := raw.Control(func(fd uintptr) {
		_, _, err = conn.WriteMsgUnix([]byte{0}, syscall.UnixRights(int(fd)), nil)
	})
	return errors.Join(controlled, err)
}

// readAnswer reads what writeAnswer has written. The caller has to close the socket, if
// there is one.
func readAnswer(conn *net.UnixConn) (*os.File, error) {
	var b [1]byte
	rights := make([]byte, syscall.CmsgSpace(4))
	n, k, _, _, err := conn.ReadMsgUnix(b[:], rights) // close-on-exec is set by package net
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	messages, err := syscall.ParseSocketControlMessage(rights[:k])
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "listener"), nil
}
