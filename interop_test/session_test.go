package interop

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/assert"
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
		Delay: 20 * time.Millisecond, Jitter: 40 * time.Millisecond, Loss: 0.10, Duplicate: 0.02, Reorder: 0.2,
	}}
)

// plan says how sessions come about: who dials, who listens, and over what.
type plan struct {
	dialler, listener party
	path              path
}

// name is the plan as the name of a subtest.
func (p plan) name() string { return fmt.Sprintf("%s/%v/%v", p.path.name, p.dialler, p.listener) }

// plansOf returns the plans for two parties over some paths, with either dialling.
func plansOf(a, b party, paths ...path) (all []plan) {
	for _, path := range paths {
		all = append(all, plan{a, b, path}, plan{b, a, path})
	}
	return all
}

// covering returns the plans that case i of a test has: all of them, or one in turn if
// time is short.
func covering(plans []plan, i int) []plan {
	if long {
		return plans
	}
	return plans[i%len(plans) : i%len(plans)+1]
}

// service is a listener, the path to it, and the sessions with it.
type service struct {
	t        *testing.T
	plan     plan
	listener listener
	address  string // to dial
	sessions []*session
}

// newService listens as the plan says. It ends with the test.
func newService(t *testing.T, p plan) *service {
	t.Helper()
	l := p.listener.listen(t)
	s := &service{t: t, plan: p, listener: l, address: l.address()}
	if p.path.relay {
		relay, err := netsim.NewRelay(s.address, p.path.link, p.path.link, caseSeed(t))
		require.NoError(t, err)
		t.Cleanup(func() { _ = relay.Close() })
		s.address = relay.Addr().String()
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
	n := &session{service: s, seed: caseSeed(s.t) + 2*uint64(len(s.sessions)), dialled: s.plan.dialler.dial(s.t, s.address)}
	s.sessions = append(s.sessions, n)
	return n
}

// open returns a session that both ends know, after a greeting each way. Each
// end has seen the window that the other was set to.
func open(t *testing.T, p plan) *session {
	t.Helper()
	n := newService(t, p).dial()
	testenv.Send(t, n.dialled, []byte("hello"))
	n.acceptAll()
	testenv.Receive(t, n.accepted, []byte("hello"))
	testenv.Send(t, n.accepted, []byte("welcome"))
	testenv.Receive(t, n.dialled, []byte("welcome"))
	return n
}

// acceptAll waits for the listener's ends that there are not yet. They come in
// any order.
func (s *service) acceptAll() {
	s.t.Helper()
	waiting := make(map[uint32]*session)
	for _, n := range s.sessions {
		if n.accepted == nil {
			waiting[n.dialled.conversation()] = n
		}
	}
	for len(waiting) > 0 {
		e, err := s.listener.accept()
		require.NoError(s.t, err)
		s.t.Cleanup(func() { closeAtOnce(e) })
		n := waiting[e.conversation()]
		require.NotNil(s.t, n, "conversation %08x accepted, which nobody has opened", e.conversation())
		delete(waiting, e.conversation())
		n.accepted = e
	}
}

func closeAtOnce(e end) {
	if o, ok := e.(ourEnd); ok {
		_ = o.Abort(0, "")
		return
	}
	_ = e.Close()
}

// transfer moves size bytes each way of every session, all at once, and
// compares the contents. Sessions are accepted on the way if need be.
func (s *service) transfer(size int) {
	s.t.Helper()
	for _, n := range s.sessions {
		testenv.Send(s.t, n.dialled, testenv.Content(n.seed, size))
	}
	s.acceptAll()
	var receiving sync.WaitGroup
	for _, n := range s.sessions {
		testenv.Send(s.t, n.accepted, testenv.Content(n.seed+1, size))
		receiving.Go(func() { testenv.Receive(s.t, n.accepted, testenv.Content(n.seed, size)) })
		receiving.Go(func() { testenv.Receive(s.t, n.dialled, testenv.Content(n.seed+1, size)) })
	}
	receiving.Wait()
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

// close closes our ends of all sessions, which must find that everything was
// delivered and that no bad packet has come. Parity may come late.
func (s *service) close() {
	s.t.Helper()
	for _, n := range s.sessions {
		require.NoError(s.t, n.ours().Close())
		stats := n.ours().Stats()
		dropped := stats.Dropped.Total() - stats.Dropped.FEC
		assert.Zero(s.t, dropped, "packets of a well-behaved peer: %+v", stats)
		assert.Zero(s.t, stats.BrokenMessages)
	}
}
