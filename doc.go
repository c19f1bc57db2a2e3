// Package kcp is KCP, the reliable-UDP protocol for low latency on lossy
// networks: sessions that are net.Conns, and the bare state machine.
//
// # Sessions
//
// [Dial] and [Listen] work as those of package net do, over UDP:
//
//	l, err := kcp.Listen("udp", ":4000", nil)
//	conn, err := l.Accept()
//
//	conn, err := kcp.Dial("udp", "example.com:4000", nil)
//
// A [Conn] is a net.Conn: a byte stream in order, with deadlines. With
// [Config.MessageMode] it has messages with boundaries besides. [NewEndpoint]
// puts any number of sessions, dialled and accepted, on one net.PacketConn.
//
// A [Config] holds the settings; its zero value, and nil, suit most paths.
// Sessions talk to those of kcp-go, with its ciphers and FEC, in any combination
// of settings.
//
// KCP has no handshake and no signal for the end of a stream. Dial therefore
// succeeds whether or not there is a peer, which shows as a [PeerLostError] of
// Read and Write after [Config.PeerTimeout]; and Read does not return io.EOF
// when the peer has closed: protocols on top say themselves when they are done.
// Close waits until the peer has acknowledged what was written. A session
// begins at the listener with the first data of the dialling side, so that side
// has to speak first.
//
// Without [Config.Cipher], whoever sees the packets can read, forge and end a
// session, and who does not see them has to guess address, port and
// conversation id. Package crypt has kcp-go's ciphers, of which an AEAD is the
// one to take; crypto/tls on top of a Conn works as over any net.Conn.
// [Config.FEC] adds kcp-go's forward error correction. [Conn.SendDatagram]
// sends unreliable packets beside the stream.
//
// # The state machine
//
// [New] returns a [KCP], the protocol without clock, socket, lock or
// goroutine, for programs that have their own ideas about those. It behaves
// exactly like the C reference implementation.
//
// The wire format, and the few deliberate differences from the reference, are
// described in WIRE.md.
package kcp
