package kcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Peers are shared out among the sockets of one port, and each is answered.
func TestShards(t *testing.T) {
	t.Run("plain", func(t *testing.T) { testShards(t, Config{}, 24, 200_000) })
	t.Run("TLS", func(t *testing.T) { testShards(t, *secured(Config{}), 12, 20_000) })
}

func testShards(t *testing.T, config Config, peers, size int) {
	const shards = 4
	config.Shards = shards
	l, err := Listen("udp4", "127.0.0.1:0", &config)
	require.NoError(t, err)
	want := shards
	if runtime.GOOS != "linux" {
		want = 1
	}
	require.Len(t, l.ep.socket.shards, want)
	for i := range l.ep.socket.shards {
		require.Equal(t, l.Addr(), l.ep.socket.shards[i].pc.LocalAddr())
	}

	var mu sync.Mutex
	used := map[int]int{}
	var servers sync.WaitGroup
	servers.Go(func() {
		for range peers {
			c, err := l.AcceptKCP(context.Background())
			if err != nil {
				t.Error(err)
				return
			}
			servers.Go(func() {
				if _, err := io.CopyN(c, c, int64(size)); err != nil {
					t.Error(err)
				}
				c.mu.Lock()
				shard := int(c.path.shard)
				c.mu.Unlock()
				mu.Lock()
				used[shard]++
				mu.Unlock()
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	})
	var clients sync.WaitGroup
	for i := range peers {
		clients.Go(func() { shardClient(t, l.Addr(), byte(i), size, config.TLS) })
	}
	clients.Wait()
	servers.Wait()
	if want > 1 {
		require.Greater(t, len(used), 1, "all peers at one socket: %v", used)
	}
	s := l.Stats()
	require.NotZero(t, s.PacketsReceived)
	require.NoError(t, l.Endpoint().Close())
	l.ep.socket.readers.Wait()
	pc, err := net.ListenPacket("udp4", l.Addr().String())
	require.NoError(t, err, "a socket is left open")
	require.NoError(t, pc.Close())
}

// shardClient has size bytes echoed, which depend on seed.
func shardClient(t *testing.T, addr net.Addr, seed byte, size int, secure *tls.Config) {
	c, err := Dial("udp4", addr.String(), &Config{TLS: secure})
	if err != nil {
		t.Error(err)
		return
	}
	sent := bytes.Repeat([]byte{seed, 1, 2, 3, seed + 1, 5, 6}, size/7+1)[:size]
	go func() {
		if _, err := c.Write(sent); err != nil {
			t.Error(err)
		}
	}()
	got := make([]byte, size)
	if _, err := io.ReadFull(c, got); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(sent, got) {
		t.Errorf("client %d got other bytes", seed)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
