package kcp

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// streamInput builds stream segments of bytes: most fit, some almost.
type streamInput []byte

func (in *streamInput) next() byte {
	if len(*in) == 0 {
		return 0
	}
	b := (*in)[0]
	*in = (*in)[1:]
	return b
}

// number returns one of those near 0, near the ends of 32 bits, or in between.
func (in *streamInput) number() uint32 {
	b := in.next()
	switch b >> 6 {
	case 0, 1:
		return uint32(b & 0x3f)
	case 2:
		return -uint32(b & 0x3f)
	}
	return uint32(b&0x3f) << 25
}

func (in *streamInput) segment() []byte {
	what := in.next()
	h := streamHeader{
		id: 1 + uint32(what>>4&3), kind: streamKind(in.next() % uint8(streamKinds)), opens: what&1 != 0,
		mid: seq(in.number()),
	}
	switch h.kind {
	case streamData:
		h.end, h.part = what&2 != 0, what&4 != 0
		if h.end = h.end || !h.part; h.part {
			h.fsn = in.number()
		}
	case streamAbandon:
		h.size = uint16(in.number())
	case streamReset, streamStop:
		h.code = uint64(in.number()) << (what & 0x20)
	case streamCredit:
		h.limit = seq(in.number()) << (what & 8)
	case streamOpen:
		h.opens = true
	}
	if h.opens {
		h.params = streamParams{unordered: what&8 != 0, priority: int8(what % 9)}
	}
	b := h.append(nil)
	if h.kind == streamData {
		b = append(b, make([]byte, int(in.next())<<(what>>6*3))...)
	}
	return b
}

// Bounds of an input of FuzzStreams. After each step all streams are checked, so
// that the time for an input grows with their product.
const (
	maxStreamScript = 2048 // bytes
	maxStreamsOpen  = 32   // by this end
)

// Whatever segments of streams arrive, and whatever the application does in
// between: nothing panics, what is held is what the streams hold, no stream holds
// more than its credit, and once all of them are closed nothing is left.
func FuzzStreams(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x10\x11\x00\x01\x20\x01\x02\x01"))
	f.Add([]byte("\x05\x00\x00\x00\x10\x07\x00\x00\x01\x10\x01\x01\x01\xff\xff"))
	f.Add([]byte("\xff\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"))
	f.Add(make([]byte, maxStreamScript))
	f.Fuzz(func(t *testing.T, input []byte) {
		in := streamInput(input[:min(len(input), maxStreamScript)])
		inWorld(t, 2, clean, func(w *world) {
			_, b, _ := w.pair(nil, nil)
			b.mu.Lock()
			defer b.mu.Unlock()
			table := b.streamTable()
			var mine []*Stream
			for i := 0; len(in) > 0; i++ {
				switch op := in.next(); {
				case op < 16 && len(mine) < maxStreamsOpen:
					s, err := table.openLocked(streamParams{unordered: op&1 != 0})
					require.NoError(t, err)
					mine = append(mine, s)
				case op < 32 && len(table.backlog) > 0:
					mine = append(mine, table.backlog[0])
					table.acceptedLocked(table.backlog[0])
					table.backlog = table.backlog[1:]
				case op < 64 && len(mine) > 0:
					s := mine[int(op)%len(mine)]
					for s.readableLocked() {
						m := &s.in.ready[s.in.head]
						s.in.bytes -= m.left
						s.takenLocked()
					}
				case op < 80 && len(mine) > 0:
					s := mine[int(op)%len(mine)]
					if s.cannotWriteLocked() == nil {
						s.appendLocked(make([]byte, 1+int(op)))
						table.sched.update(s)
					}
				case op < 84 && len(mine) > 0:
					mine[int(op)%len(mine)].finishLocked()
				case op < 88 && len(mine) > 0:
					mine[int(op)%len(mine)].resetLocked(&StreamError{Code: 1})
				case op < 96 && len(in) > 3:
					n := min(len(in), int(op)%16)
					b.onStream(in[:n]) // as it is
					in = in[n:]
				default:
					b.onStream(in.segment())
				}
				checkStreams(t, table)
			}
			for _, s := range append(mine, table.backlog...) {
				s.stopReadingLocked(0)
				s.resetLocked(&StreamError{})
				require.Zero(t, s.in.held)
			}
			table.backlog = nil
			checkStreams(t, table)
			require.Zero(t, table.held)
		})
	})
}

// checkStreams holds the accounts of the table against those of its streams.
func checkStreams(t *testing.T, table *streamTable) {
	fromPeer, all := 0, 0
	for id, s := range table.unread {
		if all += s.in.held; !s.gone || id != s.id || !s.in.waits() {
			t.Fatalf("stream %d, gone: %v, is said to have unread data: %v", id, s.gone, s.in.waits())
		}
	}
	for id, s := range table.streams {
		if id&1 == 1 {
			fromPeer++
		}
		in := &s.in
		all += in.held
		held, size := 0, 0
		for _, m := range in.ready[in.head:] {
			held += int(m.held)
			size += m.left
		}
		for mid, m := range in.early.All {
			held += m.memory()
			size += int(m.bytes)
			if seq(mid).before(in.next) || !seq(mid).before(in.end) {
				t.Fatalf("stream %d holds message %d, but not between %d and %d", s.id, mid, in.next, in.end)
			}
		}
		switch {
		case id != s.id, held != in.held, size != in.bytes:
			t.Fatalf("stream %d (%d) holds %d bytes, %d of data; counted are %d and %d", s.id, id, held, size, in.held, in.bytes)
		case int64(uint32(in.limit-in.got)) > int64(in.window), held > in.window:
			t.Fatalf("stream %d has a credit of %d and holds %d bytes, window %d", id, in.limit-in.got, held, in.window)
		}
	}
	for _, s := range table.backlog {
		if s.gone {
			fromPeer++
		}
	}
	require.Equal(t, fromPeer, table.fromPeer)
	require.Equal(t, all, table.held)
}
