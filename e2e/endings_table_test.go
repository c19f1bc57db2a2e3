package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// party is one end of a session, with its application.
type party struct {
	e       *kcp.Endpoint
	l       *kcp.Listener // of the end that accepts
	ctx     context.Context
	c       *kcp.Conn // nil: the application has none
	wrote   []byte
	got     bytes.Buffer
	closed  chan error    // what Close returns that is called beside live
	release chan struct{} // closed when the application may close after io.EOF
	ended   chan struct{} // closed when it has returned
	how     string        // what Read and Close have returned
	heardAt time.Time     // when it has heard of the end
	lives   bool          // the session has outlived all limits
}

// put writes data, which the other end is to read.
func (p *party) put(data []byte) {
	n, _ := p.c.Write(data) // it may have said that there is no more
	p.wrote = append(p.wrote, data[:n]...)
}

// close calls Close beside what the application does.
func (p *party) close() {
	p.closed = make(chan error, 1)
	go func() { p.closed <- p.c.Close() }()
}

// live is the application: it reads to the end, waits, and closes.
func (p *party) live() {
	defer close(p.ended)
	if p.c == nil {
		c, err := p.l.AcceptKCP(p.ctx)
		if p.heardAt = time.Now(); err != nil {
			p.how = outcome(err)
			return
		}
		p.c = c
	}
	_, err := io.Copy(&p.got, p.c)
	p.heardAt, p.how = time.Now(), outcome(err)
	if err == nil {
		<-p.release
		p.how = "EOF, " + outcome(p.c.Err())
	}
	if p.closed != nil {
		err = <-p.closed
	} else {
		err = p.c.Close()
	}
	p.how += ", " + outcome(err)
}

// outcome names what a call has returned.
func outcome(err error) string {
	for _, o := range []struct {
		name string
		is   bool
	}{
		{"nil", err == nil},
		{"none", errors.Is(err, context.Canceled)},
		{"lost", errors.As(err, new(*kcp.PeerLostError))},
		{"reset", errors.Is(err, kcp.ErrReset)},
		{"not delivered", errors.Is(err, kcp.ErrNotDelivered)},
		{"peer closed", errors.Is(err, kcp.ErrPeerClosed)},
		{"closed", errors.Is(err, net.ErrClosed)},
	} {
		if o.is {
			return o.name
		}
	}
	return err.Error()
}

// stage is a session in a state of us, and the other end.
type stage struct {
	*world
	dialler, acceptor, us, them *party
}

// deaf has nothing of the peer reach us.
func (s *stage) deaf() {
	to := s.us.e.LocalAddr().(*net.UDPAddr).AddrPort()
	s.net.SetFilter(func(_, at netip.AddrPort, _ []byte) bool { return at != to })
}

// first opens a session of which only the first packets arrive, up and down.
func (s *stage) first(up, down int) {
	testenv.Outage(s.net, serverAddr, up, down)
	s.dialler.c = s.dial(s.dialler.e)
	time.Sleep(100 * time.Millisecond)
}

// opened opens a session over which something has gone both ways.
func (s *stage) opened() {
	s.dialler.c = s.dial(s.dialler.e)
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

// endings is what becomes of our end and of the peer, by endingEvents: what Read and
// Close return; after io.EOF also why the session had ended before Close, or nil. "lives"
// says that the session goes on as before, and "none" that Accept returns nothing. What
// is empty is not tried, as no application has the session.
type endings [6]string

var endingEvents = [6]struct {
	name string
	do   func(*stage)
}{
	{"peer vanishes", func(s *stage) { s.net.Cut("10.0.0.1", "10.0.0.2") }},
	{"peer aborts", func(s *stage) { require.NoError(s.t, s.them.c.Abort(0, "")) }},
	{"peer closes", func(s *stage) { s.them.close() }},
	{"application closes", func(s *stage) { s.us.close() }},
	{"application aborts", func(s *stage) { require.NoError(s.t, s.us.c.Abort(0, "")) }},
	{"endpoint closes", func(s *stage) { require.NoError(s.t, s.us.e.Close()) }},
}

// whenOpen is for a session with nothing under way.
var whenOpen = endings{
	"lost, nil | lost, nil", "reset, nil | closed, closed", "EOF, peer closed, nil | closed, nil",
	"closed, nil | EOF, peer closed, nil", "closed, closed | reset, nil", "closed, nil | reset, nil",
}

// endingStates are those of the table in WIRE.md §5.2 in which a session may be.
var endingStates = []struct {
	name     string
	set      func(*kcp.Config)
	enter    func(*stage)
	roles    string // "dials", "accepts", or both: what our end has done
	halfOpen int    // sessions of our end
	want     endings
}{
	{
		name: "dialling", roles: "dials",
		set: func(c *kcp.Config) { c.DialTimeout = -1 },
		enter: func(s *stage) {
			s.deaf()
			s.dialler.c = s.dial(s.dialler.e)
			time.Sleep(100 * time.Millisecond)
		},
		want: endings{0: "lost, nil | none", 3: "closed, nil | none", 4: "closed, closed | none", 5: "closed, nil | none"},
	},
	{
		name: "half open, WELCOME lost", roles: "accepts", halfOpen: 1,
		set:   func(c *kcp.Config) { c.DialTimeout = -1 },
		enter: func(s *stage) { s.first(1, 0) },
		want:  endings{0: "none | lost, nil", 1: "none | closed, closed", 2: "none | closed, nil", 5: "closed | reset, nil"},
	},
	{ // its peer has the WELCOME, and says so in vain
		name: "half open", roles: "accepts", halfOpen: 1,
		enter: func(s *stage) { s.first(1, 1000) },
		want:  endings{0: "none | lost, nil", 1: "none | closed, closed", 2: "EOF, peer closed, nil | closed, nil", 5: "closed | reset, nil"},
	},
	{name: "open", roles: "dials, accepts", enter: (*stage).opened, want: whenOpen},
	{
		name: "data under way", roles: "dials, accepts",
		enter: func(s *stage) {
			s.opened()
			s.us.put(content(1, 50000))
			s.them.put(content(2, 50000))
		},
		want: endings{ // who closes reads no more
			whenOpen[0], whenOpen[1], "EOF, peer closed, not delivered | closed, nil",
			"closed, nil | EOF, peer closed, not delivered", whenOpen[4], whenOpen[5],
		},
	},
	{
		name: "half closed by us", roles: "dials, accepts",
		enter: func(s *stage) {
			s.opened()
			require.NoError(s.t, s.us.c.CloseWrite())
			time.Sleep(time.Second)
		},
		want: endings{
			"lost, nil | EOF, lost, nil", "reset, nil | EOF, closed, closed", "EOF, peer closed, nil | EOF, closed, nil",
			whenOpen[3], "closed, closed | EOF, reset, nil", "closed, nil | EOF, reset, nil",
		},
	},
	{
		name: "half closed by the peer", roles: "dials, accepts",
		enter: func(s *stage) {
			s.opened()
			require.NoError(s.t, s.them.c.CloseWrite())
			time.Sleep(time.Second)
		},
		want: endings{
			"EOF, lost, nil | lost, nil", "EOF, reset, nil | closed, closed", whenOpen[2],
			"EOF, closed, nil | EOF, peer closed, nil", "EOF, closed, closed | reset, nil", "EOF, closed, nil | reset, nil",
		},
	},
	{ // nobody but the application changes that
		name: "over", roles: "dials, accepts",
		enter: func(s *stage) {
			s.opened()
			require.NoError(s.t, s.them.c.CloseWrite())
			require.NoError(s.t, s.us.c.CloseWrite())
			time.Sleep(time.Second)
		},
		want: endings{
			"lives | lives", "lives | EOF, closed, closed", "lives | EOF, closed, nil",
			"EOF, closed, nil | lives", "EOF, closed, closed | lives", "EOF, closed, nil | lives",
		},
	},
	{ // the peer has all of it, and our end does not know
		name: "lingering", roles: "dials, accepts",
		enter: func(s *stage) {
			s.opened()
			s.deaf()
			s.us.put(content(1, 5000))
			s.us.close()
			time.Sleep(roundTrip)
		},
		want: endings{
			"closed, not delivered | EOF, peer closed, nil", "closed, nil | EOF, peer closed, closed", "closed, nil | EOF, peer closed, nil",
			"", "closed, closed | EOF, peer closed, nil", "closed, closed | EOF, peer closed, nil",
		},
	},
}

// Whatever happens in whichever state: all calls return in their time and say what
// is so, nothing is left of the session if the peer is gone, and it goes on if the
// peer lives.
func TestStatesAndEvents(t *testing.T) {
	t.Parallel()
	long(t)
	for _, st := range endingStates {
		for i, ev := range endingEvents {
			for _, role := range strings.Split(st.roles, ", ") {
				if st.want[i] == "" {
					continue
				}
				t.Run(fmt.Sprintf("%s, %s, %s", st.name, ev.name, role), func(t *testing.T) {
					inWorld(t, 4, clean, func(t *testing.T, w *world) {
						config := mortal()
						if st.set != nil {
							st.set(config)
						}
						s := newStage(w, config, role == "dials")
						st.enter(s)
						synctest.Wait()
						require.Equal(t, st.halfOpen, s.us.e.Stats().HalfOpen, "half open in this state")
						s.try(ev.do, config, st.want[i])
					})
				})
			}
		}
	}
}

// newStage opens both endpoints. dials says which is ours.
func newStage(w *world, config *kcp.Config, dials bool) *stage {
	newParty := func() *party {
		return &party{ctx: w.t.Context(), release: make(chan struct{}), ended: make(chan struct{})}
	}
	s := &stage{world: w, dialler: newParty(), acceptor: newParty()}
	s.acceptor.l = w.listen(config)
	s.acceptor.e = s.acceptor.l.Endpoint()
	s.dialler.e, _ = w.endpoint("10.0.0.2:5000", config)
	s.us, s.them = s.acceptor, s.dialler
	if dials {
		s.us, s.them = s.them, s.us
	}
	return s
}

// try has the event happen while both applications read, and compares what becomes of
// them. What is still there when the time of all endings is over is used once more.
func (s *stage) try(event func(*stage), config *kcp.Config, want string) {
	parties := []*party{s.us, s.them}
	ctx, stop := context.WithCancel(s.t.Context())
	for _, p := range parties {
		p.ctx = ctx
		go p.live()
	}
	synctest.Wait()
	s.net.SetFilter(nil)
	start := time.Now()
	event(s)
	time.Sleep(max(allAtAnEnd(config), session.HandshakeTime+time.Second))
	stop()
	for _, p := range parties {
		if p.lives = p.c != nil && p.c.Err() == nil; p.lives {
			p.put([]byte("still"))
			_ = p.c.CloseWrite() // which some have done before
		}
		require.Equal(s.t, p.lives, p.e.Stats().Sessions == 1, "sessions at the limit")
	}
	time.Sleep(time.Second)
	for _, p := range parties {
		close(p.release)
		<-p.ended
		if p.lives && p.how == "EOF, nil, nil" {
			p.how = "lives"
		}
	}
	require.Equal(s.t, want, s.us.how+" | "+s.them.how)
	for how, limit := range map[string]time.Duration{
		"closed": 0, "EOF": 5 * roundTrip, "reset": config.KeepAlive*3/2 + roundTrip, "lost": config.KeepAlive*3/2 + config.PeerTimeout,
	} {
		if strings.HasPrefix(want, how) {
			require.LessOrEqual(s.t, s.us.heardAt.Sub(start), limit, "time until our end has heard of it")
		}
	}
	for _, ends := range [][2]*party{{s.us, s.them}, {s.them, s.us}} {
		got, wrote := ends[0].got.Bytes(), ends[1].wrote
		require.True(s.t, bytes.HasPrefix(wrote, got), "read %d bytes of %d, and not the first", len(got), len(wrote))
		if ends[0].how == "lives" || strings.HasPrefix(ends[0].how, "EOF") {
			require.Equal(s.t, len(wrote), len(got), "bytes before io.EOF")
		}
	}
	time.Sleep(allAtAnEnd(config))
	for _, p := range parties {
		left := p.e.Stats()
		require.Zero(s.t, left.Sessions+left.HalfOpen+left.Buffered+left.Backlog)
	}
}

// Who breaks off a session that is half open at the other end ends it at once.
func TestAbortOfHalfOpenSession(t *testing.T) {
	inWorld(t, 4, clean, func(t *testing.T, w *world) {
		s := newStage(w, mortal(), false)
		s.first(1, 1000)
		w.net.SetFilter(nil)
		require.Equal(t, 1, s.us.e.Stats().HalfOpen)
		require.NoError(t, s.them.c.Abort(0, ""))
		time.Sleep(roundTrip)
		require.Zero(t, s.us.e.Stats().Sessions+s.us.e.Stats().HalfOpen)
	})
}

// In TIME-WAIT the endpoint answers how the session has ended. After that it does
// not know the session any more.
func TestTimeWaitExpires(t *testing.T) {
	for _, aborts := range []bool{true, false} {
		inWorld(t, 4, clean, func(t *testing.T, w *world) {
			a, b, l, pc := w.movable(mortal())
			end, want := (*kcp.Conn).Close, wire.Close
			if aborts {
				end, want = func(c *kcp.Conn) error { return c.Abort(0, "") }, wire.Abort
			}
			time.Sleep(time.Second)
			require.NoError(t, end(b))
			start := time.Now()
			answerAt := func(at time.Duration) wire.Code {
				time.Sleep(at - time.Since(start))
				seen := w.watched()
				w.net.Inject(pc.AddrPort(), netip.MustParseAddrPort(serverAddr), packetOf(a.Conv(), testenv.SegmentOf(wire.Signal{Code: wire.Ping, SN: 1, TS: 2})))
				w.settle()
				answers := seen.all(w)
				require.Len(t, answers, 1)
				h := wire.DecodeHeader(answers[0].data)
				answer, _ := h.Signal()
				return answer.Code
			}
			require.Equal(t, want, answerAt(session.TimeWaitTime-time.Second))
			require.Equal(t, wire.Reset, answerAt(session.TimeWaitTime+time.Second))
			require.Zero(t, l.Endpoint().Stats().Sessions)
		})
	}
}

// wantReason checks that err says that the peer has closed with a reason.
func wantReason(t *testing.T, err error, want kcp.PeerCloseError) {
	t.Helper()
	var reason *kcp.PeerCloseError
	require.ErrorAs(t, err, &reason)
	require.Equal(t, want, *reason)
	sentinel := kcp.ErrPeerClosed
	if want.Aborted {
		sentinel = kcp.ErrReset
	}
	require.ErrorIs(t, err, sentinel)
}

// The reason arrives behind all data, however many packets are lost, and every
// call of the peer returns it.
func TestCloseWithError(t *testing.T) {
	for seed := range fewer(8) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			w.say(a, string(content(seed, 5000)))
			require.NoError(t, a.CloseWithError(1<<63+7, "going down: \xff"))
			require.ErrorIs(t, a.CloseWithError(1, ""), net.ErrClosed)
			receive(t, b, content(seed, 5000))
			_, write := b.Write([]byte("late"))
			_, datagram := b.ReceiveDatagram(context.Background())
			for _, err := range []error{end(b), write, datagram, b.CloseWrite(), b.SendDatagram(nil)} {
				wantReason(t, err, kcp.PeerCloseError{Code: 1<<63 + 7, Text: "going down: \uFFFD"})
			}
			require.NoError(t, b.Close())
		})
	}
}

// Without a reason nothing changes, and after a half-close there is one all the same. The
// text is cut between two characters, to what fits into any packet.
func TestCloseReasons(t *testing.T) {
	for _, tc := range []struct {
		name      string
		mtu       int
		halfClose bool
		close     func(c *kcp.Conn) error
		want      *kcp.PeerCloseError // nil: io.EOF
	}{
		{"none", 1400, false, (*kcp.Conn).Close, nil},
		{"zero", 1400, false, func(c *kcp.Conn) error { return c.CloseWithError(0, "") }, &kcp.PeerCloseError{}},
		{"half-closed", 1400, true, func(c *kcp.Conn) error { return c.CloseWithError(3, "x") }, &kcp.PeerCloseError{Code: 3, Text: "x"}},
		{"long", 1400, false, func(c *kcp.Conn) error { return c.CloseWithError(9, strings.Repeat("ä", 1000)) },
			&kcp.PeerCloseError{Code: 9, Text: strings.Repeat("ä", 128)}},
		{"longer than a packet", 50, false, func(c *kcp.Conn) error { return c.CloseWithError(9, strings.Repeat("ä", 1000)) },
			&kcp.PeerCloseError{Code: 9, Text: strings.Repeat("ä", 9)}},
	} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			config := &kcp.Config{MTU: tc.mtu, MaxMTU: -1}
			a, b, _ := w.pair(config, config)
			if tc.halfClose {
				require.NoError(t, a.CloseWrite())
				time.Sleep(100 * time.Millisecond)
			}
			require.NoError(t, tc.close(a), tc.name)
			time.Sleep(100 * time.Millisecond)
			if err := end(b); tc.want == nil {
				require.Equal(t, io.EOF, err)
			} else {
				wantReason(t, err, *tc.want)
			}
			require.NoError(t, b.Close())
		})
	}
}

// The packet with the reason is lost. The answer to the peer's next packet repeats it
// (RFC 9000 §10.2.1), be that data or a PING after KeepAlive, and also if that answer is
// lost again. No answer is larger than three times what it answers.
func TestAbortReasonIsRepeated(t *testing.T) {
	for name, config := range map[string]*kcp.Config{"plain": {}, "AEAD": {Cipher: testAEAD(t)}, "TLS": {TLS: testTLS()}} {
		for _, test := range []struct {
			name   string
			lost   int // packets of the end that aborts
			writes int // bytes of the other one; 0: it only reads
			text   int // bytes of the reason that arrive
		}{
			{"data", 1, 1000, 256}, {"data, twice", 2, 1000, 256}, {"keep-alive", 1, 0, 16},
		} {
			t.Run(name+", "+test.name, func(t *testing.T) {
				inWorld(t, 1, clean, func(t *testing.T, w *world) {
					a, b, _ := w.pair(config, config)
					time.Sleep(5 * time.Second)
					lost, asked := 0, 0
					w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
						switch {
						case from != acceptorAddr:
							asked = len(p)
						case lost < test.lost:
							lost++
							return false
						default:
							require.LessOrEqual(t, len(p), 3*asked)
						}
						return true
					})
					text := strings.Repeat("the reason is long: ", 20)
					require.NoError(t, b.Abort(7, text))
					if test.writes > 0 {
						time.Sleep(time.Second)
						w.say(a, string(content(1, test.writes)))
					}
					err := end(a)
					require.Equal(t, test.lost, lost)
					var reason *kcp.PeerCloseError
					require.ErrorAs(t, err, &reason)
					require.GreaterOrEqual(t, len(reason.Text), test.text)
					wantReason(t, err, kcp.PeerCloseError{Code: 7, Text: text[:len(reason.Text)], Aborted: true})
				})
			})
		}
	}
}

// An unknown sender gets one reply to a packet, however many requests are in it,
// and never a larger one.
func TestRepliesAreNoLargerThanRequests(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		w.listen(nil)
		sender := netip.MustParseAddrPort("10.0.0.9:9")
		var answered int
		w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
			if to == sender {
				answered += len(p)
			}
			return true
		})
		for code := range 256 {
			for _, n := range []int{1, 2, 50} {
				var p []byte
				for range n {
					p = append(p, signal{signalCode(code), 0, 77}.bytes(uint32(code))...)
				}
				answered = 0
				w.net.Inject(sender, acceptorAddr, p)
				time.Sleep(time.Second)
				synctest.Wait()
				require.LessOrEqual(t, answered, len(p), "code %d, %d times", code, n)
			}
		}
	})
}
