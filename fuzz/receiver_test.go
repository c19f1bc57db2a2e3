package fuzz_test

import kcp "github.com/arqnet/kcp"

// receiver is what the receiving side of a state machine must do, as plainly
// as it can be said: by maps and slices of whole payloads. It tells what may be
// read under any input, forged ones included.
type receiver struct {
	window  int
	next    uint32              // rcv_nxt
	early   map[uint32]fragment // beyond next
	queue   []fragment          // in order, not read
	partial int                 // at the end of queue: of a message not complete
	pieces  map[uint32]*puzzle  // segments of which some pieces have come
	held    int                 // bytes of them, whole

	acks   []ack  // to be put out
	newest uint32 // ts of what came by itself
	heard  bool   // newest is valid
}

// ack is what an ACK says.
type ack struct{ sn, ts uint32 }

// fragment is one data segment.
type fragment struct {
	frg  byte
	data []byte
}

// take is an Input of one PUSH.
func (r *receiver) take(s segment, recovered bool) {
	if ahead(s.sn, r.next+uint32(r.window)) >= 0 {
		return
	}
	r.drop(s.sn)
	r.acks = append(r.acks, ack{s.sn, r.echo(s.ts, recovered)})
	if ahead(s.sn, r.next) < 0 {
		return
	}
	if _, ok := r.early[s.sn]; ok {
		return
	}
	r.early[s.sn] = fragment{frg: s.frg, data: s.payload}
	r.deliver()
}

// puzzle is a segment that is being put together.
type puzzle struct {
	frg     byte
	data    []byte
	missing map[int]bool
}

// maxPuzzles bounds the segments that are being put together, in bytes.
const maxPuzzles = 1 << 20

// piece is an Input of one PIECE. It returns how many segments that counts for.
func (r *receiver) piece(s segment, recovered bool) (segments uint64, err error) {
	if len(s.payload) < 5 {
		return 0, kcp.InputPiece
	}
	at, size, data := int(le.Uint16(s.payload)), int(le.Uint16(s.payload[2:])), s.payload[4:]
	end := at + len(data)
	if end > size {
		return 0, kcp.InputPiece
	}
	if unit := (size + 63) / 64; at%unit > 0 || end%unit > 0 && end < size {
		return 0, kcp.InputPiece
	}
	if _, early := r.early[s.sn]; early || ahead(s.sn, r.next) < 0 {
		if at > 0 {
			return 0, nil
		}
		r.take(s, recovered)
		return 1, nil
	}
	p := r.pieces[s.sn]
	switch {
	case p != nil && (len(p.data) != size || p.frg != s.frg):
		r.drop(s.sn)
		return 0, kcp.InputPiece
	case p == nil && (ahead(s.sn, r.next+uint32(r.window)) >= 0 || s.sn != r.next && r.held+size > maxPuzzles):
		if at > 0 {
			return 0, nil
		}
		return 1, nil
	case p == nil:
		p = &puzzle{s.frg, make([]byte, size), make(map[int]bool)}
		for i := range size {
			p.missing[i] = true
		}
		if r.pieces == nil {
			r.pieces = make(map[uint32]*puzzle)
		}
		r.pieces[s.sn] = p
		r.held += size
	}
	missing := len(p.missing)
	for i := range data {
		delete(p.missing, at+i)
	}
	if len(p.missing) == missing {
		return 0, nil // a forged repetition may have other bytes, which do not count
	}
	copy(p.data[at:], data)
	if len(p.missing) > 0 {
		return 0, nil
	}
	s.payload = p.data
	r.take(s, recovered)
	return 1, nil
}

// drop forgets the pieces of a segment.
func (r *receiver) drop(sn uint32) {
	if p := r.pieces[sn]; p != nil {
		r.held -= len(p.data)
		delete(r.pieces, sn)
	}
}

// echo returns the ts to acknowledge with: for what error correction brought
// late, the newest that came by itself.
func (r *receiver) echo(ts uint32, recovered bool) uint32 {
	switch {
	case recovered && r.heard && ahead(r.newest, ts) > 0:
		return r.newest
	case !recovered && (!r.heard || ahead(ts, r.newest) > 0):
		r.newest, r.heard = ts, true
	}
	return ts
}

// deliver moves to the queue what is next, as far as there is room. Fragments
// count down; where they do not, the message before them is given up.
func (r *receiver) deliver() {
	for len(r.queue) < r.limit() {
		f, ok := r.early[r.next]
		if !ok {
			return
		}
		delete(r.early, r.next)
		r.next++
		if n := len(r.queue); r.partial > 0 && r.queue[n-1].frg != f.frg+1 {
			r.queue = r.queue[:n-r.partial]
			r.partial = 0
		}
		r.queue = append(r.queue, f)
		r.partial++
		if f.frg == 0 {
			r.partial = 0
		}
	}
}

// limit is how many segments may wait to be read: a window of them, or as many
// as a longer message has that is alone.
func (r *receiver) limit() int {
	if n := len(r.queue); n >= r.window && n == r.partial {
		return max(r.window, int(r.queue[0].frg)+1)
	}
	return r.window
}

// peek returns the next whole message; false if there is none.
func (r *receiver) peek() (message []byte, ok bool) {
	if len(r.queue) == r.partial {
		return nil, false
	}
	for _, f := range r.queue[:r.queue[0].frg+1] {
		message = append(message, f.data...)
	}
	return message, true
}

// size is what PeekSize must be.
func (r *receiver) size() int {
	if message, ok := r.peek(); ok {
		return len(message)
	}
	return -1
}

// pop removes the message that peek returns.
func (r *receiver) pop() {
	r.queue = r.queue[int(r.queue[0].frg)+1:]
	r.deliver()
}

// advertised is the window that goes out.
func (r *receiver) advertised() uint16 { return uint16(min(r.limit()-len(r.queue), 0xffff)) }
