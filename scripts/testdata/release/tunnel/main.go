// Command tunnel-user carries a connection through a tunnel on the loopback
// interface, and prints what it brings.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"

	"github.com/arqnet/kcp/tunnel"
)

func main() {
	dir, err := os.MkdirTemp("", "tunnel-user")
	check(err)
	defer os.RemoveAll(dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go func() {
		conn, err := l.Accept()
		check(err)
		_, _ = io.WriteString(conn, "through the tunnel\n")
		_ = conn.Close()
	}()

	users, err := tunnel.ParseUsers([]byte(`{"me:secret": ["^127\\.0\\.0\\.1:[0-9]+$"]}`))
	check(err)
	key, err := tunnel.LoadKey(filepath.Join(dir, "server.pem"))
	check(err)
	server, err := tunnel.Listen(&tunnel.ServerConfig{Addr: "127.0.0.1:0", Certificate: key, Users: users})
	check(err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { check(server.Serve(ctx)) }()

	remote, err := tunnel.ParseRemote("0:" + l.Addr().String())
	check(err)
	at := make(chan net.Addr, 1)
	client, err := tunnel.NewClient(&tunnel.ClientConfig{
		Servers: []string{server.Addr().String()}, Fingerprints: []string{server.Fingerprint()},
		User: "me", Password: "secret", Remotes: []tunnel.Remote{remote},
		Listening: func(_ tunnel.Remote, a net.Addr) { at <- a },
	})
	check(err)
	go func() { check(client.Run(ctx)) }()
	conn, err := net.Dial("tcp", (<-at).String())
	check(err)
	text, err := io.ReadAll(conn)
	check(err)
	fmt.Print(string(text))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
