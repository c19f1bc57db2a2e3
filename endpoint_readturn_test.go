package kcp

import (
	"io"
	"math"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/wakeup"
	"github.com/arqnet/kcp/netsim"
)

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
