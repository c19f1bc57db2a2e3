// Package kcp is KCP, the reliable-UDP protocol for low latency on lossy
// networks: sessions that are net.Conns, and the bare state machine.
//
// # Begin here
//
//   - one flow of bytes, as with TCP: a session ([Dial], [Listen], [Conn]);
//   - one flow of messages, in order: a session with [Config.MessageMode];
//   - several flows, or messages that may be late, out of order or dropped: streams
//     of a session ([Conn.OpenStream], [Stream]);
//   - small state of which only the newest counts: [Conn.SendDatagram];
//   - more sessions than goroutines: a [Group];
//   - your own sockets and clock: the state machine ([New]).
//
// docs/recipes.md has a few lines for each of many small tasks.
//
// # Sessions
//
// [Dial] and [Listen] work as in package net, over UDP:
//
//	l, err := kcp.Listen("udp", ":4000", nil)
//	conn, err := l.Accept()
//
//	conn, err := kcp.Dial("udp", "example.com:4000", nil)
//
// [NewEndpoint] runs any number of sessions on one net.PacketConn. A [Config] holds the
// settings of an endpoint; its zero value, and nil, suit most paths. SECURITY.md says
// which ones a server on the internet should have. The Set methods of a [Conn] change
// them for one session, at any time.
//
// [Dial] waits for the peer's answer. The peer reads io.EOF behind the last byte after
// [Conn.CloseWrite] or [Conn.Close]; Close waits until everything is acknowledged.
// [Conn.Abort] ends a session at once. Keep-alives detect a vanished peer: Read and
// Write then return a [PeerLostError]. With TLS, or an AEAD as cipher, a session
// survives a change of its peer's address (connection migration).
//
// Sessions interoperate with kcp-go, including its ciphers and FEC, and with the
// C reference. Such a legacy peer ([Conn.Peer]) answers Dial and keep-alives as any peer
// does. It learns nothing of CloseWrite, Close and Abort, and its own end cannot be
// seen. Its sessions are accepted with their first data.
//
// Without [Config.TLS] and [Config.Cipher], anyone who sees the packets can read, forge
// and end a session. Anyone else has to guess address, port, conversation id and, to end
// it, a token of 32 bits. Between two endpoints of this package use TLS 1.3 with
// certificates, [Config.TLS]; package crypt has kcp-go's ciphers.
//
// # Streams
//
// [Conn.OpenStream] and [Conn.AcceptStream] carry several flows in one session, none of
// which waits for what another has lost, nor does what the session itself writes beside
// them.
//
//	state, err := conn.OpenStream(ctx, &kcp.StreamOptions{
//		Unordered: true, MaxLifetime: 100 * time.Millisecond, Priority: 1,
//	})
//	err = state.WriteMessage(position) // given up once it is too old
//
// Streams take an endpoint of this package at the other end: with others OpenStream
// returns [ErrLegacyPeer].
//
// # Many sessions
//
// A server need not have a goroutine for each session. [Group.Wait] returns the next
// events of any session of a [Group]: bytes, messages, datagrams, ends.
//
//	g := kcp.NewGroup()
//	l.AcceptInto(g) // what l accepts comes as an event, too
//	events := make([]kcp.Event, 256)
//	for {
//		n, err := g.Wait(ctx, events)
//		for _, e := range events[:n] {
//			...
//		}
//		g.Send(batch) // to any number of sessions, without waiting
//	}
//
// # Seeing what happens
//
// [Conn.Stats], [Endpoint.Stats], [Endpoint.Totals] and [Endpoint.Sessions] have the
// figures of the moment; the module observe makes metrics for Prometheus of them.
// [Config.Logger] learns of sessions that begin and end. [Config.Tracer] returns hooks
// that see every transmission, loss and acknowledgement; package qlog writes those to a
// file, of which "kcp trace" makes a page with diagrams. Wireshark shows packets with
// wireshark/kcp.lua.
//
// # The state machine
//
// [New] returns a [KCP], the protocol without clock, socket, lock or goroutine, for
// programs that bring their own. It puts out what the C reference implementation does.
// [Extensions] and the errors of its Input, such as [ErrConv], belong to it. WIRE.md
// describes the wire format, and the few deliberate differences from the reference.
package kcp
