package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A demo writes a trace of each end, and each makes a page.
func TestTracePages(t *testing.T) {
	dir := t.TempDir()
	got := runWith(t.Context(), nil, "demo", "-size", "200kB", "-loss", "5%", "-delay", "2ms", "-jitter", "0", "-trace", dir)
	require.Equal(t, exitOK, got.code, got.err)
	traces, err := filepath.Glob(filepath.Join(dir, "*.sqlog"))
	require.NoError(t, err)
	require.Len(t, traces, 2)
	for _, name := range traces {
		got := runWith(t.Context(), nil, "trace", name)
		require.Equal(t, exitOK, got.code, got.err)
		page, err := os.ReadFile(name[:len(name)-len(".sqlog")] + ".html")
		require.NoError(t, err)
		require.Contains(t, string(page), "quic:connection_started")
		got = runWith(t.Context(), nil, "trace", name, "-o", "-")
		require.Equal(t, exitOK, got.code, got.err)
		require.Equal(t, string(page), got.out)
	}
}

// -debug serves the page while the command runs, and says where.
func TestDebugPage(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := start(ctx, nil, "listen", "127.0.0.1:0", "-d", "-debug", "127.0.0.1:0")
	url := p.err.Find(t, `live page at (\S+)`)
	for _, path := range []string{"", "stats.json"} {
		r, err := http.Get(url + path)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, r.StatusCode)
		require.NoError(t, r.Body.Close())
	}
	cancel()
	require.Equal(t, exitInterrupted, p.wait(t))
	_, err := http.Get(url)
	require.Error(t, err)
	require.Equal(t, exitUsage, runWith(t.Context(), nil, "demo", "-debug", "6060").code)
}

func TestTraceRefuses(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.sqlog")
	require.NoError(t, os.WriteFile(bad, []byte("no trace"), 0o600))
	got := runWith(t.Context(), nil, "trace", bad)
	require.Equal(t, exitFailed, got.code)
	require.Contains(t, got.err, "not a qlog trace")
	require.NoFileExists(t, filepath.Join(dir, "bad.html"))
	require.Equal(t, exitFailed, runWith(t.Context(), nil, "trace", filepath.Join(dir, "missing")).code)
	require.Equal(t, exitUsage, runWith(t.Context(), nil, "trace").code)
	require.Equal(t, exitUsage, runWith(t.Context(), nil, "trace", "x.html").code)
	require.Equal(t, exitUsage, runWith(t.Context(), nil, "demo", "-trace", filepath.Join(dir, "missing")).code)
}
