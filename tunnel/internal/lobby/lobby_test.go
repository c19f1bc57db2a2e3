package lobby

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The bounds of the lobbies of the tests.
const most, each = 256, 32

// guest enters a lobby from an address, and notes that it was ended.
func guest(l *Lobby, ip string, ended *[]string) *Visitor {
	return l.Enter(&net.UDPAddr{IP: net.ParseIP(ip)}, func() { *ended = append(*ended, ip) })
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
			l := New(most, each)
			var ended []string
			for i := range 2 * most {
				guest(l, networks(i), &ended)
			}
			require.Equal(t, most, l.Len())
			for i, ip := range ended {
				require.Equal(t, networks(i), ip, "oldest first")
			}
			ended = nil
			var users []*Visitor
			for i := range 27 {
				users = append(users, guest(l, fmt.Sprintf("198.51.%d.1", i), &ended))
				for j := range 8 {
					guest(l, networks(i*8+j), &ended)
				}
			}
			require.Len(t, ended, 27*9)
			for _, ip := range ended {
				require.False(t, strings.HasPrefix(ip, "198"), "a user was ended")
			}
			for _, v := range users {
				l.Leave(v)
				l.Leave(v)
			}
			require.Equal(t, most-27, l.Len())
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
		{each - 1, each, other}, // it has not the most
		{each / 4, each / 2, other},
		{each / 2, each / 4, mine},
	} {
		l := New(most, each)
		var ended []string
		for i := range most {
			switch {
			case i < test.mine:
				guest(l, mine, &ended)
			case i < test.mine+test.other:
				guest(l, other, &ended)
			default:
				guest(l, fmt.Sprintf("10.0.%d.1", i), &ended)
			}
		}
		require.Empty(t, ended)
		guest(l, mine, &ended)
		require.Equal(t, []string{test.ended}, ended)
	}

	l := New(most, each)
	var ended []string
	for i := range 100 {
		guest(l, fmt.Sprintf("203.0.113.%d", i), &ended)
	}
	for range each + 1 {
		guest(l, mine, &ended)
	}
	require.Equal(t, []string{mine}, ended, "it has its share, and others have more")
}

// A network has its share, and no more.
func TestLobby(t *testing.T) {
	l := New(most, each)
	var ended []string
	for i := range each + 3 {
		v := guest(l, "192.0.2.1", &ended)
		require.Equal(t, min(i+1, each), l.Len())
		require.False(t, v.Ended())
	}
	require.Len(t, ended, 3, "of one network")
}

// A session that was ended to make room knows it, and may leave as any other.
func TestEnded(t *testing.T) {
	l := New(1, 1)
	var ended []string
	a, b := guest(l, "192.0.2.1", &ended), guest(l, "192.0.2.2", &ended)
	require.True(t, a.Ended())
	require.False(t, b.Ended())
	for range 2 {
		l.Leave(a)
		require.Equal(t, 1, l.Len())
	}
	for range 2 {
		l.Leave(b)
		require.Zero(t, l.Len())
	}
	require.Equal(t, []string{"192.0.2.1"}, ended)
}

// Strangers cause few records, and what was left out is counted.
func TestWarn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(most, each)
		var b bytes.Buffer
		log := slog.New(slog.NewTextHandler(&b, nil))
		for range 1000 {
			l.Warn(log, "refused")
		}
		require.Equal(t, Records, strings.Count(b.String(), "refused"))
		time.Sleep(time.Second/Records - 1)
		l.Warn(log, "refused")
		require.Equal(t, Records, strings.Count(b.String(), "refused"))
		time.Sleep(time.Nanosecond)
		l.Warn(log, "refused", "client", "a")
		require.Contains(t, b.String(), `msg=refused client=a "records left out before"=991`)
	})
}
