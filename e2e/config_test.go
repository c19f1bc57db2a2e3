package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// No socket is an error of the call.
func TestNoSocket(t *testing.T) {
	for _, pc := range []net.PacketConn{nil, (*net.UDPConn)(nil)} {
		_, err := kcp.NewEndpoint(pc, nil)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "the socket is nil")
	}
	_, err := kcp.TakeOver(context.Background(), nil, nil)
	l, listenErr := kcp.Listen("udp", "127.0.0.1:0", nil)
	require.NoError(t, listenErr)
	defer l.Close()
	errs := []error{err, l.HandOver(context.Background(), nil)}
	for _, err := range errs {
		if !errors.Is(err, errors.ErrUnsupported) {
			require.ErrorIs(t, err, syscall.EINVAL)
			require.ErrorContains(t, err, "the Unix socket is nil")
		}
	}
}

// openSockets is the sockets that are open. Those that Config.Control has seen
// are known on every system, and on Linux all descriptors of the process.
type openSockets struct {
	mu     sync.Mutex // guards seen
	seen   []syscall.RawConn
	before map[string]bool
}

// control is Config.Control.
func (o *openSockets) control(_, _ string, c syscall.RawConn) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = append(o.seen, c)
	return nil
}

// descriptors returns the sockets of the process on Linux, and nothing elsewhere.
func descriptors(t *testing.T) map[string]bool {
	t.Helper()
	if runtime.GOOS != "linux" {
		return nil
	}
	const dir = "/proc/self/fd/"
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	sockets := make(map[string]bool)
	for _, e := range entries {
		if to, err := os.Readlink(dir + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			sockets[to] = true
		}
	}
	return sockets
}

// requireNone checks that what was opened since before was set is closed.
func (o *openSockets) requireNone(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.seen {
		require.Error(t, c.Control(func(uintptr) {}), "an open socket")
	}
	for s := range descriptors(t) {
		require.True(t, o.before[s], "an open socket")
	}
}

// A call that fails leaves no socket open, whatever has failed.
func TestFailuresCloseTheirSockets(t *testing.T) {
	busy, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}) // never answers
	require.NoError(t, err)
	defer busy.Close()
	taken := busy.LocalAddr().String()
	server, err := kcp.Listen("udp4", "127.0.0.1:0", secured(kcp.Config{}))
	require.NoError(t, err)
	defer server.Endpoint().Close()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	refuse := func(string, string, syscall.RawConn) error { return os.ErrPermission }
	background := context.Background()
	for _, f := range []struct {
		name    string
		ctx     context.Context // of Dial; nil: Listen fails
		network string
		address string
		change  func(c *kcp.Config)
	}{
		{"Listen, no certificate", nil, "udp4", "127.0.0.1:0", func(c *kcp.Config) { c.TLS = &tls.Config{} }},
		{"Listen, no certificate, shards", nil, "udp4", "127.0.0.1:0", func(c *kcp.Config) { c.TLS, c.Shards = &tls.Config{}, 3 }},
		{"Listen, network", nil, "unix", "127.0.0.1:0", nil},
		{"Listen, address", nil, "udp4", "nonsense", nil},
		{"Listen, address in use", nil, "udp4", taken, nil},
		{"Listen, address in use, shards", nil, "udp4", taken, func(c *kcp.Config) { c.Shards = 2 }},
		{"Listen, second shard", nil, "udp4", "127.0.0.1:0", func(c *kcp.Config) {
			control, calls := c.Control, 0
			c.Shards, c.Control = 2, func(network, address string, raw syscall.RawConn) error {
				if calls++; calls == 2 || runtime.GOOS != "linux" { // there is only one
					return os.ErrPermission
				}
				return control(network, address, raw)
			}
		}},
		{"Dial, address", background, "udp4", "nonsense", nil},
		{"Dial, no answer", background, "udp4", taken, nil},
		{"Dial, context", ended, "udp4", taken, nil},
		{"Dial, Control", background, "udp4", taken, func(c *kcp.Config) { c.Control = refuse }},
		{"Dial, certificate", background, "udp4", server.Addr().String(), func(c *kcp.Config) {
			c.TLS, c.DialTimeout = &tls.Config{ServerName: "test"}, 10*time.Second
		}},
		{"Dial, TLS required", background, "udp4", server.Addr().String(), func(c *kcp.Config) { c.DialTimeout = 10 * time.Second }},
		{"Dial, field", background, "udp4", taken, func(c *kcp.Config) { c.Shards = -1 }},
		{"Listen, field", nil, "udp4", "127.0.0.1:0", func(c *kcp.Config) { c.Limits.Backlog = -1 }},
	} {
		t.Run(f.name, func(t *testing.T) {
			o := openSockets{before: descriptors(t)}
			config := &kcp.Config{Control: o.control, DialTimeout: 20 * time.Millisecond}
			if f.change != nil {
				f.change(config)
			}
			var err error
			if f.ctx == nil {
				_, err = kcp.Listen(f.network, f.address, config)
			} else {
				_, err = (&kcp.Dialer{Config: config}).DialContext(f.ctx, f.network, f.address)
			}
			require.Error(t, err)
			o.requireNone(t)
		})
	}
	for _, local := range []net.Addr{busy.LocalAddr(), &net.TCPAddr{}} {
		o := openSockets{before: descriptors(t)}
		_, err := (&kcp.Dialer{Config: &kcp.Config{Control: o.control}, LocalAddr: local}).DialContext(background, "udp4", "127.0.0.1:9")
		require.Error(t, err)
		o.requireNone(t)
	}
}

// SetMTU bounds what is sent, also of what was written before, and ends path MTU
// discovery. A black hole is found all the same.
func TestSetMTU(t *testing.T) {
	t.Parallel()
	long(t)
	inWorld(t, 2, path(0), func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MaxMTU: 9000}, nil)
		w.move(a, b, 1, 1<<20)
		require.Equal(t, 9000, a.Stats().PathMTU.MTU)
		data := content(2, 1<<20)
		send(t, a, data)
		time.Sleep(100 * time.Millisecond) // within the transfer
		tap := testenv.NewTap(w.net)
		require.NoError(t, a.SetMTU(700))
		receive(t, b, data)
		require.LessOrEqual(t, tap.Largest(2, 1), 700, "no probe, either")
		require.Equal(t, 700-session.DatagramHeader, a.MaxDatagramSize())
		require.NoError(t, a.SetMTU(1300))
		w.move(a, b, 4, 1<<20)
		require.Equal(t, 1300, tap.Largest(2, 1))
		w.net.SetLink("10.0.0.2", "10.0.0.1", path(1250))
		w.move(a, b, 5, 1<<20)
		time.Sleep(time.Second) // all was there before the verdict
		require.EqualValues(t, 1, a.Stats().PathMTU.BlackHoles)
		w.net.SetLink("10.0.0.2", "10.0.0.1", path(0))
		require.NoError(t, a.SetMTU(0))
		w.move(a, b, 6, 1<<20)
		require.Equal(t, 9000, a.Stats().PathMTU.MTU, "discovery goes on")
	})
}

// countingControl counts the calls of a controller.
type countingControl struct {
	congestion.Control
	acks atomic.Int32
}

func (c *countingControl) OnAck(s *congestion.State) {
	c.acks.Add(1)
	c.Control.OnAck(s)
}

// The controller that was set works at once, and again behind another path.
func TestSetCongestionControl(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		a, b, _, pc := w.movable(&kcp.Config{Cipher: testAEAD(t)})
		var made []*countingControl
		require.NoError(t, b.SetCongestionControl(func() congestion.Control {
			made = append(made, &countingControl{Control: congestion.NewCubic()})
			return made[len(made)-1]
		}))
		w.move(b, a, 1, 100_000)
		time.Sleep(time.Second) // until all is acknowledged
		require.Len(t, made, 1)
		require.Positive(t, made[0].acks.Load())
		require.NoError(t, pc.Rebind("10.0.0.3:6000"))
		w.move(a, b, 2, 100_000)
		w.move(b, a, 3, 100_000)
		time.Sleep(time.Second)
		require.Len(t, made, 2)
		old := made[1].acks.Load()
		require.Positive(t, old)
		require.NoError(t, b.SetCongestionControl(nil))
		w.move(b, a, 4, 100_000)
		require.Equal(t, old, made[1].acks.Load())
		require.Len(t, made, 2)
	})
}

// SetMessageMode concerns what is written from then on. Waiting data keeps its
// boundaries.
func TestSetMessageMode(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MessageMode: true, SendWindow: 1}, nil)
		w.say(a, "first") // fills the window, so the rest waits
		w.say(a, "second")
		require.NoError(t, a.SetMessageMode(false))
		w.say(a, "thi")
		w.say(a, "rd")
		require.ErrorIs(t, a.WriteMessage(nil, nil), errors.ErrUnsupported)
		require.NoError(t, a.SetMessageMode(true))
		require.NoError(t, a.WriteMessage([]byte("fourth"), nil))
		require.NoError(t, a.SetMessageMode(true)) // no change
		for _, want := range []string{"first", "second", "third", "fourth"} {
			readsMessage(t, b, []byte(want))
		}
	})
}
