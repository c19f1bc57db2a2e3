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

// A network has its share, and no more; and there are no more than there is room for.
func TestLobby(t *testing.T) {
	l := New(most, each)
	var ended []string
	for i := range each + 3 {
		v := guest(l, "192.0.2.1", &ended)
		require.Equal(t, min(i+1, each), l.Len())
		require.False(t, v.Ended())
	}
	require.Len(t, ended, 3, "of one network")

	ended = nil // the largest network of all makes room for another one
	for i := range most - each {
		guest(l, fmt.Sprintf("10.0.%d.1", i), &ended)
	}
	require.Empty(t, ended)
	guest(l, "10.1.0.1", &ended)
	require.Equal(t, []string{"192.0.2.1"}, ended)
	require.Equal(t, most, l.Len())

	l, ended = New(most, each), nil
	for i := range 100 { // others that have more in all leave a network its share alone
		guest(l, fmt.Sprintf("203.0.113.%d", i), &ended)
	}
	for range each + 1 {
		guest(l, "198.51.100.1", &ended)
	}
	require.Equal(t, []string{"198.51.100.1"}, ended)
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
