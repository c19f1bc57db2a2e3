package e2e

import (
	"context"
	"io"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// handlers are the ways in which the goroutine that reads a socket calls the application.
// Each calls f once something has arrived at c.
var handlers = map[string]func(t *testing.T, c *kcp.Conn, f func()){
	"Handle": func(t *testing.T, c *kcp.Conn, f func()) {
		g := kcp.NewGroup()
		t.Cleanup(func() { _ = g.Close() })
		require.NoError(t, g.Handle(func([]kcp.Event) { f() }))
		require.NoError(t, g.Add(c))
	},
	"HandleDatagrams": func(_ *testing.T, c *kcp.Conn, f func()) { c.HandleDatagrams(func([]byte) { f() }) },
	"HandleDatagrams within Read": func(_ *testing.T, c *kcp.Conn, f func()) {
		c.HandleDatagrams(func([]byte) { f() })
		go func() { _, _ = io.Copy(io.Discard, c) }()
	},
}

// Shutdown of a handler would wait for what only the handler's goroutine can read. It
// says so at once, and has done nothing; on another goroutine it works meanwhile.
func TestShutdownInAHandler(t *testing.T) {
	for name, handle := range handlers {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				a, b, l := w.pair(nil, nil)
				result, elsewhere := make(chan error, 100), make(chan error, 1)
				began := false
				handle(t, b, func() {
					if !began {
						began = true
						start := time.Now()
						result <- l.Shutdown(context.Background())
						require.Equal(t, start, time.Now())
						require.NoError(t, b.Err())
						go func() { elsewhere <- l.Shutdown(context.Background()) }()
					}
				})
				require.NoError(t, a.SendDatagram([]byte("shut down")))
				err := <-result
				require.ErrorIs(t, err, syscall.EDEADLK)
				require.ErrorContains(t, err, "in a handler")
				require.NoError(t, <-elsewhere)
				_, err = a.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err)
			})
		})
	}
}

// Serve calls on goroutines of the application, where Shutdown works.
func TestShutdownInServe(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		g, result := kcp.NewGroup(), make(chan error, 1)
		require.NoError(t, g.Add(b))
		go func() {
			_ = g.Serve(t.Context(), func(e kcp.Event) {
				if e.Kind == kcp.EventDatagram {
					result <- l.Shutdown(context.Background())
					_ = g.Close()
				}
			})
		}()
		require.NoError(t, a.SendDatagram([]byte("shut down")))
		require.NoError(t, <-result)
		synctest.Wait()
	})
}

// Endpoint.Close in a handler does not wait for the goroutine that it runs on.
func TestCloseInAHandler(t *testing.T) {
	for name, handle := range handlers {
		t.Run(name, func(t *testing.T) {
			l, err := kcp.Listen("udp", "127.0.0.1:0", nil)
			require.NoError(t, err)
			a, err := kcp.Dial("udp", l.Addr().String(), nil)
			require.NoError(t, err)
			b := accepted(t, l)
			result := make(chan error, 1)
			var once sync.Once
			handle(t, b, func() { once.Do(func() { result <- l.Endpoint().Close() }) })
			require.NoError(t, a.SendDatagram([]byte("close")))
			require.NoError(t, <-result)
			_, err = a.Read(make([]byte, 1))
			require.ErrorIs(t, err, kcp.ErrReset)
			require.NoError(t, a.Abort())
		})
	}
}
