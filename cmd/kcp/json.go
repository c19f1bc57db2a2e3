package main

import (
	"encoding/json"
	"io"

	"github.com/arqnet/kcp/stats"
)

// jsonOption returns the flag -json. where names the stream of the objects.
func jsonOption(to *bool, where string) option {
	return option{"json", "", "print results as JSON on " + where + ", one object a line", toggle(to)}
}

// printJSON writes an object in a line of its own. docs/program.md has the fields.
func printJSON(to io.Writer, object any) error {
	b, err := json.Marshal(object)
	if err != nil {
		return err // of a figure that is NaN or infinite, which none is
	}
	if _, err := to.Write(append(b, '\n')); err != nil {
		return &localError{"writing JSON", err}
	}
	return nil
}

// jsonSegments is what a session has sent, and how far it is to its peer.
type jsonSegments struct {
	RTT            float64 `json:"rtt_seconds"`
	SegmentsSent   uint64  `json:"segments_sent"` // without repetitions
	SegmentsResent uint64  `json:"segments_resent"`
}

func segmentsOf(s *stats.Conn) jsonSegments {
	return jsonSegments{s.RTT.Seconds(), s.SegmentsSent, s.Retransmits()}
}

// jsonPipe is the result of a session of listen or dial.
type jsonPipe struct {
	Type     string  `json:"type"`
	Remote   string  `json:"remote"`
	Seconds  float64 `json:"seconds"`
	Sent     int64   `json:"sent_bytes"`
	Received int64   `json:"received_bytes"`
	jsonSegments
	Complete bool   `json:"complete"`
	Error    string `json:"error,omitempty"` // if it is not
}

// jsonPing is the outcome of a ping.
type jsonPing struct {
	Type     string  `json:"type"`
	Seq      int     `json:"seq"`
	Answered bool    `json:"answered"`
	RTT      float64 `json:"rtt_seconds,omitempty"` // if answered
	Took     float64 `json:"took_seconds"`
}

// jsonPings is the result of all pings.
type jsonPings struct {
	Type        string  `json:"type"`
	Remote      string  `json:"remote"`
	Seconds     float64 `json:"seconds"`
	Sent        int     `json:"sent"`
	Answered    int     `json:"answered"`
	Lost        int     `json:"lost"`
	Repeated    int     `json:"repeated,omitempty"` // of those answered: not the answer to the first packet
	RepeatedMax float64 `json:"repeated_max_seconds,omitempty"`
	RTTMin      float64 `json:"rtt_min_seconds,omitempty"` // this and the next if any was answered
	RTTAvg      float64 `json:"rtt_avg_seconds,omitempty"`
	RTTMax      float64 `json:"rtt_max_seconds,omitempty"`
	RTTMdev     float64 `json:"rtt_mdev_seconds"` // the root of the mean square deviation

	sum, squares float64 // of the round trips, in seconds
}

// jsonDemo is the result of a demo.
type jsonDemo struct {
	Type       string          `json:"type"`
	Seconds    float64         `json:"seconds"`
	Seed       uint64          `json:"seed"`
	Intact     bool            `json:"intact"`
	Directions []jsonDirection `json:"directions"`
}

// jsonDirection is a direction of a demo.
type jsonDirection struct {
	Name    string  `json:"name"`
	Size    int64   `json:"size_bytes"`
	Seconds float64 `json:"seconds"`
	jsonSegments
	Relayed     int64  `json:"relayed_packets"`
	Lost        int64  `json:"lost_packets"`
	Recovered   uint64 `json:"recovered_packets"`
	SentSum     string `json:"sent_sha256"`
	ReceivedSum string `json:"received_sha256"`
}
