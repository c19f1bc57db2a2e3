package life

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
)

// Datagrams is the ID of the flow of an end's datagrams.
const Datagrams = 1<<32 - 1

var datagramsName = fmt.Sprint(uint32(Datagrams))

// Flow is one direction of a stream, or of a session: what was written at one end, and
// what was read at the other. Its methods may be called at any time, in any goroutine.
type Flow struct {
	Messages bool // else bytes
	Ordered  bool // messages
	Written  Written
	Got      Got

	session *Session
	name    string
	may     bool   // all messages may be given up
	own     bool   // it is of the session itself
	key     uint32 // which its content depends on

	mu      sync.Mutex // guards Written, Got, and what follows
	writing int        // calls
	waits   bool       // one of them does
}

// Written is what the writer knows.
type Written struct {
	Bytes   int
	Last    uint32 // number of a message, or of a receipt
	Clock   int    // counts the calls that begin and end
	Sent    map[uint32]*Message
	Empty   int  // messages without content, which have no number
	Loose   int  // those that may be given up
	Fin     bool // CloseWrite was called
	Dropped bool // the rest need not arrive
	Codes   []uint64
}

// Message is one that was written, or bytes with a receipt.
type Message struct {
	Size     int
	UpTo     int  // of bytes: where they end
	May      bool // be given up
	Lifetime time.Duration
	Begun    int           // on Written.Clock, when the call began
	Taken    int           // and when it had returned; 0: it has taken nothing
	At       time.Duration // when it began
	Wants    bool          // a receipt
	Receipts []Class
}

// Got is what the reader knows.
type Got struct {
	Bytes   int
	Numbers []uint32
	At      []time.Duration // when each of them came
	Empty   int
	Ended   Class  // why it reads no more
	Code    uint64 // of Ended, if the stream was reset
	Dropped bool   // it reads no more because it does not want to
}

const (
	noiseSize = 1 << 20 // after how many bytes content repeats itself
	mostNoise = 1 << 18 // at a time
	// Header is the size of what a message begins with: number, key and size.
	Header = 12
)

// noise is the content of all flows, each of which begins elsewhere.
var noise = sync.OnceValue(func() []byte {
	b := testenv.Content(1, noiseSize)
	return append(b, b[:mostNoise]...)
})

func newFlow(s *Session, name string, messages, ordered bool) *Flow {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return &Flow{
		Messages: messages, Ordered: ordered, session: s, name: name, key: h.Sum32(),
		Written: Written{Sent: make(map[uint32]*Message)},
	}
}

// bytesAt returns n bytes of the content.
func (f *Flow) bytesAt(at, n int) []byte {
	at = (int(f.key%noiseSize) + at) % noiseSize
	return noise()[at : at+n : at+n]
}

// content returns the message of a number.
func (f *Flow) content(number uint32, size int) []byte {
	b := make([]byte, Header, size)
	binary.LittleEndian.PutUint32(b, number)
	binary.LittleEndian.PutUint32(b[4:], f.key)
	binary.LittleEndian.PutUint32(b[8:], uint32(size))
	return append(b, f.bytesAt(int(number*4099%noiseSize), size-Header)...)
}

// claim reports whether something may be written now. Bytes are written by one call at a
// time, or their order would not be known. Of two calls that wait one would wait for a
// mutex, which keeps the time of a bubble of synctest from passing. release follows.
func (f *Flow) claim(waits bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.writing > 0 && !f.Messages || waits && f.waits {
		return false
	}
	f.writing++
	f.waits = f.waits || waits
	return true
}

func (f *Flow) release(waits bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writing--
	f.waits = f.waits && !waits
}

// Next returns the n bytes that are to be written next, at most.
func (f *Flow) Next(n int) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytesAt(f.Written.Bytes, min(n, mostNoise))
}

// Wrote takes note that n bytes were taken.
func (f *Flow) Wrote(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Written.Bytes += n
}

// Begin returns a message of a size, which is written now, or nil if it is empty, and
// its number. For a flow of bytes it returns those that come next.
func (f *Flow) Begin(size int, m Message) (number uint32, content []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &f.Written
	w.Last++
	w.Clock++
	m.Begun, m.At = w.Clock, f.session.now()
	switch {
	case !f.Messages:
		content = f.bytesAt(w.Bytes, min(size, mostNoise))
	case size > 0:
		content = f.content(w.Last, min(max(size, Header), mostNoise))
	}
	m.Size = len(content)
	w.Sent[w.Last] = &m
	return w.Last, content
}

// End takes note that the call has returned that writes a message, and whether it was
// taken.
func (f *Flow) End(number uint32, taken bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &f.Written
	m := w.Sent[number]
	if !taken {
		if len(m.Receipts) > 0 {
			f.fail("a receipt of message %d, which was not taken", number)
		}
		delete(w.Sent, number)
		return
	}
	w.Clock++
	m.Taken = w.Clock
	switch {
	case !f.Messages:
		w.Bytes += m.Size
		m.UpTo = w.Bytes
	case m.Size == 0:
		w.Empty++
		if m.May {
			w.Loose++
		}
	}
}

// Receipt takes that of a message.
func (f *Flow) Receipt(number uint32, is Class) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.Written.Sent[number]
	if m == nil {
		f.fail("a receipt of message %d, which was not taken: %s", number, is)
		return
	}
	if m.Receipts = append(m.Receipts, is); len(m.Receipts) > 1 || !m.Wants {
		f.fail("receipts of message %d: %q", number, m.Receipts)
	}
}

// note changes what is known.
func (f *Flow) note(change func(w *Written, g *Got)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.Written, &f.Got)
}

// Takes takes what has arrived, bytes or a message, and compares it.
func (f *Flow) Takes(b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := &f.Got
	switch {
	case g.Ended == EOF:
		f.fail("%d bytes after the end", len(b))
	case !f.Messages:
		if want := f.bytesAt(g.Bytes, len(b)); !bytes.Equal(want, b) {
			f.fail("%d bytes at %d are not as they were written: they begin with %x, want %x", len(b), g.Bytes, b[:min(8, len(b))], want[:min(8, len(b))])
		}
		if g.Bytes += len(b); f.session.Whole && g.Bytes > f.Written.Bytes && f.writing == 0 {
			f.fail("%d bytes were read of %d", g.Bytes, f.Written.Bytes)
		}
	case len(b) == 0:
		g.Empty++
	case len(b) < Header || !bytes.Equal(b, f.content(binary.LittleEndian.Uint32(b), len(b))):
		f.fail("a message of %d bytes that was not sent: %x", len(b), b[:min(len(b), 16)])
	default:
		g.Numbers, g.At = append(g.Numbers, binary.LittleEndian.Uint32(b)), append(g.At, f.session.now())
	}
}

// Ends takes why no more is read.
func (f *Flow) Ends(is Class, code uint64) {
	f.note(func(_ *Written, g *Got) {
		if g.Ended == "" {
			g.Ended, g.Code = is, code
		}
	})
}

// Read returns how much was read: bytes or messages, and why no more is.
func (f *Flow) Read() (n int, ended Class) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Messages {
		return len(f.Got.Numbers) + f.Got.Empty, f.Got.Ended
	}
	return f.Got.Bytes, f.Got.Ended
}

// Complete reports whether all has arrived that has to, unless an end does not want it.
func (f *Flow) Complete() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Written.Dropped || f.Got.Dropped || f.complete()
}

// complete is Complete for f.mu held, and without that.
func (f *Flow) complete() bool {
	w, g := &f.Written, &f.Got
	if g.Bytes != w.Bytes || w.Empty-g.Empty > w.Loose {
		return false
	}
	if !f.Messages {
		return true
	}
	got := f.arrived()
	for number, m := range w.Sent {
		if m.Taken > 0 && !m.May && m.Size > 0 && !got[number] {
			return false
		}
	}
	return true
}

// arrived returns the messages that were read.
func (f *Flow) arrived() map[uint32]bool {
	got := make(map[uint32]bool, len(f.Got.Numbers))
	for _, number := range f.Got.Numbers {
		got[number] = true
	}
	return got
}

// lost reports whether something that was written may not have been read, though it was
// not given up, or surely was not: its receipt says so.
func (f *Flow) lost() (maybe, surely bool) {
	if f.Written.Dropped {
		return false, false
	}
	got := f.arrived()
	maybe = f.Got.Bytes < f.Written.Bytes || f.Got.Empty < f.Written.Empty
	for number, m := range f.Written.Sent {
		if m.Size == 0 || got[number] || m.UpTo > 0 && m.UpTo <= f.Got.Bytes || slices.Contains(m.Receipts, Abandoned) {
			continue
		}
		maybe = maybe || f.Messages
		surely = surely || !m.May && !f.Got.Dropped && len(m.Receipts) > 0 && slices.Contains([]Class{NotDelivered, PeerLost, ResetByPeer}, m.Receipts[0])
	}
	return maybe, surely
}

// Check holds what has arrived against what was written, when all has ended. receipts
// says that each message that wants one has it.
func (f *Flow) check(receipts bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, g := &f.Written, &f.Got
	if g.Bytes > w.Bytes || g.Empty > w.Empty && !f.datagrams() {
		f.fail("%d bytes and %d empty messages were read of %d and %d", g.Bytes, g.Empty, w.Bytes, w.Empty)
	}
	if g.Ended == EOF && !f.complete() {
		f.fail("the end after %d of %d bytes, and messages %v of %d", g.Bytes, w.Bytes, g.Numbers, w.Last)
	}
	f.checkOrder()
	got := f.arrived()
	for number, m := range w.Sent {
		if m.Wants && receipts && len(m.Receipts) != 1 {
			f.fail("%d receipts of message %d", len(m.Receipts), number)
		}
		if len(m.Receipts) == 1 && f.session.Clean && m.Receipts[0] != "" && !(m.May && m.Receipts[0] == Abandoned) {
			f.fail("the receipt of message %d: %s", number, m.Receipts[0])
		}
		there := got[number] || m.Size == 0 || m.UpTo > 0 && m.UpTo <= g.Bytes
		if len(m.Receipts) == 1 && m.Receipts[0] == "" && !there && (g.Ended == EOF || g.Ended == PeerClosed && !f.session.Broken && !g.Dropped) {
			f.fail("the receipt of message %d says that it has arrived", number)
		}
		f.checkTime(number, m)
	}
	if g.Ended == StreamReset && !slices.Contains(w.Codes, g.Code) && !slices.Contains(f.session.Codes, g.Code) {
		f.fail("reset with code %d, and not with one of %d", g.Code, w.Codes)
	}
}

func (f *Flow) datagrams() bool { return strings.HasSuffix(f.name, datagramsName) }

// checkOrder checks that messages came once, and in their order.
func (f *Flow) checkOrder() {
	times := make(map[uint32]int)
	latest := 0
	for _, number := range f.Got.Numbers {
		m := f.Written.Sent[number]
		if m == nil {
			f.fail("message %d was not sent", number)
			continue
		}
		if times[number]++; times[number] > 1 && (!f.datagrams() || times[number] > 1+f.session.Copies) {
			f.fail("message %d came %d times", number, times[number])
		}
		if f.Ordered && m.Taken > 0 && m.Taken <= latest {
			f.fail("message %d after a later one", number)
		}
		latest = max(latest, m.Begun)
	}
}

// checkTime checks that a message with a lifetime was not read too late: Session.Slack
// after it, if it did not wait for one before it.
func (f *Flow) checkTime(number uint32, m *Message) {
	s := f.session
	i := slices.Index(f.Got.Numbers, number)
	if s.Slack == 0 || m.Lifetime == 0 || i < 0 {
		return
	}
	after := f.Got.At[i] - max(m.At, s.Accepted)
	for other := uint32(1); other < number && f.Ordered; other++ {
		j := slices.Index(f.Got.Numbers, other)
		if j < 0 || f.Got.At[i]-f.Got.At[j] < time.Millisecond {
			return // it waited for the message, or for the news that that is given up
		}
	}
	if after > m.Lifetime+s.Slack {
		f.fail("message %d was read %v after it was written, or the session accepted", number, after)
	}
}

// fail is Session.fail with the name of the flow.
func (f *Flow) fail(format string, args ...any) { f.session.failAt(f.name, format, args...) }

// Received reports whether each message that was taken, and wants a receipt, has one.
func (f *Flow) Received() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.Written.Sent {
		if m.Wants && m.Taken > 0 && len(m.Receipts) == 0 {
			return false
		}
	}
	return true
}
