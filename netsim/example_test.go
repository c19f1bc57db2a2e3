package netsim_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"testing"
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

	conn, err := client.Dial(context.Background(), server.LocalAddr(), nil)
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

// Loss that comes in bursts of eight packets, on a slow line, and an outage.
func ExampleScript() {
	link := netsim.NewLink(netsim.LinkConfig{
		Delay:    20 * time.Millisecond,
		Burst:    netsim.BurstLoss(0.02, 8),
		Rate:     125_000, // 1 Mbit/s
		Overhead: netsim.OverheadIPv4,
		Queue:    32_000,
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
