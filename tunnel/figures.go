package tunnel

import (
	"cmp"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
)

// Figures are what the users of a server do, and have done since it began.
type Figures struct {
	// Users has an element for each user of the file, in the order of their names, and
	// one with an empty name for clients that have named none of them. The counts of a
	// user end when the user is taken from the file.
	Users []UserFigures
	// TurnedAway is how many clients were not let in, by reason: "wrong-identity",
	// "attempts", "forbidden", "unknown-certificate", "no-identity", "version",
	// "malformed", "no-hello", "full" if too many had not shown who they are, and "left"
	// if it has left without a word.
	TurnedAway map[string]uint64
	Carried
}

// UserFigures are the figures of one user.
type UserFigures struct {
	User        string // empty: clients that have named no user of the file
	Sessions    int    // open
	Connections int    // of TCP, open
	Flows       int    // of UDP, open

	Logins            uint64 // sessions that there have been
	ConnectionsOpened uint64 // connections that there have been
	FlowsOpened       uint64 // flows that there have been
	FlowsEvicted      uint64 // flows that were ended to make room, as the user had too many
	Sent              uint64 // bytes of connections and flows, to the client
	Received          uint64 // bytes of connections and flows, from the client
	// Refused counts what was asked for and not allowed: targets, and what the server
	// was to listen on.
	Refused uint64
	// Failed counts targets that could not be reached, and addresses on which it was not
	// possible to listen.
	Failed         uint64
	WrongPasswords uint64 // clients turned away with a wrong password or certificate
	// Lockouts counts clients turned away without a look at the password, because too
	// many attempts had failed.
	Lockouts uint64
}

// tally is UserFigures while they change.
type tally struct {
	sessions, connections, flows                            atomic.Int64
	logins, connectionsOpened, flowsOpened, sent, received  atomic.Uint64
	flowsEvicted, refused, failed, wrongPasswords, lockouts atomic.Uint64

	mu      sync.Mutex
	remotes map[string]*remoteTally
}

// evict counts a flow that was ended to make room.
func (t *tally) evict() { t.flowsEvicted.Add(1) }

// refuse counts an opening that was not carried out because of err.
func (t *tally) refuse(err error) {
	var dialling *dialError
	switch {
	case errors.Is(err, refusal(codeForbidden)):
		t.refused.Add(1)
	case errors.As(err, &dialling):
		t.failed.Add(1)
	}
}

// figures returns the counts.
func (t *tally) figures(name string) UserFigures {
	return UserFigures{
		User: name, Sessions: int(t.sessions.Load()), Connections: int(t.connections.Load()), Flows: int(t.flows.Load()),
		Logins: t.logins.Load(), ConnectionsOpened: t.connectionsOpened.Load(), FlowsOpened: t.flowsOpened.Load(),
		FlowsEvicted: t.flowsEvicted.Load(),
		Sent:         t.sent.Load(), Received: t.received.Load(), Refused: t.refused.Load(), Failed: t.failed.Load(),
		WrongPasswords: t.wrongPasswords.Load(), Lockouts: t.lockouts.Load(),
	}
}

// tallies are the counts of a server. What they hold is bounded by the file of users:
// what a stranger calls itself is not kept.
type tallies struct {
	mu         sync.Mutex
	users      map[string]*tally
	strangers  tally
	turnedAway map[string]uint64
	names      map[carrier.Conn]string // of the users of sessions
}

// keep has a tally for each of the users, and for others only while they have sessions.
func (t *tallies) keep(users *Users) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.users
	t.users = make(map[string]*tally)
	for name := range users.byName {
		t.users[name] = cmp.Or(old[name], new(tally))
	}
	for name, one := range old {
		if one.sessions.Load() > 0 {
			t.users[name] = one
		}
	}
}

// begin counts a session of a user.
func (t *tallies) begin(conn carrier.Conn, name string) *tally {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.users[name]
	if one == nil { // taken from the file just now
		one = new(tally)
	}
	one.sessions.Add(1)
	one.logins.Add(1)
	if t.names == nil {
		t.names = make(map[carrier.Conn]string)
	}
	t.names[conn] = name
	return one
}

// end takes a session of begin back.
func (t *tallies) end(conn carrier.Conn, one *tally) {
	one.sessions.Add(-1)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.names, conn)
}

// away counts a client that was not let in because of err, and returns the user whom it
// has named. It reports whether the client has left by itself, in order, without a word:
// one that only measures the round trip does so.
func (t *tallies) away(err error) (name string, left bool) {
	reason := "no-hello"
	var away *turnedAway
	switch {
	case errors.As(err, &away):
		reason, name = string(away.Code), away.user
	case errors.Is(err, errFull):
		reason = "full"
	case errors.Is(err, kcp.ErrPeerClosed), errors.Is(err, io.EOF):
		reason, left = "left", true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.turnedAway == nil {
		t.turnedAway = make(map[string]uint64)
	}
	t.turnedAway[reason]++
	one := t.users[name]
	if one == nil {
		one = &t.strangers
	}
	switch helloCode(reason) {
	case helloWrong, helloNoRules:
		one.wrongPasswords.Add(1)
	case helloAttempts:
		one.lockouts.Add(1)
	case helloForbidden:
		one.refused.Add(1)
	}
	return name, left
}

// Figures returns what the users do now and have done.
func (s *Server) Figures() Figures {
	carried := s.dials.carriedBy(s.present())
	t := &s.tallies
	t.mu.Lock()
	defer t.mu.Unlock()
	f := Figures{TurnedAway: maps.Clone(t.turnedAway), Users: []UserFigures{t.strangers.figures("")}, Carried: carried}
	for name, one := range t.users {
		f.Users = append(f.Users, one.figures(name))
		f.Remotes = one.appendRemotes(f.Remotes, name)
	}
	slices.SortFunc(f.Users, func(a, b UserFigures) int { return cmp.Compare(a.User, b.User) })
	return f
}

// UserOf returns the name of the user whose session conn is; empty: it is not of this
// server, or the client has not shown who it is.
func (s *Server) UserOf(conn *kcp.Conn) string {
	s.tallies.mu.Lock()
	defer s.tallies.mu.Unlock()
	return s.tallies.names[carrier.KCP{Conn: conn}]
}

// present returns the sessions that there are.
func (s *Server) present() (all []*session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.sessions {
		all = append(all, &c.session)
	}
	return all
}

// Peers returns the sessions that there are.
func (s *Server) Peers() (all []Peer) {
	for _, one := range s.present() {
		all = append(all, one.peer(one.role.(*serverSession).identity.name, s.passed.Load()))
	}
	return all
}
