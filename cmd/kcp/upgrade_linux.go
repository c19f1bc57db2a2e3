package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/arqnet/kcp"
)

// upgradeText is the part of the usage text of kcp listen that is for this system.
const upgradeText = `

With -k and -d, and without a terminal, SIGHUP starts the program again with the
same arguments, for a new version or certificate. The new process takes over,
and serves sessions once this one's have ended, which ends with them. If
the new process fails, this one goes on, and says why.`

// inheritEnv is set in a new process to the number of its turns. It has these files of
// the process before, and behind them the turns: pipes that end when processes do whose
// sessions are to be served before the new one's.
const (
	inheritEnv = "KCP_INHERIT"
	socketFile = 3 // over which the UDP socket comes
	saysFile   = 4 // to say how far it is
	turnFile   = 5 // the first turn
)

// What a new process says.
const (
	wantsSocket = 't'
	serves      = 's'
)

// How long a new process may take to say it.
const startPatience = time.Minute

// upgrader lets a new process take over at SIGHUP.
type upgrader struct {
	n    *netcat
	l    *kcp.Listener
	exe  string // the file of the program, or of its next version
	args []string

	next     *successor    // the process that has taken over, while it runs; nil: none
	over     atomic.Bool   // a process has
	failed   bool          // it has failed since
	drained  chan struct{} // capacity 1: HandOver has returned nil
	finished chan error    // capacity 1: what wait returns

	turn, ends *os.File // the pipe that ends with this process; nil before the first launch
}

// upgradeOnHangup makes SIGHUP start the program again. It returns nil if SIGHUP ends the
// command: a terminal sends it when it is closed.
func (n *netcat) upgradeOnHangup(ctx context.Context, l *kcp.Listener, args []string) *upgrader {
	if tty, err := os.Open("/dev/tty"); err == nil {
		_ = tty.Close()
		return nil
	}
	hangups := divertHangups(ctx)
	if hangups == nil {
		return nil
	}
	exe, err := os.Executable() // later the file may have another name
	if err != nil {
		exe = os.Args[0]
	}
	tellService()
	if n.before != nil {
		n.before.release() // it may end
	}
	u := &upgrader{n: n, l: l, exe: exe, args: args, drained: make(chan struct{}, 1), finished: make(chan error, 1)}
	go u.run(ctx, hangups)
	return u
}

// replaced reports whether a new process has taken over.
func (u *upgrader) replaced() bool { return u != nil && u.over.Load() }

// wait waits until the last session has ended and the new process serves, or ctx is done.
func (u *upgrader) wait(ctx context.Context) error {
	select {
	case err := <-u.finished:
		return err
	case <-ctx.Done():
		return nil
	}
}

// run handles SIGHUP until ctx is done, or the last session has ended after an upgrade.
func (u *upgrader) run(ctx context.Context, hangups <-chan struct{}) {
	for {
		var ended <-chan error
		if u.next != nil {
			ended = u.next.ended
		}
		select {
		case <-ctx.Done():
			return
		case err := <-ended:
			if u.next = nil; err != nil {
				u.failed = true
				u.n.warnf("the process that has taken over: %v; SIGHUP starts another", err)
			}
		case <-hangups:
			u.hangUp(ctx)
		case <-u.drained:
			var err error
			if u.failed {
				err = errors.New("the process that has taken over has failed")
			}
			u.finished <- err
			return
		}
	}
}

// hangUp handles a SIGHUP. If the upgrade fails, this process goes on.
func (u *upgrader) hangUp(ctx context.Context) {
	switch {
	case u.next != nil: // it came before the new process was known
		_ = u.next.cmd.Process.Signal(syscall.SIGHUP)
		return
	case u.over.Load() && !u.failed:
		u.n.warnf("not upgraded: another process has taken over, and SIGHUP is for that")
		return
	case !u.n.receive && !u.n.in.ended.Load():
		u.n.warnf("not upgraded: this process reads standard input; use -d")
		return
	}
	next, err := u.handOver(ctx)
	if err != nil {
		u.failed = u.failed && !errors.Is(err, net.ErrClosed) // else a later process has taken over
		u.n.warnf("not upgraded: %v", err)
		return
	}
	u.next, u.failed = next, false
	u.n.warnf("process %d has taken over; this one ends with its last session", next.cmd.Process.Pid)
}

// handOver starts a process, hands over to it, and returns it when it serves.
func (u *upgrader) handOver(ctx context.Context) (*successor, error) {
	next, err := u.launch()
	if err != nil {
		return nil, err
	}
	defer next.release()
	defer context.AfterFunc(ctx, next.kill)()
	if err := next.says(wantsSocket); err != nil {
		return nil, err
	}
	u.n.debug.close()
	refused := make(chan error, 1)
	was := u.over.Swap(true) // before Accept fails
	go func() {
		if err := u.l.HandOver(context.Background(), next.conn); err != nil {
			u.over.Store(was)
			refused <- err
			_ = next.conn.Close() // so that the new process gives up
			return
		}
		select {
		case u.drained <- struct{}{}:
		default: // an earlier call has returned, too
		}
	}()
	if err = next.says(serves); err == nil {
		return next, nil
	}
	u.n.debug.reopen(u.n)
	select {
	case why := <-refused:
		return nil, fmt.Errorf("%w; %w", why, err)
	case <-time.After(time.Second):
		u.failed = true
		return nil, fmt.Errorf("%w, after it had taken over", err)
	}
}

// reopen serves the page again.
func (d *debugServer) reopen(n *netcat) {
	if d == nil {
		return
	}
	if _, err := d.listen(n.settings.debug); err != nil {
		n.warnf("cannot serve the live page: %v", err)
	}
}

// successor is a new process, as its parent sees it.
type successor struct {
	cmd   *exec.Cmd
	conn  *net.UnixConn
	pipe  *os.File   // what it says
	ended chan error // capacity 1: how it has ended
}

// launch starts the program again.
func (u *upgrader) launch() (*successor, error) {
	conn, socket, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	n := &successor{conn: conn, ended: make(chan error, 1)}
	pipe, says, err := os.Pipe()
	defer says.Close()
	n.pipe = pipe
	if err == nil && u.turn == nil {
		u.turn, u.ends, err = os.Pipe()
	}
	if err == nil {
		turns := append(u.n.before.left(), u.turn)
		n.cmd = exec.Command(u.exe, append([]string{"listen"}, u.args...)...)
		n.cmd.Env = append(os.Environ(), inheritEnv+"="+strconv.Itoa(len(turns)))
		n.cmd.Stdin, n.cmd.Stdout, n.cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		n.cmd.ExtraFiles = append([]*os.File{socket, says}, turns...)
		err = n.cmd.Start()
	}
	if err != nil {
		n.release()
		return nil, err
	}
	go func() { n.ended <- n.cmd.Wait() }()
	return n, nil
}

// socketPair returns a connection, and the file of its other end.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "handover"), os.NewFile(uintptr(fds[1]), "takeover")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), theirs, nil
}

// says waits until the process says what it should. Otherwise it ends the process.
func (n *successor) says(what byte) error {
	var b [1]byte
	err := n.pipe.SetReadDeadline(time.Now().Add(startPatience))
	if err == nil {
		_, err = n.pipe.Read(b[:])
	}
	if err == nil && b[0] == what {
		return nil
	}
	n.kill()
	<-n.ended
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("the new process is too slow")
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

// predecessor is the process that has started this one to take over. There may be nil.
type predecessor struct {
	conn  *net.UnixConn
	pipe  *os.File
	turns []*turn
}

// turn is a process whose sessions are served before this one's.
type turn struct {
	pipe  *os.File
	ended chan struct{}
}

// inherit returns the process to take over from; nil: there is none.
func inherit() (*predecessor, error) {
	n, err := strconv.Atoi(cmp.Or(os.Getenv(inheritEnv), "0"))
	if n <= 0 || err != nil {
		return nil, err
	}
	_ = os.Unsetenv(inheritEnv)
	for fd := socketFile; fd < turnFile+n; fd++ {
		syscall.CloseOnExec(fd)
	}
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
	p := &predecessor{conn: unix, pipe: os.NewFile(saysFile, "progress")}
	for i := range n {
		t := &turn{os.NewFile(uintptr(turnFile+i), "turn"), make(chan struct{})}
		p.turns = append(p.turns, t)
		go func() {
			_, _ = t.pipe.Read(make([]byte, 1)) // until its end
			close(t.ended)
		}()
	}
	return p, nil
}

// takeOver takes the socket over.
func (p *predecessor) takeOver(ctx context.Context, config *kcp.Config) (*kcp.Listener, error) {
	defer p.conn.Close()
	if _, err := p.pipe.Write([]byte{wantsSocket}); err != nil {
		return nil, err
	}
	return kcp.TakeOver(ctx, p.conn, config)
}

// release says that this process serves.
func (p *predecessor) release() {
	_, _ = p.pipe.Write([]byte{serves}) // if it fails, the process before has ended
	_ = p.pipe.Close()
}

// wait waits until it is the turn of this process, or ctx is done.
func (p *predecessor) wait(ctx context.Context) {
	if p == nil {
		return
	}
	for _, t := range p.turns {
		select {
		case <-t.ended:
		case <-ctx.Done():
		}
	}
}

// left returns the turns of processes that have not ended.
func (p *predecessor) left() (files []*os.File) {
	if p == nil {
		return nil
	}
	for _, t := range p.turns {
		select {
		case <-t.ended:
		default:
			files = append(files, t.pipe)
		}
	}
	return files
}

// tellService tells systemd, if it is interested, which process is the newest
// (sd_notify(3)).
func tellService() {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = fmt.Fprintf(conn, "MAINPID=%d\nREADY=1", os.Getpid())
}
