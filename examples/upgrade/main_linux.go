// Command upgrade is a chat server that replaces itself on SIGHUP, and loses no session by
// that. The new process takes over the UDP socket, and gets all new clients. Those of the
// old process stay there, and it ends when the last one has left.
//
//	go build -o /tmp/upgrade ./examples/upgrade && /tmp/upgrade -pid /tmp/upgrade.pid &
//	kill -HUP $(cat /tmp/upgrade.pid)
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/arqnet/kcp"
)

// config has to be the same before and after an upgrade, as far as kcp.TakeOver says.
var config = &kcp.Config{PeerTimeout: 30 * time.Second}

// inherited is set in a new process. Its file 3 is a Unix socket to the process before.
const inherited = "UPGRADE_INHERITED"

func main() {
	log.SetFlags(0)
	log.SetPrefix(fmt.Sprintf("upgrade[%d]: ", os.Getpid()))
	addr := flag.String("addr", "localhost:4000", "`address` to listen on; a new process inherits it")
	drain := flag.Duration("drain", 4*time.Hour, "how long clients may go on in a process that was replaced")
	pid := flag.String("pid", "", "`file` for the id of the process that serves new clients")
	flag.Parse()
	if err := run(*addr, *pid, *drain); err != nil {
		log.Fatal(err)
	}
}

func run(addr, pid string, drain time.Duration) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	hangups := make(chan os.Signal, 1) // one that comes during an upgrade waits
	signal.Notify(hangups, syscall.SIGHUP)
	exe, err := os.Executable() // later the file may have another name
	if err != nil {
		return err
	}
	// What can fail belongs here: files, databases, other ports. Once this process has
	// taken over, the one before accepts no sessions any more.
	l, ready, err := listen(ctx, addr)
	if err != nil {
		return err
	}
	replaced := make(chan struct{})
	go func() {
		serve(l)
		close(replaced)
	}()
	log.Print("serving on ", l.Addr())
	if pid != "" {
		if err := os.WriteFile(pid, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
			log.Print(err)
		}
	}
	// In this order: the process before may end as soon as it knows, and systemd ends the
	// service with its main process.
	notify(fmt.Sprintf("MAINPID=%d\nREADY=1", os.Getpid()))
	ready()
	var deadline <-chan time.Time
	upgraded, next := make(chan error), hangups
	for {
		select {
		case <-next:
			next = nil
			go func() { upgraded <- upgrade(exe, l) }()
		case <-replaced:
			log.Print("another process has taken over")
			replaced, next, deadline = nil, hangups, time.After(drain)
		case err := <-upgraded:
			if err == nil {
				log.Print("the last client has left")
				return nil
			}
			log.Print("not upgraded: ", err) // and all is as before
			next = hangups
		case <-deadline:
			return end(l)
		case <-ctx.Done():
			return end(l)
		}
	}
}

// end tells the clients that it is over.
func end(l *kcp.Listener) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := l.Endpoint().Shutdown(ctx); err != nil {
		log.Print(err) // clients that had gone; no reason for an alarm
	}
	return nil
}

// serve accepts clients until the listener is closed or handed over.
func serve(l *kcp.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				if _, err := fmt.Fprintf(conn, "%d: %s\n", os.Getpid(), lines.Text()); err != nil {
					return
				}
			}
		}()
	}
}

// listen takes over from the process that has started this one to do so, and otherwise
// opens a socket. ready is to be called when this process serves.
func listen(ctx context.Context, addr string) (l *kcp.Listener, ready func(), err error) {
	if os.Getenv(inherited) == "" {
		l, err = kcp.Listen("udp", addr, config)
		return l, func() {}, err
	}
	_ = os.Unsetenv(inherited)
	conn, err := unixConn(os.NewFile(3, "before"))
	if err != nil {
		return nil, nil, err
	}
	if _, err := conn.Write([]byte{0}); err != nil { // HandOver may begin
		return nil, nil, err
	}
	l, err = kcp.TakeOver(ctx, conn, config)
	return l, func() {
		_, _ = conn.Write([]byte{0}) // if it fails, the process before has ended
		_ = conn.Close()
	}, err
}

// upgrade starts the program that has the name of this one now, and hands over to it. It
// returns nil when the last session of this process has ended. After an error this process
// goes on as before.
func upgrade(exe string, l *kcp.Listener) error {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	theirs := os.NewFile(uintptr(fds[1]), "after")
	defer theirs.Close()
	conn, err := unixConn(os.NewFile(uintptr(fds[0]), "after"))
	if err != nil {
		return err
	}
	defer conn.Close() // then a process that has not taken over gives up
	cmd := exec.Command(exe, os.Args[1:]...)
	cmd.Env = append(os.Environ(), inherited+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{theirs} // file 3
	if err := cmd.Start(); err != nil {
		return err
	}
	_ = theirs.Close() // so that Read ends with the process
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute)) // Read fails if this does
	if err = hear(conn); err == nil {
		_ = conn.SetReadDeadline(time.Time{})
		err = l.HandOver(context.Background(), conn)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		<-ended
		return fmt.Errorf("%w (%v)", err, cmd.ProcessState)
	}
	_ = hear(conn) // that it serves, or its end, which is no reason to stay
	return nil
}

// hear waits until the process at the other end has said something.
func hear(conn *net.UnixConn) error {
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("the new process: %w", err)
	}
	return nil
}

// unixConn returns the connection of a file, which it closes.
func unixConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.New("not a Unix socket")
	}
	return unix, nil
}

// notify tells systemd a state, as sd_notify(3) does, in a service of Type=notify.
func notify(state string) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err == nil {
		_, err = conn.Write([]byte(state))
		_ = conn.Close()
	}
	if err != nil {
		log.Print("systemd: ", err)
	}
}
