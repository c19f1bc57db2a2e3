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
// # Sessions
//
// [Dial] and [Listen] work as those of package net do, over UDP:
//
//	l, err := kcp.Listen("udp", ":4000", nil)
//	conn, err := l.Accept()
//
//	conn, err := kcp.Dial("udp", "example.com:4000", nil)
//
// A [Conn] is a net.Conn: an ordered byte stream, with deadlines. With
// [Config.MessageMode] it also preserves message boundaries. [NewEndpoint] runs
// any number of sessions, dialled and accepted, on one net.PacketConn.
//
// A [Config] holds the settings; its zero value, and nil, suit most paths.
// Sessions interoperate with those of kcp-go, including its ciphers and FEC, in
// any combination of settings.
//
// Dial waits for the peer's answer. It fails with [ErrRefused] or a
// [NoAnswerError] if the peer refuses or does not answer. After
// [Conn.CloseWrite] or [Conn.Close] the peer reads io.EOF behind the last byte;
// Close waits until everything is acknowledged. [Conn.Abort] ends a session at
// once, and the peer gets [ErrReset]. Keep-alives detect that a peer has
// vanished even if the application does not write: Read and Write then return a
// [PeerLostError]. With TLS, or an AEAD as cipher, a session survives a change of
// its peer's address (connection migration).
//
// All this travels in fields of KCP's own probes that other implementations
// never read. [Conn.Peer] tells whether the peer is such a legacy peer, as
// those of kcp-go and the C reference are. A legacy peer answers Dial and
// keep-alives as any peer does. It learns nothing of CloseWrite, Close and
// Abort, and its own end cannot be seen. Its sessions are accepted with their
// first data.
//
// The fields of [Config] from Backlog to LegacyPeers limit what unknown peers can
// cause; SECURITY.md says which settings a server on the internet should have.
//
// Without [Config.TLS] and [Config.Cipher], anyone who sees the packets can
// read, forge and end a session. Anyone else has to guess address, port,
// conversation id and, to end it, a token of 32 bits. Between two endpoints of
// this package use [Config.TLS]: TLS 1.3 with certificates, whose keys protect
// every packet of a session. [Conn.ConnectionState] returns what was agreed on,
// and a [HandshakeError] says why there is no session. For kcp-go peers package
// crypt has kcp-go's ciphers; use one of its AEADs.
// [Config.FEC] adds kcp-go's forward error correction. [Conn.SendDatagram]
// sends unreliable packets beside the stream. Between endpoints of this package
// the packet size follows what the path takes, within [Config.MaxMTU].
//
// # Streams
//
// [Conn.OpenStream] and [Conn.AcceptStream] carry several flows in one session.
// None of them waits for what another has lost. A [Stream] is a net.Conn, and its
// WriteMessage and ReadMessage keep the boundaries of messages of any size.
//
//	state, err := conn.OpenStream(ctx, &kcp.StreamOptions{
//		Unordered: true, MaxLifetime: 100 * time.Millisecond, Priority: 1,
//	})
//	err = state.WriteMessage(position) // given up once it is too old
//
// What a stream of higher priority has to send leaves first, equals share what is
// left, and a stream that the peer does not read stops itself alone.
// [Stream.SendMessage] has options for single messages, and says by
// [MessageOptions.Done] whether the peer's endpoint has acknowledged all of it.
// Streams take an endpoint of this package at the other end:
// with others OpenStream returns [ErrLegacyPeer].
//
// [Conn.CloseWithError] closes a session with a code and a text, which the peer
// gets as a [PeerCloseError]; [Stream.Reset] ends one stream.
//
// # Settings at run time
//
// A Config is that of an endpoint, and does not change. Single sessions can
// depart from it at any time, dialled or accepted: [Conn.SetMTU],
// [Conn.SetWindow], [Conn.SetNoDelay], [Conn.SetCongestionControl],
// [Conn.SetMessageMode], [Conn.SetWriteBuffer] and [Conn.SetLinger] set for one
// session what the fields of those names set for all. The peer need not know of
// it. What must match the peer's, [Config.Cipher] and [Config.FEC], is the same
// for all sessions of an endpoint. Messages can be read in any mode, with
// [Conn.ReadMessage].
//
// # Around a session
//
// [Conn.Done] and [Conn.Err] tell that a session has ended, and why.
// [Conn.TryWrite] and [Conn.TryWriteMessage] write without waiting, and
// [Conn.WriteReady] waits for room. [Conn.Flush] waits until the peer's endpoint
// has what was written. [ConnStats] has the round-trip time of data, signals and
// datagrams; [Conn.Ping] measures it. [Endpoint.Sessions] visits all sessions,
// [Endpoint.Totals] adds up their figures, those of ended sessions included, and
// [EndpointStats] counts how they ended. [Endpoint.Shutdown] ends a server in
// order.
//
// docs/recipes.md has a few lines for each of many small tasks.
//
// # Many sessions
//
// A server need not have a goroutine for each session. A [Group] holds sessions,
// and [Group.Wait] returns the next events of any of them: bytes, messages,
// datagrams, ends.
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
// [Group.Serve] shares the work among several goroutines, and [Group.Handle]
// handles events on the goroutine that reads the socket.
//
// # Seeing what happens
//
// [Conn.Stats], [Endpoint.Stats], [Endpoint.Totals] and [Endpoint.Sessions] have
// the figures of the moment. The module observe makes metrics for Prometheus of
// them, and a page with charts. [Config.Logger] learns of sessions that begin and
// end, and of packets under another key. [Config.Tracer] returns hooks that see
// every transmission, loss and acknowledgement of a session. Package qlog writes
// those to a file, of which "kcp trace" makes a page with diagrams. WIRE.md's
// packets can be looked at with Wireshark and wireshark/kcp.lua.
//
// # The state machine
//
// Programs that use sessions need nothing of this section.
//
// [New] returns a [KCP], the protocol without clock, socket, lock or goroutine,
// for programs that bring their own. It behaves exactly like the C reference
// implementation. [Extensions], [congestion.Segment], [congestion.State] and
// the errors of its Input, such as [ErrConv], belong to it.
//
// WIRE.md describes the wire format, and the few deliberate differences from
// the reference.
package kcp
