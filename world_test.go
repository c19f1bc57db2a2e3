package kcp

import (
	"bytes"
	"context"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// world is a virtual network with endpoints of ours on it. It lives in a
// synctest bubble: all its time is virtual.
type world struct {
	t   *testing.T
	net *netsim.Network

	leads bool // calls may read the sockets, as they may those of the system
}

// leadable is a socket that calls may read.
type leadable struct{ *netsim.PacketConn }

func (leadable) interruptible() {}

// socket returns pc as an endpoint of w is to have it.
func (w *world) socket(pc *netsim.PacketConn) net.PacketConn {
	if w.leads {
		return leadable{pc}
	}
	return pc
}

const serverAddr = "10.0.0.1:4000"

// repeated reports whether these tests repeat, for the race detector or for ints
// of 32 bits, what runs in full elsewhere, while time is short.
func repeated() bool {
	return testing.Short() && (raceEnabled || strconv.IntSize == 32)
}

// fewer returns how many of n cases a test has: all, a quarter with -short, or a
// sixteenth if the tests are repeated.
func fewer(n uint64) uint64 {
	switch {
	case repeated():
		return (n + 15) / 16
	case testing.Short():
		return (n + 3) / 4
	}
	return n
}

// long skips a test that takes seconds if tests are repeated. Shorter ones take
// the same paths.
func long(t *testing.T) {
	t.Helper()
	if repeated() {
		t.Skip("runs in full elsewhere")
	}
}

// simulated skips a test that has no sockets of the system when these are tried
// without something that makes them fast, as that changes nothing for it.
func simulated(t *testing.T) {
	t.Helper()
	for _, name := range []string{"KCP_DISABLE_GSO", "KCP_DISABLE_GRO", "KCP_DISABLE_MMSG"} {
		if os.Getenv(name) != "" {
			t.Skipf("%s is set, and no sockets of the system are used", name)
		}
	}
}

// sequential skips a test without goroutines, or of the heap, if the race
// detector is on and time is short. The detector finds nothing there, and takes
// ten times as long.
func sequential(t *testing.T) {
	t.Helper()
	if raceEnabled && testing.Short() {
		t.Skip("nothing for the race detector")
	}
}

// ofSources skips a test that looks at the sources, not at what they do, unless
// they are compiled in the usual way.
func ofSources(t *testing.T) {
	t.Helper()
	if repeated() {
		t.Skip("the sources are the same")
	}
}

// alone reports whether a test that counts memory or goroutines has the process
// to itself. If not, it runs the test in a process of its own: sessions of earlier
// tests that are in TIME-WAIT would free theirs in the middle of it.
func alone(t *testing.T) bool {
	t.Helper()
	const variable = "KCP_TEST_ALONE"
	if os.Getenv(variable) != "" {
		return true
	}
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	test := exec.CommandContext(t.Context(), os.Args[0], args...)
	test.Env = append(os.Environ(), variable+"=1")
	out, err := test.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
	return false
}

// memoryInUse returns the bytes of heap and stacks in use.
func memoryInUse() int64 {
	runtime.GC()
	runtime.GC() // pools forget at the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// inWorld runs f in a bubble. The seed can be given back by KCP_SEED. In worlds
// of odd seeds calls may read the sockets.
func inWorld(t *testing.T, seed uint64, link netsim.LinkConfig, f func(w *world)) {
	t.Helper()
	simulated(t)
	if s := os.Getenv("KCP_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("repeat with KCP_SEED=%d", seed)
			}
		})
		defer limitTime(t)()
		f(&world{t: t, net: netsim.NewNetwork(seed, link), leads: seed%2 == 1})
	})
}

// limitTime ends the process when a test has waited for 50 days of virtual time.
// As keep-alives go on, a call that waits for ever would have virtual time, and
// the test, go on for ever. The caller calls stop when the test ends.
func limitTime(t *testing.T) (stop func() bool) {
	name := t.Name()
	return time.AfterFunc(50*24*time.Hour, func() {
		debug.SetTraceback("all")
		panic(name + ": still waiting after 50 days of virtual time")
	}).Stop
}

// randomLink returns a link of which a delay below the given one, loss, and all
// else are drawn.
func randomLink(random *rand.Rand, delay time.Duration, loss float64) netsim.LinkConfig {
	return netsim.LinkConfig{
		Delay:     time.Duration(random.IntN(int(delay/time.Millisecond))) * time.Millisecond,
		Jitter:    time.Duration(1+random.IntN(50)) * time.Millisecond,
		Loss:      random.Float64() * loss,
		Duplicate: random.Float64() * 0.1,
		Reorder:   random.Float64() * 0.3,
	}
}

// endpoint opens a socket at addr with an endpoint on it.
func (w *world) endpoint(addr string, config *Config) (*Endpoint, *netsim.PacketConn) {
	w.t.Helper()
	pc, err := w.net.Listen(addr)
	require.NoError(w.t, err)
	e, err := NewEndpoint(w.socket(pc), config)
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		_, _ = e.Close(), pc.Close() // a test may have closed them
	})
	return e, pc
}

// listen opens the server.
func (w *world) listen(config *Config) *Listener {
	w.t.Helper()
	l, _ := w.server(config)
	return l
}

// server is listen that returns the socket too. A server whose socket is closed
// has been killed: it says nothing to its peers.
func (w *world) server(config *Config) (*Listener, *netsim.PacketConn) {
	w.t.Helper()
	e, pc := w.endpoint(serverAddr, config)
	l, err := e.Listen()
	require.NoError(w.t, err)
	return l, pc
}

// dial opens a session from e to the server.
func (w *world) dial(e *Endpoint) *Conn {
	w.t.Helper()
	addr, err := net.ResolveUDPAddr("udp", serverAddr)
	require.NoError(w.t, err)
	c, err := e.Dial(context.Background(), addr)
	require.NoError(w.t, err)
	return c
}

// pair returns the two ends of a session over which one byte has gone.
func (w *world) pair(client, server *Config) (a, b *Conn, l *Listener) {
	w.t.Helper()
	l = w.listen(server)
	e, _ := w.endpoint("10.0.0.2:0", client)
	a = w.dial(e)
	_, err := a.Write([]byte{42})
	require.NoError(w.t, err)
	b, err = l.AcceptKCP(context.Background())
	require.NoError(w.t, err)
	first := make([]byte, 1)
	_, err = io.ReadFull(b, first)
	require.NoError(w.t, err)
	require.Equal(w.t, byte(42), first[0])
	return a, b, l
}

// movable returns the two ends of a session over which something has gone both
// ways. The client's address is that of the socket, and can change.
func (w *world) movable(config *Config) (a, b *Conn, l *Listener, pc *netsim.PacketConn) {
	w.t.Helper()
	l = w.listen(config)
	e, pc := w.endpoint("10.0.0.2:5000", config)
	a = w.dial(e)
	b = accepted(w.t, l)
	bothWays(w.t, a, b, []byte("here"), []byte("here"))
	return a, b, l, pc
}

func accepted(t *testing.T, l *Listener) *Conn {
	t.Helper()
	c, err := l.AcceptKCP(context.Background())
	require.NoError(t, err)
	return c
}

// settle lets the endpoints read all that has arrived. A socket that calls read
// may be without a reader for some time.
func (w *world) settle() {
	time.Sleep(3 * handoverGrace)
	synctest.Wait()
}

// content returns n bytes that depend on the seed.
func content(seed uint64, n int) []byte {
	b := make([]byte, n)
	c := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	_, _ = c.Read(b)
	return b
}

// send writes data from another goroutine, in pieces of odd sizes.
func send(t *testing.T, c io.Writer, data []byte) {
	go func() {
		for piece := 1; len(data) > 0; piece = piece*7%20011 + 1 {
			n, err := c.Write(data[:min(piece, len(data))])
			if err != nil {
				t.Errorf("write: %v", err)
				return
			}
			data = data[n:]
		}
	}()
}

// receive reads as many bytes as want has and compares them.
func receive(t *testing.T, c io.Reader, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	n, err := io.ReadFull(c, got)
	require.NoError(t, err, "after %d of %d bytes", n, len(want))
	require.True(t, bytes.Equal(got, want), "content differs: %x, want %x", sum(got), sum(want))
}

// bothWays sends up from a to b and down from b to a at once.
func bothWays(t *testing.T, a, b io.ReadWriter, up, down []byte) {
	t.Helper()
	send(t, a, up)
	send(t, b, down)
	done := make(chan struct{})
	go func() {
		defer close(done)
		receive(t, b, up)
	}()
	receive(t, a, down)
	<-done
}

func sum(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b)
	return h.Sum64()
}

// requireTimeout checks that err is a timeout as net.Conn describes it.
func requireTimeout(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	var ne net.Error
	require.ErrorAs(t, err, &ne)
	require.True(t, ne.Timeout())
	var oe *net.OpError
	require.ErrorAs(t, err, &oe)
}

var lossy = netsim.LinkConfig{
	Delay: 20 * time.Millisecond, Jitter: 20 * time.Millisecond,
	Loss: 0.2, Duplicate: 0.02, Reorder: 0.1,
}

var clean = netsim.LinkConfig{Delay: 10 * time.Millisecond}
