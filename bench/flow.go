package main

import (
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

// writeSize and readSize are what one call writes and has room for. The kernel's
// TCP is two to three times as fast over loopback where what is written is a
// little less than its largest segment there, such as 32 KiB, and not a little
// more; 64 KiB is what it is commonly measured with.
const (
	writeSize    = 64 << 10
	readSize     = 64 << 10
	udpWriteSize = 46 * wireMTU // what leaves as one large packet
)

// source sends the bytes of a rope, and sink receives them. Both work through a
// buffer a call, so that bare UDP can take part without copying.
type source interface {
	// send sends the n bytes at a position.
	send(r *rope, position uint64, n int) error
}

type sink interface {
	// receive waits for the next bytes, which are valid until the next call.
	receive() ([]byte, error)
}

type streamSource struct{ io.Writer }

func (s streamSource) send(r *rope, position uint64, n int) error {
	for n > 0 {
		m := min(n, r.period)
		if _, err := s.Write(r.at(position, m)); err != nil {
			return err
		}
		position += uint64(m)
		n -= m
	}
	return nil
}

type streamSink struct {
	io.Reader
	buf []byte
}

func newStreamSink(r io.Reader) *streamSink { return &streamSink{r, make([]byte, readSize)} }

func (s *streamSink) receive() ([]byte, error) {
	n, err := s.Read(s.buf)
	return s.buf[:n], err
}

// flow moves bytes one way for as long as it is let.
type flow struct {
	source   source
	sink     sink
	rope     *rope
	size     int // of what is sent with one call
	received atomic.Uint64
	total    atomic.Uint64 // what will have been sent; 0: not yet known
	stop     atomic.Bool
	done     chan error // both ends report here
}

func newFlow(from source, to sink, r *rope) *flow {
	return &flow{source: from, sink: to, rope: r, size: writeSize, done: make(chan error, 2)}
}

func (f *flow) start() {
	go func() { f.done <- f.write() }()
	go func() { f.done <- f.read() }()
}

// write sends until it is stopped. The last call is announced before, so that
// the reader knows when it has everything, and no call of it waits for more.
func (f *flow) write() error {
	for sent := uint64(0); ; sent += uint64(f.size) {
		last := f.stop.Load()
		if last {
			f.total.Store(sent + uint64(f.size))
		}
		if err := f.source.send(f.rope, sent, f.size); err != nil || last {
			return err
		}
	}
}

// read receives everything and checks that it is what was sent.
func (f *flow) read() error {
	for received := uint64(0); ; {
		b, err := f.sink.receive()
		if err != nil {
			return err
		}
		if err := f.rope.check(received, b); err != nil {
			return err
		}
		received += uint64(len(b))
		f.received.Store(received)
		if total := f.total.Load(); total > 0 && received >= total {
			if received > total {
				return errContent
			}
			return nil
		}
	}
}

// finish stops the flow and waits until all that was sent has arrived.
func (f *flow) finish() error {
	f.stop.Store(true)
	if err := <-f.done; err != nil {
		return err // the other end may wait forever
	}
	return <-f.done
}

// usage is what the process has used, and what its flows have moved, since it
// started.
type usage struct {
	at      time.Time
	cpu     time.Duration
	mallocs uint64
	moved   []uint64 // by flow
}

func measureUsage(flows []*flow) usage {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u := usage{at: time.Now(), cpu: cpuTime(), mallocs: m.Mallocs}
	for _, f := range flows {
		u.moved = append(u.moved, f.received.Load())
	}
	return u
}

// watch lets flows run for d, after some time in which windows open and buffers
// are made, and returns what there was before and after d. All of it is checked
// to the last byte. It fails early where a flow does.
func watch(flows []*flow, d time.Duration) (before, after usage, err error) {
	for _, f := range flows {
		f.start()
	}
	if err := letRun(flows, max(d/8, 10*time.Millisecond)); err != nil {
		return before, after, err
	}
	before = measureUsage(flows)
	if err := letRun(flows, d); err != nil {
		return before, after, err
	}
	after = measureUsage(flows)
	for _, f := range flows {
		f.stop.Store(true)
	}
	for _, f := range flows {
		if err := f.finish(); err != nil {
			return before, after, err
		}
	}
	return before, after, nil
}

// letRun waits for d, and longer if nothing has arrived by then.
func letRun(flows []*flow, d time.Duration) error {
	moved := func() (n uint64) {
		for _, f := range flows {
			n += f.received.Load()
		}
		return n
	}
	first, end := moved(), time.Now().Add(d)
	for time.Now().Before(end) || moved() == first {
		time.Sleep(min(max(time.Until(end), time.Millisecond), 50*time.Millisecond))
		for _, f := range flows {
			select {
			case err := <-f.done:
				return err
			default:
			}
		}
	}
	return nil
}

// udpFlow returns a flow of bare datagrams with all the help of the kernel
// that there is. It has no acknowledgements; so that nothing is lost, the sender
// looks at the receiver's count, which costs nothing.
func udpFlow(buffer int, r *rope) (*flow, io.Closer, error) {
	to, err := openSocket(buffer)
	if err != nil {
		return nil, nil, err
	}
	from, err := openSocket(buffer)
	if err != nil {
		return nil, nil, err
	}
	src := &udpSource{conn: udp.New(from), to: to.LocalAddr().(*net.UDPAddr).AddrPort()}
	progress := make(chan struct{}, 1)
	dst := &udpSink{conn: udp.New(to), progress: progress}
	dst.batch = make([]udp.Datagram, dst.conn.BatchSize())
	f := newFlow(src, dst, r)
	f.size = udpWriteSize
	src.flow, src.progress = f, progress
	return f, closers{to, from}, nil
}
