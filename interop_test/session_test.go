package interop

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// path is what lies between the two ends.
type path struct {
	name  string
	relay bool
	link  netsim.LinkConfig // each way
}

var (
	direct = path{name: "direct"}
	lossy  = path{name: "lossy", relay: true, link: netsim.LinkConfig{
		Delay:     20 * time.Millisecond,
		Jitter:    40 * time.Millisecond,
		Loss:      0.10,
		Duplicate: 0.02,
		Reorder:   0.2,
	}}
)

// timeLimit is the limit of calls that need one. The test binary has a shorter one.
const timeLimit = time.Hour

// party is one end of the sessions of a plan.
type party struct {
	implementation
	tuning
}

func (p party) String() string { return p.implementation.String() + "=" + p.tuning.String() }

// plan says how sessions come about: who dials, who listens, and over what.
type plan struct {
	dialler  party
	listener party
	path     path
	limit    time.Duration // for the whole case; zero means timeLimit
}

// name is the plan as the name of a subtest.
func (p plan) name() string { return fmt.Sprintf("%s/%v/%v", p.path.name, p.dialler, p.listener) }

// bothWays returns the plan with either of the two dialling.
func bothWays(a, b party, path path) []plan {
	return []plan{{dialler: a, listener: b, path: path}, {dialler: b, listener: a, path: path}}
}

// covering returns the plans that case i of a test has: all of them, or one in
// turn with -short. Where i is the sum of the indices of two settings, each value
// of either has as many of the plans as the other setting has values.
func covering(plans []plan, i int) []plan {
	if testing.Short() {
		i %= len(plans)
		return plans[i : i+1]
	}
	return plans
}

// service is a listener, the path to it, and the sessions with it.
type service struct {
	t        testing.TB
	plan     plan
	seed     uint64
	deadline time.Time
	listener listener
	relay    *netsim.Relay // nil where the path is direct
	address  string        // to dial
	sessions []*session
}

// newService listens as the plan says. It ends with the test.
func newService(t testing.TB, p plan) *service {
	t.Helper()
	if p.limit == 0 {
		p.limit = timeLimit
	}
	l, err := p.listener.listen(p.listener.tuning)
	require.NoError(t, err)
	s := &service{
		t:        t,
		plan:     p,
		seed:     caseSeed(t),
		deadline: time.Now().Add(p.limit),
		listener: l,
		address:  l.address(),
	}
	t.Cleanup(s.release)
	if p.path.relay {
		s.relay, err = netsim.NewRelay(s.address, p.path.link, p.path.link, s.seed)
		require.NoError(t, err)
		s.address = s.relay.Addr().String()
	}
	return s
}

// session is one session, seen from both ends.
type session struct {
	*service
	seed     uint64 // and seed+1: of the contents
	dialled  end
	accepted end // nil until it is accepted
}

// dial dials one session. The listener knows nothing of it before the first
// write.
func (s *service) dial() *session {
	s.t.Helper()
	e, err := s.plan.dialler.dial(s.address, s.plan.dialler.tuning)
	require.NoError(s.t, err)
	return s.adopt(e)
}

// adopt makes a session of an end that has been dialled.
func (s *service) adopt(dialled end) *session {
	s.t.Helper()
	n := &session{service: s, seed: s.seed + 2*uint64(len(s.sessions)), dialled: dialled}
	s.sessions = append(s.sessions, n)
	require.NoError(s.t, dialled.SetDeadline(s.deadline))
	return n
}

// open returns a session that both ends know, after a greeting each way. Each
// end has seen the window that the other was set to.
func open(t testing.TB, p plan) *session {
	t.Helper()
	n := newService(t, p).dial()
	n.check(n.greet(n.dialled, "hello"))
	n.check(n.acceptAll())
	n.check(n.expect(n.accepted, "hello"))
	n.check(n.greet(n.accepted, "welcome"))
	n.check(n.expect(n.dialled, "welcome"))
	return n
}

func (s *service) greet(e end, greeting string) error {
	_, err := e.Write([]byte(greeting))
	return err
}

func (s *service) expect(e end, greeting string) error {
	b := make([]byte, len(greeting))
	n, err := io.ReadFull(e, b) // the little that an unproven peer gets may end within it
	if err == nil && string(b) != greeting {
		err = fmt.Errorf("got %q, want %q", b[:n], greeting)
	}
	return err
}

// acceptAll waits for the listener's ends that there are not yet. They come in
// any order.
func (s *service) acceptAll() error {
	waiting := make(map[uint32]*session)
	for _, n := range s.sessions {
		if n.accepted == nil {
			waiting[n.dialled.conversation()] = n
		}
	}
	for len(waiting) > 0 {
		e, err := s.listener.accept(s.deadline)
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		conv := e.conversation()
		n := waiting[conv]
		if n == nil {
			return errors.Join(fmt.Errorf("conversation %08x accepted, which nobody has opened", conv), e.Close())
		}
		delete(waiting, conv)
		n.accepted = e
		if err := e.SetDeadline(s.deadline); err != nil {
			return err
		}
	}
	return nil
}

// transfer moves size bytes each way of every session, all at once, and
// compares the contents. Sessions are accepted on the way if need be.
func (s *service) transfer(size int64) error {
	var exchanges []*exchange
	for _, n := range s.sessions {
		x := newExchange(n.seed, size)
		x.join(n.dialled, dialling)
		exchanges = append(exchanges, x)
	}
	err := s.acceptAll()
	for i, n := range s.sessions {
		if err != nil {
			_ = n.dialled.Close() // it would wait for what cannot come
			continue
		}
		exchanges[i].join(n.accepted, listening)
	}
	for _, x := range exchanges {
		err = errors.Join(err, x.wait())
	}
	return err
}

// ours returns our end of a session with kcp-go.
func (n *session) ours() *kcp.Conn {
	if e, ok := n.dialled.(ourEnd); ok {
		return e.Conn
	}
	return n.accepted.(ourEnd).Conn
}

// theirs returns kcp-go's end of a session with us.
func (n *session) theirs() *kcpgo.UDPSession {
	if e, ok := n.dialled.(theirEnd); ok {
		return e.UDPSession
	}
	return n.accepted.(theirEnd).UDPSession
}

// check fails the test with all that is known, if err is not nil.
func (s *service) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.report())
	}
}

// report describes the state of things.
func (s *service) report() string {
	var b strings.Builder
	fmt.Fprintf(&b, "KCP_INTEROP_SEED=%d\n%v dials, %v listens, %s",
		seed, s.plan.dialler, s.plan.listener, s.plan.path.name)
	for _, n := range s.sessions {
		fmt.Fprintf(&b, "\nconversation %08x\n  %v: %s", n.dialled.conversation(), dialling, n.dialled.stats())
		if n.accepted != nil {
			fmt.Fprintf(&b, "\n  %v: %s", listening, n.accepted.stats())
		}
	}
	if l, ok := s.listener.(ourListener); ok {
		fmt.Fprintf(&b, "\nour listener: %+v", l.Stats())
	}
	if s.relay != nil {
		up, down := s.relay.Stats()
		fmt.Fprintf(&b, "\nrelay up: %+v\nrelay down: %+v", up, down)
	}
	fmt.Fprintf(&b, "\nkcp-go in all: %+v", *kcpgo.DefaultSnmp.Copy())
	return b.String()
}

// close closes our ends of all sessions, which must find that everything was
// delivered and that no bad packet has come.
func (s *service) close() {
	s.t.Helper()
	for _, n := range s.sessions {
		for _, e := range []end{n.dialled, n.accepted} {
			if o, ok := e.(ourEnd); ok {
				s.check(closeOurs(o.Conn))
			}
		}
	}
}

func closeOurs(c *kcp.Conn) error {
	if err := c.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	stats := c.Stats()
	if stats.Dropped.Total() != 0 || stats.BrokenMessages != 0 {
		return fmt.Errorf("packets of a well-behaved peer were dropped: %+v", stats)
	}
	return nil
}

// release frees everything at the end of a test. Errors are of no interest: a
// test that cares has closed by itself. The listener goes first, so that
// kcp-go's does not open a session anew for a straggler of one that was closed.
func (s *service) release() {
	_ = s.listener.Close()
	var closing sync.WaitGroup // side by side: after a failure ours may linger
	for _, n := range s.sessions {
		closing.Go(func() { _ = n.dialled.Close() })
		if n.accepted != nil {
			closing.Go(func() { _ = n.accepted.Close() })
		}
	}
	closing.Wait()
	if s.relay != nil {
		_ = s.relay.Close()
	}
}
