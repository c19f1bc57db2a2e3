package docs

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/qlog"
)

// record writes a trace of the session from now on, for "kcp trace".
func record(ctx context.Context, conn *kcp.Conn, traces *qlog.Dir) {
	conn.SetTrace(traces.Trace(conn))
	context.AfterFunc(ctx, func() { conn.SetTrace(nil) }) // the file is complete
}

// TestRecord traces a part of a session: the file begins as any, and has nothing of what
// was sent before or after.
func TestRecord(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := session(t, nil)
		traces := qlog.NewDir(folder, nil)
		testenv.BothWays(t, a, b, testenv.Content(1, 100_000), []byte("before"))
		ctx, cancel := context.WithCancel(t.Context())
		record(ctx, a, traces)
		testenv.BothWays(t, a, b, testenv.Content(1, 10_000), testenv.Content(2, 5000))
		cancel()
		synctest.Wait()
		testenv.BothWays(t, a, b, testenv.Content(1, 100_000), []byte("after"))
		require.NoError(t, traces.Close())
	})
	files, err := filepath.Glob(filepath.Join(folder, "*-client.sqlog"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	f, err := os.Open(files[0])
	require.NoError(t, err)
	defer f.Close()
	seen := make(map[string]int)
	_, err = qlog.Read(f, func(e qlog.Event) error {
		seen[e.Name]++
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 1, seen["quic:connection_started"])
	require.Zero(t, seen["quic:connection_closed"])
	require.GreaterOrEqual(t, seen["quic:packet_sent"], 8)
	require.Less(t, seen["quic:packet_sent"], 20)
}
