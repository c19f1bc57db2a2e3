package interop

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// Many senders of kcp-go share what our socket buffer takes, and all that they send
// arrives. TestIncastSimulated counts what is lost: here other programs may keep our
// reader from the processor for so long that the buffer overflows.
func TestIncast(t *testing.T) {
	const senders, window, buffer = 60, 1024, 1 << 20
	size := 1 << 21
	if testing.Short() {
		size = 1 << 20
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
			for n := 0; n < size; {
				m, err := c.Read(got[n:])
				if err != nil {
					t.Errorf("read %d of %d bytes: %v", n, size, err)
					return
				}
				n += m
			}
			if !bytes.Equal(got, data) {
				t.Error("other bytes have arrived")
			}
		})
	}
	ends.Wait()
	s := l.Stats()
	t.Logf("%d datagrams received, %d dropped", s.PacketsReceived, s.SocketDrops)
}
