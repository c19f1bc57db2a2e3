package kcp

import "github.com/arqnet/kcp/internal/machine"

// InputError is what KCP.Input returns: why the rest of a packet was dropped. A session
// counts it in stats.Drops, and shows it to trace.Hooks.Dropped.
type InputError = machine.InputError

const (
	InputShort    InputError = machine.ErrPacketShort   // shorter than a segment header
	InputConv     InputError = machine.ErrConv          // a segment of another conversation
	InputLength   InputError = machine.ErrSegmentLength // a segment longer than its packet
	InputCommand  InputError = machine.ErrCommand       // an unknown command
	InputUna      InputError = machine.ErrForgedUna     // acknowledges what was never sent
	InputPiece    InputError = machine.ErrPiece         // a piece that does not fit its segment
	InputRequests InputError = machine.ErrRequests      // too many requests at a time
)

var (
	// ErrMessageTooLarge is wrapped in a *SizeError, except by KCP.Send.
	ErrMessageTooLarge = machine.ErrMessageTooLarge
	// ErrNoData is returned by KCP.Recv if no message is complete.
	ErrNoData = machine.ErrNoData
)

// Input processes one packet from the peer, and does not retain it. An error is an
// InputError; segments before the bad one have taken effect.
func (k *KCP) Input(packet []byte) error { return k.m.Input(packet) }

// Recv copies the next message to p and returns its size in bytes. The error is, or wraps,
// ErrNoData if no message is complete, and is io.ErrShortBuffer if the message is larger
// than p; then nothing is taken (see PeekSize).
func (k *KCP) Recv(p []byte) (int, error) { return k.m.Recv(p) }

// PeekSize returns the size in bytes of the next complete message, or -1 if
// there is none.
func (k *KCP) PeekSize() int { return k.m.PeekSize() }
