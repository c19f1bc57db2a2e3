package tunnel

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// Handover is what connects a server with the one that takes its place, in another
// process: two pairs of Unix stream sockets, of which each process has one end.
type Handover struct {
	Sockets *net.UnixConn // over which the sockets go
	Control *net.UnixConn // over which the later server tells the earlier one what to do
}

// HandOver passes the socket to a server that is begun with ServerConfig.TakeOver. All
// new sessions begin there. Those that there are go on in this process, and their clients
// are asked to begin another one, and to end the old one with its last connection.
//
// HandOver returns nil when no session is left here, nor in the server before this one.
// Serve does so, too. After ServerConfig.Drain the sessions are ended. When ctx is done
// before, the sessions stay, but this server no longer follows the other one. HandOver
// closes h.Control. Errors are as of kcp.Listener.HandOver. If the other process dies,
// this one accepts no sessions, and HandOver may be called again.
func (s *Server) HandOver(ctx context.Context, h Handover) error {
	s.passed.Store(true)
	ended := make(chan struct{})
	defer close(ended)
	defer h.Control.Close() // the end of this server, for the one behind it
	go s.serveControl(h.Control)
	go s.askToLeave(ended)
	if err := s.listener.HandOver(ctx, h.Sockets); err != nil {
		return err
	}
	select { // sessions over TCP may be left
	case <-s.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.before.wait(ctx)
	return nil
}

// askToLeave asks the clients of a server that has another one behind it to begin a
// session there.
func (s *Server) askToLeave(ended <-chan struct{}) {
	select {
	case <-s.left:
	case <-ended:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.sessions {
		c.serving.Go(c.askToLeave)
	}
}

// askToLeave asks the client to begin another session, and to end this one with its last
// connection. A client of another version refuses that, and stays.
func (c *serverSession) askToLeave() {
	ctx, cancel := context.WithTimeout(context.Background(), openDeadline)
	defer cancel()
	stream, err := c.open(ctx, opening{kind: kindLeave})
	if err != nil {
		return
	}
	_ = stream.Close()
	c.release(stream)
}

// await waits, when no more sessions begin, until those that there are have ended. After
// ServerConfig.Drain it ends them, and the connections of the servers before.
func (s *Server) await(ctx context.Context, sessions *sync.WaitGroup) {
	close(s.left)
	s.before.ask(request{What: tellPassed})
	none := make(chan struct{})
	go func() {
		defer close(none)
		sessions.Wait()
		s.before.wait(ctx)
	}()
	var over <-chan time.Time
	if s.config.Drain > 0 {
		limit := time.NewTimer(s.config.Drain)
		defer limit.Stop()
		over = limit.C
	}
	select {
	case <-none:
	case <-ctx.Done():
	case <-over:
		now := s.Status()
		s.log.Info("the time after the upgrade has passed: connections are ended", "sessions", now.Sessions, "connections", now.Connections)
		s.end()
	}
}

// control is the connection with the server before this one. The nil *control is for a
// server that is the first.
type control struct {
	conn    *net.UnixConn
	answers chan *os.File // each with a socket, or nil
	gone    chan struct{} // closed when the other server has ended

	asking sync.Mutex // one request is under way at a time
}

// request is what a server asks of the one before it.
type request struct {
	What string // one of the following
	Key  claimKey
}

const (
	wantReload  = "reload"  // read the files again
	wantRelease = "release" // listen no longer for Key
	wantTCP     = "tcp"     // listen no longer on TCP, at the address of Key
	wantEnd     = "end"     // end, as by a signal
	tellPassed  = "passed"  // know that this one was replaced as well
)

// controlWait is how long a server may take to do what another one asks.
const controlWait = 5 * time.Second

// newControl returns the control of the server at the other end of conn.
func newControl(conn *net.UnixConn) *control {
	c := &control{conn: conn, answers: make(chan *os.File), gone: make(chan struct{})}
	go func() {
		defer close(c.gone)
		defer conn.Close()
		for {
			socket, err := readAnswer(conn)
			if err != nil {
				return
			}
			select {
			case c.answers <- socket:
			case <-time.After(controlWait): // nobody has asked, or waits any more
				if socket != nil {
					_ = socket.Close()
				}
				return
			}
		}
	}()
	return c
}

// ask has the other server do something, and waits until it has. It returns the socket
// that comes with the answer, or nil. A server that does not answer is not asked again.
func (c *control) ask(r request) (socket *os.File) {
	if c == nil {
		return nil
	}
	c.asking.Lock()
	defer c.asking.Unlock()
	limit := time.NewTimer(controlWait)
	defer limit.Stop()
	_ = c.conn.SetWriteDeadline(time.Now().Add(controlWait))
	err := json.NewEncoder(c.conn).Encode(r)
	if err == nil {
		select {
		case socket = <-c.answers:
			return socket
		case <-c.gone:
			return nil
		case <-limit.C:
		}
	}
	_ = c.conn.Close()
	return nil
}

// wait waits until the other server has ended.
func (c *control) wait(ctx context.Context) {
	if c == nil {
		return
	}
	select {
	case <-c.gone:
	case <-ctx.Done():
	}
}

// serveControl does what the server behind this one asks for, and has the one before do
// it as well.
func (s *Server) serveControl(conn *net.UnixConn) {
	dec := json.NewDecoder(conn)
	for {
		var r request
		if dec.Decode(&r) != nil {
			return
		}
		var socket *os.File
		switch r.What {
		case wantReload:
			s.reloadHere()
		case wantRelease:
			socket = s.claims.give(r.Key)
		case wantTCP:
			socket = s.giveTCP(r.Key.Address)
		case wantEnd:
			s.end()
		case tellPassed:
			s.superseded.Store(true)
		}
		if socket == nil && r.What != tellPassed {
			socket = s.before.ask(r)
		}
		err := writeAnswer(conn, socket)
		if socket != nil {
			_ = socket.Close()
		}
		if err != nil {
			return
		}
	}
}

// Superseded reports whether the server that has taken over from this one was replaced as
// well: when that ends, a third one serves.
func (s *Server) Superseded() bool { return s.superseded.Load() }

// reloadHere calls ServerConfig.Reload.
func (s *Server) reloadHere() {
	if s.config.Reload != nil {
		s.config.Reload()
	}
}

// Reload calls ServerConfig.Reload, and has the servers before this one do the same that
// still have sessions.
func (s *Server) Reload() {
	s.reloadHere()
	s.before.ask(request{What: wantReload})
}

// end ends Serve.
func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.cancel()
	}
}

// give ends a claim for a client that asks at a later server, and waits until nobody
// listens there any more. It returns a copy of the socket, or nil.
func (s *claims) give(key claimKey) *os.File {
	s.mu.Lock()
	one := s.all[key]
	s.mu.Unlock()
	if one == nil {
		return nil
	}
	socket := s.copyOf(one)
	one.end(codeTaken)
	limit := time.NewTimer(controlWait / 2)
	defer limit.Stop()
	select {
	case <-one.closed:
	case <-limit.C:
	}
	go one.of.endIfDead(context.Background())
	return socket
}

// open returns the listener of a server: on the socket of another one, on one that the
// caller has, or on a new one.
func (c *ServerConfig) open(settings *kcp.Config) (*kcp.Listener, error) {
	switch {
	case c.TakeOver.Sockets != nil && c.TakeOver.Control != nil:
		return kcp.TakeOver(context.Background(), c.TakeOver.Sockets, settings)
	case c.TakeOver != Handover{}:
		return nil, errors.New("tunnel: TakeOver needs both of its connections")
	case c.Socket == nil:
		return kcp.Listen("udp", c.Addr, settings)
	}
	endpoint, err := kcp.NewEndpoint(c.Socket, settings)
	if err != nil {
		return nil, err
	}
	l, err := endpoint.Listen()
	if err != nil {
		_ = endpoint.Close()
	}
	return l, err
}
