// Command streams is a game's traffic over one session, on a bad network: the
// state of the game sixty times a second, of which only the newest matters, a chat,
// and the download of an asset, each on a stream of its own.
//
//	go run ./examples/streams
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
)

// Each stream begins with one byte that says what it is for.
const (
	forState = 's' // from the server
	forChat  = 'c' // lines, which the server sends back
	forAsset = 'a' // from the server
)

// options say how what a stream is for is to be delivered.
var options = map[byte]*kcp.StreamOptions{
	forState: {Unordered: true, MaxLifetime: 100 * time.Millisecond, Priority: 2},
	forChat:  {Priority: 1},
	forAsset: nil,
}

// open opens a stream and says what it is for.
func open(conn *kcp.Conn, purpose byte) (*kcp.Stream, error) {
	s, err := conn.OpenStream(context.Background(), options[purpose])
	if err != nil {
		return nil, err
	}
	// It arrives: the streams that clients open have no lifetime.
	return s, s.WriteMessage([]byte{purpose}, nil)
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
		if err := s.WriteMessage(state, nil); err != nil {
			return err
		}
		time.Sleep(time.Second / 60)
	}
	return nil
}

// report is what a client has seen.
type report struct {
	states int           // that have arrived
	chat   time.Duration // the longest round trip of a line
	asset  []byte
}

// client uses all flows at once, and closes the session.
func client(conn *kcp.Conn) (r report, err error) {
	var flows sync.WaitGroup
	var failures [3]error
	flows.Go(func() { failures[0] = r.receiveState(conn) })
	flows.Go(func() { failures[1] = r.chatAWhile(conn) })
	flows.Go(func() { failures[2] = r.download(conn) })
	flows.Wait()
	if err := errors.Join(failures[:]...); err != nil {
		return r, err
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

func (r *report) download(conn *kcp.Conn) error {
	s, err := open(conn, forAsset)
	if err != nil {
		return err
	}
	defer s.Close()
	r.asset, err = io.ReadAll(s)
	return err
}

// endpoint opens an endpoint on n. close ends it.
func endpoint(n *netsim.Network, addr string) (e *kcp.Endpoint, close func(), err error) {
	pc, err := n.Listen(addr)
	if err != nil {
		return nil, nil, err
	}
	e, err = kcp.NewEndpoint(pc, nil)
	return e, func() { e.Close(); pc.Close() }, err
}

// play lets both ends meet on n.
func play(ctx context.Context, n *netsim.Network, asset []byte, ticks int) (r report, err error) {
	near, closeNear, err := endpoint(n, "10.0.0.1:4000")
	if err != nil {
		return r, err
	}
	defer closeNear()
	far, closeFar, err := endpoint(n, "10.0.0.2:4000")
	if err != nil {
		return r, err
	}
	defer closeFar()
	l, err := near.Listen()
	if err != nil {
		return r, err
	}
	served := make(chan error, 1)
	go func() {
		conn, err := l.AcceptKCP(ctx)
		if err == nil {
			err = server(conn, asset, ticks)
		}
		served <- err
	}()
	conn, err := far.Dial(ctx, near.LocalAddr(), nil)
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
	r, err := play(context.Background(), n, asset, 180)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d of 180 states arrived in time\n", r.states)
	fmt.Printf("chat: the longest round trip was %v\n", r.chat.Round(time.Millisecond))
	fmt.Printf("asset: %d bytes, whole: %v\n", len(r.asset), bytes.Equal(r.asset, asset))
}
