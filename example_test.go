package kcp_test

import (
	"context"
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
		if err := player.WriteMessage([]byte(input)); err != nil {
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

// Messages arrive as they were sent, whole and one by one.
func ExampleConn_WriteMessage() {
	config := &kcp.Config{MessageMode: true}
	l, err := kcp.Listen("udp", "127.0.0.1:0", config)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	conn, err := kcp.Dial("udp", l.Addr().String(), config)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	for _, m := range []string{"move north", "", "fire"} {
		if err := conn.WriteMessage([]byte(m)); err != nil {
			log.Fatal(err)
		}
	}

	peer, err := l.AcceptKCP(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	defer peer.Close()
	buf := make([]byte, 1500)
	for range 3 {
		n, err := peer.ReadMessage(buf)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%q\n", buf[:n])
	}
	// Output:
	// "move north"
	// ""
	// "fire"
}

// Many sessions on one socket, dialled and accepted.
func ExampleNewEndpoint() {
	open := func() (*kcp.Endpoint, net.PacketConn) {
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			log.Fatal(err)
		}
		e, err := kcp.NewEndpoint(pc, nil)
		if err != nil {
			log.Fatal(err)
		}
		return e, pc
	}
	a, pcA := open()
	defer pcA.Close()
	defer a.Close()
	b, pcB := open()
	defer pcB.Close()
	defer b.Close()

	l, err := b.Listen()
	if err != nil {
		log.Fatal(err)
	}
	for i := range 3 {
		conn, err := a.Dial(context.Background(), b.LocalAddr())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Fprintf(conn, "session %d", i)
		peer, err := l.AcceptKCP(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		got := make([]byte, 9)
		if _, err := io.ReadFull(peer, got); err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(got))
	}
	// Output:
	// session 0
	// session 1
	// session 2
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

// Presets are values to start from.
func ExampleLowLatency() {
	config := kcp.LowLatency()
	config.PeerTimeout = 5 * time.Second
	fmt.Println(config.Validate())
	// Output: <nil>
}
