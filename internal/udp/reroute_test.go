package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	peer4, peer6 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	old4, new4   = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	old6, new6   = netip.MustParseAddr("2001:db8:1::1"), netip.MustParseAddr("2001:db8:2::1")
	link6, peerL = netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::9%eth0")
)

// step is a look, and what has to follow from it.
type step struct {
	after  time.Duration // since the look before; 0: RouteEvery
	socket SocketState
	route  Route
	want   RouteOutcome
}

// One row is one story of a socket: the looks follow each other.
func TestDecide(t *testing.T) {
	t.Parallel()
	old := SocketState{Connected: true, Source: old4}
	dead := SocketState{Source: old4}
	same, other, none := Route{Source: old4}, Route{Source: new4}, Route{Err: syscall.ENETUNREACH}
	for _, tc := range []struct {
		name  string
		stays bool // the sessions do not survive another address
		peer  netip.Addr
		steps []step
	}{
		{"nothing has changed", false, peer4, []step{{0, old, same, RouteKept}, {0, old, same, RouteKept}}},
		{"another address", false, peer4, []step{{0, old, other, RouteChanged}, {0, SocketState{Connected: true, Source: new4}, other, RouteKept}}},
		{"no route, then the old address", false, peer4, []step{{0, old, none, RouteMissing}, {0, old, none, RouteMissing}, {0, old, same, RouteBack}, {0, old, same, RouteKept}}},
		{"no route, then another address", false, peer4, []step{{0, old, none, RouteMissing}, {0, old, other, RouteChanged}}},
		{"destroyed", false, peer4, []step{{0, dead, same, RouteChanged}, {0, old, same, RouteKept}}},
		{"destroyed without a route", false, peer4, []step{{0, dead, none, RouteMissing}, {0, dead, same, RouteChanged}}},
		{"destroyed, where the address matters", true, peer4, []step{{0, dead, same, RouteChanged}}},
		{"destroyed with another address", true, peer4, []step{{0, dead, other, RouteChanged}}},
		{"the address matters", true, peer4, []step{{0, old, other, RouteDoubted}, {0, old, other, RouteKept}, {0, old, other, RouteChanged}}},
		{"the address matters, and comes back", true, peer4, []step{
			{0, old, other, RouteDoubted}, {0, old, other, RouteKept}, {0, old, same, RouteKept}, {0, old, other, RouteDoubted}, {0, old, other, RouteKept}, {0, old, other, RouteChanged}}},
		{"the address matters, and the session was alive between", true, peer4, []step{
			{0, old, other, RouteDoubted}, {0, old, other, RouteKept}, {time.Minute, old, other, RouteDoubted}, {0, old, other, RouteKept}, {0, old, other, RouteChanged}}},
		{"cannot be asked", false, peer4, []step{{0, old, Route{Unknown: true}, RouteChanged}}},
		{"cannot be asked, and the address matters", true, peer4, []step{
			{0, old, Route{Unknown: true}, RouteDoubted}, {0, old, Route{Unknown: true}, RouteKept}, {0, old, Route{Unknown: true}, RouteChanged}}},
		{"destroyed, and cannot be asked", true, peer4, []step{{0, dead, Route{Unknown: true}, RouteChanged}}},
		{"another interface of one name", false, peer4, []step{
			{0, SocketState{true, old4, "?"}, Route{Source: old4, Device: "usb0"}, RouteChanged}, {0, SocketState{true, old4, "usb0"}, Route{Source: old4, Device: "usb0"}, RouteKept}}},
		{"IPv6", false, peer6, []step{{0, SocketState{Connected: true, Source: old6}, Route{Source: new6}, RouteChanged}}},
		{"duplicate address detection", false, peer6, []step{
			{0, SocketState{Connected: true, Source: old6}, Route{Source: link6}, RouteMissing}, {0, SocketState{Connected: true, Source: old6}, Route{Source: old6}, RouteBack}}},
		{"link-local, as before", false, peer6, []step{{0, SocketState{Connected: true, Source: link6}, Route{Source: link6}, RouteKept}}},
		{"link-local, as before, destroyed", false, peer6, []step{{0, SocketState{Source: link6}, Route{Source: link6}, RouteChanged}}},
		{"a neighbour", false, peerL, []step{{0, SocketState{Connected: true, Source: old6}, Route{Source: link6}, RouteChanged}}},
	} {
		w, now := RouteWatch{}, time.Hour
		for i, s := range tc.steps {
			now += max(s.after, RouteEvery)
			got := w.Decide(s.socket, s.route, tc.peer, !tc.stays, now)
			require.Equal(t, s.want, got, "%s: look %d", tc.name, i+1)
			if got == RouteChanged {
				w.Connected(true)
			}
		}
	}
}

// A socket that could not be connected has lost its route: the session sends at once when
// there is one again.
func TestConnectFails(t *testing.T) {
	t.Parallel()
	var w RouteWatch
	old, same := SocketState{Connected: true, Source: old4}, Route{Source: old4}
	require.Equal(t, RouteChanged, w.Decide(SocketState{Source: old4}, same, peer4, true, 0))
	w.Connected(false)
	require.Equal(t, RouteChanged, w.Decide(SocketState{Source: old4}, same, peer4, true, RouteEvery))
	w.Connected(true)
	require.Equal(t, RouteKept, w.Decide(old, same, peer4, true, 2*RouteEvery))
	w.Connected(false)
	require.Equal(t, RouteBack, w.Decide(old, same, peer4, true, 3*RouteEvery))
}

// While there is no route, looks become rare if no session asks for one, and begin anew
// after it was there.
func TestAgain(t *testing.T) {
	t.Parallel()
	var w RouteWatch
	old, none, same := SocketState{Connected: true, Source: old4}, Route{Err: syscall.ENETUNREACH}, Route{Source: old4}
	for range 2 {
		for i, want := range []time.Duration{RouteEvery, routeIdle, routeIdle, routeIdle} {
			require.Equal(t, RouteMissing, w.Decide(old, none, peer4, true, 0))
			require.Equal(t, want, w.Again(), "look %d", i)
		}
		require.Equal(t, RouteBack, w.Decide(old, same, peer4, true, 0))
		require.Zero(t, w.Again())
	}
}

// What errors of a socket say something about its address.
func TestConcerns(t *testing.T) {
	t.Parallel()
	for _, e := range []error{syscall.EINVAL, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EADDRNOTAVAIL,
		syscall.EDESTADDRREQ, syscall.ECONNABORTED, syscall.ENETDOWN, syscall.ENODEV} {
		require.True(t, ConcernsRoute(&net.OpError{Op: "write", Err: os.NewSyscallError("sendto", e)}), "%v", e)
	}
	for _, e := range []error{syscall.ECONNREFUSED, syscall.EMSGSIZE, syscall.ENOBUFS, syscall.EPERM, syscall.EACCES} {
		require.False(t, ConcernsRoute(fmt.Errorf("write: %w", e)), "%v", e)
	}
	require.False(t, ConcernsRoute(net.ErrClosed))
	require.False(t, ConcernsRoute(errors.New("other")))
}
