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
// moment, of package stats. Config.Tracer returns hooks of package trace; package qlog
// writes what they see to a file. The module observe makes metrics for Prometheus.
//
// # The state machine
//
// New returns a KCP, the protocol without clock, socket, lock or goroutine. It puts out
// what the C reference implementation does. WIRE.md describes the wire format, and the
// few deliberate differences from the reference.
package kcp

import (
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
