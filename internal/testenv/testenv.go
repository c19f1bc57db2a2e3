// Package testenv is what tests of this module share that uses no type of package
// kcp: the simulated world they run in, and what they send through it.
//
// Tests inside package kcp cannot import a package that imports kcp. So whatever
// handles sessions is in the test files of each package.
package testenv

import (
	"bytes"
	"fmt"
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

	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Repeated reports whether these tests repeat, for the race detector or for ints
// of 32 bits, what runs in full elsewhere, while time is short.
func Repeated() bool {
	return testing.Short() && (RaceEnabled || strconv.IntSize == 32)
}

// Fewer returns how many of n cases a test has: all, a quarter with -short, or a
// sixteenth if the tests are repeated.
func Fewer(n uint64) uint64 {
	switch {
	case Repeated():
		return (n + 15) / 16
	case testing.Short():
		return (n + 3) / 4
	}
	return n
}

// Long skips a test that takes seconds if tests are repeated. Shorter ones take
// the same paths.
func Long(t *testing.T) {
	t.Helper()
	if Repeated() {
		t.Skip("runs in full elsewhere")
	}
}

// InFull reports whether KCP_LONG asks for what takes long. Without it a test has what
// takes a second.
func InFull() bool { return os.Getenv("KCP_LONG") != "" }

// Simulated skips a test that has no sockets of the system when these are tried
// without something that makes them fast, as that changes nothing for it.
func Simulated(t *testing.T) {
	t.Helper()
	for _, name := range []string{"KCP_DISABLE_GSO", "KCP_DISABLE_GRO", "KCP_DISABLE_MMSG"} {
		if os.Getenv(name) != "" {
			t.Skipf("%s is set, and no sockets of the system are used", name)
		}
	}
}

// Sequential skips a test without goroutines, or of the heap, if the race
// detector is on and time is short. The detector finds nothing there, and takes
// ten times as long.
func Sequential(t *testing.T) {
	t.Helper()
	if RaceEnabled && testing.Short() {
		t.Skip("nothing for the race detector")
	}
}

// OfSources skips a test that looks at the sources, not at what they do, unless
// they are compiled in the usual way.
func OfSources(t *testing.T) {
	t.Helper()
	if Repeated() {
		t.Skip("the sources are the same")
	}
}

// Alone reports whether a test that counts memory or goroutines has the process
// to itself. If not, it runs the test in a process of its own: sessions of earlier
// tests that are in TIME-WAIT would free theirs in the middle of it.
func Alone(t *testing.T) bool {
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

// MemoryInUse returns the bytes of heap and stacks in use.
func MemoryInUse() int64 {
	runtime.GC()
	runtime.GC() // pools forget at the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// InWorld runs f in a bubble, with a simulated network. KCP_SEED replaces the
// seed, so that a failure can be repeated, unless KCP_LIVES is set. leads reports
// whether calls may read the sockets: that is so with odd seeds.
func InWorld(t *testing.T, seed uint64, link netsim.LinkConfig, f func(t *testing.T, network *netsim.Network, leads bool)) {
	t.Helper()
	Simulated(t)
	if s := os.Getenv("KCP_SEED"); s != "" && os.Getenv("KCP_LIVES") == "" {
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
		defer LimitTime(t)()
		f(t, netsim.NewNetwork(seed, link), seed%2 == 1)
	})
}

// LimitTime ends the process when a test has waited for 50 days of virtual time.
// As keep-alives go on, a call that waits forever would have virtual time, and
// the test, go on forever. The caller calls stop when the test ends.
func LimitTime(t *testing.T) (stop func() bool) {
	name := t.Name()
	return time.AfterFunc(50*24*time.Hour, func() {
		debug.SetTraceback("all")
		panic(name + ": still waiting after 50 days of virtual time")
	}).Stop
}

// RandomLink returns a link of which a delay below the given one, loss, and all
// else are drawn.
func RandomLink(random *rand.Rand, delay time.Duration, loss float64) netsim.LinkConfig {
	return netsim.LinkConfig{
		Delay:     time.Duration(random.IntN(int(delay/time.Millisecond))) * time.Millisecond,
		Jitter:    time.Duration(1+random.IntN(50)) * time.Millisecond,
		Loss:      random.Float64() * loss,
		Duplicate: random.Float64() * 0.1,
		Reorder:   random.Float64() * 0.3,
	}
}

// Content returns n bytes that depend on the seed.
func Content(seed uint64, n int) []byte {
	b := make([]byte, n)
	c := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	_, _ = c.Read(b)
	return b
}

// Send writes data from another goroutine, in pieces of odd sizes.
func Send(t testing.TB, c io.Writer, data []byte) {
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

// Compare reads as many bytes as want has, and returns an error unless they are the same.
func Compare(r io.Reader, want []byte) error {
	got := make([]byte, len(want))
	n, err := io.ReadFull(r, got)
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("content differs: %x, want %x", Sum(got), Sum(want))
	}
	if err != nil {
		return fmt.Errorf("after %d of %d bytes: %w", n, len(want), err)
	}
	return nil
}

// Receive is Compare, and fails the test.
func Receive(t testing.TB, c io.Reader, want []byte) {
	t.Helper()
	require.NoError(t, Compare(c, want))
}

// BothWays sends up from a to b and down from b to a at once.
func BothWays(t *testing.T, a, b io.ReadWriter, up, down []byte) {
	t.Helper()
	Send(t, a, up)
	Send(t, b, down)
	done := make(chan struct{})
	go func() {
		defer close(done)
		Receive(t, b, up)
	}()
	Receive(t, a, down)
	<-done
}

func Sum(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b)
	return h.Sum64()
}

// RequireTimeout checks that err is a timeout as net.Conn describes it.
func RequireTimeout(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	var ne net.Error
	require.ErrorAs(t, err, &ne)
	require.True(t, ne.Timeout())
	var oe *net.OpError
	require.ErrorAs(t, err, &oe)
}

// Lossy is a link that loses, duplicates and reorders packets.
func Lossy() netsim.LinkConfig {
	return netsim.LinkConfig{
		Delay: 20 * time.Millisecond, Jitter: 20 * time.Millisecond,
		Loss: 0.2, Duplicate: 0.02, Reorder: 0.1,
	}
}

// Clean is a link on which nothing is lost.
func Clean() netsim.LinkConfig { return netsim.LinkConfig{Delay: 10 * time.Millisecond} }

// Leadable is a simulated socket that calls may read.
type Leadable struct {
	*netsim.PacketConn
	udp.Interruptible
}

// WriteAll writes data.
func WriteAll(t *testing.T, c io.Writer, data []byte) {
	t.Helper()
	_, err := c.Write(data)
	require.NoError(t, err)
}
