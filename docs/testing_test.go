package docs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/pages"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/qlog"
)

// What testing.md shows of a test that can be run again.

func TestFileEcho(t *testing.T) {
	seed := rand.Uint64()
	if s := os.Getenv("SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("again: SEED=%d TRACES=/tmp go test -count 1 -run '^%s$'", seed, t.Name())
	synctest.Test(t, func(t *testing.T) {
		network := netsim.NewNetwork(seed, netsim.LinkConfig{Delay: 40 * time.Millisecond, Loss: 0.1})
		config := &kcp.Config{Repetition: netsim.NewRepetition(seed)}
		if folder := os.Getenv("TRACES"); folder != "" {
			traces := qlog.NewDir(folder, nil)
			defer traces.Close() // after the endpoints
			config.Tracer = traces.Trace
		}
		pc, err := network.Listen("10.0.0.1:4000")
		require.NoError(t, err)
		server, err := kcp.NewEndpoint(pc, config)
		require.NoError(t, err)
		defer server.Close()
		l, err := server.Listen()
		require.NoError(t, err)
		pc, err = network.Listen("10.0.0.2:0")
		require.NoError(t, err)
		client, err := kcp.NewEndpoint(pc, config)
		require.NoError(t, err)
		defer client.Close()
		echoFile(t, client, l)
	})
}

func kill(server *kcp.Endpoint, pc net.PacketConn) {
	_ = pc.Close()
	_ = server.Close()
}

// TestKill checks what testing.md says of kill: nobody is told, and a new endpoint at the
// address answers with a reset. Close alone tells the peers.
func TestKill(t *testing.T) {
	for how, want := range map[string]time.Duration{"killed": 30 * time.Second, "restarted": 5 * time.Second, "closed": 10 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			network := netsim.NewNetwork(1, netsim.LinkConfig{Delay: 5 * time.Millisecond})
			server, pc := endpoint(t, network, "10.0.0.1:4000", nil)
			_, err := server.Listen()
			require.NoError(t, err)
			client, _ := endpoint(t, network, "10.0.0.2:4000", &kcp.Config{PeerTimeout: 30 * time.Second})
			conn, err := client.Dial(t.Context(), server.LocalAddr(), nil)
			require.NoError(t, err)
			time.Sleep(time.Second)
			start := time.Now()
			if how == "closed" {
				require.NoError(t, server.Close())
			} else {
				kill(server, pc)
			}
			_, err = conn.Write([]byte("anybody?"))
			require.NoError(t, err)
			if how == "restarted" {
				endpoint(t, network, "10.0.0.1:4000", nil)
			}
			_, err = conn.Read(make([]byte, 1))
			require.Equal(t, how == "killed", errors.As(err, new(*kcp.PeerLostError)), err)
			require.Equal(t, how != "killed", errors.Is(err, kcp.ErrReset), err)
			require.LessOrEqual(t, time.Since(start), want+time.Second/10)
		})
	}
}

// echoFile sends a file over a stream to the server, and reads it back.
func echoFile(t *testing.T, client *kcp.Endpoint, l *kcp.Listener) {
	go func() {
		c, err := l.AcceptKCP(context.Background())
		if err != nil {
			return
		}
		s, err := c.AcceptStream(context.Background())
		if err != nil {
			return
		}
		_, _ = io.Copy(s, s)
		_ = s.CloseWrite()
	}()
	c, err := client.Dial(context.Background(), l.Addr(), nil)
	require.NoError(t, err)
	s, err := c.OpenStream(context.Background(), nil)
	require.NoError(t, err)
	file := bytes.Repeat([]byte("0123456789"), 5000)
	written := make(chan error, 1)
	go func() {
		_, err := s.Write(file)
		written <- err
	}()
	got := make([]byte, len(file))
	_, err = io.ReadFull(s, got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(file, got))
	require.NoError(t, <-written)
}

// A run with the seed of another has the same traces, of which pages can be made.
func TestRunAgain(t *testing.T) {
	t.Setenv("SEED", "5")
	var traces []map[string][]byte
	for range 2 {
		folder := t.TempDir()
		t.Setenv("TRACES", folder)
		t.Run("echo", TestFileEcho)
		files, err := filepath.Glob(filepath.Join(folder, "*.sqlog"))
		require.NoError(t, err)
		require.Len(t, files, 2)
		run := make(map[string][]byte)
		for _, file := range files {
			trace, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NoError(t, pages.WriteTrace(io.Discard, bytes.NewReader(trace), file))
			run[filepath.Base(file)] = trace
		}
		traces = append(traces, run)
	}
	require.Equal(t, traces[0], traces[1])
}
