package streams

import (
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// pair is two tables, whose machines deliver each segment once, in any order.
type pair struct {
	*testing.T
	in    script
	ends  [2]*testHost
	flows map[uint32]*flow
}

// flow is one direction of a stream: from the end that has opened it.
type flow struct {
	from     *Stream
	to       *Stream
	sent     []byte
	got      []byte
	lent     []byte         // the buffer of a Read that waits
	messages map[string]int // of an unordered stream: sent less received
	finished bool
	receipts int // to come
}

// FuzzStreamPairs has two ends exchange what applications write, over machines that
// deliver segments in any order. All of it arrives, in order if the stream has
// one, each receipt is called once, and nothing is left.
func FuzzStreamPairs(f *testing.F) {
	f.Add([]byte("\x00\x10\x11\x12\x20\x21\x22\x30\x31\x32"))
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 2))
		b := make([]byte, 800)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		limits := someLimits
		limits.ReceiveBuffer, limits.MostReceiveBuffer = InitialCredit, 4*InitialCredit
		p := &pair{T: t, in: input[:min(len(input), maxScript)], flows: make(map[uint32]*flow)}
		if len(input)&1 != 0 {
			limits.Streams = 3
		}
		p.ends[0], p.ends[1] = newHost(1, limits), newHost(2, limits)
		p.ends[0].limit, p.ends[1].limit = limits.Streams, limits.Streams
		for len(p.in) > 0 {
			p.step()
			p.check()
		}
		for _, fl := range p.flows {
			fl.from.Finish()
			fl.finished = true
		}
		for range 1 << 14 {
			if !p.move(0) && !p.move(1) {
				break
			}
		}
		p.check()
		for id, fl := range p.flows {
			p.read(fl)
			p.compare(id, fl)
		}
		for _, h := range p.ends {
			require.Zero(t, h.table.held)
			require.Zero(t, h.table.queued)
			require.Zero(t, h.table.ready)
			require.Zero(t, h.dropped)
			require.Zero(t, h.table.Counts.Refused)
		}
	})
}

// step does what the next bytes of the script say.
func (p *pair) step() {
	op := p.in.next()
	end := p.ends[op&1]
	switch op >> 5 {
	case 0:
		if len(p.flows) < maxOpen && end.table.MayOpen(nil) {
			s, err := end.table.Open(Params{Unordered: op&2 != 0, Priority: int8(op>>2&7) - 4})
			require.NoError(p, err)
			p.flows[s.ID()] = &flow{from: s, messages: make(map[string]int)}
		}
	case 1, 2:
		p.write(int(op))
	case 3:
		if fl := p.flow(int(op)); fl != nil {
			p.read(fl)
			if fl.to != nil && !fl.to.params.Unordered && op&2 != 0 {
				fl.lent = make([]byte, int(op&12)<<7)
				fl.to.Lend(fl.lent)
			}
		}
	case 4:
		if fl := p.flow(int(op)); fl != nil && op&2 != 0 {
			fl.from.Finish()
			fl.finished = true
		}
	case 5:
		end.table.Announce()
		end.payload = 400 + int(op&2)*300 // the path MTU changes
	default:
		p.move(int(op & 1))
	}
}

// flow returns one of the flows; nil if there is none.
func (p *pair) flow(i int) *flow {
	if len(p.flows) == 0 {
		return nil
	}
	for n := uint32(i) % 64; ; n = (n + 1) % 128 {
		if fl := p.flows[n]; fl != nil {
			return fl
		}
	}
}

// write has the application write.
func (p *pair) write(op int) {
	fl := p.flow(op)
	if fl == nil || fl.finished {
		return
	}
	size := int(p.in.next()) << (op & 4) // up to several segments
	if room, _ := fl.from.Room(size); room < size {
		return
	}
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(len(fl.sent) + i*7)
	}
	switch {
	case fl.from.params.Unordered:
		b = append(b, byte(len(fl.sent)), byte(len(fl.sent)>>8)) // no two alike
		fl.messages[string(b)]++
		fl.receipts++
		fl.from.Send(b, 0, 0, func(err error) {
			require.NoError(p, err)
			fl.receipts--
		})
	case size > 0:
		b = b[:fl.from.Write(b)]
	}
	fl.sent = append(fl.sent, b...)
}

// move has the machine of an end send some segments, which arrive in an order that
// the script gives. It reports whether there were any.
func (p *pair) move(from int) bool {
	a, b := p.ends[from], p.ends[1-from]
	for range 8 {
		if !a.pull(false) {
			break
		}
	}
	moved := len(a.queued) > 0
	for range min(len(a.queued), 6) {
		i := int(p.in.next()) % len(a.queued)
		s := a.queued[i]
		a.queued = append(a.queued[:i], a.queued[i+1:]...)
		b.table.Input(s.payload, false)
		a.acked(s)
	}
	for s := b.table.Accept(); s != nil; s = b.table.Accept() {
		p.flows[s.ID()].to = s
		s.Finish() // nothing is sent back
	}
	for _, fl := range p.flows {
		if len(p.in) == 0 { // the end of the script
			p.read(fl)
		}
	}
	for _, r := range a.receipts.Take() {
		r.Done(r.Err)
	}
	return moved
}

// read has the application read all there is.
func (p *pair) read(fl *flow) {
	if fl.to == nil {
		return
	}
	n := len(fl.lent) - fl.to.TakeBack()
	fl.got, fl.lent = append(fl.got, fl.lent[:n]...), nil
	for {
		n, ok := fl.to.NextMessage()
		if !ok {
			return
		}
		b := make([]byte, n)
		fl.to.ReadMessage(b)
		fl.got = append(fl.got, b...)
		if fl.to.params.Unordered {
			fl.messages[string(b)]--
		}
	}
}

// compare holds what has arrived against what was written.
func (p *pair) compare(id uint32, fl *flow) {
	require.Zero(p, fl.receipts, "receipts of stream %d", id)
	if fl.from.params.Unordered {
		for m, n := range fl.messages {
			require.Zero(p, n, "message of %d bytes of stream %d", len(m), id)
		}
		require.Len(p, fl.got, len(fl.sent))
	} else {
		require.Equal(p, string(fl.sent), string(fl.got), "stream %d", id)
	}
	require.NotNil(p, fl.to)
	require.Equal(p, fl.to.in.got, fl.to.in.freed, "stream %d: credit", id)
	require.Equal(p, io.EOF, fl.to.ReadEnd())
}

// check holds the accounts of both ends against their streams.
func (p *pair) check() {
	for _, h := range p.ends {
		queued, ready := 0, 0
		for _, s := range h.table.streams {
			memory := 0
			for waits := s.out.first; waits != nil; waits = waits.next {
				memory += waits.memory()
			}
			require.Equal(p, memory, s.out.memory)
			if queued += memory; s.out.ready {
				ready += memory
			}
		}
		require.Equal(p, queued, h.table.queued)
		require.Equal(p, ready, h.table.ready)
		held := 0
		for _, s := range h.table.streams {
			held += s.in.held
		}
		for _, s := range h.table.unread {
			held += s.in.held
		}
		require.Equal(p, held, h.table.held)
	}
}
