// Command server is an echo server, the one in README.md.
package main

import (
	"io"
	"log"

	"github.com/arqnet/kcp"
)

func main() {
	l, err := kcp.Listen("udp", ":4000", nil)
	if err != nil {
		log.Fatal(err)
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			defer conn.Close()
			io.Copy(conn, conn) // until the client's CloseWrite, or Close
		}()
	}
}
