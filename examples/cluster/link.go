package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// Reliable messages from one node to another travel on one stream, in order. Their
// receiver acknowledges each once it is in the queue for Receive. When the session ends,
// those without an acknowledgement are sent again on another one. The receiver knows
// them by their number, and takes each once.
//
//	stream:  kind 'M', then instance 8 bytes, then messages; all big endian
//	message: number 8, length 4, data
//	back:    number 8, of each message in turn

const (
	messageHeader = 12
	ackSize       = 8
	minRetry      = 50 * time.Millisecond // of a link whose stream has broken
	maxRetry      = time.Second
)

// ErrNodeGone is returned by Send if the node has left, or died, before it had taken
// the message. It may have it all the same.
var ErrNodeGone = errors.New("cluster: node has left or died")

// outgoing is a message on its way. Its link's lock guards abandoned.
type outgoing struct {
	number    uint64
	b         []byte
	done      chan error // of one
	abandoned bool       // its Send has returned
}

// link sends reliable messages to one member.
type link struct {
	n      *Node
	name   string
	ctx    context.Context // done when the link ends
	cancel context.CancelFunc

	mu      sync.Mutex // guards the fields below; no other lock is taken under it
	addr    netip.AddrPort
	waiting []*outgoing // without an acknowledgement, in the order of numbers
	sent    int         // of them, how many were written to the stream
	most    uint64      // the largest number that was ever written
	bytes   int         // of waiting
	changed notice
	ended   bool
}

// send queues b, and waits until the member has taken it.
func (l *link) send(ctx context.Context, b []byte) error {
	o, err := l.queue(ctx, b)
	if err != nil {
		return err
	}
	select {
	case err := <-o.done:
		return err
	case <-ctx.Done():
		l.abandon(o)
		return ctx.Err()
	}
}

// queue waits for room, and queues b.
func (l *link) queue(ctx context.Context, b []byte) (*outgoing, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if l.ended {
			return nil, ErrNodeGone
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if len(l.waiting) == 0 || l.bytes+len(b)+messageEntry <= l.n.config.SendBuffer {
			break
		}
		l.waitLocked(ctx)
	}
	o := &outgoing{number: l.n.numbers.Add(1), b: bytes.Clone(b), done: make(chan error, 1)}
	l.waiting = append(l.waiting, o)
	l.bytes += len(b) + messageEntry
	l.changed.tell()
	return o, nil
}

// waitLocked waits for a change, or until ctx is done, without the lock.
func (l *link) waitLocked(ctx context.Context) {
	changed := l.changed.wait()
	l.mu.Unlock()
	defer l.mu.Lock()
	select {
	case <-changed:
	case <-ctx.Done():
	}
}

// abandon gives up a message whose Send does not wait any more. If it is on the stream,
// it stays, but is not sent again on another one.
func (l *link) abandon(o *outgoing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o.abandoned = true
	if i := slices.Index(l.waiting, o); i >= l.sent {
		l.removeLocked(i)
	}
}

func (l *link) removeLocked(i int) {
	l.bytes -= len(l.waiting[i].b) + messageEntry
	l.waiting = slices.Delete(l.waiting, i, i+1)
	if i < l.sent {
		l.sent--
	}
	l.changed.tell()
}

// acknowledged takes out the messages up to number, and reports whether there was one.
// What was not written cannot have arrived.
func (l *link) acknowledged(number uint64) (any bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.sent > 0 && l.waiting[0].number <= number {
		l.waiting[0].done <- nil
		l.removeLocked(0)
		any = true
	}
	return any
}

// end makes all calls fail, also future ones.
func (l *link) end() {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for _, o := range l.waiting {
		o.done <- ErrNodeGone
	}
	l.waiting, l.sent, l.bytes = nil, 0, 0
	l.changed.tell()
}

// move tells the address of the member.
func (l *link) move(addr netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addr = addr
}

// run sends what is queued, on one stream after the other, until the link ends.
func (l *link) run() {
	retry := minRetry
	for l.awaitWork() {
		if l.transfer() {
			retry = minRetry
		}
		pause(l.ctx, retry)
		retry = min(2*retry, maxRetry)
	}
}

// awaitWork waits for a message, and reports false if the link has ended.
func (l *link) awaitWork() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.waiting) == 0 && !l.ended {
		l.waitLocked(l.ctx)
	}
	return !l.ended
}

// transfer sends on one stream until that breaks, and reports whether anything was
// acknowledged.
func (l *link) transfer() (progress bool) {
	l.mu.Lock()
	addr := l.addr
	l.mu.Unlock()
	opening, stop := context.WithTimeout(l.ctx, dialTimeout)
	defer stop()
	st, err := l.n.transport.open(opening, addr, l.name, streamMessages)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithCancel(l.ctx)
	context.AfterFunc(ctx, func() { _ = st.Reset(0) }) // calls that wait fail
	var reader sync.WaitGroup
	reader.Go(func() {
		defer cancel()
		progress = l.readAcks(st)
	})
	l.rewind()
	l.writeMessages(ctx, st)
	cancel()
	reader.Wait()
	return progress
}

// rewind makes all messages be sent again, except for those whose Send does not wait.
func (l *link) rewind() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = 0
	l.waiting = slices.DeleteFunc(l.waiting, func(o *outgoing) bool {
		if o.abandoned {
			l.bytes -= len(o.b) + messageEntry
		}
		return o.abandoned
	})
	l.changed.tell()
}

// readAcks reads acknowledgements until the stream breaks.
func (l *link) readAcks(st *kcp.Stream) (progress bool) {
	var b [ackSize]byte
	for {
		if _, err := io.ReadFull(st, b[:]); err != nil {
			return progress
		}
		if l.acknowledged(binary.BigEndian.Uint64(b[:])) {
			progress = true
		}
	}
}

// writeMessages writes what is queued until the stream breaks.
func (l *link) writeMessages(ctx context.Context, st *kcp.Stream) {
	head := binary.BigEndian.AppendUint64(nil, l.n.instance)
	for {
		if _, err := st.Write(head); err != nil {
			return
		}
		o := l.next(ctx)
		if o == nil {
			return
		}
		head = binary.BigEndian.AppendUint64(head[:0], o.number)
		head = binary.BigEndian.AppendUint32(head, uint32(len(o.b)))
		head = append(head, o.b...)
	}
}

// next waits for a message that was not written to this stream, and returns it; nil if
// ctx is done.
func (l *link) next(ctx context.Context) *outgoing {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.sent == len(l.waiting) {
		if ctx.Err() != nil {
			return nil
		}
		l.waitLocked(ctx)
	}
	o := l.waiting[l.sent]
	l.sent++
	if o.number <= l.most {
		l.n.transport.counters.resent.Add(1)
	}
	l.most = max(l.most, o.number)
	return o
}
