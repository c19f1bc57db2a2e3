package kcp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"time"

	"github.com/arqnet/kcp"
)

// An echo server and a client.
func Example() {
	l, err := kcp.Listen("udp", "127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()

	conn, err := kcp.Dial("udp", l.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "hello")
	if err := conn.CloseWrite(); err != nil {
		log.Fatal(err)
	}
	reply, err := io.ReadAll(conn) // until the server has closed, too
	fmt.Println(string(reply), err)
	// Output: hello <nil>
}

// Game traffic: input that must all arrive in messages, with small ones
// repeated in case they get lost, and positions, of which only the newest
// matters, in datagrams.
func ExampleConn_SendDatagram() {
	config := kcp.LowLatency()
	config.MessageMode = true
	config.Redundancy = 1
	config.PeerTimeout = 5 * time.Second
	l, err := kcp.Listen("udp", "127.0.0.1:0", &config)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	player, err := kcp.Dial("udp", l.Addr().String(), &config)
	if err != nil {
		log.Fatal(err)
	}
	defer player.Close()
	game, err := l.AcceptKCP(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	defer game.Close()

	for _, input := range []string{"jump", "fire"} {
		if err := player.WriteMessage([]byte(input), nil); err != nil {
			log.Fatal(err)
		}
	}
	buf := make([]byte, 1500)
	for range 2 {
		n, err := game.ReadMessage(buf)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("input %q\n", buf[:n])
	}

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := game.SendDatagram([]byte("you are at 3, 7")); err != nil {
		log.Fatal(err)
	}
	position, err := player.ReceiveDatagram(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", position)
	// Output:
	// input "jump"
	// input "fire"
	// you are at 3, 7
}

// The state machine alone: time and packets are arguments.
func ExampleNew() {
	var a, b *kcp.KCP
	var toA, toB [][]byte
	a = kcp.New(1, func(p []byte) { toB = append(toB, append([]byte{}, p...)) })
	b = kcp.New(1, func(p []byte) { toA = append(toA, append([]byte{}, p...)) })

	if _, err := a.Send([]byte("hello")); err != nil {
		log.Fatal(err)
	}
	buf := make([]byte, 1500)
	for now := uint32(0); now < 1000; now += 10 {
		a.Update(now)
		b.Update(now)
		for ; len(toB) > 0; toB = toB[1:] {
			if err := b.Input(toB[0]); err != nil {
				log.Fatal(err)
			}
		}
		for ; len(toA) > 0; toA = toA[1:] {
			if err := a.Input(toA[0]); err != nil {
				log.Fatal(err)
			}
		}
		if n, err := b.Recv(buf); err == nil {
			fmt.Printf("%s after %d ms\n", buf[:n], now)
		}
	}
	fmt.Println("unacknowledged:", a.WaitSend())
	// Output:
	// hello after 100 ms
	// unacknowledged: 0
}

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
	defer conn.(*kcp.Conn).Abort(0, "")
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
