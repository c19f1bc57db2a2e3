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
// Dial waits for the peer's answer: [ErrRefused] and a [NoAnswerError] say that
// there is none. [Conn.CloseWrite] and [Conn.Close] tell the peer, which reads
// io.EOF after the last byte; Close waits until everything is acknowledged.
// [Conn.Abort] breaks a session off, and the peer gets [ErrReset]. Keep-alives
// find out that a peer has vanished, also where nobody writes: Read and Write
// then return a [PeerLostError]. With an AEAD for a cipher a session survives
// that its peer's address changes.
//
// All this travels in probes of KCP's own, in fields that nobody else reads. A
// peer without it, such as one of kcp-go or the C reference, is told apart
// ([Conn.Peer]): it answers Dial and keep-alives as any peer does, and learns
// nothing of CloseWrite, Close and Abort, nor can its own end be seen. Its
// sessions are accepted with their first data.
//
// What strangers can cause is limited by the last group of fields in [Config].
//
// Without [Config.Cipher], whoever sees the packets can read, forge and end a
// session, and who does not see them has to guess address, port, conversation
// id and, to end it, a token of 32 bits. Package crypt has kcp-go's ciphers, of which an AEAD is the
// one to take; crypto/tls on top of a Conn works as over any net.Conn.
// [Config.FEC] adds kcp-go's forward error correction. [Conn.SendDatagram]
// sends unreliable packets beside the stream. Between endpoints of this package
// the size of packets follows what the path takes, within [Config.MaxMTU].
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
