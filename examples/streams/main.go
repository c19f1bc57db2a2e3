// Command streams is a game's traffic over one session, on a bad network: the
// state of the game sixty times a second, of which only the newest matters, a chat,
// calls with answers, and the download of an asset, each on a stream of its own.
//
//	go run ./examples/streams
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
)

// Each stream begins with one byte that says what it is for.
const (
	forState = 's' // from the server
	forChat  = 'c' // lines, which the server sends back
	forCall  = 'r' // a question and its answer
	forAsset = 'a' // from the server
)

// options say how what a stream is for is to be delivered.
var options = map[byte]*kcp.StreamOptions{
	forState: {Unordered: true, MaxLifetime: 100 * time.Millisecond, Priority: 2},
	forChat:  {Priority: 1},
	forCall:  {Priority: 1},
	forAsset: nil,
}

// open opens a stream and says what it is for.
func open(conn *kcp.Conn, purpose byte) (*kcp.Stream, error) {
	s, err := conn.OpenStream(context.Background(), options[purpose])
	if err != nil {
		return nil, err
	}
	// It arrives: the streams that clients open have no lifetime.
	return s, s.WriteMessage([]byte{purpose})
}

// server serves one session: it answers the client's streams, and sends it the
// state of the game until the session ends.
func server(conn *kcp.Conn, asset []byte, ticks int) error {
	defer conn.Close()
	go func() {
		if err := sendState(conn, ticks); err != nil {
			log.Print(err)
		}
	}()
	for {
		s, err := conn.AcceptStream(context.Background())
		if err != nil {
			return nil // the client has closed the session
		}
		go func() {
			defer s.Close()
			purpose := make([]byte, 1)
			if _, err := io.ReadFull(s, purpose); err != nil {
				return
			}
			switch purpose[0] {
			case forChat:
				io.Copy(s, s)
			case forCall:
				question, _ := io.ReadAll(s)
				fmt.Fprintf(s, "%d bytes", len(question))
			case forAsset:
				s.Write(asset)
			}
		}()
	}
}

// sendState sends the state of each tick. What is older than its lifetime does not
// leave any more.
func sendState(conn *kcp.Conn, ticks int) error {
	s, err := conn.OpenStream(context.Background(), options[forState])
	if err != nil {
		return err
	}
	defer s.Close()
	state := make([]byte, 100)
	for tick := range ticks {
		binary.LittleEndian.PutUint32(state, uint32(tick))
		if err := s.WriteMessage(state); err != nil {
			return err
		}
		time.Sleep(time.Second / 60)
	}
	return nil
}

// report is what a client has seen.
type report struct {
	states  int           // that have arrived
	chat    time.Duration // the longest round trip of a line
	answers []string
	asset   []byte
}

// client uses all flows at once, and closes the session.
func client(conn *kcp.Conn) (r report, err error) {
	var flows sync.WaitGroup
	var failures [4]error
	flows.Go(func() { failures[0] = r.receiveState(conn) })
	flows.Go(func() { failures[1] = r.chatAWhile(conn) })
	flows.Go(func() { failures[2] = r.call(conn) })
	flows.Go(func() { failures[3] = r.download(conn) })
	flows.Wait()
	for _, err := range failures {
		if err != nil {
			return r, err
		}
	}
	return r, conn.CloseWithError(0, "thanks")
}

// receiveState takes the stream that the server opens.
func (r *report) receiveState(conn *kcp.Conn) error {
	s, err := conn.AcceptStream(context.Background())
	if err != nil {
		return err
	}
	defer s.Close()
	state := make([]byte, 100)
	for {
		if _, err := s.ReadMessage(state); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		r.states++
	}
}

func (r *report) chatAWhile(conn *kcp.Conn) error {
	s, err := open(conn, forChat)
	if err != nil {
		return err
	}
	defer s.Close()
	for i := range 10 {
		line := fmt.Appendf(nil, "line %d\n", i)
		begin := time.Now()
		if _, err := s.Write(line); err != nil {
			return err
		}
		if _, err := io.ReadFull(s, make([]byte, len(line))); err != nil {
			return err
		}
		r.chat = max(r.chat, time.Since(begin))
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

// call has a stream for each question.
func (r *report) call(conn *kcp.Conn) error {
	for i := range 3 {
		s, err := open(conn, forCall)
		if err != nil {
			return err
		}
		if _, err := s.Write(make([]byte, 1000*(i+1))); err != nil {
			return err
		}
		if err := s.CloseWrite(); err != nil {
			return err
		}
		answer, err := io.ReadAll(s)
		if err != nil {
			return err
		}
		r.answers = append(r.answers, string(answer))
		if err := s.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (r *report) download(conn *kcp.Conn) error {
	s, err := open(conn, forAsset)
	if err != nil {
		return err
	}
	defer s.Close()
	r.asset, err = io.ReadAll(s)
	return err
}

// play lets both ends meet on n.
func play(n *netsim.Network, asset []byte, ticks int) (r report, err error) {
	near, err := n.Listen("10.0.0.1:4000")
	if err != nil {
		return r, err
	}
	defer near.Close()
	far, err := n.Listen("10.0.0.2:4000")
	if err != nil {
		return r, err
	}
	defer far.Close()
	se, err := kcp.NewEndpoint(near, nil)
	if err != nil {
		return r, err
	}
	defer se.Close()
	l, err := se.Listen()
	if err != nil {
		return r, err
	}
	served := make(chan error, 1)
	go func() {
		conn, err := l.AcceptKCP(context.Background())
		if err == nil {
			err = server(conn, asset, ticks)
		}
		served <- err
	}()
	ce, err := kcp.NewEndpoint(far, nil)
	if err != nil {
		return r, err
	}
	defer ce.Close()
	conn, err := ce.Dial(context.Background(), net.UDPAddrFromAddrPort(near.AddrPort()))
	if err != nil {
		return r, err
	}
	if r, err = client(conn); err != nil {
		return r, err
	}
	return r, <-served
}

func main() {
	loss := flag.Float64("loss", 0.05, "share of packets lost")
	flag.Parse()
	n := netsim.NewNetwork(1, netsim.LinkConfig{
		Delay: 40 * time.Millisecond, Loss: *loss, Rate: 2_500_000, Queue: 250_000,
	})
	asset := bytes.Repeat([]byte("asset "), 1_000_000)
	r, err := play(n, asset, 180)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d of 180 states arrived in time\n", r.states)
	fmt.Printf("chat: the longest round trip was %v\n", r.chat.Round(time.Millisecond))
	fmt.Printf("answers: %q\n", r.answers)
	fmt.Printf("asset: %d bytes, whole: %v\n", len(r.asset), bytes.Equal(r.asset, asset))
}
