package kcp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"time"

	"github.com/arqnet/kcp"
)

// readers returns a server's sessions with n clients, and the clients.
func readers(n int, config *kcp.Config) (l *kcp.Listener, server, clients []*kcp.Conn) {
	l, err := kcp.Listen("udp", "127.0.0.1:0", config)
	if err != nil {
		log.Fatal(err)
	}
	for range n {
		c, err := kcp.Dial("udp", l.Addr().String(), config)
		if err != nil {
			log.Fatal(err)
		}
		s, err := l.AcceptKCP(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		server, clients = append(server, s), append(clients, c)
	}
	return l, server, clients
}

// A broadcast to readers of which one is slow: it misses messages, and holds up
// nobody. No session needs a goroutine for that.
func ExampleConn_TryWriteMessage() {
	config := &kcp.Config{MessageMode: true, WriteBuffer: 16 << 10, ReceiveWindow: 128}
	l, server, clients := readers(3, config)
	defer l.Endpoint().Close()
	got := make(chan int)
	for _, c := range clients[1:] { // the first does not read
		go func() {
			n := 0
			for buf := make([]byte, 1000); n < 500; n++ {
				if _, err := c.ReadMessage(buf); err != nil {
					break
				}
			}
			got <- n
		}()
	}
	missed := 0
	for range 500 {
		message := make([]byte, 1000)
		for i, s := range server {
			err := s.TryWriteMessage(message)
			for i > 0 && errors.Is(err, kcp.ErrWouldBlock) { // these must have all
				<-s.WriteReady()
				err = s.TryWriteMessage(message)
			}
			if errors.Is(err, kcp.ErrWouldBlock) {
				missed++
			} else if err != nil {
				log.Fatal(err)
			}
		}
	}
	fmt.Println(<-got, <-got, missed > 0)
	// Output: 500 500 true
}

// A server with a hundred clients that ends: what was written is delivered, and
// all of them see the end.
func ExampleListener_Shutdown() {
	l, server, clients := readers(100, nil)
	for _, s := range server {
		fmt.Fprint(s, "good night")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println(l.Shutdown(ctx))
	words := 0
	for _, c := range clients {
		if word, err := io.ReadAll(c); err == nil && string(word) == "good night" {
			words++
		}
	}
	fmt.Println(words)
	// Output:
	// <nil>
	// 100
}

// Flush waits until the other endpoint has what was written.
func ExampleConn_Flush() {
	l, _, clients := readers(1, nil)
	defer l.Endpoint().Close()
	c := clients[0]
	fmt.Fprint(c, "remember this")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := c.Flush(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.Stats().BytesAcked, "bytes delivered")
	// Output: 13 bytes delivered
}

// The scoreboard of a server has the round-trip times of its players, even if
// those send nothing but datagrams.
func ExampleEndpoint_Sessions() {
	l, server, clients := readers(2, nil)
	defer l.Endpoint().Close()
	for i := range server {
		for _, c := range []*kcp.Conn{server[i], clients[i]} {
			if err := c.SendDatagram([]byte("position")); err != nil {
				log.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := server[i].Ping(ctx); err != nil { // or wait for a round trip
			log.Fatal(err)
		}
	}
	for c := range l.Endpoint().Sessions() {
		s := c.Stats()
		fmt.Println(s.RTT > 0 && s.RTT < time.Second, s.RTTMin <= s.RTT || s.RTTMin > 0)
	}
	// Output:
	// true true
	// true true
}
