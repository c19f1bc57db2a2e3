package kcp_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
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

// A client that begins before its server does tries again. DialContext fits into
// http.Transport and the like.
func ExampleDialer() {
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer socket.Close()
	server, err := kcp.NewEndpoint(socket, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()

	d := kcp.Dialer{Config: &kcp.Config{DialTimeout: 5 * time.Second}}
	_, err = d.DialContext(context.Background(), "udp", socket.LocalAddr().String())
	fmt.Println("refused:", errors.Is(err, kcp.ErrRefused))

	if _, err := server.Listen(); err != nil { // now it accepts
		log.Fatal(err)
	}
	conn, err := d.DialContext(context.Background(), "udp", socket.LocalAddr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.(*kcp.Conn).Abort()
	fmt.Println("open:", conn.RemoteAddr().String() == socket.LocalAddr().String())
	// Output:
	// refused: true
	// open: true
}

// The reason with which the other end has closed the session.
func ExamplePeerCloseError() {
	l, server, clients := readers(1, nil)
	defer l.Endpoint().Close()
	go server[0].CloseWithError(42, "the round is over")
	_, err := clients[0].Read(make([]byte, 100))
	var closed *kcp.PeerCloseError
	if errors.As(err, &closed) {
		fmt.Println(closed.Code, closed.Text)
	}
	// Output: 42 the round is over
}

// A key that both ends have, and error correction. Random bytes are the best key.
func ExampleConfig() {
	key := make([]byte, 32)
	rand.Read(key)
	cipher, err := crypt.AESGCM(key)
	if err != nil {
		log.Fatal(err)
	}
	config := kcp.Config{Cipher: cipher, FEC: kcp.FEC{Data: 10, Parity: 3}, MTU: 20}
	var bad *kcp.ConfigError
	if errors.As(config.Validate(), &bad) {
		fmt.Println(bad.Field, bad.Reason)
	}
	config.MTU = 0 // the default
	fmt.Println(config.Validate())
	// Output:
	// MTU must be in [50, 65507], or 0 for the default
	// <nil>
}
