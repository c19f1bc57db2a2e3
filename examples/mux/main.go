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
	"encoding/binary"
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
				go echo(stream)
			}
		}()
	}
}

// echo sends back the messages of a stream.
func echo(stream *smux.Stream) {
	defer stream.Close()
	for {
		message, err := receive(stream)
		if err != nil {
			return // the client has closed the stream
		}
		if err := send(stream, message); err != nil {
			return
		}
	}
}

// send writes a message after its length in four bytes, since a stream of smux
// has neither boundaries nor a half close.
func send(w io.Writer, message []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(message))), message...))
	return err
}

const maxMessage = 1 << 20

// receive reads a message of up to maxMessage bytes.
func receive(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxMessage {
		return nil, fmt.Errorf("a message of %d bytes", n)
	}
	message := make([]byte, n)
	_, err := io.ReadFull(r, message)
	return message, err
}

// ask sends a message over a stream of its own and returns the reply.
func ask(session *smux.Session, message []byte) ([]byte, error) {
	stream, err := session.OpenStream()
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	if err := send(stream, message); err != nil {
		return nil, err
	}
	return receive(stream)
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
