package pages

import (
	"container/heap"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/stats"
)

// row is what the table shows of a session. Times are in milliseconds.
type row struct {
	ID       string  `json:"id"`
	Endpoint string  `json:"endpoint"`
	Remote   string  `json:"remote"`
	Name     string  `json:"name,omitempty"` // as NameSessions has it
	Conv     string  `json:"conv"`
	RTT      float64 `json:"rtt"`
	MTU      int     `json:"mtu"`

	SendRate    float64 `json:"sendRate"` // payload bytes a second since the snapshot before
	ReceiveRate float64 `json:"receiveRate"`

	BytesSent     uint64  `json:"bytesSent"`
	BytesReceived uint64  `json:"bytesReceived"`
	Segments      uint64  `json:"segments"`
	Retransmits   uint64  `json:"retransmits"`
	Spurious      uint64  `json:"spurious"`
	LostOut       float64 `json:"lostOut"` // share of all packets in the last interval, 0 to 1; -1: not known
	LostIn        float64 `json:"lostIn"`
	InFlight      int     `json:"inFlight"` // segments
	Window        int     `json:"window"`   // segments; -1: no congestion control
	Queue         int     `json:"queue"`    // bytes written and not acknowledged
	Held          int     `json:"held"`     // bytes held because of the peer
	Drops         uint64  `json:"drops"`

	LimitedBy string `json:"limitedBy"`

	conn *kcp.Conn
	of   *Named
	at   int // index in the snapshot
}

// conv returns the conversation id, as it is shown.
func (r *row) conv() string { return fmt.Sprintf("%08x", r.conn.Conv()) }

// describe fills in the texts. To do so for all sessions would take longer than
// all else.
func (r *row) describe(name func(*kcp.Conn) string) {
	r.Name = name(r.conn)
	r.Remote, r.Conv, r.Endpoint = r.conn.RemoteAddr().String(), r.conv(), r.of.Name
	r.ID = fmt.Sprintf("%d-%s-%s", r.of.number, r.Conv, r.Remote)
}

// matches reports whether the filter, in lower case, lets the row pass.
func (r *row) matches(filter string, name func(*kcp.Conn) string) bool {
	return filter == "" || strings.Contains(r.conv(), filter) || strings.Contains(strings.ToLower(r.of.Name), filter) ||
		strings.Contains(r.conn.RemoteAddr().String(), filter) || strings.Contains(strings.ToLower(name(r.conn)), filter)
}

// orders are the orders of the table: each returns the figure by which rows are
// sorted, the largest first.
var orders = map[string]func(r *row) float64{
	"rate":        func(r *row) float64 { return r.SendRate + r.ReceiveRate },
	"rtt":         func(r *row) float64 { return r.RTT },
	"sent":        func(r *row) float64 { return float64(r.BytesSent) },
	"received":    func(r *row) float64 { return float64(r.BytesReceived) },
	"retransmits": func(r *row) float64 { return float64(r.Retransmits) },
	"lost":        func(r *row) float64 { return max(r.LostOut, r.LostIn) },
	"inflight":    func(r *row) float64 { return float64(r.InFlight) },
	"queue":       func(r *row) float64 { return float64(r.Queue) },
	"held":        func(r *row) float64 { return float64(r.Held) },
	"drops":       func(r *row) float64 { return float64(r.Drops) },
}

// snapshot is the figures of all sessions at a time.
type snapshot struct {
	at        time.Time
	took      time.Duration
	rows      []row
	endpoints []endpointState
}

// endpointState is what is shown of an endpoint.
type endpointState struct {
	Name   string         `json:"name"`
	Local  string         `json:"local"`
	Stats  stats.Endpoint `json:"stats"`
	Totals stats.Totals   `json:"totals"`
}

// snapshots has the latest snapshot. To take one costs the lock of each session
// twice, so all who look share it.
type snapshots struct {
	mu     sync.Mutex // guards the fields below
	latest *snapshot  // nil: none, or nobody has looked for a while
	drop   *time.Timer
}

const (
	// snapshotEvery is the least time between two snapshots. It is raised to
	// snapshotShare times what one takes, so that 100 000 sessions do not keep a
	// processor busy because of the page.
	snapshotEvery = 400 * time.Millisecond
	snapshotShare = 10
	// snapshotKept is how long a snapshot, and with it sessions that have ended,
	// is kept after the last request.
	snapshotKept = 10 * time.Second
)

// get returns a snapshot that is not too old.
func (c *snapshots) get(endpoints func() []Named) *snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drop == nil {
		c.drop = time.AfterFunc(snapshotKept, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.latest = nil
		})
	} else {
		c.drop.Reset(snapshotKept)
	}
	if s := c.latest; s != nil && time.Since(s.at) < max(snapshotEvery, snapshotShare*s.took) {
		return s
	}
	c.latest = take(endpoints(), c.latest)
	return c.latest
}

// take takes a snapshot. before, which may be nil, is the one before.
func take(endpoints []Named, before *snapshot) *snapshot {
	s := &snapshot{at: time.Now()}
	old := make(map[*kcp.Conn]*row)
	elapsed := 0.
	if before != nil {
		elapsed = s.at.Sub(before.at).Seconds()
		for i := range before.rows {
			old[before.rows[i].conn] = &before.rows[i]
		}
	}
	for _, n := range endpoints {
		s.endpoints = append(s.endpoints, endpointState{n.Name, n.Endpoint.LocalAddr().String(), n.Endpoint.Stats(), n.Endpoint.Totals()})
		for c := range n.Endpoint.Sessions() {
			r := rowOf(&n, c)
			r.at = len(s.rows)
			if o := old[c]; o != nil && elapsed > 0 {
				r.SendRate = float64(r.BytesSent-o.BytesSent) / elapsed
				r.ReceiveRate = float64(r.BytesReceived-o.BytesReceived) / elapsed
			}
			s.rows = append(s.rows, r)
		}
	}
	s.took = time.Since(s.at)
	return s
}

// rowOf returns the row of a session, without rates.
func rowOf(n *Named, c *kcp.Conn) row {
	st := c.Stats()
	window := st.CongestionWindow
	if window == 1<<31-1 {
		window = -1
	}
	return row{
		RTT: millis(st.RTT), MTU: st.PathMTU.MTU,
		BytesSent: st.BytesSent, BytesReceived: st.BytesReceived,
		Segments: st.SegmentsSent, Retransmits: st.Retransmits(), Spurious: st.SpuriousRetransmits,
		LostOut: lost(st.Sent.Loss), LostIn: lost(st.Received.Loss),
		InFlight: st.InFlight, Window: window, Queue: st.WriteBuffered, Held: st.Held, Drops: st.Dropped.Total(),
		LimitedBy: st.LimitedBy.String(),
		conn:      c, of: n,
	}
}

// lost returns the share of packets that were lost lately; -1: it is not known.
func lost(l stats.Loss) float64 {
	if l.Counted == 0 {
		return -1
	}
	return l.RecentShare()
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// answer is what stats.json returns.
type answer struct {
	Time      int64           `json:"time"` // of the snapshot, Unix milliseconds
	Endpoints []endpointState `json:"endpoints"`
	Sessions  int             `json:"sessions"` // all of them
	Matching  int             `json:"matching"` // that the filter lets pass
	Offset    int             `json:"offset"`
	Rows      []row           `json:"rows"`
	Selected  *selected       `json:"selected"` // nil: not asked for, or ended
}

// selected is the one session that is shown in full, as of now.
type selected struct {
	row
	Time       int64      `json:"time"` // Unix milliseconds
	Stats      stats.Conn `json:"stats"`
	WriteQueue int        `json:"writeQueue"` // segments not sent yet
	Limits     []string   `json:"limits"`     // names of the indexes of Stats.Limited
}

// answer returns the answer to q.
func (s *Set) answer(q request) answer {
	snap, name := s.cache.get(s.All), s.namer()
	a := answer{Time: snap.at.UnixMilli(), Endpoints: snap.endpoints, Sessions: len(snap.rows), Rows: []row{}}
	if a.Endpoints == nil {
		a.Endpoints = []endpointState{}
	}
	first := selection{figure: orders[q.sort], most: min(q.offset, len(snap.rows)) + q.rows}
	for i := range snap.rows {
		r := &snap.rows[i]
		if r.matches(q.filter, name) {
			a.Matching++
			first.add(r)
		}
		if q.selected != "" && strings.Contains(q.selected, r.conv()) {
			if one := *r; one.is(q.selected, name) {
				a.Selected = selectedOf(&one)
			}
		}
	}
	a.Offset = min(q.offset, a.Matching)
	for _, r := range first.sorted()[a.Offset:] {
		shown := *r
		shown.describe(name)
		a.Rows = append(a.Rows, shown)
	}
	return a
}

// is reports whether r is the row with an id, and its session goes on.
func (r *row) is(id string, name func(*kcp.Conn) string) bool {
	r.describe(name)
	return r.ID == id && r.conn.Err() == nil
}

// selection finds the first rows in an order without sorting all of them. It is a
// heap of the rows found so far, the last of them on top.
type selection struct {
	figure func(r *row) float64
	most   int // rows to find
	rows   []*row
	values []float64 // of the rows
}

// add takes one more row.
func (s *selection) add(r *row) {
	v := s.figure(r)
	if len(s.rows) < s.most {
		heap.Push(s, ranked{r, v})
	} else if s.most > 0 && (v > s.values[0] || v == s.values[0] && r.at < s.rows[0].at) {
		s.rows[0], s.values[0] = r, v
		heap.Fix(s, 0)
	}
}

// sorted returns the rows found, in order, and empties the selection.
func (s *selection) sorted() []*row {
	found := make([]*row, len(s.rows))
	for i := len(found) - 1; i >= 0; i-- {
		found[i] = heap.Pop(s).(ranked).row
	}
	return found
}

// ranked is a row with its figure.
type ranked struct {
	row   *row
	value float64
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (s *selection) Len() int { return len(s.rows) }

func (s *selection) Less(i, j int) bool {
	if s.values[i] != s.values[j] {
		return s.values[i] < s.values[j]
	}
	return s.rows[i].at > s.rows[j].at
}

func (s *selection) Swap(i, j int) {
	s.rows[i], s.rows[j] = s.rows[j], s.rows[i]
	s.values[i], s.values[j] = s.values[j], s.values[i]
}

func (s *selection) Push(x any) {
	s.rows, s.values = append(s.rows, x.(ranked).row), append(s.values, x.(ranked).value)
}

func (s *selection) Pop() any {
	last := len(s.rows) - 1
	r := ranked{s.rows[last], s.values[last]}
	s.rows, s.values = s.rows[:last], s.values[:last]
	return r
}

// selectedOf returns the present figures of a session. Rates are over the
// snapshot.
func selectedOf(r *row) *selected {
	st := r.conn.Stats()
	s := &selected{row: *r, Time: time.Now().UnixMilli(), Stats: st, WriteQueue: st.Queued}
	for i := range st.Limited {
		s.Limits = append(s.Limits, stats.Limit(i).String())
	}
	return s
}
