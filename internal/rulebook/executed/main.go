// Executed runs an operation of a warm session, and writes which code it executes to
// GOCOVERDIR. TestBudgets builds it with coverage counters, runs each
// operation in a process of its own, and counts the files and functions of the module:
// they say how much code a reader has to follow.
//
// Time is virtual, so that no timer fires in the middle of an operation. The counters
// are cleared right before it. They are written when nothing goes on any more without
// time passing, so what the operation starts is in them. Both ends are in memory, and a
// gate holds packets back, so that only one end runs.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"io"
	"net"
	"os"
	"runtime/coverage"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/selfsigned"
)

var operations = map[string]func(){"write": write, "read": read, "dial": dial, "stream": stream}

func main() {
	testing.Init()
	flag.Parse()
	run := operations[flag.Arg(0)]
	any := func(string, string) (bool, error) { return true, nil }
	testing.Main(any, []testing.InternalTest{{Name: "operation", F: func(t *testing.T) {
		synctest.Test(t, func(*testing.T) {
			run()
			os.Exit(0) // its sessions are open
		})
	}}}, nil, nil)
}

// counted clears the counters, runs f to where nothing goes on without time passing, and
// writes them.
func counted(f func()) {
	synctest.Wait()
	must(coverage.ClearCounters())
	f()
	synctest.Wait()
	must(coverage.WriteMetaDir(os.Getenv("GOCOVERDIR")))
	must(coverage.WriteCountersDir(os.Getenv("GOCOVERDIR")))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func get[T any](v T, err error) T {
	must(err)
	return v
}

// write counts a Write. The gate stays closed, so that no answer comes.
func write() {
	s := newSessions(nil)
	counted(func() {
		s.toServer.close()
		get(s.client.Write([]byte{1}))
	})
}

// read counts what a packet causes that has data and acknowledges data, from its
// arrival to the return of Read.
func read() {
	s := newSessions(nil)
	s.toServer.close()
	s.toClient.close()
	get(s.client.Write([]byte{1}))
	s.toServer.open()
	get(io.ReadFull(s.server, make([]byte, 1)))
	get(s.server.Write([]byte{2}))
	// The packet has left, with the ACK of the client's byte.
	done := make(chan struct{})
	go func() {
		get(io.ReadFull(s.client, make([]byte, 1)))
		close(done)
	}()
	synctest.Wait() // until Read waits
	counted(func() {
		s.toServer.close()
		s.toClient.open()
		<-done
	})
}

// dial counts a Dial with TLS, at both ends, to its return and Accept's.
func dial() {
	certificate, roots, err := selfsigned.New("server")
	must(err)
	config := &tls.Config{Certificates: []tls.Certificate{*certificate}, RootCAs: roots, ServerName: "server"}
	counted(func() { newEnds(&kcp.Config{TLS: config}) })
}

// stream counts a Write to a stream that is open at both ends.
func stream() {
	s := newSessions(nil)
	st := get(s.client.OpenStream(context.Background(), nil))
	accepted := make(chan *kcp.Stream)
	go func() { accepted <- get(s.server.AcceptStream(context.Background())) }()
	get(st.Write([]byte{1}))
	other := <-accepted
	for range 3 {
		get(st.Write([]byte{1}))
		get(io.ReadFull(other, make([]byte, 1)))
		get(other.Write([]byte{1}))
		get(io.ReadFull(st, make([]byte, 1)))
	}
	s.settle()
	counted(func() {
		s.toServer.close()
		get(st.Write([]byte{1}))
	})
}

// sessions is a session with both its ends, and the ways between them.
type sessions struct {
	client, server     *kcp.Conn
	toServer, toClient *gate
}

// newEnds returns a session that was dialled and accepted just now.
func newEnds(config *kcp.Config) *sessions {
	a, b := newPair()
	listening := get(kcp.NewEndpoint(b, config))
	dialling := get(kcp.NewEndpoint(a, config))
	listener := get(listening.Listen())
	accepted := make(chan *kcp.Conn)
	go func() { accepted <- get(listener.AcceptKCP(context.Background())) }()
	client := get(dialling.Dial(context.Background(), b.LocalAddr(), nil))
	return &sessions{client: client, server: <-accepted, toServer: &b.in, toClient: &a.in}
}

// newSessions returns a session that has exchanged data and is quiet.
func newSessions(config *kcp.Config) *sessions {
	s := newEnds(config)
	for range 3 {
		get(s.client.Write([]byte{1}))
		get(io.ReadFull(s.server, make([]byte, 1)))
		get(s.server.Write([]byte{1}))
		get(io.ReadFull(s.client, make([]byte, 1)))
	}
	s.settle()
	return s
}

// settle waits until both ends are quiet: nothing is in flight, and spare memory
// is released after a second.
func (s *sessions) settle() { time.Sleep(3 * time.Second) }

// end is a packet socket in memory.
type end struct {
	net.PacketConn // nil; its methods are not called
	name           address
	peer           *end
	in             gate
}

// address is the address of an end.
type address string

func (a address) Network() string { return "memory" }
func (a address) String() string  { return string(a) }

// newPair returns two ends that send to each other.
func newPair() (a, b *end) {
	a, b = &end{name: "client"}, &end{name: "server"}
	a.peer, b.peer = b, a
	a.in.init()
	b.in.init()
	return a, b
}

func (e *end) LocalAddr() net.Addr              { return e.name }
func (e *end) SetDeadline(time.Time) error      { return nil }
func (e *end) SetReadDeadline(time.Time) error  { return nil }
func (e *end) SetWriteDeadline(time.Time) error { return nil }
func (e *end) Close() error                     { return nil }

func (e *end) WriteTo(b []byte, _ net.Addr) (int, error) {
	e.peer.in.put(append([]byte(nil), b...))
	return len(b), nil
}

func (e *end) ReadFrom(b []byte) (int, net.Addr, error) {
	return copy(b, e.in.take()), e.peer.name, nil
}

// gate is a queue of packets. While it is closed, it gives none.
type gate struct {
	mu      sync.Mutex
	changed sync.Cond
	closed  bool
	packets [][]byte
}

func (g *gate) init() { g.changed.L = &g.mu }

func (g *gate) put(p []byte) { g.change(func() { g.packets = append(g.packets, p) }) }
func (g *gate) close()       { g.change(func() { g.closed = true }) }
func (g *gate) open()        { g.change(func() { g.closed = false }) }

func (g *gate) change(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	g.changed.Broadcast()
}

func (g *gate) take() []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.closed || len(g.packets) == 0 {
		g.changed.Wait()
	}
	p := g.packets[0]
	g.packets = g.packets[1:]
	return p
}
