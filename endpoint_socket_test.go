package kcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wakeup"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stubborn is a socket whose reads cannot be interrupted.
type stubborn struct {
	*netsim.PacketConn
	answer error // of SetReadDeadline
}

func (s stubborn) SetReadDeadline(time.Time) error { return s.answer }

// Close does not wait for ever for a read that does not end. The reader ends with
// its read, and drops what it has read.
func TestCloseOfStubbornSocket(t *testing.T) {
	for _, answer := range []error{nil, errors.ErrUnsupported} {
		inWorld(t, 2, clean, func(t *testing.T, w *world) {
			l, pc := w.serverOn(nil, func(pc *netsim.PacketConn) net.PacketConn { return stubborn{pc, answer} })
			server := l.Endpoint()
			e, _ := w.endpoint("10.0.0.2:0", nil)
			a := w.dial(e)
			b := accepted(t, l)
			w.say(a, "hello")
			w.hear(b, "hello")
			time.Sleep(time.Second) // nothing is on its way that would end the read
			start := time.Now()
			require.ErrorIs(t, server.Close(), errReadPending)
			require.Equal(t, closeWait, time.Since(start))
			require.ErrorIs(t, server.Close(), net.ErrClosed)
			received := server.Stats().PacketsReceived
			w.net.Inject(e.LocalAddr().(*net.UDPAddr).AddrPort(), pc.AddrPort(), []byte("for the owner of the socket"))
			server.socket.readers.Wait()
			require.Equal(t, received, server.Stats().PacketsReceived)
			require.Zero(t, pc.Unread())
		})
	}
}

// gated is a socket whose writes wait for the gate, unless it is nil, to be closed.
type gated struct {
	*netsim.PacketConn
	gate atomic.Pointer[chan struct{}]
}

func (g *gated) WriteToAddrPort(b []byte, to netip.AddrPort) (int, error) {
	if gate := g.gate.Load(); gate != nil {
		<-*gate
	}
	return g.PacketConn.WriteToAddrPort(b, to)
}

// A goroutine is writing for a session while its endpoint closes, or the session is
// aborted. Its peer gets the reset all the same. No call waits longer than a second for a
// write that does not end. Err tells the error that calls return meanwhile.
func TestCloseWaitsForWrites(t *testing.T) {
	for name, close := range map[string]func(b *Conn) error{
		"endpoint": func(b *Conn) error { return b.Endpoint().Close() },
		"abort":    func(c *Conn) error { return c.Abort(0, "") },
		"reason":   func(b *Conn) error { return b.Abort(7, "why") },
	} {
		t.Run(name, func(t *testing.T) { closeWaitsForWrites(t, close, name == "reason") })
	}
}

func closeWaitsForWrites(t *testing.T, end func(b *Conn) error, reason bool) {
	for _, ends := range []bool{true, false} {
		inWorld(t, 2, clean, func(t *testing.T, w *world) {
			var socket *gated
			l, _ := w.serverOn(nil, func(pc *netsim.PacketConn) net.PacketConn {
				socket = &gated{PacketConn: pc}
				return socket
			})
			e, _ := w.endpoint("10.0.0.2:0", nil)
			a := w.dial(e)
			b := accepted(t, l)
			w.say(a, "hello")
			w.hear(b, "hello")
			w.settle()
			gate, start := make(chan struct{}), time.Now()
			socket.gate.Store(&gate)
			go func() { _, _ = b.Write([]byte("x")) }()
			synctest.Wait()
			if ends {
				time.AfterFunc(closeWait/2, func() { close(gate) })
			} else {
				defer close(gate)
			}
			require.NoError(t, b.Err())
			failed := make(chan error, 1)
			go func() {
				_, err := b.Read(make([]byte, 1))
				require.Error(t, err)
				failed <- b.Err()
			}()
			synctest.Wait()
			require.NoError(t, end(b))
			if !ends {
				require.Equal(t, closeWait, time.Since(start))
				require.ErrorIs(t, b.Err(), net.ErrClosed)
				return
			}
			require.Equal(t, closeWait/2, time.Since(start))
			require.ErrorIs(t, <-failed, net.ErrClosed)
			_, err := io.Copy(io.Discard, a)
			if closed := new(PeerCloseError); reason {
				require.ErrorAs(t, err, &closed)
				require.Equal(t, "why", closed.Text)
			} else {
				require.ErrorIs(t, err, ErrReset)
			}
		})
	}
}

// meddled is a socket whose owner undoes the next deadlines in the past.
type meddled struct {
	leadable
	undo *atomic.Int32
}

func (m meddled) SetReadDeadline(t time.Time) error {
	if !t.IsZero() && !t.After(time.Now()) && m.undo.Add(-1) >= 0 {
		t = time.Time{}
	}
	return m.leadable.SetReadDeadline(t)
}

// Whatever ends a call that waits ends one that reads the socket too, and at once, or soon
// if the socket's owner sets deadlines of its own. So do Close of the session and of the
// endpoint return.
func TestForeignDeadlines(t *testing.T) {
	const undone = 5
	late := (1<<undone - 1) * wakeup.Soon // the sum of the waits
	for name, test := range map[string]struct {
		end  func(b *Conn) error
		want error
	}{
		"deadline": {func(b *Conn) error { return b.SetReadDeadline(time.Now()) }, os.ErrDeadlineExceeded},
		"close":    {(*Conn).Close, net.ErrClosed},
		"abort":    {func(c *Conn) error { return c.Abort(0, "") }, net.ErrClosed},
		"endpoint": {func(b *Conn) error { return b.ep.Close() }, net.ErrClosed},
		"failure":  {func(b *Conn) error { b.endFor(session.CauseFailed, ErrReset); return nil }, ErrReset},
	} {
		for _, most := range []time.Duration{0, late} {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				var undo atomic.Int32
				l, _ := w.serverOn(nil, func(pc *netsim.PacketConn) net.PacketConn { return meddled{leadable{PacketConn: pc}, &undo} })
				e, _ := w.endpoint("10.0.0.2:0", nil)
				a := w.dial(e)
				b := accepted(t, l)
				done := w.readMessages(a, b, 100)
				if most > 0 {
					undo.Store(undone)
				}
				start, ended := time.Now(), make(chan error, 1)
				go func() { ended <- test.end(b) }()
				require.ErrorIs(t, <-done, test.want, name)
				require.LessOrEqual(t, time.Since(start), most, name)
				require.Less(t, undo.Load(), int32(1))
				require.NoError(t, <-ended)
			})
		}
	}
}

// alwaysLate is a socket whose reads time out for ever.
type alwaysLate struct {
	*netsim.PacketConn
	reads *atomic.Int32
}

func (a alwaysLate) ReadFromAddrPort([]byte) (int, netip.AddrPort, error) {
	a.reads.Add(1)
	return 0, netip.AddrPort{}, os.ErrDeadlineExceeded
}

// Time-outs without end do not keep a processor busy, and do not end the
// endpoint.
func TestEndlessTimeouts(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		var reads atomic.Int32
		e, _ := w.endpointOn(serverAddr, nil, func(pc *netsim.PacketConn) net.PacketConn { return alwaysLate{pc, &reads} })
		time.Sleep(time.Minute)
		require.Less(t, reads.Load(), int32(4000))
		_, err := e.Listen()
		require.NoError(t, err)
		require.NoError(t, e.Close())
	})
}

// An error of a net.PacketConn that lasts ends its endpoint, and Read, Write and
// Accept return it. One that passes does not, and neither does an error of the
// system.
func TestLastingSocketErrors(t *testing.T) {
	broken := errors.New("tunnel is down")
	for name, test := range map[string]struct {
		err   error
		times int
		ends  bool
	}{
		"lasting": {broken, 1 << 30, true},
		"EOF":     {io.EOF, 1 << 30, true},
		"passing": {broken, neterr.ManyFailures + 20, false},
		"system":  {&net.OpError{Op: "read", Err: os.NewSyscallError("recvmsg", syscall.ECONNREFUSED)}, 1 << 30, false},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 2, clean, func(t *testing.T, w *world) {
				l, pc := w.server(nil)
				e, _ := w.endpoint("10.0.0.2:0", &Config{KeepAlive: -1})
				a := w.dial(e)
				b := accepted(t, l)
				failed := make(chan error, 2)
				go func() {
					_, err := b.Read(make([]byte, 1))
					failed <- err
				}()
				go func() {
					_, err := l.Accept()
					failed <- err
				}()
				pc.FailReads(test.err, test.times)
				time.Sleep(neterr.LastingErrors - 200*time.Millisecond)
				synctest.Wait()
				require.Empty(t, failed)
				time.Sleep(time.Second)
				if !test.ends {
					require.Empty(t, failed)
					pc.FailReads(nil, 0)
					w.say(a, "x")
					require.NoError(t, <-failed)
					require.NoError(t, l.Close())
					require.ErrorIs(t, <-failed, net.ErrClosed)
					return
				}
				for range 2 {
					err := <-failed
					var socket *SocketError
					require.ErrorAs(t, err, &socket)
					require.ErrorIs(t, err, test.err)
					require.NotErrorIs(t, err, net.ErrClosed)
				}
				_, err := b.Write([]byte("x"))
				require.ErrorIs(t, err, test.err)
				require.ErrorIs(t, b.Err(), test.err)
				_, err = l.Accept()
				require.ErrorIs(t, err, test.err, "later calls, too")
				_, err = l.Endpoint().Dial(context.Background(), e.LocalAddr(), nil)
				require.ErrorIs(t, err, net.ErrClosed)
				pc.FailReads(nil, 0)
				require.ErrorIs(t, l.Endpoint().Close(), net.ErrClosed)
				w.net.Inject(pc.AddrPort(), pc.AddrPort(), []byte("x"))
				_, _, err = pc.ReadFrom(make([]byte, 100))
				require.NoError(t, err, "the deadline is cleared, and the socket is its owner's")
			})
		})
	}
}

// Peers are shared out among the sockets of one port, and each is answered.
func TestShards(t *testing.T) {
	for _, config := range []*Config{{Shards: 4}, secured(Config{Shards: 4})} {
		l, err := Listen("udp4", "127.0.0.1:0", config)
		require.NoError(t, err)
		shards := l.ep.socket.shards
		if runtime.GOOS == "linux" {
			require.Len(t, shards, 4)
		}
		for i := range shards {
			require.Equal(t, l.Addr(), shards[i].conn().LocalAddr())
		}
		_, err = Listen("udp4", l.Addr().String(), config)
		require.True(t, neterr.Is(err, syscall.EADDRINUSE), "a second server")
		const peers, size = 12, 20_000
		var running sync.WaitGroup
		for i := range uint64(peers) {
			c, err := Dial("udp4", l.Addr().String(), &Config{TLS: config.TLS})
			require.NoError(t, err)
			running.Go(func() {
				send(t, c, content(i, size))
				receive(t, c, content(i, size)) // its echo
				assert.NoError(t, c.Close())
			})
		}
		used := map[int]bool{}
		for range peers {
			c := accepted(t, l)
			running.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
			c.mu.Lock()
			used[c.session.Inside().Shard()] = true
			c.mu.Unlock()
		}
		running.Wait()
		require.True(t, len(shards) == 1 || len(used) > 1, "all peers at one socket")
		require.NotZero(t, l.Endpoint().Stats().PacketsReceived)
		require.NoError(t, l.Endpoint().Close())
		l.ep.socket.readers.Wait()
		pc, err := net.ListenPacket("udp4", l.Addr().String())
		require.NoError(t, err, "a socket is left open")
		require.NoError(t, pc.Close())
	}
}

// The errors after a socket was closed under its endpoint name the addresses once.
func TestSocketIsClosedByItsOwner(t *testing.T) {
	l, err := Listen("udp", "127.0.0.1:0", nil)
	require.NoError(t, err)
	defer l.Endpoint().Close()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	e, err := NewEndpoint(pc, nil)
	require.NoError(t, err)
	c, err := e.Dial(context.Background(), l.Addr(), nil)
	require.NoError(t, err)
	require.NoError(t, pc.Close())
	const cause = "kcp: the socket of the endpoint: use of closed network connection"
	between := fmt.Sprintf(" kcp %v->%v: ", pc.LocalAddr(), l.Addr())
	_, err = c.Read(make([]byte, 1))
	require.EqualError(t, err, "read"+between+cause)
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = c.Write(make([]byte, 1))
	require.EqualError(t, err, "write"+between+cause)
	require.EqualError(t, c.Err(), cause)
}
