// Command upgrade is a small game server that replaces itself on SIGHUP, and loses no
// session by that. The new process takes over the UDP socket, and gets all new players.
// Players of the old process stay there, and it ends when the last one has left.
//
//	go build -o /tmp/upgrade ./examples/upgrade && /tmp/upgrade -pid /tmp/upgrade.pid &
//	kill -HUP $(cat /tmp/upgrade.pid)
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/upgrade/arena"
	"github.com/arqnet/kcp/examples/upgrade/systemd"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix(fmt.Sprintf("upgrade[%d]: ", os.Getpid()))
	addr := flag.String("addr", "localhost:4000", "`address` to listen on; a new process inherits it")
	drain := flag.Duration("drain", 4*time.Hour, "how long players may go on in a process that was replaced")
	start := flag.Duration("start", time.Minute, "how long a new process may take until it asks for the socket")
	pid := flag.String("pid", "", "`file` for the id of the process that serves new players")
	flag.Parse()
	if err := run(*addr, *pid, *drain, *start); err != nil {
		log.Fatal(err)
	}
}

func run(addr, pid string, drain, start time.Duration) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	hangups := make(chan os.Signal, 1) // one that comes during an upgrade waits
	signal.Notify(hangups, syscall.SIGHUP)

	exe, err := os.Executable() // later the file may have another name
	if err != nil {
		return err
	}
	before, err := inherit()
	if err != nil {
		return err
	}
	// What can fail belongs here: files, databases, other ports. Once this process has
	// taken over, the one before accepts no sessions any more.
	var l *kcp.Listener
	if before == nil {
		l, err = kcp.Listen("udp", addr, arena.Config())
	} else {
		l, err = before.takeOver(ctx)
	}
	if err != nil {
		return err
	}
	match := arena.NewMatch(strconv.Itoa(os.Getpid()))
	go match.Serve(l)
	log.Print("serving on ", l.Addr())
	if err := writePID(pid); err != nil {
		log.Print("process id: ", err)
	}
	// The process before may end as soon as it knows, but not before systemd does.
	if err := systemd.Ready("serving on " + l.Addr().String()); err != nil {
		log.Print("systemd: ", err)
	}
	if before != nil {
		before.release()
	}
	s := &server{exe: exe, listener: l, drain: drain, start: start, drained: make(chan struct{}, 1)}
	return s.run(ctx, hangups)
}

// server is what the signals of the process act on.
type server struct {
	exe          string // the file of the program, or of its next version
	listener     *kcp.Listener
	drain, start time.Duration

	next     *successor       // the process that has replaced this one, while it runs; nil: none
	replaced bool             // a process has
	failed   bool             // it has failed since, so no process serves new players
	drained  chan struct{}    // capacity 1: HandOver has returned nil
	retry    <-chan time.Time // to replace a process that has failed
	deadline <-chan time.Time // of the players, once replaced
}

// run runs until the last player has left a process that was replaced, or ctx is done.
func (s *server) run(ctx context.Context, hangups <-chan os.Signal) error {
	wait := time.Second
	for {
		select {
		case <-ctx.Done():
			return s.end()
		case <-hangups:
			s.hangUp(ctx)
		case <-s.drained:
			if s.failed {
				return errors.New("the last player has left, and the process after this one has failed")
			}
			log.Print("the last player has left")
			return nil
		case <-s.deadline:
			log.Print("the last players have to leave")
			return s.end()
		case err := <-s.next.end():
			// As this process is its parent, systemd may not notice.
			if s.next = nil; err != nil {
				log.Printf("the process after this one has failed: %v", err)
				s.failed, s.retry = true, time.After(wait)
			}
		case <-s.retry:
			wait = min(2*wait, time.Minute)
			s.retry = nil
			if s.replace(ctx); s.failed {
				s.retry = time.After(wait)
			}
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

// hangUp handles a SIGHUP.
func (s *server) hangUp(ctx context.Context) {
	switch {
	case s.next != nil: // it came before the new process was known, and is for that
		_ = s.next.cmd.Process.Signal(syscall.SIGHUP)
	case s.replaced && !s.failed:
		log.Print("SIGHUP is for the process that serves")
	default:
		_ = systemd.Reloading()
		s.replace(ctx)
	}
}

// replace lets a new process take over. If that fails, this one goes on as before.
func (s *server) replace(ctx context.Context) {
	next, err := s.handOver(ctx)
	switch {
	case s.replaced && errors.Is(err, net.ErrClosed):
		s.failed = false
		log.Print("a later process serves")
	case err != nil:
		log.Printf("not upgraded: %v", err)
		_ = systemd.Ready("not upgraded: " + err.Error())
	default:
		s.next, s.replaced, s.failed, s.retry = next, true, false, nil
		if s.deadline == nil {
			s.deadline = time.After(s.drain)
		}
		log.Printf("process %d has taken over", next.cmd.Process.Pid)
	}
}

// handOver starts a process, hands over to it, and returns it when it serves.
func (s *server) handOver(ctx context.Context) (*successor, error) {
	next, err := launch(s.exe)
	if err != nil {
		return nil, err
	}
	defer next.release()
	defer context.AfterFunc(ctx, next.kill)()
	if err := next.says(wantsSocket, s.start); err != nil {
		return nil, next.failed(err)
	}
	refused := make(chan error, 1)
	go func() {
		// It returns nil when the last player has left.
		if err := s.listener.HandOver(context.Background(), next.conn); err != nil {
			refused <- err
			_ = next.conn.Close() // so that the new process gives up
			return
		}
		select {
		case s.drained <- struct{}{}:
		default: // an earlier call has returned, too
		}
	}()
	err = next.says(serves, s.start)
	if err == nil {
		return next, nil
	}
	err = next.failed(err)
	select {
	case why := <-refused:
		err = fmt.Errorf("%w; %w", why, err)
	case <-time.After(time.Second): // it had taken over before it failed
		s.replaced, s.failed, s.retry = true, true, time.After(time.Second)
	}
	return nil, err
}
