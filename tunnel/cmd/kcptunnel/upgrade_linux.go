package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/arqnet/kcp/tunnel"
)

// inheritEnv is set in a process that takes the place of its parent. It has files of
// that: two ends of tunnel.Handover, a pipe to say how far it is, and what look passes.
const inheritEnv = "KCPTUNNEL_INHERIT"

// What a new process says through the pipe.
const (
	wantsSocket = 't'
	serves      = 's'
)

const (
	// startTime is how long a new process may take until it wants the socket, and
	// until it serves.
	startTime = time.Minute
	// retryTime is the first wait before a process that has failed is started again;
	// maxRetryTime is the longest.
	retryTime, maxRetryTime = time.Second, time.Minute
)

// upgrader is how a server begins in place of another process, and is replaced by
// another one. From serve on, its loop alone has the fields behind after.
type upgrader struct {
	log   *slog.Logger
	exe   string // the file of the program, or of its next version
	args  []string
	pipe  *os.File // to the process before; nil: there is none
	seen  *look
	after func() // called when another process serves

	starting chan launched    // has how the start of a process went; nil: none starts
	missed   []os.Signal      // that it may have to learn of, each kind once
	next     launched         // the process that has taken over; without cmd: none, or it has ended
	replaced bool             // a process has taken over, and may have ended
	retry    <-chan time.Time // when to start a process; nil: none is to be started
	wait     time.Duration    // before the next one
}

// newUpgrader returns the upgrader of a process with these arguments. It sets where the
// server's socket comes from, if it comes from another process or from systemd, and what
// seen inherits that is to be served at an address.
func newUpgrader(log *slog.Logger, args []string, config *tunnel.ServerConfig, seen *look, debug string) (*upgrader, error) {
	exe, err := ownFile(args[0])
	if err != nil {
		return nil, err
	}
	u := &upgrader{log: log, exe: exe, args: args, seen: seen, after: func() {}, wait: retryTime}
	if os.Getenv(inheritEnv) == "" {
		config.Socket, config.TCPSocket, err = activatedSockets()
		return u, err
	}
	_ = os.Unsetenv(inheritEnv)
	if config.TakeOver.Sockets, err = inheritedConn(3); err == nil {
		config.TakeOver.Control, err = inheritedConn(4)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is set, but nothing can be inherited: %w", inheritEnv, err)
	}
	syscall.CloseOnExec(5)
	seen.inherit(6, debug)
	u.pipe = os.NewFile(5, "progress")
	_, err = u.pipe.Write([]byte{wantsSocket})
	return u, err
}

// ownFile returns the path of the program, through the links by which it was started:
// they may lead to another version later.
func ownFile(name string) (string, error) {
	exe, err := os.Executable() // without links; later the file may have another name
	if err != nil {
		return "", err
	}
	started, err := exec.LookPath(name)
	if err == nil {
		started, err = filepath.Abs(started)
	}
	if err == nil && sameFile(started, exe) {
		return started, nil
	}
	return exe, nil // its name was made up
}

// sameFile reports whether two paths lead to the same file.
func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	other, also := os.Stat(b)
	return err == nil && also == nil && os.SameFile(one, other)
}

// inheritedConn returns the Unix socket that is a file of this process.
func inheritedConn(fd uintptr) (*net.UnixConn, error) {
	file := os.NewFile(fd, "handover")
	defer file.Close()
	conn, err := net.FileConn(file) // a copy
	if err != nil {
		return nil, err
	}
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("file %d is not a Unix socket", fd)
	}
	return unix, nil
}

// activatedSockets returns the sockets that systemd has opened for the process, for UDP and
// for TCP, or nil (sd_listen_fds(3)).
func activatedSockets() (pc net.PacketConn, l net.Listener, err error) {
	n, pid := os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_PID")
	if n == "" || pid != strconv.Itoa(os.Getpid()) {
		return nil, nil, nil
	}
	for _, name := range []string{"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name)
	}
	if n != "1" && n != "2" {
		return nil, nil, fmt.Errorf("systemd passes %s sockets: want one with ListenDatagram, and at most one with ListenStream", n)
	}
	for fd := range uintptr(n[0] - '0') {
		file := os.NewFile(3+fd, "systemd")
		defer file.Close()
		if l == nil {
			if l, err = net.FileListener(file); err == nil {
				continue
			}
		}
		if pc, err = net.FilePacketConn(file); err != nil {
			return nil, nil, fmt.Errorf("the socket of systemd: %w", err)
		}
	}
	if pc == nil {
		return nil, nil, errors.New("systemd passes no socket with ListenDatagram")
	}
	return pc, l, nil
}

// ready says that the server serves: to systemd, and then to the process before, which
// may end at once.
func (u *upgrader) ready(s *tunnel.Server) {
	notifySystemd(fmt.Sprintf("MAINPID=%d\nREADY=1\nSTATUS=serving on %v", os.Getpid(), s.Addr()))
	if u.pipe != nil {
		_, _ = u.pipe.Write([]byte{serves})
		_ = u.pipe.Close()
	}
}

// launched is a new process.
type launched struct {
	cmd   *exec.Cmd
	ended <-chan error // how it has ended
	err   error        // it does not serve
}

// serve serves until ctx is done, or another process serves and no session is left here.
// A signal of upgrades makes it start the program again and hand over to that; one of
// reloads has files read again. Both are passed on to a process that has taken over.
func (u *upgrader) serve(ctx context.Context, s *tunnel.Server, upgrades, reloads <-chan os.Signal) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	var lost error // nobody serves, and this process has no socket any more
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	for {
		select {
		case err := <-served:
			if !u.replaced && ctx.Err() != nil {
				notifySystemd("STOPPING=1")
			}
			if u.starting != nil && err == nil && ctx.Err() == nil { // nothing was left here
				result := <-u.starting
				u.begun(result)
				err = result.err
			}
			return errors.Join(lost, err)
		case signal := <-reloads:
			if !u.pass(signal) {
				s.Reload()
			}
		case signal := <-upgrades:
			if !u.pass(signal) && u.starting == nil {
				u.retry = time.After(0)
			}
		case <-u.retry:
			if u.retry = nil; u.starting == nil && u.next.cmd == nil {
				starting := make(chan launched, 1)
				u.starting = starting
				go func() { starting <- u.launch(ctx, s) }()
			}
		case result := <-u.starting:
			if u.begun(result); result.err == nil {
				u.after()
			} else if u.replaced && errors.Is(result.err, net.ErrClosed) {
				lost = fmt.Errorf("the process that served has ended, and this one has no socket: %w", result.err)
				end()
			} else {
				u.failed(result.err)
			}
		case err := <-u.next.ended:
			u.gone(s, err)
		}
	}
}

// pass passes a signal on to the process that serves, and reports whether there is one
// beside this. If that begins just now, it gets the signal when it serves.
func (u *upgrader) pass(s os.Signal) bool {
	if u.starting == nil {
		return u.next.cmd != nil && u.next.cmd.Process.Signal(s) == nil
	}
	if !slices.Contains(u.missed, s) {
		u.missed = append(u.missed, s)
	}
	return false
}

// begun takes note of how the start of a process went.
func (u *upgrader) begun(result launched) {
	u.starting = nil
	if result.err == nil {
		u.next, u.replaced, u.wait = result, true, retryTime
		u.log.Info("another process serves", "pid", result.cmd.Process.Pid)
		for _, s := range u.missed {
			_ = result.cmd.Process.Signal(s)
		}
	}
	u.missed = nil
}

// failed says that a process does not serve. If nobody else does, there will be another.
func (u *upgrader) failed(err error) {
	u.log.Error("not upgraded", "error", err)
	notifySystemd("STATUS=not upgraded: " + err.Error())
	if u.replaced {
		u.again()
	}
}

// gone takes note that the process that has taken over has ended. If it has failed, and
// nobody else serves, there will be another.
func (u *upgrader) gone(s *tunnel.Server, err error) {
	u.next = launched{}
	switch {
	case err == nil: // in order: so do those before it
	case s.Superseded():
		u.log.Warn("another process has taken over: this one goes on for its connections, and handles only signals sent to itself", "pid", os.Getpid(), "error", err)
	default:
		u.log.Error("the process that serves has ended; starting another", "error", err)
		u.again()
	}
}

// again has another process started after a while.
func (u *upgrader) again() {
	u.retry = time.After(u.wait)
	u.wait = min(2*u.wait, maxRetryTime)
}

// launch starts the program with the arguments of this process, and hands over to it.
func (u *upgrader) launch(ctx context.Context, s *tunnel.Server) launched {
	sockets, theirSockets, err := unixPair()
	if err != nil {
		return launched{err: err}
	}
	defer sockets.Close()
	defer theirSockets.Close()
	control, theirControl, err := unixPair()
	if err != nil {
		return launched{err: err}
	}
	defer theirControl.Close()
	read, write, err := os.Pipe()
	if err != nil {
		_ = control.Close()
		return launched{err: err}
	}
	defer read.Close()
	env, debug, err := u.seen.pass()
	if err != nil {
		_, _ = control.Close(), write.Close()
		return launched{err: err}
	}
	cmd := exec.Command(u.exe, u.args[1:]...)
	cmd.Env = append(append(os.Environ(), inheritEnv+"=1"), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{theirSockets, theirControl, write}
	if debug != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, debug)
		defer debug.Close()
	}
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		_ = control.Close()
		return launched{err: err}
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	refused := make(chan error, 1)
	if err = hears(read, wantsSocket); err != nil {
		_ = control.Close()
	} else {
		go func() {
			err := s.HandOver(context.Background(), tunnel.Handover{Sockets: sockets, Control: control})
			if err != nil {
				_ = sockets.Close() // so that the new process gives up
				refused <- err
			}
		}()
		err = hears(read, serves)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		why := <-ended
		select {
		case err := <-refused:
			return launched{err: fmt.Errorf("%w; the new process: %v", err, why)}
		default:
			return launched{err: fmt.Errorf("the new process: %w (%v)", err, why)}
		}
	}
	return launched{cmd: cmd, ended: ended}
}

// hears waits until a new process says what it should.
func hears(pipe *os.File, what byte) error {
	if err := pipe.SetReadDeadline(time.Now().Add(startTime)); err != nil {
		return err
	}
	var b [1]byte
	if _, err := pipe.Read(b[:]); err != nil {
		return err
	}
	if b[0] != what {
		return errors.New("is not of this program")
	}
	return nil
}

// unixPair returns a connection, and the file of its other end.
func unixPair() (*net.UnixConn, *os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close() // FileConn makes a copy
	conn, err := net.FileConn(ours)
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), theirs, nil
}
