package pages

import (
	"encoding/json"

	"github.com/arqnet/kcp/qlog"
)

// stream is what the page tells of a stream; 0 is the session without its streams. Times
// are in seconds.
type stream struct {
	ID       uint32 `json:"id"`
	Sent     int    `json:"sent"` // segments
	Resent   int    `json:"resent"`
	Lost     int    `json:"lost"`
	Received int    `json:"received"`

	// Longest is the most time from when a segment was first sent until it was
	// acknowledged, or the end. At is when that one was sent.
	Longest float64 `json:"longest"`
	At      float64 `json:"at"`
}

// Bounds of streams.
const (
	maxStreams = 1000
	maxFlight  = 1 << 16 // segments
)

// streams are the streams of a trace, in the order in which they come. Further ones than
// maxStreams are left out.
type streams struct {
	all    []*stream
	byID   map[uint32]*stream
	flight map[uint32]sending // by sn
}

// sending is the first transmission of a segment that is not acknowledged yet.
type sending struct {
	of *stream
	at float64
}

func newStreams() *streams {
	return &streams{byID: make(map[uint32]*stream), flight: make(map[uint32]sending)}
}

// of returns the stream of a segment; nil: there are too many.
func (s *streams) of(x *qlog.EventData) *stream {
	var id uint32
	if len(x.Frames) > 0 {
		id = x.Frames[0].StreamID
	}
	t := s.byID[id]
	if t == nil && len(s.all) < maxStreams {
		t = &stream{ID: id}
		s.byID[id], s.all = t, append(s.all, t)
	}
	return t
}

func (s *streams) sent(x *qlog.EventData, at float64) {
	t := s.of(x)
	switch {
	case t == nil || x.Redundant:
	case x.Transmissions > 1:
		t.Resent++
	default:
		t.Sent++
		if len(s.flight) < maxFlight {
			s.flight[x.Header.PacketNumber] = sending{t, at}
		}
	}
}

func (s *streams) acked(sn uint32, at float64) {
	f, ok := s.flight[sn]
	if !ok {
		return
	}
	delete(s.flight, sn)
	if took := at - f.at; took > f.of.Longest {
		f.of.Longest, f.of.At = took, f.at
	}
}

func (s *streams) lost(x *qlog.EventData) {
	if t := s.of(x); t != nil {
		t.Lost++
	}
}

func (s *streams) received(x *qlog.EventData) {
	if t := s.of(x); t != nil {
		t.Received++
	}
}

// finish takes account of what was not acknowledged by the end.
func (s *streams) finish(end float64) {
	for sn := range s.flight {
		s.acked(sn, end)
	}
}

// MarshalJSON returns the streams, none if the trace knows no other than 0.
func (s *streams) MarshalJSON() ([]byte, error) {
	all := s.all
	if len(all) == 0 || len(all) == 1 && all[0].ID == 0 {
		all = []*stream{}
	}
	return json.Marshal(all)
}
