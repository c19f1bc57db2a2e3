package pages

import (
	_ "embed"
	"html/template"
	"io"
	"time"

	"github.com/arqnet/kcp/qlog"
)

//go:embed trace.html
var tracePage string

//go:embed trace.js
var traceScript string

// WriteTrace reads a trace of package qlog from r and writes the page to w: a
// time-sequence diagram, round-trip times, windows, rates and losses. The page is one
// file. name is what the page calls the trace, such as its file. An error of the trace
// wraps qlog.ErrFormat; nothing is written then. Memory does not grow with the length of
// the trace: of long ones it shows a part of the points.
func WriteTrace(w io.Writer, r io.Reader, name string) error {
	d := newData(name)
	h, err := qlog.Read(r, func(e qlog.Event) error {
		d.add(&e)
		return nil
	})
	if err != nil {
		return err
	}
	d.finish(&h)
	return template.Must(template.New("trace").Parse(tracePage)).Execute(w, map[string]any{
		"Name":    name,
		"License": template.HTML("<!--\n" + PlotLicense + "-->"),
		"Style":   template.CSS(PlotStyle),
		"Charts":  template.JS(PlotScript),
		"Script":  template.JS(traceScript),
		"Data":    d,
	})
}

// data is what the script of the page draws. Times are in seconds.
type data struct {
	Name     string   `json:"name"`
	Title    string   `json:"title"`
	Side     string   `json:"side"`
	Conv     string   `json:"conv"`
	Start    string   `json:"start"`
	Duration float64  `json:"duration"`
	Totals   totals   `json:"totals"`
	Causes   []string `json:"causes"`

	Sent      *points  `json:"sent"`
	Resent    *points  `json:"resent"`
	Copies    *points  `json:"copies"`
	Acked     *points  `json:"acked"`
	Losses    *points  `json:"losses"`   // third value: index in Causes
	Spurious  *points  `json:"spurious"` // declared lost, and had arrived
	Received  *points  `json:"received"`
	RTT       *points  `json:"rtt"`    // latest, smoothed, least, time-out; milliseconds
	Window    *points  `json:"window"` // congestion window, in flight, peer's; bytes
	Pace      *points  `json:"pace"`   // pacing rate, bytes a second
	Queue     *points  `json:"queue"`  // segments waiting to be sent
	Bins      *bins    `json:"bins"`
	Events    []event  `json:"events"`
	MoreEvent int      `json:"moreEvents"` // events that are not among Events
	Streams   *streams `json:"streams"`
	Limits    *limits  `json:"limits"`

	end time.Duration // of the last event

	causes map[string]int
	sn     map[bool]*unwrap
}

// totals are sums over the trace.
type totals struct {
	Sent          int64            `json:"sent"` // first transmissions
	Retransmitted int64            `json:"retransmitted"`
	Copies        int64            `json:"copies"`
	Acked         int64            `json:"acked"`
	AckedBytes    int64            `json:"ackedBytes"`
	Received      int64            `json:"received"`
	ReceivedBytes int64            `json:"receivedBytes"`
	Lost          int64            `json:"lost"`
	Spurious      int64            `json:"spurious"`
	Dropped       int64            `json:"dropped"`
	LeftOut       uint64           `json:"leftOut"` // events that the trace has not
	ByCause       map[string]int64 `json:"byCause"`
}

// event is a line of the page's list: a state, a signal and the like.
type event struct {
	At   float64 `json:"at"`
	What string  `json:"what"`
	Text string  `json:"text"`
}

// Bounds of what the page holds.
const (
	maxPoints = 30000 // of one kind
	maxEvents = 500
	maxBins   = 1000
	firstBin  = 10 * time.Millisecond
	maxCauses = 8
	maxText   = 200 // bytes of a text from the trace
)

func newData(name string) *data {
	d := &data{Name: name, causes: make(map[string]int), Bins: &bins{width: firstBin}, Events: []event{}}
	d.Totals.ByCause = make(map[string]int64)
	for _, p := range []**points{&d.Sent, &d.Resent, &d.Copies, &d.Acked, &d.Losses, &d.Spurious, &d.Received, &d.RTT, &d.Window, &d.Pace, &d.Queue} {
		*p = &points{stride: 1}
	}
	d.Streams, d.Limits = newStreams(), newLimits()
	d.sn = map[bool]*unwrap{true: {}, false: {}}
	return d
}

// add takes one event.
func (d *data) add(e *qlog.Event) {
	at := e.Time.Seconds()
	d.Duration, d.end = max(d.Duration, at), max(d.end, e.Time)
	x, n := &e.Data, &d.Totals
	switch e.Name {
	case "quic:packet_sent":
		d.addSent(e, at)
	case "quic:packet_received":
		n.Received++
		d.Streams.received(x)
		n.ReceivedBytes += x.Raw.PayloadLength
		d.Received.add(at, d.sn[false].of(x.Header.PacketNumber))
		d.Bins.add(e.Time, binReceived, float64(x.Raw.PayloadLength))
	case "quic:packets_acked":
		for _, sn := range x.PacketNumbers {
			n.Acked++
			d.Streams.acked(sn, at)
			d.Acked.add(at, d.sn[true].of(sn))
		}
		n.AckedBytes += x.PayloadLength
		d.Bins.add(e.Time, binAcked, float64(x.PayloadLength))
	case "quic:packet_lost":
		d.addLost(e, at)
	case "kcp:spurious_loss":
		n.Spurious++
		d.Spurious.add(at, d.sn[true].of(x.PacketNumber))
	case "quic:recovery_metrics_updated":
		d.addMetrics(x, at)
		d.Limits.change(x.LimitedBy, e.Time)
	case "kcp:events_lost":
		n.LeftOut += x.Count
		d.note(at, e.Name, "")
	case "quic:packet_dropped":
		n.Dropped++
		d.note(at, e.Name, x.Details)
	case "kcp:signal_sent", "kcp:signal_received":
		d.note(at, e.Name, x.Signal)
	case "quic:connection_closed":
		d.note(at, e.Name, x.Trigger+" "+x.Reason)
	default:
		text := ""
		if len(x.New) > 0 {
			text = string(x.Old) + " → " + string(x.New)
		}
		d.note(at, e.Name, text)
	}
}

func (d *data) addSent(e *qlog.Event, at float64) {
	x, n := &e.Data, &d.Totals
	d.Streams.sent(x, at)
	sn := d.sn[true].of(x.Header.PacketNumber)
	switch {
	case x.Redundant:
		n.Copies++
		d.Copies.add(at, sn)
	case x.Transmissions > 1:
		n.Retransmitted++
		d.Resent.add(at, sn)
	default:
		n.Sent++
		d.Sent.add(at, sn)
	}
	d.Bins.add(e.Time, binSent, float64(x.Raw.PayloadLength))
}

func (d *data) addLost(e *qlog.Event, at float64) {
	x := &e.Data
	cause := cut(x.Cause)
	if cause == "" {
		cause = cut(x.Trigger)
	}
	i, known := d.causes[cause]
	if !known {
		if len(d.Causes) == maxCauses {
			i = maxCauses - 1
		} else {
			i = len(d.Causes)
			d.Causes = append(d.Causes, cause)
			d.causes[cause] = i
		}
	}
	d.Streams.lost(x)
	d.Totals.Lost++
	d.Totals.ByCause[d.Causes[i]]++
	d.Losses.add(at, d.sn[true].of(x.Header.PacketNumber), float64(i))
	d.Bins.add(e.Time, binLost+i, 1)
}

func (d *data) addMetrics(x *qlog.EventData, at float64) {
	value := func(v *float64) any {
		if v == nil {
			return nil
		}
		return *v
	}
	if x.SmoothedRTT != nil {
		d.RTT.add(at, value(x.LatestRTT), value(x.SmoothedRTT), value(x.MinRTT), value(x.RTO))
	}
	d.Window.add(at, value(x.CongestionWindow), value(x.BytesInFlight), value(x.RemoteWindow))
	if x.PacingRate != nil {
		d.Pace.add(at, *x.PacingRate/8)
	}
	d.Queue.add(at, value(x.PacketsQueued))
}

// note adds a line to the list of events.
func (d *data) note(at float64, what, text string) {
	if len(d.Events) >= maxEvents {
		d.MoreEvent++
		return
	}
	d.Events = append(d.Events, event{at, cut(what), cut(text)})
}

// cut returns at most maxText bytes of s.
func cut(s string) string {
	if len(s) > maxText {
		return s[:maxText]
	}
	return s
}

// finish fills in what is known at the end.
func (d *data) finish(h *qlog.Header) {
	d.Title, d.Conv, d.Side = cut(h.Title), cut(h.Group), "accepted"
	if h.Client {
		d.Side = "dialled"
	}
	if !h.Start.IsZero() {
		d.Start = h.Start.UTC().Format("2006-01-02 15:04:05.000 MST")
	}
	d.Bins.finish()
	d.Limits.until(d.end)
	d.Limits.bins.finish()
	d.Streams.finish(d.Duration)
}
