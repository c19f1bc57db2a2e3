// Command kcpgo-user is a program written for kcp-go: an echo over loopback, with
// a cipher and error correction.
package main

import (
	"fmt"
	"io"
	"log"

	"github.com/xtaci/kcp-go/v5"
)

func main() {
	block, err := kcp.NewAESBlockCrypt(make([]byte, 32))
	if err != nil {
		log.Fatal(err)
	}
	l, err := kcp.ListenWithOptions("127.0.0.1:0", block, 10, 3)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		s, err := l.AcceptKCP()
		if err != nil {
			log.Fatal(err)
		}
		s.SetNoDelay(1, 10, 2, 1)
		io.Copy(s, s)
	}()

	s, err := kcp.DialWithOptions(l.Addr().String(), block, 10, 3)
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	s.SetNoDelay(1, 10, 2, 1)
	if _, err := s.Write([]byte("hello")); err != nil {
		log.Fatal(err)
	}
	answer := make([]byte, 5)
	if _, err := io.ReadFull(s, answer); err != nil || string(answer) != "hello" {
		log.Fatalf("read %q, %v", answer, err)
	}
	fmt.Println("kcpgo: echo ok")
}
