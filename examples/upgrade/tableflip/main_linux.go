// Command tableflip is the server of examples/upgrade for those who use
// github.com/cloudflare/tableflip. That starts the new process, waits until it serves,
// and lets only one upgrade go on at a time.
//
//	cd examples/upgrade/tableflip
//	go build -o /tmp/tableflip . && /tmp/tableflip -addr localhost:4000 &
//	kill -HUP $!
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cloudflare/tableflip"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/upgrade/arena"
	"github.com/arqnet/kcp/examples/upgrade/systemd"
)

// The Unix socket over which the UDP socket goes, as tableflip names it.
const network, name = "unix", "handover"

func main() {
	log.SetFlags(0)
	log.SetPrefix(fmt.Sprintf("tableflip[%d]: ", os.Getpid()))
	addr := flag.String("addr", "localhost:4000", "`address` to listen on; a new process inherits it")
	drain := flag.Duration("drain", 4*time.Hour, "how long players may go on in a process that was replaced")
	start := flag.Duration("start", time.Minute, "how long a new process may take until it serves")
	flag.Parse()
	if err := run(*addr, *drain, *start); err != nil {
		log.Fatal(err)
	}
}

func run(addr string, drain, start time.Duration) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)

	upg, err := tableflip.New(tableflip.Options{UpgradeTimeout: start})
	if err != nil {
		return err
	}
	defer upg.Stop()
	// What can fail belongs here: files, databases, other ports. Once this process has
	// taken over, the one before accepts no sessions any more.
	l, err := listen(ctx, upg, addr)
	if err != nil {
		return err
	}
	match := arena.NewMatch(strconv.Itoa(os.Getpid()))
	go match.Serve(l)
	log.Print("serving on ", l.Addr())
	// The process before may end as soon as it knows, but not before systemd does.
	if err := systemd.Ready("serving on " + l.Addr().String()); err != nil {
		log.Print("systemd: ", err)
	}
	if err := upg.Ready(); err != nil {
		log.Print(err) // the process before has ended
	}
	s := &server{upg: upg, listener: l, drain: drain, drained: make(chan struct{}, 1)}
	return s.run(ctx, hangups)
}

// listen takes over from the process before this one, or opens a socket if there is none.
func listen(ctx context.Context, upg *tableflip.Upgrader, addr string) (*kcp.Listener, error) {
	if !upg.HasParent() {
		return kcp.Listen("udp", addr, arena.Config())
	}
	conn, err := upg.Conn(network, name)
	if err != nil {
		return nil, err
	}
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("the process before did not pass a socket %q", name)
	}
	defer unix.Close()
	if _, err := unix.Write([]byte{0}); err != nil { // now HandOver may begin
		return nil, err
	}
	return kcp.TakeOver(ctx, unix, arena.Config())
}

// server is what the signals of the process act on.
type server struct {
	upg      *tableflip.Upgrader
	listener *kcp.Listener
	drain    time.Duration

	replaced bool             // a process has taken over, and serves
	drained  chan struct{}    // capacity 1: HandOver has returned nil
	deadline <-chan time.Time // of the players, once replaced
}

// run runs until the last player has left a process that was replaced, or ctx is done.
func (s *server) run(ctx context.Context, hangups <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return s.end()
		case <-hangups:
			s.hangUp(ctx)
		case <-s.drained:
			if !s.replaced {
				return fmt.Errorf("the last player has left, and the process after this one has failed")
			}
			log.Print("the last player has left")
			return nil
		case <-s.deadline:
			log.Print("the last players have to leave")
			return s.end()
		}
	}
}

// end tells the players that it is over.
func (s *server) end() error {
	if !s.replaced {
		_ = systemd.Notify("STOPPING=1")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.listener.Shutdown(ctx); err != nil {
		log.Print(err) // players who had gone; no reason for an alarm
	}
	return nil
}

// hangUp handles a SIGHUP. If the upgrade fails, this process goes on as before.
func (s *server) hangUp(ctx context.Context) {
	if s.replaced {
		log.Print("SIGHUP is for the process that serves")
		return
	}
	_ = systemd.Reloading()
	if err := s.upgrade(ctx); err != nil {
		log.Printf("not upgraded: %v", err)
		_ = systemd.Ready("not upgraded: " + err.Error())
		return
	}
	s.replaced, s.deadline = true, time.After(s.drain)
	log.Print("a new process has taken over")
}

// upgrade lets a new process take over, and returns when it serves.
func (s *server) upgrade(ctx context.Context) error {
	conn, theirs, err := socketPair()
	if err != nil {
		return err
	}
	defer conn.Close()
	err = s.upg.AddConn(network, name, theirs) // a copy
	_ = theirs.Close()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, s.upg.Stop)()
	refused := make(chan error, 1)
	go func() {
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			return // no process has asked for the socket
		}
		// It returns nil when the last player has left.
		if err := s.listener.HandOver(context.Background(), conn); err != nil {
			refused <- err
			_ = conn.Close() // so that the new process gives up
			return
		}
		select {
		case s.drained <- struct{}{}:
		default: // an earlier call has returned, too
		}
	}()
	if err := s.replace(ctx); err != nil {
		_ = conn.Close()
		select {
		case why := <-refused:
			err = fmt.Errorf("%w; %w", why, err)
		default:
		}
		return err
	}
	return nil
}

// replace is Upgrader.Upgrade, which refuses while the parent runs. It waits a second for
// one that is about to end.
func (s *server) replace(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	gone := s.upg.WaitForParent(waiting) == nil
	err := s.upg.Upgrade()
	for gone && err != nil && strings.Contains(err.Error(), "parent hasn't exited") && waiting.Err() == nil {
		time.Sleep(time.Millisecond) // the Upgrader has yet to notice
		err = s.upg.Upgrade()
	}
	return err
}

// socketPair returns both ends of a connection.
func socketPair() (ours, theirs *net.UnixConn, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), name)
		conn, connErr := net.FileConn(file) // a copy
		_ = file.Close()
		if connErr != nil {
			err = connErr
			continue
		}
		conns[i] = conn.(*net.UnixConn)
	}
	return conns[0], conns[1], err
}
