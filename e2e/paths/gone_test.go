package paths

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

// narrowBuffers makes calls wait for the peer.
var narrowBuffers = kcp.Config{WriteBuffer: 4096, StreamWriteBuffer: 4096, Limits: kcp.Limits{MaxStreams: 1}}

// waiting returns the calls that wait for the peer at c, which has the stream s.
func waiting(ctx context.Context, c *kcp.Conn, s *kcp.Stream) map[string]func() error {
	large := make([]byte, 1<<20)
	return map[string]func() error{
		"Read":            func() error { _, err := c.Read(make([]byte, 1)); return err },
		"Write":           func() error { _, err := c.Write(large); return err },
		"Flush":           func() error { return c.Flush(ctx) },
		"Ping":            func() error { _, err := c.Ping(ctx); return err },
		"ReceiveDatagram": func() error { _, err := c.ReceiveDatagram(ctx); return err },
		"OpenStream":      func() error { _, err := c.OpenStream(ctx, nil); return err },
		"AcceptStream":    func() error { _, err := c.AcceptStream(ctx); return err },
		"stream's Read":   func() error { _, err := s.Read(make([]byte, 1)); return err },
		"stream's Write":  func() error { _, err := s.Write(large); return err },
	}
}

// cut is a session whose path is gone, with a stream from each end.
type cut struct {
	*world
	streams []*kcp.Stream
	begin   time.Duration // when the calls were made
	ended   chan ended
}

// ended is a call that has returned.
type ended struct {
	what string
	err  error
	at   time.Duration
}

// afterCut runs f with sessions over paths of some kinds that are gone.
func afterCut(t *testing.T, f func(c *cut)) {
	for _, k := range kinds {
		if !slices.Contains([]string{"0.1 ms", "600 ms", "64 kbit/s", "loss of 10 %", "bunches of 102 ms"}, k.name) {
			continue
		}
		for by, protected := range protections(t) {
			t.Run(k.name+"/"+by, func(t *testing.T) {
				t.Parallel()
				over(t, k.path, protected(narrowBuffers), protected(narrowBuffers), func(w *world) {
					c := &cut{world: w, ended: make(chan ended, 100)}
					for i, from := range []*kcp.Conn{w.client, w.server} {
						s, err := from.OpenStream(context.Background(), nil)
						require.NoError(t, err)
						_, err = s.Write([]byte("begin"))
						require.NoError(t, err)
						r, err := []*kcp.Conn{w.server, w.client}[i].AcceptStream(context.Background())
						require.NoError(t, err)
						require.NoError(t, testenv.Compare(r, []byte("begin")))
						c.streams = append(c.streams, s)
					}
					time.Sleep(w.patience(100))
					c.set(both(k.path, func(l *netsim.LinkConfig) { l.Down = true }))
					time.Sleep(2 * k.round()) // what is under way arrives
					c.begin = w.net.Elapsed()
					f(c)
				})
			})
		}
	}
}

// waits makes the calls of both ends, and returns how each has ended.
func (c *cut) waits(ctx context.Context) (all []ended) {
	for i, end := range []*kcp.Conn{c.client, c.server} {
		_, err := end.TryWrite([]byte("for Flush"))
		require.NoError(c.t, err)
		for what, call := range waiting(ctx, end, c.streams[i]) {
			go func() {
				err := call()
				c.ended <- ended{fmt.Sprint([]string{"client's ", "server's "}[i], what), err, c.net.Elapsed() - c.begin}
			}()
			all = append(all, ended{})
		}
	}
	for i := range all {
		all[i] = <-c.ended
	}
	return all
}

// Without a path each call ends at its deadline. When the path is back, all goes on.
func TestDeadlinesWithoutAPath(t *testing.T) {
	testenv.Simulated(t)
	afterCut(t, func(c *cut) {
		const limit = 700 * time.Millisecond
		at := time.Now().Add(limit)
		for i, end := range []*kcp.Conn{c.client, c.server} {
			require.NoError(c.t, end.SetDeadline(at))
			require.NoError(c.t, c.streams[i].SetDeadline(at))
		}
		for _, e := range c.waits(c.within(limit)) {
			require.True(c.t, errors.Is(e.err, os.ErrDeadlineExceeded) || errors.Is(e.err, context.DeadlineExceeded), "%s: %v", e.what, e.err)
			require.InDelta(c.t, limit.Seconds(), e.at.Seconds(), 0.001, e.what)
		}
		c.set(c.paths[0])
		for _, end := range []*kcp.Conn{c.client, c.server} {
			require.NoError(c.t, end.SetDeadline(time.Time{}))
			c.call("Ping", 20_000, func() error {
				_, err := end.Ping(context.Background())
				return err
			})
			c.call("Flush", 20_000, func() error { return end.Flush(context.Background()) })
		}
	})
}

// If the path does not come back, each call ends with the peer's silence, at the latest
// when that is noticed by a keep-alive.
func TestPeerIsLost(t *testing.T) {
	testenv.Simulated(t)
	afterCut(t, func(c *cut) {
		for _, e := range c.waits(context.Background()) {
			var lost *kcp.PeerLostError
			require.ErrorAs(c.t, e.err, &lost, e.what)
			require.False(c.t, lost.Idle)
			require.Greater(c.t, lost.Silence, 29*time.Second)
			require.LessOrEqual(c.t, e.at, 31*time.Second, e.what)
		}
		require.NoError(c.t, c.client.Close())
		require.NoError(c.t, c.server.Close())
		require.Zero(c.t, c.listening.Stats().Sessions)
	})
}

// Close, Shutdown and Dial give up without a path when they say so.
func TestEndsWithoutAPath(t *testing.T) {
	testenv.Simulated(t)
	afterCut(t, func(c *cut) {
		took := func(least, most time.Duration, f func() error) error {
			begin := c.net.Elapsed()
			err := f()
			d := c.net.Elapsed() - begin
			require.GreaterOrEqual(c.t, d, least)
			require.LessOrEqual(c.t, d, most)
			return err
		}
		_, err := c.client.TryWrite([]byte("not delivered"))
		require.NoError(c.t, err)
		err = took(5*time.Second, 5*time.Second+100*time.Millisecond, c.client.Close) // Config.Linger
		require.ErrorIs(c.t, err, kcp.ErrNotDelivered)
		var none *kcp.NoAnswerError
		err = took(10*time.Second, 10*time.Second+time.Millisecond, func() error { // Config.DialTimeout
			_, err := c.dialling.Dial(context.Background(), c.listener.Addr(), nil)
			return err
		})
		require.ErrorAs(c.t, err, &none)
		err = took(time.Second, time.Second+time.Millisecond, func() error {
			_, err := c.dialling.Dial(c.within(time.Second), c.listener.Addr(), nil)
			return err
		})
		require.ErrorAs(c.t, err, &none)
		_, err = c.server.TryWrite([]byte("not delivered"))
		require.NoError(c.t, err)
		err = took(time.Second, time.Second+time.Millisecond, func() error { return c.listening.Shutdown(c.within(time.Second)) })
		var cut *kcp.ShutdownError
		require.ErrorAs(c.t, err, &cut)
		require.Equal(c.t, 1, cut.Cut)
		require.NoError(c.t, took(0, time.Millisecond, c.dialling.Close))
	})
}
