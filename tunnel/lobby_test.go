package tunnel

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLobby(t *testing.T) {
	var l lobby
	one := &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1)}
	for range maxUnknownEach {
		require.True(t, l.enter(one))
	}
	require.False(t, l.enter(one), "one network")
	n := maxUnknownEach
	for i := 0; n < maxUnknown; i++ {
		require.True(t, l.enter(&net.UDPAddr{IP: net.IPv4(192, 0, 3, byte(i))}))
		n++
	}
	other := &net.UDPAddr{IP: net.IPv4(192, 0, 4, 1)}
	require.False(t, l.enter(other), "all networks")
	l.leave(one)
	require.True(t, l.enter(other))
	require.False(t, l.enter(one))
	for range maxUnknownEach - 1 {
		l.leave(one)
	}
	require.NotContains(t, l.each, network(one))

	now := time.Now()
	for range strangerRecords {
		ok, leftOut := l.record(now)
		require.True(t, ok)
		require.Zero(t, leftOut)
	}
	for range 3 {
		ok, _ := l.record(now.Add(time.Second - 1))
		require.False(t, ok)
	}
	ok, leftOut := l.record(now.Add(time.Second))
	require.True(t, ok)
	require.Equal(t, 3, leftOut)
}

// Strangers that do not say who they are leave room for a user from elsewhere, and
// hold one stream each.
func TestStrangersLeaveRoom(t *testing.T) {
	checkLeaks(t)
	s := startServer(t, everything, func(c *ServerConfig) { c.Addr = "0.0.0.0:0" })
	_, port, err := net.SplitHostPort(s.Addr().String())
	require.NoError(t, err)
	for range maxUnknownEach {
		_ = start(t, raw(t, s), opening{kind: kindHello}.append(nil))
	}
	waitFor(t, func() bool {
		s.lobby.mu.Lock()
		defer s.lobby.mu.Unlock()
		return s.lobby.unknown == maxUnknownEach
	})
	further := raw(t, s)
	select {
	case <-further.Done():
	case <-time.After(patience):
		t.Fatal("a further session of the same address lives")
	}
	config := clientConfig(t, s, "0:"+target(t, echo))
	config.Servers, config.Binds = []string{"127.0.0.1:" + port}, []string{"127.0.0.2"}
	exchange(t, dial(t, startClient(t, config).address(t)), 1000)
}
