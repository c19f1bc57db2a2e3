package kcp

import (
	"errors"
	"io"
	"math"
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
	"github.com/arqnet/kcp/internal/recovery"
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
		"endpoint": {func(b *Conn) error { return b.Endpoint().Close() }, net.ErrClosed},
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

// ledPair returns the two ends of a session in a world in which calls may read
// the sockets.
func (w *world) ledPair(config *Config) (a, b *Conn, l *Listener) {
	w.t.Helper()
	w.leads = true
	return w.pair(config, config)
}

// readMessages reads messages of five bytes of b, one after the other, until
// reading fails. It returns when a call of that reads the socket; n messages
// later, reading ends. done gets the error.
func (w *world) readMessages(a, b *Conn, n int32) (done chan error) {
	w.t.Helper()
	done = make(chan error, 1)
	var left atomic.Int32
	left.Store(math.MaxInt32)
	go func() {
		var err error
		for message := make([]byte, 5); err == nil && left.Load() > 0; left.Add(-1) {
			_, err = io.ReadFull(b, message)
		}
		done <- err
	}()
	synctest.Wait()
	for range 100 { // the loop may be reluctant
		w.hello(a)
		if b.ep.socket.shards[0].lead.Who() == wakeup.Call {
			left.Store(n)
			return done
		}
	}
	w.t.Fatal("no call reads the socket")
	return nil
}

// hello sends a message of five bytes and waits until it has arrived.
func (w *world) hello(a *Conn) {
	w.t.Helper()
	_, err := a.Write([]byte("hello"))
	require.NoError(w.t, err)
	time.Sleep(100 * time.Millisecond)
}

// What comes while the application is not there is not left lying.
func TestLoopTakesTheLeadBack(t *testing.T) {
	const delay = 10 * time.Millisecond
	inWorld(t, 1, netsim.LinkConfig{Delay: delay}, func(t *testing.T, w *world) {
		a, b, _ := w.ledPair(nil)
		done := w.readMessages(a, b, 6)
		for range 5 {
			w.hello(a)
		}
		lead := &b.ep.socket.shards[0].lead
		require.Equal(t, wakeup.Call, lead.Who())
		writeAll(t, a, []byte("hello"))
		require.NoError(t, <-done)
		require.Equal(t, wakeup.Nobody, lead.Who())
		_, err := a.Write(content(1, recovery.FullSegments*1376)) // to be acknowledged at once
		require.NoError(t, err)
		time.Sleep(2*delay + wakeup.Grace)
		require.Zero(t, a.Stats().InFlight)
		require.Equal(t, wakeup.Loop, lead.Who())
	})
}

// The answer to what an application has read travels with what it says next,
// and if it says nothing, soon by itself.
func TestLeaderAnswersLater(t *testing.T) {
	const delay = 10 * time.Millisecond
	for says, wait := range map[bool]time.Duration{
		true:  delay,
		false: delay + 2*wakeup.Grace + recovery.MaxAckDelay*time.Millisecond,
	} {
		inWorld(t, 1, netsim.LinkConfig{Delay: delay}, func(t *testing.T, w *world) {
			a, b, _ := w.ledPair(nil)
			done := w.readMessages(a, b, 6)
			for range 5 {
				w.hello(a)
			}
			writeAll(t, a, []byte("hello"))
			require.NoError(t, <-done)
			b.mu.Lock()
			owes := b.io.reply == replyLeft
			b.mu.Unlock()
			require.True(t, owes)
			if says {
				writeAll(t, b, []byte("x"))
			}
			time.Sleep(wait + 100*time.Microsecond)
			require.Zero(t, a.Stats().InFlight, "says: %v", says)
		})
	}
}

// A call of a stream reads the socket, too, unless another waits; a Read has what has
// arrived in its own buffer then.
func TestStreamCallsReadTheSocket(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.ledPair(nil)
		s, r := streamPair(t, a, b, nil)
		lead := &b.ep.socket.shards[0].lead
		got, want := make(chan byte), content(1, 200)
		go func() {
			for message := make([]byte, 1); ; {
				if _, err := r.Read(message); err != nil {
					close(got)
					return
				}
				got <- message[0]
			}
		}()
		hello := func(x byte) {
			writeAll(t, s, []byte{x})
			require.Equal(t, x, <-got)
			synctest.Wait()
		}
		for i := 0; lead.Who() != wakeup.Call; i++ { // the loop may be reluctant
			require.Less(t, i, 100, "no call reads the socket")
			hello(want[i])
			time.Sleep(100 * time.Millisecond)
		}
		b.mu.Lock()
		held := b.session.Inside().Streams().Held()
		b.mu.Unlock()
		require.Zero(t, held)

		other, done := openStream(t, b, nil), make(chan error)
		go func() {
			_, err := other.Read(make([]byte, 1))
			done <- err
		}()
		synctest.Wait()
		require.Equal(t, wakeup.Call, lead.Who())
		for _, x := range want[100:] {
			hello(x)
			require.Equal(t, wakeup.Loop, lead.Who())
		}
		require.NoError(t, other.Close())
		require.ErrorIs(t, <-done, net.ErrClosed)
		require.NoError(t, b.Abort(0, ""))
		_, open := <-got
		require.False(t, open)
	})
}

// A socket that fails under a call that reads it fails the session.
func TestSocketClosedUnderLeader(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, l := w.ledPair(nil)
		failed := w.readMessages(a, b, 100)
		require.NoError(t, b.ep.socket.shards[0].conn().Close())
		require.ErrorIs(t, <-failed, net.ErrClosed)
		require.ErrorIs(t, l.Endpoint().Close(), net.ErrClosed, "it has ended before")
	})
}

// slowToClear is a socket whose clearing of the read deadline takes its time.
type slowToClear struct {
	leadable
	cleared, goOn chan struct{}
}

func (s slowToClear) SetReadDeadline(t time.Time) error {
	if t.IsZero() && s.cleared != nil {
		select {
		case s.cleared <- struct{}{}:
			<-s.goOn
		default:
		}
	}
	return s.leadable.SetReadDeadline(t)
}

// Close of an endpoint does not wait for a reader that has just undone the
// deadline which was to end it.
func TestCloseWhileLeaderIsInterrupted(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		slow := slowToClear{leadable{}, make(chan struct{}), make(chan struct{})}
		l, _ := w.serverOn(nil, func(pc *netsim.PacketConn) net.PacketConn {
			slow.PacketConn = pc
			return slow
		})
		e, _ := w.endpoint("10.0.0.2:0", nil)
		a := w.dial(e)
		b := accepted(t, l)
		failed := w.readMessages(a, b, 100)

		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Millisecond)))
		<-slow.cleared // but for the effect
		closed := make(chan error, 1)
		go func() { closed <- l.Endpoint().Close() }()
		synctest.Wait()
		slow.goOn <- struct{}{}
		require.Error(t, <-failed)
		require.NoError(t, <-closed)
	})
}
