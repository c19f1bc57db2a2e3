package takeover

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// client is a session with a server.
type client struct {
	*kcp.Conn
	t    testing.TB
	seed uint64
}

// dial opens a session, which must be with the process of that name.
func dial(t testing.TB, addr net.Addr, kind, name string) *client {
	t.Helper()
	config := configOf(kind)
	config.Shards = 0
	config.DialTimeout = time.Hour // the test binary has a shorter limit
	config.KeepAlive = time.Second // so that one that only waits learns that its process was killed
	c, err := kcp.Dial("udp4", addr.String(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Abort(0, "") })
	_, err = c.Write([]byte("?"))
	require.NoError(t, err)
	var b [8]byte
	_, err = io.ReadFull(c, b[:])
	require.NoError(t, err)
	require.Equal(t, name, strings.TrimSpace(string(b[:])))
	return &client{c, t, 1}
}

// echoes checks that n bytes come back.
func (c *client) echoes(n int) {
	c.t.Helper()
	want := testenv.Content(c.seed, n)
	c.seed++
	go func() { _, _ = c.Write(want) }()
	testenv.Receive(c.t, c, want)
}

// isReset checks that the server has lost the session, and says so before the client
// finds it silent.
func (c *client) isReset() {
	c.t.Helper()
	if _, err := c.Write([]byte("?")); err != nil {
		require.ErrorIs(c.t, err, kcp.ErrReset) // a keep-alive may have asked before
	}
	_, err := io.Copy(io.Discard, c)
	require.ErrorIs(c.t, err, kcp.ErrReset)
}
