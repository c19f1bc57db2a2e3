package closing

import (
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

const (
	// ReasonCode is the size of the code in front of the text of a reason, in bytes.
	ReasonCode = 8
	// MaxReasonText is the most bytes of text that are sent.
	MaxReasonText = 256
)

// EncodeReason returns the payload of CLOSE that says why a session was closed: a number
// and a text (compare the CONNECTION_CLOSE of RFC 9000 §19.19; WIRE.md §5.2). The text is
// cut to what fits into so many bytes, with the number.
func EncodeReason(code uint64, text string, room int) []byte {
	text = strings.ToValidUTF8(text, "\uFFFD")
	room = min(max(room-ReasonCode, 0), MaxReasonText)
	if len(text) > room {
		for room > 0 && !utf8.RuneStart(text[room]) {
			room--
		}
		text = text[:room]
	}
	return append(binary.LittleEndian.AppendUint64(nil, code), text...)
}

// DecodeReason is the reverse of EncodeReason. ok is false if there is no reason in the
// payload, or it is malformed.
func DecodeReason(payload []byte) (code uint64, text string, ok bool) {
	if len(payload) < ReasonCode || len(payload) > ReasonCode+MaxReasonText {
		return 0, "", false
	}
	return binary.LittleEndian.Uint64(payload), strings.ToValidUTF8(string(payload[ReasonCode:]), "\uFFFD"), true
}
