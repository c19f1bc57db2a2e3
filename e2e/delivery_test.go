package e2e

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// The errors of Flush, and that several calls go on by themselves.
func TestFlushErrors(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(w *world, a, b *kcp.Conn)
		want error
	}{
		"closed":      {func(_ *world, a, _ *kcp.Conn) { _ = a.Close() }, net.ErrClosed},
		"abort":       {func(_ *world, a, _ *kcp.Conn) { _ = a.Abort(0, "") }, net.ErrClosed},
		"endpoint":    {func(_ *world, a, _ *kcp.Conn) { _ = a.Endpoint().Close() }, net.ErrClosed},
		"peer aborts": {func(_ *world, _, b *kcp.Conn) { _ = b.Abort(0, "") }, kcp.ErrReset},
		"peer closes": {func(_ *world, _, b *kcp.Conn) { _ = b.Close() }, kcp.ErrPeerClosed},
		"peer dies":   {func(w *world, _, _ *kcp.Conn) { w.deaf() }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				a, b, _ := w.pair(&kcp.Config{PeerTimeout: 3 * time.Second, Linger: -1}, &kcp.Config{ReceiveWindow: 128, Linger: -1})
				require.NoError(t, a.Flush(context.Background()))
				w.say(a, string(make([]byte, 1<<20))) // more than b takes without reading
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				require.ErrorIs(t, a.Flush(ctx), context.DeadlineExceeded)
				errs := make(chan error, 2)
				for range 2 {
					go func() { errs <- a.Flush(context.Background()) }()
				}
				time.Sleep(time.Second)
				require.Empty(t, errs)
				c.end(w, a, b)
				for range 2 {
					err := <-errs
					var oe *net.OpError
					require.ErrorAs(t, err, &oe)
					if c.want != nil {
						require.ErrorIs(t, err, c.want)
					} else {
						isLost(t, err)
					}
				}
				require.Error(t, a.Flush(context.Background()), "afterwards")
				require.LessOrEqual(t, a.Stats().BytesAcked, b.Stats().BytesReceived, "what was dropped was not delivered")
			})
		})
	}
}

// Flush does not return before what was written is delivered because streams have
// overtaken it, nor does it wait for messages that were given up. A session that ends
// after all was delivered has flushed.
func TestFlushBesideOthers(t *testing.T) {
	inWorld(t, 3, lossy, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{SendWindow: 8}, nil)
		s, r := streamPair(t, a, b, &kcp.StreamOptions{Priority: 1})
		data, up := content(1, 50000), content(2, 200000)
		w.say(a, string(data))
		send(t, s, up)
		go receive(t, r, up)
		require.NoError(t, a.Flush(context.Background()))
		begin := time.Now()
		receive(t, b, data)
		require.Zero(t, time.Since(begin), "it had arrived")
		_, _ = a.Abort(0, ""), b.Abort(0, "")
	})
	inWorld(t, 4, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MessageMode: true, SendWindow: 4}, nil)
		w.cut()
		for range 20 {
			require.NoError(t, a.WriteMessage(make([]byte, 2000), &kcp.MessageOptions{Lifetime: 100 * time.Millisecond}))
		}
		w.after(time.Second, w.heal)
		start := time.Now()
		require.NoError(t, a.Flush(context.Background()))
		require.Less(t, time.Since(start), 10*time.Second)
		require.NoError(t, b.Close())
		<-a.Done()
		require.NoError(t, a.Flush(context.Background()))
	})
}
