// Package qlog writes traces of sessions to files, and reads them. The format is
// the schema of draft-ietf-quic-qlog-main-schema as JSON text sequences (RFC 7464),
// one session to a file. Tools for QUIC can read it, and "kcp trace FILE" makes
// a page with diagrams of it.
//
//	traces := qlog.NewDir("/var/tmp/traces", nil)
//	defer traces.Close()
//	cfg := kcp.Config{Tracer: traces.Trace}
//
// Events have the names of draft-ietf-quic-qlog-quic-events, if it has one that
// fits, and its fields:
//
//	quic:connection_started            the first event; addresses
//	quic:connection_state_updated      states of the session
//	quic:connection_closed             why it has ended
//	quic:packet_sent                   a transmission of a data segment
//	quic:packet_received               a data segment arrived
//	quic:packets_acked                 a data segment was acknowledged
//	quic:packet_lost                   a transmission is declared lost, and why
//	quic:packet_dropped                a packet was refused
//	quic:recovery_metrics_updated      round-trip times, windows, pacing rate
//	quic:congestion_state_updated      state of the congestion controller
//	quic:mtu_updated                   size of the largest packet
//	quic:tuple_assigned                the peer has another address
//	kcp:signal_sent                    a signal (WIRE.md §5)
//	kcp:signal_received                likewise
//	kcp:datagram_sent                  a datagram of SendDatagram is sent
//	kcp:datagram_unsent                one was not sent
//	kcp:datagram_received              one has arrived
//	kcp:datagram_dropped               one that has arrived was discarded
//	kcp:spurious_loss                  what was declared lost had arrived
//	kcp:events_lost                    events that could not be written in time
//
// The packet number is the sequence number of the segment. Unlike in QUIC a
// retransmission has the same one, and the field transmissions counts them. A segment
// of a stream has a frame of type stream with its stream_id.
package qlog

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// separator begins a record of a JSON text sequence (RFC 7464 §2.2).
const separator = 0x1e

// maxPending is how many bytes of events wait for the writer before further
// ones are left out.
const maxPending = 1 << 20

// Options of a Writer. The zero value, and nil, mean the defaults.
type Options struct {
	// Title is the title of the trace; default "kcp session".
	Title string
	// Client says that this end has dialled the session.
	Client bool
	// Conv is the conversation id, which is the group id of the trace.
	Conv uint32
	// Local and Remote are the addresses of the ends; nil: not known.
	Local, Remote net.Addr
	// MaxBytes is how many bytes are written. Further events are counted, and
	// only the last one says how many they were. Default 64 MiB; negative means
	// no limit.
	MaxBytes int64
}

const defaultMaxBytes = 64 << 20

// A Writer writes the trace of one session. Its methods are safe for concurrent
// use. Events are encoded in the hooks, which never block, and written by a
// goroutine that runs while there are some. If the io.Writer is too slow, so
// that a megabyte waits, events are left out and counted.
type Writer struct {
	w     io.Writer
	start time.Time
	opts  Options

	mu      sync.Mutex // guards the fields below
	idle    sync.Cond  // the goroutine has ended
	pending []byte     // events not yet passed to w
	spare   []byte     // the other buffer
	written int64      // bytes, pending ones included
	lost    uint64     // events left out since the last one that was not
	running bool       // the goroutine runs
	closed  bool
	onClose func() // called once when all is written; nil: nothing
	err     error  // of w; nothing is written after it

	state string // name of the session's state
	mtu   int    // bytes
	paths int    // addresses that the peer has used
	rtt   uint32 // latest sample, milliseconds

	stream uint32 // of the segment that the next hook shows; 0: none
}

// NewWriter returns a Writer to w, and writes the header. opts may be nil.
// Config.Tracer takes what its Trace
// method returns.
func NewWriter(w io.Writer, opts *Options) *Writer {
	t := &Writer{w: w, start: time.Now()}
	t.idle.L = &t.mu
	if opts != nil {
		t.opts = *opts
	}
	if t.opts.MaxBytes == 0 {
		t.opts.MaxBytes = defaultMaxBytes
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending = append(t.pending, separator)
	t.pending = append(t.pending, t.header()...)
	t.pending = append(t.pending, '\n')
	t.written = int64(len(t.pending))
	t.kickLocked()
	return t
}

// EventSchema identifies the events of this package that QUIC does not have.
const EventSchema = "https://github.com/arqnet/kcp/qlog#1"

// header returns the first record: QlogFileSeq of the main schema.
func (t *Writer) header() []byte {
	type vantage struct {
		Type string `json:"type"`
	}
	type reference struct {
		ClockType string `json:"clock_type"`
		Epoch     string `json:"epoch"`
		WallClock string `json:"wall_clock_time"`
	}
	type common struct {
		GroupID    string    `json:"group_id"`
		TimeFormat string    `json:"time_format"`
		Reference  reference `json:"reference_time"`
	}
	type trace struct {
		Schemas []string `json:"event_schemas"`
		Vantage vantage  `json:"vantage_point"`
		Common  common   `json:"common_fields"`
	}
	side := "server"
	if t.opts.Client {
		side = "client"
	}
	b, _ := json.Marshal(struct {
		FileSchema string `json:"file_schema"`
		Format     string `json:"serialization_format"`
		Title      string `json:"title"`
		Trace      trace  `json:"trace"`
	}{
		"urn:ietf:params:qlog:file:sequential", "application/qlog+json-seq", cmp.Or(t.opts.Title, "kcp session"),
		trace{
			[]string{"urn:ietf:params:qlog:events:quic-12", EventSchema}, vantage{side},
			common{fmt.Sprintf("%08x", t.opts.Conv), "relative_to_epoch",
				reference{"monotonic", "unknown", t.start.UTC().Format(time.RFC3339Nano)}},
		},
	}) // cannot fail
	return b
}

// Close writes what is pending, and returns the first error of the io.Writer,
// which it does not close. Events after Close are dropped.
func (t *Writer) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeLocked()
	for t.running {
		t.idle.Wait()
	}
	return t.err
}

// closeLocked takes no more events, and says how many were left out. t.mu is
// held.
func (t *Writer) closeLocked() {
	if t.closed {
		return
	}
	t.closed = true
	if t.lost > 0 {
		t.lostLocked()
	}
	t.kickLocked()
}

// lostLocked appends the event that counts those left out. t.mu is held.
func (t *Writer) lostLocked() {
	b := t.begin(t.pending, "kcp:events_lost")
	b = append(b, `"count":`...)
	b = strconv.AppendUint(b, t.lost, 10)
	t.pending, t.lost = append(b, "}}\n"...), 0
}

// begin appends the beginning of an event to b, up to its data.
func (t *Writer) begin(b []byte, name string) []byte {
	b = append(b, separator)
	b = append(b, `{"time":`...)
	micros := time.Since(t.start).Microseconds()
	b = strconv.AppendInt(b, micros/1000, 10)
	if rest := micros % 1000; rest != 0 {
		b = append(b, '.', byte('0'+rest/100), byte('0'+rest/10%10), byte('0'+rest%10))
	}
	b = append(b, `,"name":"`...)
	b = append(b, name...)
	return append(b, `","data":{`...)
}

// event writes an event. data appends the members of its data.
func (t *Writer) event(name string, data func(b []byte) []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	full := t.opts.MaxBytes > 0 && t.written >= t.opts.MaxBytes
	if t.closed || t.err != nil || full || len(t.pending) >= maxPending {
		t.lost++
		return
	}
	before := len(t.pending)
	if t.lost > 0 {
		t.lostLocked()
	}
	t.pending = append(data(t.begin(t.pending, name)), "}}\n"...)
	t.written += int64(len(t.pending) - before)
	t.kickLocked()
}

// kickLocked starts the goroutine that writes, if it does not run. t.mu is held.
func (t *Writer) kickLocked() {
	if !t.running {
		t.running = true
		go t.run()
	}
}

// run writes what is pending until there is nothing.
func (t *Writer) run() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.pending) > 0 && t.err == nil {
		batch := t.pending
		t.pending, t.spare = t.spare[:0], nil
		t.mu.Unlock()
		n, err := t.w.Write(batch)
		if err == nil && n < len(batch) {
			err = io.ErrShortWrite
		}
		t.mu.Lock()
		t.spare, t.err = batch[:0], err
	}
	t.running = false
	if t.closed && t.onClose != nil {
		t.onClose()
		t.onClose = nil
	}
	t.idle.Broadcast()
}

// number appends a member with a number.
func number[T int | int64 | uint32 | uint64](b []byte, name string, v T) []byte {
	b = append(b, '"')
	b = append(b, name...)
	b = append(b, `":`...)
	return strconv.AppendInt(b, int64(v), 10)
}

// text appends a member with a string.
func text(b []byte, name, v string) []byte {
	b = append(b, '"')
	b = append(b, name...)
	b = append(b, `":`...)
	quoted, _ := json.Marshal(v) // cannot fail
	return append(b, quoted...)
}

// packet appends the members of a segment: its header, the size of its payload, and the
// frame of its stream, which is 0 if it has none.
func packet(b []byte, sn uint32, size int, stream uint32) []byte {
	b = append(b, `"header":{"packet_type":"1RTT",`...)
	b = number(b, "packet_number", sn)
	b = append(b, `},"raw":{`...)
	b = append(number(b, "payload_length", size), '}')
	if stream == 0 {
		return b
	}
	b = append(b, `,"frames":[{"frame_type":"stream",`...)
	return append(number(b, "stream_id", stream), "}]"...)
}

// endpoint appends a member with an address, as PathEndpointInfo.
func endpoint(b []byte, name string, addr net.Addr) []byte {
	b = append(b, '"')
	b = append(b, name...)
	b = append(b, `":{`...)
	if u, ok := addr.(*net.UDPAddr); ok {
		if ip := u.AddrPort().Addr().Unmap(); ip.Is4() {
			b = number(append(text(b, "ip_v4", ip.String()), ','), "port_v4", u.Port)
		} else {
			b = number(append(text(b, "ip_v6", ip.String()), ','), "port_v6", u.Port)
		}
		b = append(b, ',')
	}
	return append(b, `"connection_ids":[]}`...)
}

// closing returns initiator and trigger of quic:connection_closed.
func closing(err error) (initiator, trigger string) {
	var lost *kcp.PeerLostError
	switch {
	case err == nil || errors.Is(err, net.ErrClosed):
		return "local", "application"
	case errors.Is(err, kcp.ErrPeerClosed) || errors.Is(err, kcp.ErrReset) || errors.Is(err, kcp.ErrRefused):
		return "remote", "application"
	case errors.As(err, &lost):
		return "local", "idle_timeout"
	}
	return "local", "error"
}
