package kcp

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

// flowKey names what one end writes to the session, or to a stream.
type flowKey struct {
	side int
	id   uint32 // of the stream; 0: the session itself
}

const datagramFlow = 1<<32 - 1

// flow is what was written by one end, and what the other has read of it.
type flow struct {
	key      flowKey
	messages bool
	ordered  bool
	sent     int // bytes, or messages
	read     int // bytes, or the first message that may still come
	parts    []flowMessage
	eof      bool
	cut      bool // an end has dropped the rest
	awaited  int  // receipts that were not given yet
}

// flowMessage is a message of a flow.
type flowMessage struct {
	size int
	may  bool // be given up
	got  bool
}

// at returns the byte of a flow at a place.
func (k flowKey) at(i int) byte { return byte(i) ^ byte(i>>8)*31 ^ byte(k.id)*7 ^ byte(k.side) }

// bytes returns n bytes of a flow from a place on.
func (k flowKey) bytes(at, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = k.at(at + i)
	}
	return b
}

// message returns the content of a message of at least 4 bytes.
func (k flowKey) message(number, size int) []byte {
	b := k.bytes(number*17, size)
	binary.LittleEndian.PutUint32(b, uint32(number))
	return b
}

// take demands that b is what comes next in the flow.
func (f *flow) take(t testing.TB, b []byte) {
	if !f.messages {
		if f.read+len(b) > f.sent || !bytes.Equal(b, f.key.bytes(f.read, len(b))) {
			t.Fatalf("%+v: %d bytes after %d of %d are not those that were written", f.key, len(b), f.read, f.sent)
		}
		f.read += len(b)
		return
	}
	n := -1
	if len(b) >= 4 {
		n = int(binary.LittleEndian.Uint32(b))
	}
	switch {
	case n < 0 || n >= f.sent || !bytes.Equal(b, f.key.message(n, f.parts[n].size)):
		t.Fatalf("%+v: a message of %d bytes was not sent", f.key, len(b))
	case f.parts[n].got:
		t.Fatalf("%+v: message %d arrives again", f.key, n)
	case f.ordered && n < f.read:
		t.Fatalf("%+v: message %d arrives late", f.key, n)
	}
	f.parts[n].got = true
	for i := f.read; f.ordered && i < n; i++ {
		if !f.parts[i].may && f.key.id != datagramFlow {
			t.Fatalf("%+v: message %d arrives before %d", f.key, n, i)
		}
	}
	f.read = n + 1
}

// whole reports whether all was read that has to arrive.
func (f *flow) whole() bool {
	if !f.messages {
		return f.read == f.sent
	}
	return !slices.ContainsFunc(f.parts, func(m flowMessage) bool { return !m.may && !m.got })
}
