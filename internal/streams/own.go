package streams

import (
	"encoding/binary"

	"github.com/arqnet/kcp/internal/container"
)

const (
	// OwnHeader is what precedes the data in the payload of DATA of stream 0: the
	// stream, the kind, the SSN, and frg as in PUSH.
	OwnHeader = 4 + 1 + 4 + 1
	// OwnData and OwnAbandon are the kinds of stream 0 that have an SSN.
	OwnData    = 0
	OwnAbandon = 9
	// MostOwn is how many segments a message may have, as frg is a byte.
	MostOwn = 256
)

// PutOwnHeader puts the header of a segment with an SSN in front of its data. The SSN
// follows when it enters the window.
func PutOwnHeader(b []byte, frg uint8) {
	clear(b[:OwnHeader])
	b[OwnHeader-1] = frg
}

// AppendAbandonOwn appends the payload of the ABANDON that takes the place of a segment
// with an SSN, of which payload is the payload.
func AppendAbandonOwn(b, payload []byte) []byte {
	b = append(b, payload[:OwnHeader]...)
	b[len(b)-OwnHeader+4] = OwnAbandon
	return b
}

// AppendAbandon appends the payload of the ABANDON that takes the place of a segment of a
// stream, of which payload is the payload. If ok, all messages up to last are delivered
// or given up.
func AppendAbandon(b, payload []byte, last container.Serial, ok bool) []byte {
	was, data, _ := Decode(payload)
	h := Header{ID: was.ID, Kind: Abandon, Opens: was.Opens, Params: was.Params, MID: was.MID, Size: uint16(len(data))}
	if ok && !last.Before(was.MID) {
		h.MID, h.End = last, true
	}
	return h.Append(b)
}

// Own is a segment of the session itself, with an SSN.
type Own struct {
	SSN       container.Serial
	Frg       uint8
	Abandoned bool
	Data      []byte
}

// DecodeOwn decodes the payload of a STREAM segment. ok is false if it has no SSN.
func DecodeOwn(b []byte) (o Own, ok bool) {
	if len(b) < OwnHeader || binary.LittleEndian.Uint32(b) != 0 || b[4] != OwnData && b[4] != OwnAbandon {
		return o, false
	}
	o = Own{container.Serial(binary.LittleEndian.Uint32(b[5:])), b[OwnHeader-1], b[4] == OwnAbandon, b[OwnHeader:]}
	return o, !o.Abandoned || len(o.Data) == 0
}
