package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/upgrade/arena"
)

// inheritEnv is set in a new process. It has two files of the process before: one end of
// a Unix socket, over which the UDP socket comes, and a pipe to say how far it is.
const (
	inheritEnv = "UPGRADE_INHERIT"
	socketFile = 3
	pipeFile   = 4
)

// What a new process says through the pipe.
const (
	wantsSocket = 't'
	serves      = 's'
)

// successor is a new process, as its parent sees it.
type successor struct {
	cmd   *exec.Cmd
	conn  *net.UnixConn
	pipe  *os.File
	ended chan error // capacity 1: what Wait returns
}

// launch starts the program at exe, with the arguments of this process.
func launch(exe string) (*successor, error) {
	conn, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	r, w, err := os.Pipe()
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	defer w.Close()
	cmd := exec.Command(exe, os.Args[1:]...)
	cmd.Env = append(os.Environ(), inheritEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{theirs, w} // socketFile and pipeFile
	if err := cmd.Start(); err != nil {
		_ = conn.Close()
		_ = r.Close()
		return nil, err
	}
	n := &successor{cmd: cmd, conn: conn, pipe: r, ended: make(chan error, 1)}
	go func() { n.ended <- cmd.Wait() }()
	return n, nil
}

// socketPair returns a connection, and the file of its other end.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "handover"), os.NewFile(uintptr(fds[1]), "takeover")
	defer ours.Close() // FileConn makes a copy
	conn, err := net.FileConn(ours)
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), theirs, nil
}

// says waits until the process says what it should.
func (n *successor) says(what byte, limit time.Duration) error {
	if err := n.pipe.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	var b [1]byte
	if _, err := n.pipe.Read(b[:]); err != nil {
		return err
	}
	if b[0] != what {
		return fmt.Errorf("the new process says %q in place of %q", b, what)
	}
	return nil
}

// failed ends a process that does not do what it should. It returns how the process has
// ended, or why it had to be ended.
func (n *successor) failed(err error) error {
	n.kill()
	<-n.ended
	if os.IsTimeout(err) {
		return fmt.Errorf("the new process is too slow: %w", err)
	}
	return fmt.Errorf("the new process has ended: %v", n.cmd.ProcessState)
}

// kill ends a process that has not taken over.
func (n *successor) kill() { _ = n.cmd.Process.Kill() }

// release closes what is needed no more once the process serves, or has ended.
func (n *successor) release() {
	_ = n.conn.Close()
	_ = n.pipe.Close()
}

// end returns a channel with the end of the process. It is nil for a nil successor.
func (n *successor) end() <-chan error {
	if n == nil {
		return nil
	}
	return n.ended
}

// predecessor is the process before this one.
type predecessor struct {
	conn *net.UnixConn
	pipe *os.File
}

// inherit returns the process that has started this one to take over; nil: there is none.
func inherit() (*predecessor, error) {
	if os.Getenv(inheritEnv) == "" {
		return nil, nil
	}
	_ = os.Unsetenv(inheritEnv)
	syscall.CloseOnExec(socketFile)
	syscall.CloseOnExec(pipeFile)
	file := os.NewFile(socketFile, "takeover")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("%s is set, but file %d is not a Unix socket", inheritEnv, socketFile)
	}
	return &predecessor{unix, os.NewFile(pipeFile, "progress")}, nil
}

// takeOver takes the socket over.
func (p *predecessor) takeOver(ctx context.Context) (*kcp.Listener, error) {
	defer p.conn.Close()
	if _, err := p.pipe.Write([]byte{wantsSocket}); err != nil {
		return nil, err
	}
	return kcp.TakeOver(ctx, p.conn, arena.Config())
}

// release says that this process serves.
func (p *predecessor) release() {
	_, _ = p.pipe.Write([]byte{serves}) // if it fails, the process before has ended
	_ = p.pipe.Close()
}

// writePID puts the id of this process into a file, if path names one. Whoever reads it
// gets this id or the id of the process before.
func writePID(path string) error {
	if path == "" {
		return nil
	}
	id := strconv.Itoa(os.Getpid())
	draft := path + "." + id
	if err := os.WriteFile(draft, []byte(id+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(draft, path)
}
