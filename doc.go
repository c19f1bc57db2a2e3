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
