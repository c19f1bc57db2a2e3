package kcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// streamLog is what both applications have seen of one direction of a stream, or of a
// session: messages, or bytes.
type streamLog struct {
	t       *testing.T
	name    string
	key     uint32 // which content begins with
	ordered bool   // messages arrive in the order in which they were sent

	mu       sync.Mutex
	clock    int // counts what happens at the sender
	next     uint32
	sent     map[uint32]sentMessage // by number
	receipts map[uint32]error       // as far as they have come
	got      []uint32
	empty    int   // messages without content that were sent, less those that have arrived
	loose    int   // of those that were sent, those that may be given up
	wrote    int   // bytes that were taken
	read     int   // bytes that have arrived
	ended    error // of the reader
}

// sentMessage is a message, or bytes with a receipt, that were taken.
type sentMessage struct {
	size       int
	begun      int // on the clock of the log: when the call began
	done       int // and when it had returned
	upTo       int // bytes up to its end; 0: it is a message
	reliable   bool
	hasReceipt bool
}

func newStreamLog(t *testing.T, name string, ordered bool) *streamLog {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return &streamLog{
		t: t, name: name, key: h.Sum32(), ordered: ordered,
		sent: make(map[uint32]sentMessage), receipts: make(map[uint32]error),
	}
}

const (
	// noiseSize is after how many bytes the content of a log repeats itself.
	noiseSize = 1 << 20
	// mostNoise is the most bytes of it at a time.
	mostNoise = 1 << 18
	// messageHeader is the number, the key and the size of a message.
	messageHeader = 12
)

// noise is the content of all logs, each of which begins elsewhere.
var noise = sync.OnceValue(func() []byte {
	b := content(1, noiseSize)
	return append(b, b[:mostNoise]...)
})

// bytesAt returns n bytes of the log's content.
func (l *streamLog) bytesAt(at, n int) []byte {
	at = (int(l.key%noiseSize) + at) % noiseSize
	return noise()[at : at+n : at+n]
}

// begin returns the number of the next message, or of a receipt, and when the call that
// writes it begins.
func (l *streamLog) begin() (number uint32, begun int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	l.clock++
	return l.next, l.clock
}

// message returns a message with the given number. It has no number without content.
func (l *streamLog) message(number uint32, size int) []byte {
	if size == 0 {
		return nil
	}
	size = max(size, messageHeader)
	b := make([]byte, 0, size)
	for _, field := range []uint32{number, l.key, uint32(size)} {
		b = binary.LittleEndian.AppendUint32(b, field)
	}
	return append(b, l.bytesAt(int(number*4099%noiseSize), size-messageHeader)...)
}

// taken notes that a message was taken, or bytes were.
func (l *streamLog) taken(number uint32, m sentMessage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	m.done = l.clock
	if m.size == 0 {
		l.empty++
	}
	if m.size == 0 && !m.reliable {
		l.loose++
	}
	l.sent[number] = m
}

// receipt returns MessageOptions.Done of a message.
func (l *streamLog) receipt(number uint32) func(err error) {
	return func(err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if _, twice := l.receipts[number]; twice {
			l.t.Errorf("%s: two receipts for message %d", l.name, number)
		}
		l.receipts[number] = err
	}
}

// takeMessage notes a message that has arrived.
func (l *streamLog) takeMessage(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(b) == 0 {
		l.empty--
		return
	}
	if !l.isMessage(b) {
		l.t.Errorf("%s: a message of %d bytes that was not sent: %x", l.name, len(b), b[:min(len(b), 16)])
		return
	}
	l.got = append(l.got, binary.LittleEndian.Uint32(b))
}

// isMessage reports whether b is one that message returns.
func (l *streamLog) isMessage(b []byte) bool {
	return len(b) >= messageHeader && bytes.Equal(b, l.message(binary.LittleEndian.Uint32(b), len(b)))
}

// wroteBytes notes that n bytes were taken, and returns how many were in all.
func (l *streamLog) wroteBytes(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrote += n
	return l.wrote
}

// takeBytes notes bytes that have arrived.
func (l *streamLog) takeBytes(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if want := l.bytesAt(l.read, len(b)); !bytes.Equal(want, b) {
		l.t.Errorf("%s: %d bytes at %d are not as sent: they begin with %x, want %x", l.name, len(b), l.read, b[:min(8, len(b))], want[:min(8, len(b))])
	}
	l.read += len(b)
}

// end notes why no more has arrived.
func (l *streamLog) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		l.ended = err
	}
}

// readEnd returns why no more has arrived.
func (l *streamLog) readEnd() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// tooLarge reports whether a message was larger than the reader's buffer.
func (l *streamLog) tooLarge() bool {
	var reset *StreamError
	return errors.As(l.readEnd(), &reset) && reset.Code == StreamTooLarge
}

// check holds what has arrived against what was sent. whole says that all has, but for
// messages that may be given up; so does io.EOF.
func (l *streamLog) check(whole bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, name := l.t, l.name
	whole = whole || l.ended != nil && errors.Is(l.ended, io.EOF)
	require.LessOrEqual(t, l.read, l.wrote, "%s: bytes that were not written", name)
	got := l.checkMessages()
	for i, m := range l.sent {
		err, ok := l.receipts[i]
		require.Equal(t, m.hasReceipt, ok, "%s: receipt for message %d of %d", name, i, l.next)
		arrived := got[i] || m.upTo > 0 && m.upTo <= l.read || m.size == 0
		if ok && err == nil && whole {
			require.True(t, arrived, "%s: message %d of %d bytes has not arrived, though its receipt says so", name, i, m.size)
		}
		if m.reliable && whole {
			require.True(t, arrived, "%s: message %d of %d bytes has not arrived before %v", name, i, m.size, l.ended)
		}
	}
	for i := range l.receipts {
		require.Contains(t, l.sent, i, "%s: a receipt of what was not taken", name)
	}
	if whole {
		require.Equal(t, l.wrote, l.read, "%s: bytes before %v", name, l.ended)
		require.LessOrEqual(t, l.empty, l.loose, "%s: empty messages have not arrived before %v", name, l.ended)
	}
	require.GreaterOrEqual(t, l.empty, 0, "%s: empty messages that were not sent", name)
}

// checkMessages is check for the messages that have arrived, which it returns.
func (l *streamLog) checkMessages() map[uint32]bool {
	got, name := make(map[uint32]bool), l.name
	latest := 0
	for _, i := range l.got {
		m, ok := l.sent[i]
		require.True(l.t, ok, "%s: message %d was not sent", name, i)
		require.False(l.t, got[i], "%s: message %d arrived twice", name, i)
		got[i] = true
		require.True(l.t, !l.ordered || m.done > latest, "%s: message %d after a later one", name, i)
		latest = max(latest, m.begun)
	}
	return got
}
