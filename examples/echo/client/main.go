// Command client asks an echo server, as in README.md.
package main

import (
	"fmt"
	"io"
	"log"

	"github.com/arqnet/kcp"
)

func main() {
	conn, err := kcp.Dial("udp", "localhost:4000", nil) // a net.Conn
	if err != nil {
		log.Fatal(err) // no endpoint listens there, or no answer arrived
	}
	defer conn.Close()
	fmt.Fprintln(conn, "hello")
	conn.CloseWrite()
	answer, err := io.ReadAll(conn)
	fmt.Printf("%q, %v\n", answer, err)
}
