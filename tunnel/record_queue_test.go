package tunnel

import (
	"bytes"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// stuckWriter is what nobody reads, until release is closed.
type stuckWriter struct {
	release chan struct{}
	b       bytes.Buffer
}

func (w *stuckWriter) Write(b []byte) (int, error) {
	<-w.release
	return w.b.Write(b)
}

// A log that nobody reads stops the work once, and shortly. Then all is there, in order,
// that there was room for.
func TestRecordQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stuckWriter{release: make(chan struct{})}
		log := queued(slog.New(slog.NewTextHandler(w, nil))).With("user", "me")
		begun := time.Now()
		for i := range 3 * maxQueuedRecords {
			log.Info("record", "n", i)
		}
		require.Equal(t, slowHandler, time.Since(begun))
		close(w.release)
		synctest.Wait()
		log.Info("again")
		require.Equal(t, slowHandler, time.Since(begun), "the log works")
		lines := strings.Split(strings.TrimSpace(w.b.String()), "\n")
		require.Len(t, lines, maxQueuedRecords+2)
		for i, line := range lines[:maxQueuedRecords+1] {
			require.Contains(t, line+" ", "user=me n="+strconv.Itoa(i)+" ")
		}
		require.Contains(t, w.b.String(), `"records left out before"=1999`)
	})
}

// Clients are served, and the server ends, while its log is stuck.
func TestStuckLogStopsNothing(t *testing.T) {
	w := &stuckWriter{release: make(chan struct{})}
	s := startServer(t, everything, func(c *ServerConfig) {
		c.Logger = slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	at := testenv.Target(t, testenv.Echo)
	for range 3 {
		c := startClient(t, clientConfig(t, s, "0:"+at))
		exchange(t, dial(t, c.address(t)), 1000)
	}
	users := parsed(t, `{"you:word": [""]}`)
	s.SetUsers(users)
	waitFor(t, func() bool { return s.Status().Sessions == 0 })
	s.stop()
	close(w.release)
}
