package interop

import (
	"bytes"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// Many senders of kcp-go share what our socket buffer takes: they keep to the
// windows that are advertised to them, so few datagrams are dropped.
func TestIncast(t *testing.T) {
	const senders, window, buffer = 60, 1024, 1 << 20
	size := 1 << 20
	if testing.Short() {
		size = 1 << 19
	}
	l, err := kcp.Listen("udp4", "127.0.0.1:0", &kcp.Config{SocketBuffer: buffer})
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	var ends sync.WaitGroup
	for range senders {
		c, err := kcpgo.DialWithOptions(l.Addr().String(), nil, 0, 0)
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		c.SetNoDelay(1, 10, 2, 1)
		c.SetWindowSize(window, window)
		c.SetStreamMode(true)
		ends.Go(func() {
			if _, err := c.Write(data); err != nil {
				t.Errorf("write: %v", err)
			}
		})
	}
	for range senders {
		c, err := l.Accept()
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		ends.Go(func() {
			got := make([]byte, size)
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, data) {
				t.Errorf("read %d of %d bytes: %v", n, size, err)
			}
		})
	}
	ends.Wait()
	s := l.Stats()
	t.Logf("%d datagrams received, %d dropped", s.PacketsReceived, s.SocketDrops)
	require.LessOrEqual(t, s.SocketDrops, s.PacketsReceived/4, "dropped")
}
