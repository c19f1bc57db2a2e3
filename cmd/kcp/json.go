package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// jsonLines is the output of -json: objects, one a line. docs/program.md has their
// fields.
type jsonLines struct {
	on  bool
	mu  sync.Mutex // held for a whole line
	out io.Writer
}

// option returns the flag -json. where names the stream of the objects.
func (j *jsonLines) option(where string) option {
	return option{"json", "", "print status, results, messages and errors as JSON on\n" + where + ", an object a line", toggle(&j.on)}
}

// print writes an object in a line of its own.
func (j *jsonLines) print(object any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(object); err != nil {
		return err // of a figure that is NaN or infinite, which none is
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, err := j.out.Write(b.Bytes()); err != nil {
		return &localError{"writing JSON", err}
	}
	return nil
}

// errors makes report print err as an object if -json was given. Before -json is
// parsed that is not known.
func (j *jsonLines) errors(err error) error {
	if err == nil || !j.on {
		return err
	}
	return &jsonError{err, j}
}

// messages returns the stream for text in place of stderr. With -json each line of
// text becomes an object.
func (j *jsonLines) messages(stderr io.Writer, command string) io.Writer {
	if !j.on {
		return stderr
	}
	return &jsonMessages{j, command}
}

// jsonError is an error that is printed as an object.
type jsonError struct {
	error
	lines *jsonLines
}

func (e *jsonError) Unwrap() error { return e.error }

// jsonMessages writes text as objects.
type jsonMessages struct {
	lines   *jsonLines
	command string
}

// Write takes whole lines.
func (m *jsonMessages) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		text := strings.TrimPrefix(strings.TrimSuffix(string(line), "\n"), m.command+": ")
		if err := m.lines.print(jsonMessage{"message", text}); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// jsonMessage is an event that is neither a status nor a result.
type jsonMessage struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// jsonFailure is the error that ends a command.
type jsonFailure struct {
	Type     string `json:"type"`
	Message  string `json:"message"`
	ExitCode int    `json:"exit_code"`
}

// jsonSegments is what a session has sent, and how far it is to its peer.
type jsonSegments struct {
	RTT            float64 `json:"rtt_seconds"`
	SegmentsSent   uint64  `json:"segments_sent"` // without repetitions
	SegmentsResent uint64  `json:"segments_resent"`
}

func segmentsOf(s *kcp.ConnStats) jsonSegments {
	return jsonSegments{s.RTT.Seconds(), s.SegmentsSent, s.Retransmits()}
}

// jsonPipe is the status or the result of a session of listen or dial. A rate is
// the one since the status before, and in the result the one of the whole session.
type jsonPipe struct {
	Type         string  `json:"type"`
	Remote       string  `json:"remote"`
	Seconds      float64 `json:"seconds"`
	Sent         int64   `json:"sent_bytes"`
	Received     int64   `json:"received_bytes"`
	SentRate     float64 `json:"sent_bytes_per_second"`
	ReceivedRate float64 `json:"received_bytes_per_second"`
	jsonSegments
	Complete *bool  `json:"complete,omitempty"` // of a result
	Error    string `json:"error,omitempty"`    // of a result that is not
}

// jsonPing is the outcome of a ping.
type jsonPing struct {
	Type     string   `json:"type"`
	Seq      int      `json:"seq"`
	Answered bool     `json:"answered"`
	RTT      *float64 `json:"rtt_seconds,omitempty"` // if answered
	Took     float64  `json:"took_seconds"`
}

// jsonPings is the result of all pings.
type jsonPings struct {
	Type     string   `json:"type"`
	Remote   string   `json:"remote"`
	Seconds  float64  `json:"seconds"`
	Sent     int      `json:"sent"`
	Answered int      `json:"answered"`
	Lost     int      `json:"lost"`
	Repeated int      `json:"repeated,omitempty"`        // of those answered
	RTTMin   *float64 `json:"rtt_min_seconds,omitempty"` // this and the next if any was answered
	RTTAvg   *float64 `json:"rtt_avg_seconds,omitempty"`
	RTTMax   *float64 `json:"rtt_max_seconds,omitempty"`
	RTTMdev  *float64 `json:"rtt_mdev_seconds,omitempty"`
}

// jsonDemo is the status or the result of a demo.
type jsonDemo struct {
	Type       string          `json:"type"`
	Seconds    float64         `json:"seconds"`
	Seed       uint64          `json:"seed"`
	Intact     *bool           `json:"intact,omitempty"` // of a result
	Directions []jsonDirection `json:"directions"`
}

// jsonDirection is a direction of a demo.
type jsonDirection struct {
	Name    string  `json:"name"`
	Size    int64   `json:"size_bytes"`
	Arrived int64   `json:"arrived_bytes"`
	Rate    float64 `json:"bytes_per_second"`
	jsonSegments
	*jsonDirectionEnd // of a result
}

// jsonDirectionEnd is what is known of a direction at its end.
type jsonDirectionEnd struct {
	Seconds     float64 `json:"seconds"`
	Relayed     int64   `json:"relayed_packets"`
	Lost        int64   `json:"lost_packets"`
	Recovered   uint64  `json:"recovered_packets"`
	SentSum     string  `json:"sent_sha256"`
	ReceivedSum string  `json:"received_sha256"`
}

// json returns the result of a direction.
func (dir *direction) json() jsonDirection {
	return jsonDirection{
		Name: dir.name, Size: dir.size, Arrived: dir.arrived.Load(),
		Rate:         float64(dir.size) / max(dir.took, 1).Seconds(),
		jsonSegments: segmentsOf(&dir.sender),
		jsonDirectionEnd: &jsonDirectionEnd{
			Seconds:   dir.took.Seconds(),
			Relayed:   dir.relayed.Sent.Packets,
			Lost:      dir.relayed.Lost.Packets + dir.relayed.Overflow.Packets,
			Recovered: dir.receiver.FEC.Recovered,
			SentSum:   fmt.Sprintf("%x", dir.sentSum), ReceivedSum: fmt.Sprintf("%x", dir.receivedSum),
		},
	}
}

// jsonFlows is the status or the result of kcp demo -streams.
type jsonFlows struct {
	Type     string        `json:"type"`
	Seconds  float64       `json:"seconds"`
	Seed     uint64        `json:"seed"`
	Sessions []jsonFlowRun `json:"sessions"`
}

// jsonFlowRun is one of the two ways to carry the flows.
type jsonFlowRun struct {
	Name  string     `json:"name"`
	Flows []jsonFlow `json:"flows"`
}

// jsonFlow is one flow: a download has a rate, the others have times.
type jsonFlow struct {
	Name     string   `json:"name"`
	Messages *int     `json:"messages,omitempty"`
	P50      *float64 `json:"p50_seconds,omitempty"`
	P99      *float64 `json:"p99_seconds,omitempty"`
	Rate     *float64 `json:"bytes_per_second,omitempty"`
}

// printFlows prints the status or the result of kcp demo -streams.
func (d *demo) printFlows(kind string, runs []*flowRun) error {
	o := jsonFlows{Type: kind, Seconds: time.Since(runs[0].start).Seconds(), Seed: d.seed}
	for _, r := range runs {
		one := jsonFlowRun{Name: r.name}
		for i := range flowKinds {
			one.Flows = append(one.Flows, r.json(i))
		}
		o.Sessions = append(o.Sessions, one)
	}
	return d.lines.print(o)
}

// json returns the figures of flow i.
func (r *flowRun) json(i int) jsonFlow {
	o := jsonFlow{Name: flowKinds[i].name}
	times, rate := r.measured(i)
	if flowKinds[i].every == 0 {
		o.Rate = &rate
		return o
	}
	n := len(times)
	o.Messages = &n
	if n > 0 {
		o.P50, o.P99 = seconds(quantile(times, 0.5)), seconds(quantile(times, 0.99))
	}
	return o
}
