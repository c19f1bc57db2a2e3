package tunnel

import (
	"cmp"
	"io"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/stats"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
)

// Carried are figures that both ends have, of what they carry.
type Carried struct {
	// Remotes has an element for each remote of a user, with a name as in the file of
	// users: "intranet:80", "R:0.0.0.0:2222", "1.1.1.1:53/udp", "socks". Beyond 32 of a user
	// they are "other" together.
	Remotes []RemoteFigures
	// Resolve and Connect are how long it has taken to look targets' names up, and to
	// connect with targets of TCP. Failed ones count.
	Resolve, Connect Histogram
	// TargetsFailed is how many targets could not be dialled here, by cause: "forbidden",
	// "refused", "timeout", "unreachable", "resolve", "descriptors" and "other".
	TargetsFailed map[string]uint64
	// Waiting is how many connections have not gone on for a second, by what they wait
	// for: "target" or "application" if that does not take data, "path" if the path or the
	// other end does not, and "answer" if the other end has not said that it has begun.
	Waiting map[string]int
}

// RemoteFigures are what a remote has carried.
type RemoteFigures struct {
	User, Remote string
	Connections  int    // and flows of UDP, open
	Opened       uint64 // connections and flows that there have been
	Sent         uint64 // bytes, to the peer
	Received     uint64 // bytes, from the peer
}

// remoteTally is RemoteFigures while they change.
type remoteTally struct {
	open                   atomic.Int64
	opened, sent, received atomic.Uint64
}

// maxRemotes is how many remotes of a user are counted by name: a peer names targets. The
// others count as otherRemote.
const (
	maxRemotes  = 32
	otherRemote = "other"
)

// remote returns the tally of a remote, which begins if there is room.
func (t *tally) remote(name string) *remoteTally {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.remotes[name] == nil && len(t.remotes) >= maxRemotes {
		name = otherRemote
	}
	if t.remotes == nil {
		t.remotes = make(map[string]*remoteTally)
	}
	t.remotes[name] = cmp.Or(t.remotes[name], new(remoteTally))
	return t.remotes[name]
}

// appendRemotes appends the figures of the remotes of a user.
func (t *tally) appendRemotes(to []RemoteFigures, user string) []RemoteFigures {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(t.remotes)) {
		one := t.remotes[name]
		to = append(to, RemoteFigures{user, name, int(one.open.Load()), one.opened.Load(), one.sent.Load(), one.received.Load()})
	}
	return to
}

// subject is what a connection or flow is about.
type subject struct {
	remote  string // as RemoteFigures has it
	target  string // empty: the peer knows it
	dialled bool   // this end has dialled the target
}

// carried is a connection or a flow while it is carried.
type carried struct {
	subject
	s        *session
	flow     bool
	of       *remoteTally
	began    time.Time
	awaiting atomic.Bool // the peer has not answered the opening
	out, in  oneWay      // to the peer, and from it
}

// oneWay is one direction of what is carried.
type oneWay struct {
	bytes atomic.Uint64
	// blocked is since when the receiver has not taken what it was given, in nanoseconds
	// since carried.began and 1; 0: it has.
	blocked atomic.Int64
}

// carries counts a connection or a flow until its ended is called.
func (s *session) carries(about subject, flow bool) *carried {
	c := &carried{subject: about, s: s, flow: flow, of: s.tally.remote(about.remote), began: time.Now()}
	s.active.Add(1)
	c.of.open.Add(1)
	c.of.opened.Add(1)
	if flow {
		s.tally.flows.Add(1)
		s.tally.flowsOpened.Add(1)
	} else {
		s.tally.connections.Add(1)
		s.tally.connectionsOpened.Add(1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = make(map[*carried]struct{})
	}
	s.all[c] = struct{}{}
	return c
}

// ended takes carries back.
func (c *carried) ended() {
	c.s.active.Add(-1)
	c.of.open.Add(-1)
	if c.flow {
		c.s.tally.flows.Add(-1)
	} else {
		c.s.tally.connections.Add(-1)
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	delete(c.s.all, c)
}

// send counts bytes that go to the peer.
func (c *carried) send(n int) {
	c.out.bytes.Add(uint64(n))
	c.of.sent.Add(uint64(n))
	c.s.tally.sent.Add(uint64(n))
}

// receive counts bytes that come from the peer.
func (c *carried) receive(n int) {
	c.in.bytes.Add(uint64(n))
	c.of.received.Add(uint64(n))
	c.s.tally.received.Add(uint64(n))
}

// blockable is a writer that notes since when a write waits.
type blockable struct {
	io.Writer
	way   *oneWay
	began time.Time // of the connection
}

func (w blockable) Write(b []byte) (int, error) {
	w.way.blocked.Store(int64(time.Since(w.began)) + 1)
	defer w.way.blocked.Store(0)
	return w.Writer.Write(b)
}

// waitsAfter is how long a connection may be held up and not count as waiting.
const waitsAfter = time.Second

// waits returns what the connection waits for, and for how long it has. Nothing: it goes
// on, or nobody sends.
func (c *carried) waits() (what string, since time.Duration) {
	age := time.Since(c.began)
	held := func(w *oneWay) time.Duration {
		if at := w.blocked.Load(); at != 0 {
			return age - time.Duration(at)
		}
		return 0
	}
	out, in := held(&c.out), held(&c.in)
	switch {
	case c.awaiting.Load():
		what, since = "answer", age
	case out > in:
		what, since = "path", out
	case c.dialled:
		what, since = "target", in
	default:
		what, since = "application", in
	}
	if since < waitsAfter {
		return "", 0
	}
	return what, since
}

// carriedNow returns what the session carries.
func (s *session) carriedNow() []*carried {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.all))
}

// carriedBy returns the figures of an end with these sessions, but for its remotes.
func (d *dialTally) carriedBy(sessions []*session) Carried {
	f := Carried{Resolve: d.resolve.figures(), Connect: d.connect.figures(), TargetsFailed: d.failures(), Waiting: map[string]int{"target": 0, "application": 0, "path": 0, "answer": 0}}
	for _, s := range sessions {
		for _, c := range s.carriedNow() {
			if key, _ := c.waits(); key != "" {
				f.Waiting[key]++
			}
		}
	}
	return f
}

// Peer is a session with the other end, as it is now.
type Peer struct {
	Name         string       `json:"name"` // of the user at a server, of the server at a client
	Address      string       `json:"address"`
	Transport    string       `json:"transport"`
	Leaving      bool         `json:"leaving,omitempty"` // it ends with its last connection
	Age          float64      `json:"age_seconds"`
	RTT          float64      `json:"rtt_seconds"`
	LeastRTT     float64      `json:"least_rtt_seconds"` // so far; 0: not known
	Silence      float64      `json:"silence_seconds"`   // since the last sign of life
	LossSent     float64      `json:"loss_sent"`         // share of packets, lately
	LossReceived float64      `json:"loss_received"`
	Queued       int          `json:"queued_bytes"` // not acknowledged, or not sent
	LimitedBy    string       `json:"limited_by"`   // what keeps it from sending more
	Sent         uint64       `json:"sent_bytes"`
	Received     uint64       `json:"received_bytes"`
	Connections  []Connection `json:"connections"`
}

// Connection is a connection or a flow of UDP, as it is now.
type Connection struct {
	Remote   string  `json:"remote"`
	Target   string  `json:"target,omitempty"`
	Age      float64 `json:"age_seconds"`
	Sent     uint64  `json:"sent_bytes"`
	Received uint64  `json:"received_bytes"`
	WaitsFor string  `json:"waits_for,omitempty"` // as Carried.Waiting has it, or "other end" instead of "path" if that is so
	Waits    float64 `json:"waits_seconds,omitempty"`
}

// peer returns the session for those who look.
func (s *session) peer(name string, leaving bool) Peer {
	f := s.conn.Figures()
	p := Peer{
		Name: name, Address: s.conn.RemoteAddr().String(), Transport: s.conn.Transport(), Leaving: leaving, Age: time.Since(s.begun).Seconds(),
		RTT: f.RTT.Seconds(), Sent: f.Sent, Received: f.Received, Connections: []Connection{},
	}
	fullThere := false // the other end does not read
	if conn, ok := s.conn.(carrier.KCP); ok {
		st := conn.Stats()
		p.LeastRTT = st.RTTMin.Seconds()
		p.Silence, p.LossSent, p.LossReceived = st.Silence.Seconds(), st.Sent.RecentShare(), st.Received.RecentShare()
		p.Queued, p.LimitedBy, fullThere = st.WriteBuffered, st.LimitedBy.String(), st.LimitedBy == stats.LimitPeerWindow
	}
	for _, c := range s.carriedNow() {
		one := Connection{Remote: c.remote, Target: c.target, Age: time.Since(c.began).Seconds(), Sent: c.out.bytes.Load(), Received: c.in.bytes.Load()}
		key, waits := c.waits()
		if key == "path" && fullThere {
			key = "other end"
		}
		one.WaitsFor, one.Waits = key, waits.Seconds()
		p.Connections = append(p.Connections, one)
	}
	return p
}
