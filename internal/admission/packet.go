package admission

import (
	"errors"

	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/packetkeys"
	"github.com/arqnet/kcp/internal/protect"
)

// Commands of segments (WIRE.md §1, §5.6 and §5.9).
const (
	cmdPush        = 81
	cmdAck         = 82
	cmdWask        = 83
	cmdWins        = 84
	cmdPiece       = 85
	cmdStream      = 86
	cmdStreamPiece = 87
)

const segmentSize = handshake.SegmentSize

// OpenSealed opens a packet of a conversation under the application keys of its session,
// in place, and returns its kind. That remains Sealed if the keys are not known yet. A
// packet with an error is dropped, for the reason.
func OpenSealed(by protect.Protection, p *protect.Packet, conv uint32) (Kind, Reason, error) {
	switch err := by.Open(p); {
	case errors.Is(err, packetkeys.ErrNotReady):
		return Sealed, NoReason, nil
	case err != nil:
		return Sealed, Cipher, err
	}
	kind, inner, ok := Classify(p.Data, false)
	switch {
	case !ok:
		return kind, Short, packetkeys.ErrForged
	case kind != Parity && inner != conv:
		return kind, Unknown, packetkeys.ErrForged
	}
	return kind, NoReason, nil
}

// Segments returns the segments in a packet. ok is false if one of its kind has none.
func Segments(kind Kind, data []byte) (segments []byte, ok bool) {
	switch kind {
	case Plain, Clear:
		return data, true
	case FEC:
		return data[fec.HeaderSize:], true
	}
	return nil, false
}

// Initial is what the first packet of a conversation says.
type Initial struct {
	Data    bool             // it contains a PUSH or PIECE
	Push    bool             // it contains the PUSH with sn 0, and acknowledges nothing
	Crypto  bool             // it contains a CRYPTO segment, as those of peers with TLS do
	Hello   handshake.Signal // code 0: none; the same below
	Cookie  handshake.Signal
	Info    handshake.Signal
	Request handshake.Signal // the first signal that wants an answer
}

// Parse reads a packet of an unknown conversation. ok is false if the packet is not
// well-formed to its end.
//
// Data opens a session only if it includes the very first segment. Later segments
// cannot show whether a conversation begins, or the peer continues one that this
// endpoint has forgotten.
func Parse(kind Kind, data []byte, conv uint32) (f Initial, ok bool) {
	packet, ok := Segments(kind, data)
	if !ok {
		return f, false
	}
	old := false // it acknowledges something, so the conversation did not begin with it
	for len(packet) >= segmentSize {
		h := handshake.DecodeSegment(packet)
		packet = packet[segmentSize:]
		if uint64(h.Len) > uint64(len(packet)) || h.Conv != conv || h.Cmd < cmdPush || h.Cmd > cmdStreamPiece {
			return Initial{}, false
		}
		packet = packet[h.Len:]
		old = old || h.Una != 0 || h.Cmd == cmdAck
		f.Data = f.Data || h.Cmd == cmdPush || h.Cmd >= cmdPiece
		f.Push = f.Push || h.Cmd == cmdPush && h.SN == 0
		f.Crypto = f.Crypto || h.Cmd == cmdWins && h.Code == handshake.CodeCrypto
		if h.Cmd != cmdWask && h.Cmd != cmdWins || h.Len > 0 && h.Code != handshake.CodeProbe && h.Code != handshake.CodeClose {
			continue // only PROBE, CLOSE and RESETKEY have payload
		}
		s := handshake.Signal{Code: h.Code, SN: h.SN, TS: h.TS} // code 0: a window probe or update
		switch {
		case s.Code == handshake.CodeHello && f.Hello.Code == 0:
			f.Hello = s
		case s.Code == handshake.CodeCookie:
			f.Cookie = s
		case s.Code == handshake.CodeInfo && f.Info.Code == 0:
			f.Info = s
		}
		if f.Request.Code == 0 && handshake.Asking>>s.Code&1 != 0 {
			f.Request = s
		}
	}
	if old {
		f.Push, f.Hello = false, handshake.Signal{}
	}
	return f, true
}
