// Package kcp is KCP, the reliable-UDP protocol for low latency on lossy
// networks: sessions that are net.Conns, and the bare state machine.
//
// # Begin here
//
//   - one flow of bytes, as with TCP: a session (Dial, Listen, Conn);
//   - one flow of messages, in order: a session with Config.MessageMode;
//   - several flows, or messages that may be late, out of order or dropped:
//     streams of a session (Conn.OpenStream, Stream);
//   - small state of which only the newest counts: Conn.SendDatagram;
//   - more sessions than goroutines: a Group;
//   - your own sockets and clock: the state machine (New).
//
// docs/recipes.md has a few lines for each of many small tasks.
//
// # Sessions
//
// Dial and Listen work as in package net, over UDP:
//
//	l, err := kcp.Listen("udp", ":4000", nil)
//	conn, err := l.Accept()
//
//	conn, err := kcp.Dial("udp", "example.com:4000", nil)
//
// NewEndpoint runs any number of sessions on one net.PacketConn. The zero Config, and
// nil, suit most paths. SECURITY.md says what a server on the internet should set. The
// Set methods of a Conn change settings for one session, at any time.
//
// The peer reads io.EOF behind the last byte after Conn.CloseWrite or Conn.Close; Close
// waits until everything is acknowledged. Keep-alives detect a vanished peer: Read and Write
// then return a PeerLostError.
//
// Sessions interoperate with kcp-go, including its ciphers and FEC, and with the C
// reference. Such a legacy peer learns nothing of CloseWrite, Close and Abort, and its own
// end cannot be seen. Its sessions are accepted with their first data.
//
// Without Config.TLS and Config.Cipher, anyone who sees the packets can read, forge and end
// a session. Between two endpoints of this package use Config.TLS: the session then
// survives a change of its peer's address, too.
//
// # Seeing what happens
//
// Conn.Stats, Endpoint.Stats, Endpoint.Totals and Endpoint.Sessions have the figures of the
// moment, of package stats. Config.Tracer and Conn.SetTrace install hooks of package trace;
// package qlog writes what they see to a file. The module observe makes metrics for Prometheus.
//
// # The state machine
//
// New returns a KCP, the protocol without clock, socket, lock or goroutine. It puts out
// what the C reference implementation does. WIRE.md describes the wire format, and the
// few deliberate differences from the reference.
package kcp

import (
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/stats"
	"github.com/arqnet/kcp/trace"
)

// KCP is the protocol's state machine, driven by calls alone. The caller passes it
// packets with Input, data with Send and the time with Update. With the settings of New
// it behaves as the reference implementation does, byte for byte, except for the few
// differences that WIRE.md lists. Times are milliseconds on a uint32 clock that may wrap
// and must not run backwards. Outside its range a Set method returns an error, and
// changes nothing. A KCP is not safe for concurrent use.
type KCP struct{ m *machine.KCP }

// New returns a bare state machine, which has no socket (Dial and Listen have), with the
// reference's settings. conv must be the same at both ends. output is called with each
// packet to be sent, which is valid only during the call, and must not call the KCP's
// methods. New panics if it is nil.
func New(conv uint32, output func(packet []byte)) *KCP { return &KCP{machine.New(conv, output)} }

// Extend switches on what sessions have beyond the reference, as far as one end alone
// can: RACK and tail loss probes (RFC 8985), delayed ACKs. Call it before the first
// packet.
func (k *KCP) Extend() { k.m.Extend() }

// Update sets the clock to now, and flushes if the interval has passed since the last
// scheduled flush. Call it when Check says, or every 10 to 100 ms.
func (k *KCP) Update(now uint32) { k.m.Update(now) }

// Check returns when Update should be called next, if neither Input nor Send is called
// before: one interval from now at most.
func (k *KCP) Check(now uint32) uint32 { return k.m.Check(now) }

// SetClock sets the clock to now, without flushing. Together with Flush and NextFlush it
// drives a KCP by events. The interval then only affects the RTO.
func (k *KCP) SetClock(now uint32) { k.m.SetClock(now) }

// SetTrace installs hooks for logging and tools; nil removes them.
func (k *KCP) SetTrace(t *trace.Hooks) { k.m.SetTrace(t) }

// Counters returns a copy of the counters of k.
func (k *KCP) Counters() stats.Counters { return k.m.Counters() }

// Conv returns the conversation id.
func (k *KCP) Conv() uint32 { return k.m.Conv() }

// Send queues a copy of p and returns how many bytes of it were taken. In message mode p
// is one message, which may be empty, of at most 127 segments; a longer one is refused
// whole with ErrMessageTooLarge. In stream mode, p first fills up the last waiting
// segment. If the rest needs more than 127 segments, none of it is taken: n < len(p) and
// err is nil, or ErrMessageTooLarge if there was nothing to fill up.
func (k *KCP) Send(p []byte) (n int, err error) { return k.m.Send(p) }

// WaitSend returns the number of segments that wait or are in flight.
func (k *KCP) WaitSend() int { return k.m.WaitSend() }

// SetMTU sets the largest packet in bytes: 50 to 65535, default 1400. Segments already
// queued keep their size.
func (k *KCP) SetMTU(mtu int) error { return k.m.SetMTU(mtu) }

// SetStream chooses between messages (false, the default) and a byte stream.
func (k *KCP) SetStream(on bool) { k.m.SetStream(on) }

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

// Flush sends everything that may leave now. It does nothing before the first Update or
// SetClock.
func (k *KCP) Flush() { k.m.Flush() }

// NextFlush returns when the next Flush will have something to do, if neither Input nor
// Send is called before. ok is false if the conversation is idle. Call SetClock before
// it; docs/recipes.md has a loop.
func (k *KCP) NextFlush() (at uint32, ok bool) { return k.m.NextFlush() }

// SetInterval sets the flush interval in milliseconds, 10 to 5000, default 100, which is
// also the least variance term of the RTO.
func (k *KCP) SetInterval(ms uint32) error { return k.m.SetInterval(ms) }

// SetWindow sets the send and the receive window in segments, 1 to 1048576 each, default
// 32 and 128. A receive window below 128 is raised to 128; above 65535 it is advertised
// as 65535.
func (k *KCP) SetWindow(send, receive int) error { return k.m.SetWindow(send, receive) }

// SetCongestionControl installs and initializes c; nil: congestion.NewReference. A change
// between that and congestion.NewNone keeps the window, as in the reference.
func (k *KCP) SetCongestionControl(c congestion.Control) { k.m.SetCongestionControl(c) }

// NoDelay selects how the retransmission time-out is bounded and backed off.
type NoDelay uint8

const (
	// NoDelayDefault is NoDelayOff for a KCP and NoDelayOn for a session.
	NoDelayDefault NoDelay = iota
	// NoDelayOff bounds the time-out to at least 100 ms and doubles it at each time-out
	// of a segment. First transmissions wait an eighth longer. The reference's nodelay 0.
	NoDelayOff
	// NoDelayOn bounds the time-out to at least 30 ms and multiplies it by 1.5 at each
	// time-out of a segment. The reference's nodelay 1.
	NoDelayOn
	// NoDelayTurbo bounds the time-out to at least 30 ms. Each time-out of a segment adds
	// half of the connection's present RTO. The reference's nodelay 2.
	NoDelayTurbo
)

// SetNoDelay sets the bounds and the back-off of time-outs, and the minimum RTO: default
// NoDelayOff.
func (k *KCP) SetNoDelay(mode NoDelay) { k.m.SetNoDelay(machine.NoDelay(mode)) }

// SetMinRTO sets the minimum retransmission time-out in milliseconds: 1 to 60000.
// SetNoDelay sets it too, so call SetMinRTO after it.
func (k *KCP) SetMinRTO(ms uint32) error { return k.m.SetMinRTO(ms) }

// SetFastResend sets how many acknowledgements of later transmissions cause a fast
// retransmission (RFC 5681 §3.2). Zero, the default, turns that off.
func (k *KCP) SetFastResend(acks uint32) { k.m.SetFastResend(acks) }
