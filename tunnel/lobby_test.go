package tunnel

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// guest enters a lobby from an address, and notes that it was ended.
func guest(l *lobby, ip string, ended *[]string) *visitor {
	return l.enter(&net.UDPAddr{IP: net.ParseIP(ip)}, func() { *ended = append(*ended, ip) })
}

// When the lobby is full, the network that has most makes room, and the oldest in it.
func TestLobbyMakesRoom(t *testing.T) {
	for name, networks := range map[string]func(i int) string{
		"eight addresses":      func(i int) string { return fmt.Sprintf("192.0.%d.1", i%8) },
		"eight networks":       func(i int) string { return fmt.Sprintf("192.0.%d.%d", i%8, i/8) },
		"many of one of IPv6":  func(i int) string { return fmt.Sprintf("2001:db8:1:%x::1", i) },
		"addresses of one /64": func(i int) string { return fmt.Sprintf("2001:db8:%d::%x", i%8, i) },
	} {
		t.Run(name, func(t *testing.T) {
			var l lobby
			var ended []string
			for i := range 2 * maxUnknown {
				guest(&l, networks(i), &ended)
			}
			require.Len(t, l.visitors, maxUnknown)
			for i, ip := range ended {
				require.Equal(t, networks(i), ip, "oldest first")
			}
			ended = nil
			var users []*visitor
			for i := range 27 {
				users = append(users, guest(&l, fmt.Sprintf("198.51.%d.1", i), &ended))
				for j := range 8 {
					guest(&l, networks(i*8+j), &ended)
				}
			}
			require.Len(t, ended, 27*9)
			for _, ip := range ended {
				require.False(t, strings.HasPrefix(ip, "198"), "a user was ended")
			}
			for _, v := range users {
				l.leave(v)
				l.leave(v)
			}
			require.Len(t, l.visitors, maxUnknown-27)
		})
	}
}

// A network that has its share makes room for its own sessions, although others have more
// around them. One that has less makes room only if no other network has more.
func TestNetworkMakesRoom(t *testing.T) {
	const mine, other = "198.51.100.1", "203.0.113.1"
	for _, test := range []struct {
		mine, other int
		ended       string
	}{
		{maxUnknownEach - 1, maxUnknownEach, other}, // it has not the most
		{maxUnknownEach / 4, maxUnknownEach / 2, other},
		{maxUnknownEach / 2, maxUnknownEach / 4, mine},
	} {
		var l lobby
		var ended []string
		for i := range maxUnknown {
			switch {
			case i < test.mine:
				guest(&l, mine, &ended)
			case i < test.mine+test.other:
				guest(&l, other, &ended)
			default:
				guest(&l, fmt.Sprintf("10.0.%d.1", i), &ended)
			}
		}
		require.Empty(t, ended)
		guest(&l, mine, &ended)
		require.Equal(t, []string{test.ended}, ended)
	}

	var l lobby
	var ended []string
	for i := range 100 {
		guest(&l, fmt.Sprintf("203.0.113.%d", i), &ended)
	}
	for range maxUnknownEach + 1 {
		guest(&l, mine, &ended)
	}
	require.Equal(t, []string{mine}, ended, "it has its share, and others have more")
}

func TestLobby(t *testing.T) {
	var l lobby
	var ended []string
	for i := range maxUnknownEach + 3 {
		guest(&l, "192.0.2.1", &ended)
		require.Len(t, l.visitors, min(i+1, maxUnknownEach))
	}
	require.Len(t, ended, 3, "of one network")

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

// Strangers that do not say who they are leave room for users, of their own address too,
// and have one stream each.
func TestStrangersLeaveRoom(t *testing.T) {
	checkLeaks(t)
	s := startServer(t, everything, nil)
	var strangers []*kcp.Conn
	for i := range maxUnknownEach {
		strangers = append(strangers, raw(t, s))
		_ = start(t, strangers[i], opening{kind: kindHello}.append(nil))
		waitFor(t, func() bool { // the first is the oldest
			s.lobby.mu.Lock()
			defer s.lobby.mu.Unlock()
			return len(s.lobby.visitors) == i+1
		})
	}
	at := target(t, echo)
	for _, bind := range []string{"127.0.0.1", "127.0.0.2"} {
		config := clientConfig(t, s, "0:"+at)
		config.Binds = []string{bind}
		exchange(t, dial(t, startClient(t, config).address(t)), 1000)
	}
	<-strangers[0].Done()
	var closed *kcp.PeerCloseError
	require.ErrorAs(t, strangers[0].Err(), &closed)
	require.EqualValues(t, closeRoom, closed.Code)
	waitFor(t, func() bool { return strings.Contains(s.log.String(), errFull.Error()) })
	for _, stranger := range strangers[1:] {
		require.NoError(t, stranger.Err(), "one made room for the user of the same address")
	}
}
