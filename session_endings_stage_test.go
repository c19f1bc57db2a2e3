package kcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// party is one end of a session, with its application.
type party struct {
	e    *Endpoint // nil for a peer without signals
	pc   *netsim.PacketConn
	l    *Listener
	open func() (*Conn, error) // Dial or Accept, until ctx ends
	ctx  context.Context
	stop context.CancelFunc

	c       *Conn // nil while the application has none
	wrote   []byte
	got     bytes.Buffer
	closing bool          // Close is called by somebody else than live
	closed  chan error    // what it returns
	running bool          // live has been called
	gone    bool          // the session has ended before the event
	release chan struct{} // closed when the application may close after io.EOF
	ended   chan struct{} // closed when the application has returned
	how     string        // as it then is; outcome names what its calls returned
	heardAt time.Time     // when it has heard of the end
	lives   bool          // the session has outlived all limits
}

// stage is a session in a state of us, and the other end.
type stage struct {
	*world
	cfg               *Config
	dialler, acceptor *party
	us, them          *party
	again             *party        // the peer after a restart
	before            []keptPacket  // what has arrived before the event
	heardAfter        time.Duration // when our end has heard of the end

	mu   sync.Mutex
	lost func(to *party) bool // whether a packet is lost; called with mu held
	seen []keptPacket         // those that were not,
	sent map[*party]int       // and how many of them to whom
}

var (
	diallerAddr  = netip.MustParseAddrPort("10.0.0.2:5000")
	acceptorAddr = netip.MustParseAddrPort(serverAddr)
)

const movedAddr = "10.0.0.3:6000"

// newStage opens both endpoints. dials says which is ours.
func newStage(w *world, cfg *Config, dials bool) *stage {
	s := &stage{world: w, cfg: cfg, dialler: newParty(w), acceptor: newParty(w), sent: make(map[*party]int)}
	s.us, s.them = s.acceptor, s.dialler
	if dials {
		s.us, s.them = s.them, s.us
	}
	s.acceptor.l, s.acceptor.pc = w.server(cfg)
	s.acceptor.e, s.acceptor.open = s.acceptor.l.Endpoint(), s.acceptor.accept
	s.dialler.e, s.dialler.pc = w.endpoint(diallerAddr.String(), cfg)
	s.dialler.open = func() (*Conn, error) { return s.dialler.e.Dial(s.dialler.ctx, udpAddr(serverAddr)) }
	w.net.SetFilter(func(from, to netip.AddrPort, packet []byte) bool {
		p := s.acceptor
		if from == acceptorAddr {
			p = s.dialler
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.lost != nil && s.lost(p) {
			return false
		}
		s.sent[p]++
		s.seen = append(s.seen, keptPacket{from, to, bytes.Clone(packet)})
		return true
	})
	return s
}

func newParty(w *world) *party {
	p := &party{ended: make(chan struct{}), release: make(chan struct{}), closed: make(chan error, 1)}
	p.ctx, p.stop = context.WithCancel(context.Background())
	w.t.Cleanup(p.stop)
	return p
}

func (p *party) accept() (*Conn, error) { return p.l.AcceptKCP(p.ctx) }

// put writes data, which the other end is to read.
func (p *party) put(data []byte) {
	n, _ := p.c.Write(data) // it may have said that there is no more
	p.wrote = append(p.wrote, data[:n]...)
}

// close calls Close beside what the application does.
func (p *party) close() {
	p.closing = true
	go func() { p.closed <- p.c.Close() }()
}

// leave closes what has come to its end.
func (p *party) leave() {
	_ = p.c.Close() // a peer that closes reads no more
	p.gone = true
}

// live is the application: it reads to the end, waits, and closes.
func (p *party) live() {
	p.running = true
	go func() {
		defer close(p.ended)
		if p.c == nil {
			c, err := p.open()
			p.heardAt = time.Now()
			if err != nil {
				if p.how = outcome(err); p.l != nil && p.how == "cancelled" {
					p.how = "none"
				}
				return
			}
			p.c = c
		}
		_, err := io.Copy(&p.got, p.c)
		p.heardAt = time.Now()
		p.how = outcome(err)
		if err == nil {
			<-p.release
			p.how = "EOF, " + outcome(p.end())
		}
		if p.closing {
			err = <-p.closed
		} else {
			err = p.c.Close()
		}
		p.how += ", " + outcome(err)
	}()
}

// end returns why the session has ended; nil: it has not.
func (p *party) end() error {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	return p.c.closing.err
}

func (p *party) state() closing.Phase {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	return p.c.closing.Phase
}

// outcome names what a call has returned.
func outcome(err error) string {
	for _, o := range []struct {
		name string
		is   bool
	}{
		{"nil", err == nil},
		{"no answer", errors.As(err, new(*NoAnswerError))},
		{"lost", errors.As(err, new(*PeerLostError))},
		{"refused", errors.Is(err, ErrRefused)},
		{"reset", errors.Is(err, ErrReset)},
		{"not delivered", errors.Is(err, ErrNotDelivered)},
		{"peer closed", errors.Is(err, ErrPeerClosed)},
		{"cancelled", errors.Is(err, context.Canceled)},
		{"closed", errors.Is(err, net.ErrClosed)},
		{"deadline", errors.Is(err, os.ErrDeadlineExceeded)},
	} {
		if o.is {
			return o.name
		}
	}
	return err.Error()
}

// lose has those packets lost from now on.
func (s *stage) lose(lost func(to *party) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = lost
}

// take returns the packets that were not lost since it was called last.
func (s *stage) take() []keptPacket {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

// begin dials.
func (s *stage) begin() {
	s.dialler.c = s.dial(s.dialler.e)
	time.Sleep(100 * time.Millisecond)
}

// first lets only so many packets of the dialler arrive, and of the acceptor if
// answers is true.
func (s *stage) first(packets int, answers bool) {
	s.lose(func(to *party) bool {
		return s.sent[s.acceptor] >= packets && (to == s.acceptor || !answers)
	})
	s.begin()
}

// opened brings a session about over which something has gone both ways.
func (s *stage) opened() {
	s.begin()
	s.acceptor.c = accepted(s.t, s.acceptor.l)
	for _, p := range []*party{s.dialler, s.acceptor} {
		p.put([]byte("here"))
	}
	for _, p := range []*party{s.dialler, s.acceptor} {
		_, err := io.CopyN(&p.got, p.c, 4)
		require.NoError(s.t, err)
	}
	time.Sleep(time.Second)
}

// legacy has a peer without signals open the session.
func (s *stage) legacy() {
	require.NoError(s.t, s.dialler.e.Close())
	require.NoError(s.t, s.dialler.pc.Close())
	s.dialler.e, s.dialler.pc = nil, s.legacyPeer(diallerAddr.String(), 77, []byte("hello"))
	s.dialler.wrote = []byte("hello")
	s.acceptor.c = accepted(s.t, s.acceptor.l)
	time.Sleep(time.Second)
}

// deaf has nothing of the peer reach us, dumb nothing of ours the peer.
func (s *stage) deaf() { s.lose(func(to *party) bool { return to == s.us }) }
func (s *stage) dumb() { s.lose(func(to *party) bool { return to == s.them }) }

// restart puts a new process in the place of them.
func (s *stage) restart() {
	require.NoError(s.t, s.them.pc.Close())
	p := newParty(s.world)
	p.e, p.pc = s.endpoint(s.them.pc.AddrPort().String(), s.cfg)
	var err error
	p.l, err = p.e.Listen()
	require.NoError(s.t, err)
	p.open = p.accept
	p.live()
	s.again = p
}

// repeat has all come again that they have sent to us.
func (s *stage) repeat() {
	for _, p := range s.before {
		if p.from == s.them.pc.AddrPort() {
			s.net.Inject(p.from, p.to, p.data)
		}
	}
}

// try has the event happen while both applications read, and returns what
// becomes of them. They have said all they have to say when it does; what is
// still there when the time of all endings is over is used once more, and closed.
func (s *stage) try(event func(*stage), limit time.Duration) (how string) {
	for _, p := range []*party{s.us, s.them} {
		if p.gone || p.e == nil {
			close(p.ended)
		} else if !p.running {
			p.live()
		}
	}
	synctest.Wait()
	s.lose(nil)
	s.before = s.take()
	start := time.Now()
	event(s)
	parties := []*party{s.us, s.them}
	if s.again != nil {
		parties = append(parties, s.again)
	}
	time.Sleep(limit)
	synctest.Wait()
	answers := slices.ContainsFunc(s.take(), func(p keptPacket) bool { return p.from == s.us.pc.AddrPort() })
	for _, p := range parties {
		p.lives = p.c != nil && p.state() < closing.Ended
		if p.e != nil {
			sessions := 0
			if p.lives {
				sessions = 1
			}
			require.Equal(s.t, sessions, p.e.Stats().Sessions, "%v: sessions at the limit", p.e.LocalAddr())
		}
	}
	s.finish(parties)
	s.heardAfter = s.us.heardAt.Sub(start)
	for _, p := range parties {
		switch {
		case p.gone && answers:
			how += "answers | "
		case p.gone:
			how += "silent | "
		case p.e != nil:
			how += p.how + " | "
		}
	}
	return how[:len(how)-3]
}

// finish uses the sessions that live once more, and has all applications return.
// What is read is what was written, all of it before io.EOF.
func (s *stage) finish(parties []*party) {
	for _, p := range parties {
		switch {
		case p.lives && s.them.e == nil:
			p.close() // a peer without signals does not say that there is no more
		case p.lives:
			p.put([]byte("still"))
			_ = p.c.CloseWrite() // which some have done before
		}
		p.stop()
	}
	time.Sleep(time.Second)
	for _, p := range parties {
		close(p.release)
	}
	for _, p := range parties {
		<-p.ended
		switch {
		case p.lives && (p.how == "EOF, nil, nil" || p.how == "closed, nil"):
			p.how = "lives"
		case p.lives:
			p.how = "lives, then " + p.how
		}
	}
	them := s.them
	if them.c == nil && them.e != nil && s.again != nil {
		them = s.again
	}
	for _, ends := range [][2]*party{{s.us, them}, {them, s.us}} {
		got, wrote := ends[0].got.Bytes(), ends[1].wrote
		require.True(s.t, bytes.HasPrefix(wrote, got), "read %d bytes of %d, and not the first", len(got), len(wrote))
		if ends[0].how == "lives" || strings.HasPrefix(ends[0].how, "EOF") {
			require.Equal(s.t, len(wrote), len(got), "bytes before io.EOF")
		}
	}
	time.Sleep(allAtAnEnd(s.cfg))
	for _, p := range parties {
		if p.e == nil {
			continue
		}
		left := p.e.Stats()
		require.Zero(s.t, left.Sessions, "%v", p.e.LocalAddr())
		require.Zero(s.t, left.HalfOpen, "%v", p.e.LocalAddr())
		require.Zero(s.t, left.Buffered, "%v", p.e.LocalAddr())
		require.Zero(s.t, left.Backlog, "%v", p.e.LocalAddr())
	}
}

// legacyPeer is one that knows no signals and acknowledges what it gets. It begins
// a session with the server if it has something to say; else it takes the first
// that comes.
func (w *world) legacyPeer(addr string, conv uint32, say []byte) *netsim.PacketConn {
	return w.takingPeer(addr, conv, say, 0, nil)
}
