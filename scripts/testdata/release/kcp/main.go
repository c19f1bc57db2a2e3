// Command kcp-user is what a module that requires github.com/arqnet/kcp may be:
// an echo over loopback.
package main

import (
	"fmt"
	"io"
	"log"

	"github.com/arqnet/kcp"
)

func main() {
	l, err := kcp.Listen("udp", "127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		defer conn.Close()
		io.Copy(conn, conn)
	}()

	conn, err := kcp.Dial("udp", l.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		log.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		log.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || string(answer) != "hello" {
		log.Fatalf("read %q, %v", answer, err)
	}
	fmt.Println("kcp: echo ok")
}
