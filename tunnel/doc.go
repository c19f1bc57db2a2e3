// Package tunnel carries TCP connections and UDP packets over one KCP session with
// TLS 1.3, as ssh -L, -R and -D do over one TCP connection. The program kcptunnel
// is made of it.
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
