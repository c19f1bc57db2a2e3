package takeover

import (
	"encoding/binary"
	"net/netip"
)

// Note is news of one session of the predecessor.
type Note struct {
	Kind     NoteKind
	Extended bool // its peer is an extended one; also of Ended
	Addr     netip.AddrPort
	Conv     uint32
	To       netip.AddrPort // of Moved: the address from now on
	End      End            // of Ended
	Of       uint32         // which predecessor has it, in the order of State; of Owns
}

// NoteKind is what a Note tells.
type NoteKind byte

const (
	Owns  NoteKind = 1 + iota // the predecessor has the session
	Ended                     // the session has ended, and goes into TIME-WAIT
	Moved                     // the peer has another address
	Used                      // the conversation id alone was used by an ended session
	Over                      // the predecessor has no session any more
)

// End is the state of a session in TIME-WAIT (RFC 9293 §3.6.1).
type End struct {
	Una, Token, Own uint32
	Aborted         bool
	Dropped         bool
	Mute            bool // nothing of it can be answered
}

// flags of the encoded form.
const (
	flagExtended = 1 << iota
	flagAborted
	flagDropped
	flagMute
)

// Append appends the encoded form of n to b.
func (n *Note) Append(b []byte) []byte {
	flags := byte(0)
	for _, f := range []struct {
		set  bool
		flag byte
	}{{n.Extended, flagExtended}, {n.End.Aborted, flagAborted}, {n.End.Dropped, flagDropped}, {n.End.Mute, flagMute}} {
		if f.set {
			flags |= f.flag
		}
	}
	b = append(b, byte(n.Kind), flags)
	for _, v := range []uint32{n.Conv, n.Of, n.End.Una, n.End.Token, n.End.Own} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return appendAddr(appendAddr(b, n.Addr), n.To)
}

// encodeNotes encodes as many notes as go into a message.
func encodeNotes(notes []Note) (message []byte, rest []Note) {
	for len(notes) > 0 && len(message) < 16<<10 {
		message = notes[0].Append(message)
		notes = notes[1:]
	}
	return message, notes
}

// CutNote decodes the Note that b begins with. ok is false if there is none.
func CutNote(b []byte) (n Note, rest []byte, ok bool) {
	if len(b) < 22 || b[0] < byte(Owns) || b[0] > byte(Over) {
		return n, nil, false
	}
	n.Kind = NoteKind(b[0])
	n.Extended, n.End.Aborted = b[1]&flagExtended != 0, b[1]&flagAborted != 0
	n.End.Dropped, n.End.Mute = b[1]&flagDropped != 0, b[1]&flagMute != 0
	for i, v := range []*uint32{&n.Conv, &n.Of, &n.End.Una, &n.End.Token, &n.End.Own} {
		*v = binary.LittleEndian.Uint32(b[2+4*i:])
	}
	if n.Addr, b, ok = cutAddr(b[22:]); ok {
		n.To, b, ok = cutAddr(b)
	}
	return n, b, ok
}

// appendAddr appends the encoded form of an address: its length, and as much.
func appendAddr(b []byte, addr netip.AddrPort) []byte {
	text, err := addr.MarshalBinary()
	if err != nil || len(text) >= hasLocal {
		text = nil // a zone with such a name does not exist
	}
	return append(append(b, byte(len(text))), text...)
}

// cutAddr decodes the address that b begins with.
func cutAddr(b []byte) (addr netip.AddrPort, rest []byte, ok bool) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return addr, nil, false
	}
	text, rest := b[1:1+int(b[0])], b[1+int(b[0]):]
	return addr, rest, len(text) == 0 || addr.UnmarshalBinary(text) == nil
}
