package qlog

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Header is the first record of a trace.
type Header struct {
	Title  string    // of the file
	Client bool      // the end that wrote it has dialled
	Group  string    // group id: the conversation id in 8 hexadecimal digits
	Start  time.Time // of the events; zero if the trace does not say
}

// Event is an event of a trace.
type Event struct {
	Time time.Duration // since the start
	Name string        // such as quic:packet_sent
	Data EventData     // its fields
}

// EventData are the fields of an event, of those that this package writes. What
// an event does not have is zero.
type EventData struct {
	// Header has the sn of a segment that is sent, received or lost.
	Header struct {
		PacketNumber uint32 `json:"packet_number"`
	} `json:"header"`
	// Raw has the size of the segment's payload, or of a packet that is dropped,
	// in bytes.
	Raw struct {
		Length        int64 `json:"length"`
		PayloadLength int64 `json:"payload_length"`
	} `json:"raw"`

	// Frames has the stream of a segment that is sent, received or lost, if it is of one.
	Frames []struct {
		StreamID uint32 `json:"stream_id"`
	} `json:"frames"`

	// Of quic:packets_acked, and of other events about segments: sn, all that
	// are acknowledged, bytes of payload, how often it was sent, and whether it is
	// a redundant copy.
	PacketNumber  uint32   `json:"packet_number"`
	PacketNumbers []uint32 `json:"packet_numbers"`
	PayloadLength int64    `json:"payload_length"`
	Transmissions int      `json:"transmissions"`
	Redundant     bool     `json:"redundant"`

	// Why something has happened: qlog's name, this package's name, the error
	// with which a session has ended, and the one of a packet that was dropped.
	Trigger string `json:"trigger"`
	Cause   string `json:"cause"`
	Reason  string `json:"reason"`
	Details string `json:"details"`

	Signal string `json:"signal"` // its name in WIRE.md
	Count  uint64 `json:"count"`  // how many events were left out

	// Old and New are strings, or numbers of bytes in quic:mtu_updated.
	Old json.RawMessage `json:"old"`
	New json.RawMessage `json:"new"`

	// Of quic:recovery_metrics_updated: milliseconds, bytes, packets and bits a
	// second. nil if the event does not have it.
	SmoothedRTT      *float64 `json:"smoothed_rtt"`
	LatestRTT        *float64 `json:"latest_rtt"`
	MinRTT           *float64 `json:"min_rtt"`
	RTO              *float64 `json:"rto"`
	CongestionWindow *float64 `json:"congestion_window"`
	BytesInFlight    *float64 `json:"bytes_in_flight"`
	RemoteWindow     *float64 `json:"remote_window"`
	PacingRate       *float64 `json:"pacing_rate"`
	PacketsQueued    *float64 `json:"packets_queued"`

	LimitedBy string `json:"limited_by"` // what keeps the session from sending more
}

// ErrFormat means that a file is not a trace that this package can read. Read
// wraps it with the reason.
var ErrFormat = errors.New("qlog: not a qlog trace in JSON text sequences")

// maxRecord bounds a record, in bytes.
const maxRecord = 1 << 20

// Read reads a trace, and calls each for every event. It ends with the first
// error, which may be an error of each. A last record that was cut off is ignored, as
// RFC 7464 §2.3 advises: a process may have ended while it wrote.
func Read(r io.Reader, each func(Event) error) (Header, error) {
	records := bufio.NewScanner(r)
	records.Buffer(nil, maxRecord)
	records.Split(splitRecords)
	var h Header
	n := 0
	for records.Scan() {
		text := records.Bytes()
		if len(text) == 0 {
			continue
		}
		n++
		var err error
		if n == 1 {
			h, err = readHeader(text)
		} else {
			err = readEvent(text, each)
		}
		var syntax *json.SyntaxError
		switch {
		case err == nil:
		case errors.As(err, &syntax) && n > 1 && !records.Scan():
			return h, nil // cut off
		case errors.Is(err, errOfCaller):
			return h, errors.Unwrap(err)
		default:
			return h, fmt.Errorf("%w: record %d: %v", ErrFormat, n, err)
		}
	}
	switch err := records.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return h, fmt.Errorf("%w: record %d is longer than %d bytes", ErrFormat, n+1, maxRecord)
	case err != nil:
		return h, err
	case n == 0:
		return h, fmt.Errorf("%w: it is empty", ErrFormat)
	}
	return h, nil
}

// callerError is an error of the function that Read calls.
type callerError struct{ err error }

func (e callerError) Error() string        { return e.err.Error() }
func (e callerError) Unwrap() error        { return e.err }
func (e callerError) Is(target error) bool { return target == errOfCaller }

var errOfCaller = errors.New("qlog: error of the caller")

// splitRecords is a bufio.SplitFunc for the records of a JSON text sequence.
func splitRecords(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if len(data) == 0 {
		return 0, nil, nil
	}
	if data[0] != separator {
		return 0, nil, fmt.Errorf("%w: no record separator at the beginning", ErrFormat)
	}
	for i := 1; i < len(data); i++ {
		if data[i] == separator {
			return i, data[1:i], nil
		}
	}
	if atEOF {
		return len(data), data[1:], nil
	}
	return 0, nil, nil
}

func readHeader(text []byte) (h Header, err error) {
	var file struct {
		FileSchema string `json:"file_schema"`
		Title      string `json:"title"`
		Trace      struct {
			Vantage struct {
				Type string `json:"type"`
			} `json:"vantage_point"`
			Common struct {
				GroupID   string `json:"group_id"`
				Reference struct {
					WallClock string `json:"wall_clock_time"`
				} `json:"reference_time"`
			} `json:"common_fields"`
		} `json:"trace"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return h, err
	}
	if file.FileSchema != "urn:ietf:params:qlog:file:sequential" {
		return h, fmt.Errorf("file_schema is %q", file.FileSchema)
	}
	h = Header{Title: file.Title, Client: file.Trace.Vantage.Type == "client", Group: file.Trace.Common.GroupID}
	h.Start, _ = time.Parse(time.RFC3339Nano, file.Trace.Common.Reference.WallClock)
	return h, nil
}

// maxTime bounds the time of an event, which is a float in the file.
const maxTime = float64(100 * 365 * 24 * time.Hour / time.Millisecond)

func readEvent(text []byte, each func(Event) error) error {
	var e struct {
		Time float64   `json:"time"`
		Name string    `json:"name"`
		Data EventData `json:"data"`
	}
	if err := json.Unmarshal(text, &e); err != nil {
		return err
	}
	if !(e.Time >= 0 && e.Time <= maxTime) {
		return fmt.Errorf("time is %v", e.Time)
	}
	if err := each(Event{time.Duration(e.Time * float64(time.Millisecond)), e.Name, e.Data}); err != nil {
		return callerError{err}
	}
	return nil
}
