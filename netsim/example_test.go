package netsim_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// serve is the application under test: it sends back what it receives.
func serve(e *kcp.Endpoint) {
	l, err := e.Listen()
	if err != nil {
		log.Fatal(err)
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			io.Copy(conn, conn)
			conn.Close()
		}()
	}
}

// converse checks that size bytes come back as they were sent. The session stays open:
// the calls of serve still wait when the endpoints are closed.
func converse(t *testing.T, e *kcp.Endpoint, server net.Addr, size int) {
	conn, err := e.Dial(context.Background(), server)
	require.NoError(t, err)
	sent := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	go conn.Write(sent)
	got := make([]byte, len(sent))
	_, err = io.ReadFull(conn, got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
}

// The test of the package documentation: with an outage of three seconds from
// soon after the handshake, and what that means for the time it takes.
func TestEcho(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := netsim.NewNetwork(1, netsim.LinkConfig{Delay: 40 * time.Millisecond, Loss: 0.1})
		require.NoError(t, network.Play("", "", netsim.Outage(200*time.Millisecond, 3*time.Second)))
		config := &kcp.Config{Repetition: kcp.NewRepetition(1)}
		pc, err := network.Listen("10.0.0.1:4000")
		require.NoError(t, err)
		server, err := kcp.NewEndpoint(pc, config)
		require.NoError(t, err)
		defer server.Close()
		go serve(server)
		pc, err = network.Listen("10.0.0.2:0")
		require.NoError(t, err)
		client, err := kcp.NewEndpoint(pc, config)
		require.NoError(t, err)
		defer client.Close()
		converse(t, client, server.LocalAddr(), 1<<18)
		require.Greater(t, network.Elapsed(), 3200*time.Millisecond)
		require.NotZero(t, network.Stats().Lost)
	})
}

// A session over a virtual network, here in real time. In a test it would run in
// virtual time: see the package documentation.
func Example() {
	network := netsim.NewNetwork(1, netsim.LinkConfig{Delay: 5 * time.Millisecond, Loss: 0.1})
	open := func(addr string) *kcp.Endpoint {
		pc, err := network.Listen(addr)
		if err != nil {
			log.Fatal(err)
		}
		e, err := kcp.NewEndpoint(pc, nil)
		if err != nil {
			log.Fatal(err)
		}
		return e
	}
	server, client := open("10.0.0.1:4000"), open("10.0.0.2:0")
	defer server.Close()
	defer client.Close()
	go serve(server)

	conn, err := client.Dial(context.Background(), server.LocalAddr())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprint(conn, "through thick and thin")
	reply := make([]byte, 22)
	if _, err := io.ReadFull(conn, reply); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, from %v\n", reply, conn.RemoteAddr())
	// Output: through thick and thin, from 10.0.0.1:4000
}

// Loss that comes in bursts of eight packets, on a slow line with a managed
// queue, and an outage.
func ExampleScript() {
	link := netsim.NewLink(netsim.LinkConfig{
		Delay:    20 * time.Millisecond,
		Burst:    netsim.BurstLoss(0.02, 8),
		Rate:     125_000, // 1 Mbit/s
		Overhead: netsim.OverheadIPv4,
		CoDel:    netsim.CoDel{Enabled: true},
	}, 1)
	if err := link.Play(netsim.Outage(5*time.Second, time.Second)); err != nil {
		log.Fatal(err)
	}
	arrived := 0
	for now := time.Duration(0); now < 10*time.Second; now += 10 * time.Millisecond {
		arrived += len(link.Send(now, make([]byte, 1000)))
	}
	fmt.Println(arrived, "of 1000 have arrived,", link.Stats().Lost.Packets, "were lost")
	// Output: 876 of 1000 have arrived, 124 were lost
}

func TestProfilesAreValid(t *testing.T) {
	names := make(map[string]bool)
	for _, p := range netsim.Profiles() {
		require.NoError(t, p.Up.Validate(), p.Name)
		require.NoError(t, p.Down.Validate(), p.Name)
		require.NotEmpty(t, p.Source)
		require.False(t, names[p.Name])
		names[p.Name] = true
	}
}
