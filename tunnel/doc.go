// Package tunnel carries TCP connections and UDP packets over one KCP session with
// TLS 1.3, or over TCP where UDP is closed, as ssh -L, -R and -D do over one TCP
// connection. The program kcptunnel is made of it.
//
// A Server says who may connect, and what each may reach:
//
//	users, err := tunnel.ParseUsers([]byte(`{"me:secret": ["^127\\.0\\.0\\.1:80$"]}`))
//	cert, err := tunnel.LoadKey("server.pem") // made if there is none
//	s, err := tunnel.Listen(&tunnel.ServerConfig{Addr: ":4000", Certificate: cert, Users: users})
//	err = s.Serve(ctx)
//
// A Client listens here for connections that go to the server's side, and asks the
// server to listen there for connections that come here:
//
//	remote, err := tunnel.ParseRemote("8080:127.0.0.1:80")
//	c, err := tunnel.NewClient(&tunnel.ClientConfig{
//		Servers: []string{"example.com:4000"}, Remotes: []tunnel.Remote{remote},
//		Fingerprints: []string{"SHA256:..."}, User: "me", Password: "secret",
//	})
//	err = c.Run(ctx)
package tunnel

// A client dials sessions, and a server accepts them. The two words say no more. For each
// remote one end listens (entry.go), whichever it is, and the other one dials (dial.go). For
// 8080:host:80 the client listens. For R:2222:localhost:22 the server does, once the client
// has asked it to. The end that listens opens the streams. What only one end does is in
// clientSession and serverSession (role); all else is in session.
//
// Where things are:
//
//	wire.go            the protocol: openings, answers, hello
//	session.go         what both ends do with a session: streams accepted, connections
//	entry.go           where an end listens
//	relay.go           bytes between a connection and a stream
//	client.go          Client; client_session.go its sessions, client_away.go refusals that
//	                   may end, client_local.go listening, pool.go the sessions with servers
//	server.go          Server; server_hello.go who a client is, server_session.go its streams
//	users.go           users; rules.go what each may reach, password.go hashes
//	guard.go, lobby.go attempts that fail, sessions that have not shown who they are
//	account.go         what a user may have at a time
//	dial.go            connecting to targets, if rules and account allow it
//	reverse.go         listening at the server for clients
//	remote.go          "8080:host:80"; address.go targets, bind.go (bind_linux.go,
//	                   bind_other.go) local addresses
//	socks.go           SOCKS5
//	udp.go             flows of UDP; udp_front.go at the end that listens, udp_queue.go what
//	                   waits, udp_read_unix.go and udp_read_other.go sockets
//	identity.go        keys, certificates, fingerprints
//	upgrade.go         another process takes over; control_linux.go, control_other.go what
//	                   the two tell each other
//	figures.go         counts; records.go the log
//	internal/carrier   what sessions run over: UDP, or TCP in its place, which client_tcp.go
//	                   turns to, and server_tcp.go listens for
