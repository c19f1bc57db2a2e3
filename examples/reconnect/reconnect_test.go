package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/internal/lab"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

var serverAddr = net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.0.0.1:4000"))

// world is a server on a simulated network in virtual time.
type world struct {
	*testing.T
	net     *netsim.Network
	printed testenv.Records // by all servers
	kill    func()          // ends the server as a process that is killed
}

func inWorld(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		link := netsim.LinkConfig{Delay: 30 * time.Millisecond, Loss: 0.02, Rate: 100_000, Queue: 64 << 10}
		w := &world{T: t, net: netsim.NewNetwork(1, link)}
		w.serve()
		test(w)
		w.kill()
	})
}

// serve starts the server.
func (w *world) serve() {
	e, end := lab.Endpoint(w, w.net, serverAddr.String(), serverConfig)
	l, err := e.Listen()
	require.NoError(w, err)
	s := &server{log: log.New(&w.printed, "", 0), inboxes: make(map[string]*inbox)}
	var running sync.WaitGroup
	running.Go(func() { _ = s.run(w.Context(), l) })
	w.kill = func() { end(); running.Wait() }
}

// start starts a client on a host, which dials from a new socket each time.
func (w *world) start(id, host string) (c *client, ended chan error) {
	c = newClient(id, func(ctx context.Context) (*kcp.Conn, error) {
		e, end := lab.Endpoint(w, w.net, host+":0", clientConfig)
		conn, err := e.Dial(ctx, serverAddr, nil)
		if err != nil {
			end()
		}
		return conn, err
	}, log.New(w.Output(), host+": ", 0))
	ctx, cancel := context.WithCancel(w.Context())
	ended = make(chan error, 1)
	go func() { ended <- c.link.run(ctx) }()
	w.Cleanup(cancel)
	return c, ended
}

// numbered is what a server prints of n messages of a client.
func numbered(id string, n int) (lines []string) {
	for i := range n {
		lines = append(lines, fmt.Sprintf("%q: %q", id, fmt.Sprint("message ", i)))
	}
	return lines
}

// A client sends messages while the server is killed and comes back, and the network goes
// and comes back. The server has each message, in order, and once: but for what it has
// not acknowledged when it is killed.
func TestThroughRestartsAndOutages(t *testing.T) {
	inWorld(t, func(w *world) {
		const messages, restarts = 600, 8
		c, _ := w.start("ann", "10.0.0.2")
		go func() {
			for i := range messages {
				c.send(fmt.Sprint("message ", i))
				time.Sleep(time.Second)
			}
		}()
		r := rand.New(rand.NewPCG(1, 1))
		pause := func(d time.Duration) { time.Sleep(time.Duration(r.Int64N(int64(d)))) }
		for range restarts {
			pause(30 * time.Second)
			w.kill()
			pause(20 * time.Second)
			w.serve()
			pause(20 * time.Second)
			w.net.Cut("10.0.0.1", "10.0.0.2")
			pause(40 * time.Second)
			w.net.Heal("10.0.0.1", "10.0.0.2")
		}
		time.Sleep(messages * time.Second)
		require.NoError(w, c.flush(w.Context()))
		seen := make(map[string]bool)
		var once []string
		all := strings.Split(strings.TrimSpace(w.printed.String()), "\n")
		for _, line := range all {
			if !seen[line] {
				once = append(once, line)
			}
			seen[line] = true
		}
		require.Equal(w, numbered("ann", messages), once)
		require.LessOrEqual(w, len(all), messages+restarts)
	})
}

// A client that wakes notices in seconds that the server has forgotten it, and not only
// with the next keep-alive. A pause ends.
func TestWake(t *testing.T) {
	inWorld(t, func(w *world) {
		c, _ := w.start("ann", "10.0.0.2")
		current := func() *kcp.Conn {
			c.link.mu.Lock()
			defer c.link.mu.Unlock()
			return c.link.conn
		}
		time.Sleep(10 * time.Second)
		conn := current()
		c.link.wake(w.Context())
		require.Same(w, conn, current(), "it lives")
		w.net.Cut("10.0.0.1", "")
		c.link.wake(w.Context())
		require.Error(w, conn.Err(), "there is no answer")
		w.net.Heal("10.0.0.1", "")
		for range 10 {
			w.net.Cut("10.0.0.1", "")
			time.Sleep(10 * time.Minute) // the pauses have become long
			w.net.Heal("10.0.0.1", "")
			for end := time.Now().Add(12 * time.Second); current() == nil; time.Sleep(time.Second) {
				require.True(w, time.Now().Before(end), "a dial of 10 s, and no pause")
				c.link.wake(w.Context())
			}
		}
	})
}

// Of two clients with one id the second takes over, and the first does not dial again.
func TestTakenOver(t *testing.T) {
	inWorld(t, func(w *world) {
		first, ended := w.start("ann", "10.0.0.2")
		first.send("message 0")
		require.NoError(w, first.flush(w.Context()))
		second, _ := w.start("ann", "10.0.0.3")
		second.send("message 0")
		var closed *kcp.PeerCloseError
		require.ErrorAs(w, <-ended, &closed)
		require.EqualValues(w, codeTakenOver, closed.Code)
		require.NoError(w, second.flush(w.Context()))
		require.Equal(w, numbered("ann", 1)[0]+"\n", w.printed.String())
	})
}

// The program, over loopback.
func TestRun(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var served, talked testenv.Records
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, []string{"serve", "localhost:0"}, nil, &served) }()
	addr := served.Find(t, `serving on (.*)`)
	require.NoError(t, run(t.Context(), []string{"talk", addr}, strings.NewReader("one\ntwo\n"), &talked))
	require.Regexp(t, `: "one"\n.*: "two"\n`, served.String())
	stop()
	err := <-ended
	require.True(t, errors.Is(err, context.Canceled), err)
}
