// Command mux carries many streams over one KCP session, by the multiplexer
// xtaci/smux. That suits programs that open and close streams all the time, or
// tunnel the connections of others.
//
// It is a module of its own, so that the package does not depend on smux.
//
//	cd examples/mux && go run .
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"sync"

	"github.com/xtaci/smux"

	"github.com/arqnet/kcp"
)

// settings returns the settings of smux: version 2 of its protocol, whose
// streams have flow control of their own. KCP detects a lost peer itself, so
// smux needs no keep-alive.
func settings() *smux.Config {
	s := smux.DefaultConfig()
	s.Version = 2
	s.KeepAliveDisabled = true
	return s
}

// serve sends back what each stream of each session receives, until l is
// closed.
func serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			session, err := smux.Server(conn, settings())
			if err != nil {
				log.Print(err)
				return
			}
			defer session.Close()
			for {
				stream, err := session.AcceptStream()
				if err != nil {
					return // the client has closed the session
				}
				go func() {
					defer stream.Close()
					_, _ = io.Copy(stream, stream) // until the client closes it
				}()
			}
		}()
	}
}

// ask sends a message over a stream of its own and returns the reply, which is as long: a
// stream of smux has neither boundaries nor a half close.
func ask(session *smux.Session, message []byte) ([]byte, error) {
	stream, err := session.OpenStream()
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	sent := make(chan error, 1)
	go func() {
		_, err := stream.Write(message)
		sent <- err
	}()
	reply := make([]byte, len(message))
	if _, err := io.ReadFull(stream, reply); err != nil {
		return nil, err
	}
	return reply, <-sent
}

func main() {
	l, err := kcp.Listen("udp", "127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go serve(l)

	conn, err := kcp.Dial("udp", l.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	session, err := smux.Client(conn, settings())
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	var streams sync.WaitGroup
	for i := range 10 {
		streams.Go(func() {
			question := bytes.Repeat([]byte{byte(i)}, 100_000)
			answer, err := ask(session, question)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Printf("stream %d: %d bytes sent, %d came back, equal: %v\n", i, len(question), len(answer), bytes.Equal(question, answer))
		})
	}
	streams.Wait()
}
