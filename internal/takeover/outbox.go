package takeover

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

var errMalformed = errors.New("malformed message")

// A message of a Pipe has at most maxDatagrams datagrams, and maxMessage bytes unless it
// has a single one, of up to 64 KiB and its addresses. No message is larger than
// largestMessage.
const (
	maxMessage     = 32 << 10
	maxDatagrams   = 64
	largestMessage = 68 << 10
)

// hasLocal stands before a datagram with a local address, which comes first. No address
// has such a length.
const hasLocal = 255

// Outbox collects the datagrams that one reader forwards, and writes several of them as
// one message. The goroutine that reads the socket uses it.
type Outbox struct {
	message []byte
	n       int
}

// Put adds a datagram, and writes what has to leave before. It returns how many
// datagrams were dropped, because the other process does not read.
func (o *Outbox) Put(to *Feed, d *udp.Datagram) (dropped int) {
	if o.n > 0 && (len(o.message)+len(d.Buf) > maxMessage || o.n == maxDatagrams) {
		dropped = o.Flush(to)
	}
	if local := d.Local.Addr(); local.IsValid() {
		o.message = appendAddr(append(o.message, hasLocal), netip.AddrPortFrom(local, 0))
	}
	o.message = appendAddr(o.message, d.Addr)
	o.message = binary.LittleEndian.AppendUint16(o.message, uint16(len(d.Buf)))
	o.message = append(o.message, d.Buf...)
	o.n++
	return dropped
}

// Flush writes what Put has left. It returns how many datagrams were dropped.
func (o *Outbox) Flush(to *Feed) (dropped int) {
	if o.n > 0 && !to.TryWrite(o.message) {
		dropped = o.n
	}
	o.message, o.n = o.message[:0], 0
	return dropped
}

// Inbox reads the datagrams that a successor forwards. It takes the place of the socket
// for the reader.
type Inbox struct {
	pipe    *Pipe
	message []byte // memory of ReadBatch
	rest    []byte // of message: what the last batch had no space for
}

// NewInbox returns the Inbox of a Pipe.
func NewInbox(p *Pipe) *Inbox { return &Inbox{pipe: p, message: make([]byte, largestMessage)} }

// ReadBatch is udp.Conn.ReadBatch. Its error is io.EOF if the successor has gone. What is
// malformed is skipped.
func (in *Inbox) ReadBatch(batch []udp.Datagram) (n int, err error) {
	for n == 0 {
		if len(in.rest) == 0 {
			size, err := in.pipe.Read(in.message)
			if err == errMalformed {
				continue
			}
			if err != nil {
				return 0, err
			}
			in.rest = in.message[:size]
		}
		for n < len(batch) && len(in.rest) > 0 {
			d, rest, err := cutDatagram(in.rest)
			if in.rest = rest; err == nil {
				batch[n] = d
				n++
			}
		}
	}
	return n, nil
}

// SetReadDeadline sets the time after which ReadBatch fails with os.ErrDeadlineExceeded.
func (in *Inbox) SetReadDeadline(t time.Time) error { return in.pipe.SetReadDeadline(t) }

// cutDatagram decodes the datagram that b begins with.
func cutDatagram(b []byte) (d udp.Datagram, rest []byte, err error) {
	var local netip.AddrPort
	if len(b) > 0 && b[0] == hasLocal {
		var ok bool
		if local, b, ok = cutAddr(b[1:]); !ok {
			return d, nil, errMalformed
		}
	}
	addr, b, ok := cutAddr(b)
	if !ok || len(b) < 2 {
		return d, nil, errMalformed
	}
	n := int(binary.LittleEndian.Uint16(b))
	if b = b[2:]; len(b) < n || !addr.IsValid() {
		return d, nil, errMalformed
	}
	return udp.Datagram{Buf: b[:n:n], Addr: addr, Local: udp.LocalOf(local.Addr())}, b[n:], nil
}
