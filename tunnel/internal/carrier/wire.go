package carrier

import (
	"encoding/binary"
	"net"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/fair"
	"github.com/hashicorp/yamux"
)

// Parts of a header of yamux.
const (
	headerSize = 12
	typeData   = 0
	typePing   = 2
	flagSYN    = 1

	// pingBurst pings of the peer are answered at once, and 10 a second: yamux has a
	// goroutine for each.
	pingBurst = 64
	pingEvery = time.Second / 10
)

// wire is the connection below yamux, whose frames it looks at. It counts what arrives,
// limits pings, and sends a header together with its body.
type wire struct {
	net.Conn
	c             *TCP
	began         time.Time
	arrived, sent atomic.Int64 // when anything has arrived, and data was sent, since began

	pings  fair.Limit
	header [headerSize]byte // the part that has arrived
	got    int              // bytes of it
	body   int              // bytes of data that are to come
	out    []byte           // a header whose body follows
}

func (w *wire) now() time.Duration { return time.Since(w.began) }

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.arrived.Store(int64(w.now()))
	data := 0
	for rest := b[:n]; len(rest) > 0; {
		if w.body > 0 {
			k := min(w.body, len(rest))
			w.body, rest = w.body-k, rest[k:]
			continue
		}
		k := copy(w.header[w.got:], rest)
		w.got, rest = w.got+k, rest[k:]
		if w.got < headerSize {
			break
		}
		w.got = 0
		switch kind, flags := w.header[1], binary.BigEndian.Uint16(w.header[2:]); {
		case kind == typeData:
			w.body = int(binary.BigEndian.Uint32(w.header[8:]))
			data += w.body // yamux has a buffer for all of it at once
		case kind == typePing && flags&flagSYN != 0:
			if _, ok := w.pings.Allow(w.now(), pingEvery, pingBurst); !ok {
				w.c.end(errViolation)
				return 0, errViolation
			}
		}
	}
	if data > 0 {
		if full := w.c.hold(data); full != nil {
			w.c.end(full)
			return 0, full
		}
	}
	return n, err
}

func (w *wire) Write(b []byte) (int, error) {
	if len(w.out) == 0 && len(b) == headerSize && b[1] == typeData && binary.BigEndian.Uint32(b[8:]) > 0 {
		w.out = append(w.out, b...)
		return len(b), nil
	}
	if len(w.out) > 0 {
		whole := append(w.out, b...)
		w.out = whole[:0]
		w.sent.Store(int64(w.now()))
		if _, err := w.Conn.Write(whole); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	return w.Conn.Write(b)
}

// Close closes the connection without a word of TLS: calls of yamux that wait spin until
// that is done.
func (w *wire) Close() error { return w.c.tls.NetConn().Close() }

// countedReader reads the stream of records.
type countedReader struct {
	c *TCP
	y *yamux.Stream
}

func (r countedReader) Read(b []byte) (int, error) {
	n, err := r.y.Read(b)
	_ = r.c.hold(-n)
	return n, err
}
