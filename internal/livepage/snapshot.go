package livepage

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// row is what the table shows of a session. Times are in milliseconds.
type row struct {
	ID       string  `json:"id"`
	Endpoint string  `json:"endpoint"`
	Remote   string  `json:"remote"`
	Conv     string  `json:"conv"`
	RTT      float64 `json:"rtt"`
	MTU      int     `json:"mtu"`

	SendRate    float64 `json:"sendRate"` // payload bytes a second since the snapshot before
	ReceiveRate float64 `json:"receiveRate"`

	BytesSent     uint64 `json:"bytesSent"`
	BytesReceived uint64 `json:"bytesReceived"`
	Segments      uint64 `json:"segments"`
	Retransmits   uint64 `json:"retransmits"`
	Spurious      uint64 `json:"spurious"`
	InFlight      int    `json:"inFlight"` // segments
	Window        int    `json:"window"`   // segments; -1: no congestion control
	Queue         int    `json:"queue"`    // bytes written and not acknowledged
	Held          int    `json:"held"`     // bytes held because of the peer
	Drops         uint64 `json:"drops"`

	conn *kcp.Conn
}

// orders are the orders of the table: each returns the figure by which rows are
// sorted, the largest first.
var orders = map[string]func(r *row) float64{
	"rate":        func(r *row) float64 { return r.SendRate + r.ReceiveRate },
	"rtt":         func(r *row) float64 { return r.RTT },
	"sent":        func(r *row) float64 { return float64(r.BytesSent) },
	"received":    func(r *row) float64 { return float64(r.BytesReceived) },
	"retransmits": func(r *row) float64 { return float64(r.Retransmits) },
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
	Name   string            `json:"name"`
	Local  string            `json:"local"`
	Stats  kcp.EndpointStats `json:"stats"`
	Totals kcp.SessionTotals `json:"totals"`
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
	remote := c.RemoteAddr().String()
	window := st.CongestionWindow
	if window == 1<<31-1 {
		window = -1
	}
	return row{
		ID: fmt.Sprintf("%d-%08x-%s", n.number, c.Conv(), remote), Endpoint: n.Name, Remote: remote, Conv: fmt.Sprintf("%08x", c.Conv()),
		RTT: millis(st.RTT), MTU: st.PathMTU.MTU,
		BytesSent: st.BytesSent, BytesReceived: st.BytesReceived,
		Segments: st.SegmentsSent, Retransmits: st.Retransmits(), Spurious: st.SpuriousRetransmits,
		InFlight: st.InFlight, Window: window, Queue: st.WriteBuffered, Held: st.Held, Drops: st.Dropped.Total(),
		conn: c,
	}
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
	Time       int64         `json:"time"` // Unix milliseconds
	Stats      kcp.ConnStats `json:"stats"`
	WriteQueue int           `json:"writeQueue"` // segments not sent yet
}

// answer returns the answer to q.
func (s *Set) answer(q request) answer {
	snap := s.cache.get(s.All)
	a := answer{Time: snap.at.UnixMilli(), Endpoints: snap.endpoints, Sessions: len(snap.rows), Rows: []row{}}
	if a.Endpoints == nil {
		a.Endpoints = []endpointState{}
	}
	var matching []*row
	for i := range snap.rows {
		r := &snap.rows[i]
		if q.filter == "" || strings.Contains(r.Remote, q.filter) || strings.Contains(r.Conv, q.filter) || strings.Contains(strings.ToLower(r.Endpoint), q.filter) {
			matching = append(matching, r)
		}
		if q.selected != "" && r.ID == q.selected && r.conn.Err() == nil {
			a.Selected = selectedOf(r)
		}
	}
	figure := orders[q.sort]
	slices.SortFunc(matching, func(x, y *row) int {
		return cmp.Or(cmp.Compare(figure(y), figure(x)), cmp.Compare(x.ID, y.ID))
	})
	a.Matching = len(matching)
	a.Offset = min(q.offset, len(matching))
	for _, r := range matching[a.Offset:min(a.Offset+q.rows, len(matching))] {
		a.Rows = append(a.Rows, *r)
	}
	return a
}

// selectedOf returns the present figures of a session. Rates are those of the
// snapshot.
func selectedOf(r *row) *selected {
	st := r.conn.Stats()
	return &selected{row: *r, Time: time.Now().UnixMilli(), Stats: st, WriteQueue: st.Queued}
}
