package streams

import (
	"encoding/binary"

	"github.com/arqnet/kcp/internal/container"
)

// Kind says what a stream segment is (WIRE.md §5.9).
type Kind uint8

const (
	Data    Kind = iota // a message, or a fragment of one
	Abandon             // a message that will not be completed
	Fin                 // the sender's end: so many messages in all
	Reset               // the sender drops what it has not sent
	Stop                // the sender reads no more
	Credit              // how much the sender takes
	Open                // nothing but the options
	Kinds               // how many kinds there are

	MaxStreams Kind = 7 // of no stream: how many streams the receiver may open in all
)

const (
	flagEnd      = 0x08 // last fragment; of Abandon: all messages before it, too
	flagFragment = 0x10 // FSN follows
	flagOptions  = 0x20 // options follow

	// OptionBytes is the size of the options in a header.
	OptionBytes = 8
	// MaxHeader is the largest header of Data, in bytes.
	MaxHeader = 4 + 1 + OptionBytes + 4 + 4
	// NoSegment is the Size of an Abandon that does not take the place of a
	// segment.
	NoSegment = 0xffff

	// MinPriority and MaxPriority are the lowest and the highest priority.
	MinPriority, MaxPriority = -8, 7
)

// Params are the options of a stream as its opener announces them.
type Params struct {
	Unordered   bool
	Priority    int8
	Retransmits uint16 // one more than the most; 0: no limit
	Lifetime    uint32 // milliseconds; 0: no limit
}

// Partial reports whether each Write is a message, as some may not arrive, or in
// another order.
func (p *Params) Partial() bool { return p.Unordered || p.Lifetime > 0 || p.Retransmits > 0 }

// Header is what a stream segment begins with. MID and FSN are named as in RFC
// 8260 §2.1.
type Header struct {
	ID     uint32
	Kind   Kind
	End    bool // Data: the message ends here; Abandon: so will none before it
	Part   bool // Data: one of several fragments
	Opens  bool // Params are there
	Params Params
	MID    container.Serial // Data, Abandon: message; Fin: number of messages
	FSN    uint32           // Data: number of the fragment in its message
	Size   uint16           // Abandon: payload bytes of the segment whose place it takes
	Code   uint64           // Reset, Stop
	Limit  container.Serial // Credit

	Streams uint32 // MaxStreams
}

// Append appends h to b.
func (h *Header) Append(b []byte) []byte {
	first := byte(h.Kind)
	if h.End {
		first |= flagEnd
	}
	if h.Part {
		first |= flagFragment
	}
	if h.Opens {
		first |= flagOptions
	}
	b = append(binary.LittleEndian.AppendUint32(b, h.ID), first)
	if h.Opens {
		flags := byte(0)
		if h.Params.Unordered {
			flags = 1
		}
		b = append(b, flags, byte(h.Params.Priority))
		b = binary.LittleEndian.AppendUint16(b, h.Params.Retransmits)
		b = binary.LittleEndian.AppendUint32(b, h.Params.Lifetime)
	}
	switch h.Kind {
	case Data, Abandon, Fin:
		b = binary.LittleEndian.AppendUint32(b, uint32(h.MID))
	case Reset, Stop:
		b = binary.LittleEndian.AppendUint64(b, h.Code)
	case Credit:
		b = binary.LittleEndian.AppendUint32(b, uint32(h.Limit))
	case MaxStreams:
		b = binary.LittleEndian.AppendUint32(b, h.Streams)
	}
	switch {
	case h.Part:
		b = binary.LittleEndian.AppendUint32(b, h.FSN)
	case h.Kind == Abandon:
		b = binary.LittleEndian.AppendUint16(b, h.Size)
	}
	return b
}

// Decode decodes the payload of a stream segment. ok is false if it is malformed.
func Decode(b []byte) (h Header, data []byte, ok bool) {
	if len(b) < 5 {
		return h, nil, false
	}
	h.ID = ID(b)
	first := b[4]
	if h.ID == 0 && first == byte(MaxStreams) && len(b) == 4+1+4 {
		h.Kind, h.Streams = MaxStreams, binary.LittleEndian.Uint32(b[5:])
		return h, nil, true
	}
	h.Kind = Kind(first & 7)
	h.End, h.Part, h.Opens = first&flagEnd != 0, first&flagFragment != 0, first&flagOptions != 0
	if h.ID == 0 || h.Kind >= Kinds || first >= flagOptions<<1 ||
		h.Kind != Data && (h.End && h.Kind != Abandon || h.Part) ||
		h.Kind == Data && !h.End && !h.Part ||
		h.Kind == Open && !h.Opens {
		return h, nil, false
	}
	b = b[5:]
	if h.Opens {
		if len(b) < OptionBytes {
			return h, nil, false
		}
		h.Params = Params{
			Unordered: b[0]&1 != 0, Priority: int8(b[1]),
			Retransmits: binary.LittleEndian.Uint16(b[2:]), Lifetime: binary.LittleEndian.Uint32(b[4:]),
		}
		b = b[OptionBytes:]
	}
	data, ok = h.decodeFields(b)
	return h, data, ok && (h.Kind == Data || len(data) == 0)
}

// decodeFields decodes what depends on the kind. It returns what is left.
func (h *Header) decodeFields(b []byte) (rest []byte, ok bool) {
	need := [Kinds]int{Data: 4, Abandon: 6, Fin: 4, Reset: 8, Stop: 8, Credit: 4}[h.Kind]
	if h.Part {
		need += 4
	}
	if len(b) < need {
		return nil, false
	}
	switch h.Kind {
	case Data, Abandon, Fin:
		h.MID = container.Serial(binary.LittleEndian.Uint32(b))
	case Reset, Stop:
		h.Code = binary.LittleEndian.Uint64(b)
	case Credit:
		h.Limit = container.Serial(binary.LittleEndian.Uint32(b))
	}
	if h.Part {
		h.FSN = binary.LittleEndian.Uint32(b[4:])
	}
	if h.Kind == Abandon {
		h.Size = binary.LittleEndian.Uint16(b[4:])
	}
	return b[need:], true
}

// ID returns the stream of a payload of at least 4 bytes.
func ID(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

// abandonedOfSession is the payload of the ABANDON of stream 0, in bytes.
const abandonedOfSession = 4 + 1 + 4 + 2

// AbandonsSegment reports whether payload belongs to the ABANDON of stream 0, which
// is in place of a segment of the session itself.
func AbandonsSegment(payload []byte) bool {
	return len(payload) == abandonedOfSession && ID(payload) == 0 && payload[4] == byte(Abandon)
}
