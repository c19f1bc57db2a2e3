// Executed runs an operation of a quiet session, and writes which code it executes to
// GOCOVERDIR: as much as a reader has to follow. TestBudgets builds it with coverage
// counters, and runs each operation in a process of its own.
//
// Time is virtual, and packets are on their way for it: no timer fires in the middle of an
// operation, and only one end runs.
package main

import (
	"crypto/tls"
	"flag"
	"io"
	"os"
	"runtime/coverage"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/identity"
	"github.com/arqnet/kcp/netsim"
)

func main() {
	testing.Init()
	flag.Parse()
	run := map[string]func(*testing.T){"write": write, "read": read, "dial": dial, "stream": stream}[flag.Arg(0)]
	all := func(string, string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: "operation", F: func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			run(t)
			os.Exit(0) // its sessions are open
		})
	}}}, nil, nil)
}

// counted clears the counters, runs f to where nothing goes on without time passing, and
// writes them.
func counted(t *testing.T, f func()) {
	synctest.Wait()
	require.NoError(t, coverage.ClearCounters())
	f()
	synctest.Wait()
	require.NoError(t, coverage.WriteMetaDir(os.Getenv("GOCOVERDIR")))
	require.NoError(t, coverage.WriteCountersDir(os.Getenv("GOCOVERDIR")))
}

// write counts a Write.
func write(t *testing.T) {
	client, _ := quiet(t)
	counted(t, func() { send(t, client) })
}

// read counts what a packet causes that has data and acknowledges data, from its
// arrival to the return of Read.
func read(t *testing.T) {
	client, server := quiet(t)
	send(t, client)
	receive(t, server)
	send(t, server) // with the ACK of the client's byte
	done := make(chan struct{})
	go func() {
		receive(t, client)
		close(done)
	}()
	time.Sleep(delay - time.Nanosecond)
	counted(t, func() { <-done })
}

// dial counts a Dial with TLS, at both ends, to its return and Accept's.
func dial(t *testing.T) {
	certificate, err := identity.New("server")
	require.NoError(t, err)
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: identity.Pool(certificate), ServerName: "server"}
	counted(t, func() { open(t, &kcp.Config{TLS: config}) })
}

// stream counts a Write to a stream that is open at both ends.
func stream(t *testing.T) {
	client, server := quiet(t)
	a, err := client.OpenStream(t.Context(), nil)
	require.NoError(t, err)
	send(t, a)
	b, err := server.AcceptStream(t.Context())
	require.NoError(t, err)
	receive(t, b)
	exchange(t, a, b)
	counted(t, func() { send(t, a) })
}

// delay is how long a packet is on its way.
const delay = 10 * time.Millisecond

// open returns the ends of a session that was dialled and accepted just now.
func open(t *testing.T, config *kcp.Config) (client, server *kcp.Conn) {
	network := netsim.NewNetwork(1, netsim.LinkConfig{Delay: delay})
	endpoint := func(addr string) *kcp.Endpoint {
		pc, err := network.Listen(addr)
		require.NoError(t, err)
		e, err := kcp.NewEndpoint(pc, config)
		require.NoError(t, err)
		return e
	}
	dialling, listening := endpoint("10.0.0.1:1"), endpoint("10.0.0.2:2")
	listener, err := listening.Listen()
	require.NoError(t, err)
	dialled := make(chan *kcp.Conn, 1)
	go func() {
		c, err := dialling.Dial(t.Context(), listening.LocalAddr(), nil)
		require.NoError(t, err)
		dialled <- c
	}()
	server, err = listener.AcceptKCP(t.Context())
	require.NoError(t, err)
	return <-dialled, server
}

// quiet returns the ends of a session that has exchanged data.
func quiet(t *testing.T) (client, server *kcp.Conn) {
	client, server = open(t, nil)
	exchange(t, client, server)
	return client, server
}

// exchange sends a byte each way some times. At its end nothing is in flight, and spare
// memory is released.
func exchange(t *testing.T, client, server io.ReadWriter) {
	for range 3 {
		send(t, client)
		receive(t, server)
		send(t, server)
		receive(t, client)
	}
	time.Sleep(3 * time.Second)
}

func send(t *testing.T, w io.Writer) {
	_, err := w.Write([]byte{1})
	require.NoError(t, err)
}

func receive(t *testing.T, r io.Reader) {
	_, err := io.ReadFull(r, make([]byte, 1))
	require.NoError(t, err)
}
