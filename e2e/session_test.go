package e2e

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// A bad packet is counted by reason and leaves other sessions alone.
func TestBadPacketsAreCounted(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		good := header{conv: a.Conv(), cmd: cmdWins, wnd: 100}
		bad := func(change func(h *header)) []byte {
			h := good
			change(&h)
			return h.append(nil)
		}
		other := header{conv: a.Conv() + 1, cmd: cmdWins}
		for _, p := range [][]byte{
			bad(func(h *header) { h.len = 1 }),
			bad(func(h *header) { h.cmd = 88 }),
			bad(func(h *header) { h.una = 1000 }),
			other.append(good.append(nil)),
			make([]byte, 23),
			bad(func(h *header) { h.conv++ }),
			{},
		} {
			w.net.Inject(addrPort(a.LocalAddr()), addrPort(b.LocalAddr()), p)
		}
		w.settle()
		require.Equal(t, stats.Drops{Length: 1, Command: 1, Una: 1, Conv: 1}, b.Stats().Dropped)
		require.Equal(t, uint64(2), l.Endpoint().Stats().DropShort)
		require.Equal(t, uint64(1), l.Endpoint().Stats().DropUnknown)
		w.move(a, b, 1, 100000)
	})
}

// DeadLink ends a silent session after so many transmissions.
func TestDeadLink(t *testing.T) {
	inWorld(t, 12, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(&kcp.Config{Tuning: kcp.Tuning{DeadLink: 5}, PeerTimeout: -1}, nil)
		time.Sleep(time.Second) // nothing is in flight
		w.deaf()
		w.say(a, "x")
		isLost(t, end(a))
		require.EqualValues(t, 4, a.Stats().TimeoutRetransmits)
	})
}

// Close does not wait for ever, and says what was not delivered. If the peer reads, it
// takes a round trip and not more.
func TestLingerIsBounded(t *testing.T) {
	inWorld(t, 21, clean, func(t *testing.T, w *world) {
		a, _, l := w.pair(&kcp.Config{Linger: 3 * time.Second}, nil)
		time.Sleep(time.Second)
		w.deaf()
		w.say(a, "nobody will read this")
		start := time.Now()
		require.ErrorIs(t, a.Close(), kcp.ErrNotDelivered)
		require.Equal(t, 3*time.Second, time.Since(start))
		require.ErrorIs(t, a.Close(), net.ErrClosed)
		w.hearing()
		a = w.dial(a.Endpoint())
		time.Sleep(time.Second)
		start = time.Now()
		w.say(a, "bye")
		require.NoError(t, a.Close())
		require.Equal(t, roundTrip, time.Since(start))
		w.hear(accepted(t, l), "bye")
	})
}

// With a full backlog Dial gets no answer, and is let in when there is room. Sessions of
// a Dial that does not wait are not lost.
func TestFullBacklog(t *testing.T) {
	inWorld(t, 23, clean, func(t *testing.T, w *world) {
		l := w.listen(&kcp.Config{Limits: kcp.Limits{Backlog: 2}})
		e, patient := w.client(&kcp.Config{DialTimeout: 4 * time.Second}), w.client(&kcp.Config{DialTimeout: -1})
		for i := range 2 {
			w.say(w.dial(e), string(rune('a'+i)))
		}
		time.Sleep(time.Second)
		start := time.Now()
		_, err := e.Dial(context.Background(), l.Addr(), nil)
		require.ErrorAs(t, err, new(*kcp.NoAnswerError))
		require.Equal(t, 4*time.Second, time.Since(start))
		require.Positive(t, l.Endpoint().Stats().DropBacklog)
		require.Equal(t, 2, l.Endpoint().Stats().Sessions)
		for i := range 8 {
			w.say(w.dial(patient), string(rune('c'+i)))
		}
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, 2, l.Endpoint().Stats().Backlog)
		seen := make(map[byte]bool)
		for range 10 {
			b := make([]byte, 2)
			n, err := accepted(t, l).Read(b)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			seen[b[0]] = true
		}
		require.Len(t, seen, 10)
		for range 2 {
			w.dial(e)
		}
		time.Sleep(time.Second)
		time.AfterFunc(500*time.Millisecond, func() { accepted(t, l) })
		start = time.Now()
		w.dial(e)
		require.Equal(t, 600*time.Millisecond+roundTrip, time.Since(start)) // the third hello
	})
}

// Errors of the socket concern one packet; sessions and listener go on.
func TestSocketErrors(t *testing.T) {
	inWorld(t, 25, clean, func(t *testing.T, w *world) {
		l, serverPC := w.server(nil)
		client, clientPC := w.endpoint("10.0.0.2:0", nil)
		a := w.dial(client)
		w.say(a, "first")
		b := accepted(t, l)
		w.hear(b, "first")
		fail := []error{syscall.ECONNREFUSED, syscall.ENOBUFS, syscall.EPERM, errors.New("10052")}
		for i, err := range fail {
			serverPC.FailReads(err, 20)
			clientPC.FailReads(err, 20)
			serverPC.FailWrites(err, 5)
			clientPC.FailWrites(err, 5)
			w.move(a, b, uint64(i), 40000)
			time.Sleep(time.Second)
		}
		require.GreaterOrEqual(t, l.Endpoint().Stats().ReadErrors, uint64(20*len(fail)-20))
		// What is left over would only delay the next dial.
		serverPC.FailReads(nil, 0)
		clientPC.FailReads(nil, 0)
		serverPC.FailWrites(nil, 0)
		clientPC.FailWrites(nil, 0)
		w.say(w.dial(client), "next")
		w.hear(accepted(t, l), "next")
	})
}

// A huge Write does not end up in memory.
func TestHugeWrite(t *testing.T) {
	long(t)
	inWorld(t, 27, clean, func(t *testing.T, w *world) {
		const buffer = 256 << 10
		a, b, _ := w.pair(&kcp.Config{SendWindow: 32, WriteBuffer: buffer, CongestionControl: congestion.NewNone}, nil)
		want := content(27, 4<<20)
		most := 0
		done := make(chan error)
		go func() {
			_, err := a.Write(want)
			done <- err
		}()
		for rest := want; len(rest) > 0; rest = rest[len(want)/64:] {
			receive(t, b, rest[:len(want)/64])
			s := a.Stats()
			most = max(most, s.WriteBuffered)
			require.LessOrEqual(t, s.InFlight, 32)
		}
		require.NoError(t, <-done)
		require.LessOrEqual(t, most, buffer+1400)
		require.Greater(t, most, buffer/2)
	})
}
