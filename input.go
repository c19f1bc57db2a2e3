package kcp

import "github.com/arqnet/kcp/internal/machine"

// Errors of the state machine. Input returns ErrPacketShort, ErrConv,
// ErrSegmentLength, ErrCommand, ErrForgedUna, ErrPiece and ErrRequests. Each
// says why the rest of a packet was dropped; segments before the offending one
// have taken effect. Send returns ErrMessageTooLarge, Recv ErrNoData and
// ErrPartialMessage.
var (
	ErrPacketShort     = machine.ErrPacketShort
	ErrConv            = machine.ErrConv
	ErrSegmentLength   = machine.ErrSegmentLength
	ErrCommand         = machine.ErrCommand
	ErrForgedUna       = machine.ErrForgedUna
	ErrPiece           = machine.ErrPiece
	ErrRequests        = machine.ErrRequests
	ErrMessageTooLarge = machine.ErrMessageTooLarge
	ErrNoData          = machine.ErrNoData
	ErrPartialMessage  = machine.ErrPartialMessage
)

// Input processes one packet from the peer; it does not retain packet. An error says why
// the packet, or the rest of it, was dropped; segments before the bad one have taken
// effect.
func (k *KCP) Input(Packet []byte) error { return k.m.Input(Packet) }

// Recv copies the next message to p and returns its size in bytes. The error is
// ErrNoData if nothing has arrived, ErrPartialMessage if the message is not complete,
// and io.ErrShortBuffer if it is larger than p; then nothing is taken (see PeekSize).
func (k *KCP) Recv(p []byte) (int, error) { return k.m.Recv(p) }

// PeekSize returns the size in bytes of the next complete message, or -1 if
// there is none.
func (k *KCP) PeekSize() int { return k.m.PeekSize() }
